#include "journal/differences.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define FLAG (UINT32_C(1) << 31) /* of a record in a journal: its fields are differences */

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double value_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double exclusive_or(double value, double with)
{
    return value_of(bits_of(value) ^ bits_of(with));
}

/* What the other fields say of the largest magnitude. */
static double guess_abs_max(const tp_stats *stats)
{
    const double low = fabs(stats->finite_min);
    const double high = fabs(stats->finite_max);
    return low > high ? low : high;
}

/* And of the second moment. Not of NaN, whose bits depend on the machine. */
static uint64_t guess_m2(const tp_stats *stats)
{
    const double guess = stats->sum_sq - stats->sum * stats->sum / (double)stats->count;
    return isfinite(guess) ? bits_of(guess) : 0;
}

static bool is_made(const tp_record *record)
{
    return record->kind == TP_RECORD_STATS && (record->flags & FLAG) != 0;
}

void tp_differences_make(tp_record *to, const tp_record *from, uint64_t count, uint64_t *time)
{
    for (uint64_t i = 0; i < count; i++) {
        to[i] = from[i];
        if (from[i].kind == TP_RECORD_STATS) {
            const tp_stats *given = &from[i].u.stats;
            tp_stats *stats = &to[i].u.stats;
            to[i].flags |= FLAG;
            to[i].time_ns -= *time;
            stats->finite_min = exclusive_or(given->finite_min, given->min);
            stats->finite_max = exclusive_or(given->finite_max, given->max);
            stats->abs_max = exclusive_or(given->abs_max, guess_abs_max(given));
            /* The sign goes to the lowest bit, so that a small difference has small bytes. */
            const uint64_t difference = bits_of(given->m2) - guess_m2(given);
            stats->m2 = value_of(difference << 1 ^ (0 - (difference >> 63)));
        }
        *time = from[i].time_ns;
    }
}

void tp_differences_undo(tp_record *records, uint64_t count)
{
    uint64_t time = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (is_made(&records[i])) {
            tp_stats *stats = &records[i].u.stats;
            records[i].flags &= ~FLAG;
            records[i].time_ns += time;
            stats->finite_min = exclusive_or(stats->finite_min, stats->min);
            stats->finite_max = exclusive_or(stats->finite_max, stats->max);
            stats->abs_max = exclusive_or(stats->abs_max, guess_abs_max(stats));
            const uint64_t difference = bits_of(stats->m2);
            stats->m2 = value_of((difference >> 1 ^ (0 - (difference & 1))) + guess_m2(stats));
        }
        time = records[i].time_ns;
    }
}
