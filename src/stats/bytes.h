/* Types of 8 bits and less: the 256 values of a byte are counted and everything is derived from the
 * counts. */
#ifndef TP_STATS_BYTES_H
#define TP_STATS_BYTES_H

#include <stdbool.h>
#include <stddef.h>

#include "stats/kernels.h"
#include "stats/merge.h"

/* What a code stands for. A code is a byte, or half of one in types of 4 bits. */
typedef struct tp_byte_type {
    const char *name;      /* of the kernel, as in "f8_e5m2_bytes" */
    unsigned per_byte;     /* elements in a byte: 1, or 2 with the first in the low half */
    double value[256];     /* by code; 16 of them in types of 4 bits */
    double magnitude[256]; /* by byte: the largest |x| in it that is not NaN; -1 if none */
    unsigned ranks;        /* bytes that have a magnitude */
    uint8_t falling[256];  /* these, by falling magnitude */
    double normal;         /* as in tp_bounds */
} tp_byte_type;

/* NULL when elements of this dtype are larger than a byte. Static. Any thread. */
const tp_byte_type *tp_byte_type_of(uint32_t dtype);

/* Occurrences of each byte. Start with zeros and with best = 256. */
typedef struct tp_byte_counts {
    uint64_t of[256];
    unsigned best; /* index in `falling` of the largest magnitude so far */
} tp_byte_counts;

/* From this many bytes on they are counted in pairs, faster; it pays to bring more at a time. */
#define TP_BYTES_PAIRED (512U << 10)

/* n below 2^32. True when these bytes hold a larger magnitude than all before them. */
bool tp_bytes_add(const tp_byte_type *type, tp_byte_counts *counts, const void *data, size_t n);

/* Occurrences of each code; returns how many codes there are: 256 or 16. */
unsigned tp_bytes_codes(const tp_byte_type *type, const tp_byte_counts *counts,
                        uint64_t codes[256]);

/* Derives counts and extremes (*seen; its sums are not used), the sums and the largest |x| (-1 when
 * there is none) of everything that was added. */
void tp_bytes_derive(const tp_byte_type *type, const tp_byte_counts *counts, double eps,
                     tp_block *seen, tp_part *part, double *abs_max);

/* The first element (not byte) of these n bytes with |x| = magnitude; it must be there. */
size_t tp_bytes_find(const tp_byte_type *type, const void *data, size_t n, double magnitude);

#endif
