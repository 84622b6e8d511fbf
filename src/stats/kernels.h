/* The table of kernels that tp_stats_compute uses; tests run each instruction set through it. */
#ifndef TP_STATS_KERNELS_H
#define TP_STATS_KERNELS_H

#include "tensorprobe/stats.h"

/* As tp_stats_compute, with the kernels of one instruction set (TP_ISA_… of base/cpu.h).
 * *kernel names the one that really ran, as in "f32_avx2". TP_ERR_UNSUPPORTED when this CPU or this
 * build lacks it. */
tp_status tp_stats_compute_isa(const tp_tensor *tensor, double eps, int isa, tp_stats *out,
                               const char **kernel);

#endif
