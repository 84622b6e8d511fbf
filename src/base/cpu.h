/* What the processor can do. */
#ifndef TP_BASE_CPU_H
#define TP_BASE_CPU_H

#define TP_ISA_SCALAR 0
#define TP_ISA_AVX2 1   /* AVX2, FMA, F16C */
#define TP_ISA_AVX512 2 /* F, BW, DQ, VL besides */
#define TP_ISA_NEON 3   /* every AArch64 has it, which has none of the others */

/* The best level that the CPU and the operating system allow, lowered by TENSORPROBE_ISA ("scalar",
 * "avx2", "avx512", "neon"; an unknown name is reported and ignored). Found once. Any thread. */
int tp_cpu_isa(void);

/* The best level whatever the environment says. */
int tp_cpu_isa_supported(void);

const char *tp_cpu_isa_name(int isa);

#endif
