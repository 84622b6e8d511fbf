#include "arrow/exponents.h"

bool tp_exponent_rows(const tp_batch *batch, const tp_record *record, uint32_t *bin, uint64_t most,
                      tp_row *rows, tp_exponent *exponents, uint64_t *count)
{
    tp_histogram found = {0};
    const tp_row row = rows[*count];
    tp_batch_exponents(batch, record, &found); /* none: it has no rows */
    for (; *bin < found.bin_count; ++*bin) {
        if (found.bins[*bin] == 0) {
            continue;
        }
        if (*count == most) {
            return false;
        }
        exponents[*count] = (tp_exponent){(int32_t)found.low + (int32_t)*bin, found.bins[*bin]};
        rows[*count] = row;
        rows[*count].exponent = &exponents[*count];
        ++*count;
    }
    *bin = 0;
    return true;
}
