#include "sinks/others.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sinks/event.h"

void tp_others_clear(tp_others *others)
{
    memset(others, 0, sizeof *others);
}

void tp_others_add(tp_others *others, uint32_t quantity, const tp_record *record,
                   const tp_columns *columns)
{
    for (uint32_t i = 0; i < columns->count; i++) {
        const uint32_t op = columns->ops[i];
        if (op == TP_OP_SHAPE || op == TP_OP_DTYPE || op == TP_OP_ID) {
            continue;
        }
        const double value = tp_stats_op(&record->u.stats, op);
        double *min = &others->values[quantity][op].min;
        double *max = &others->values[quantity][op].max;
        const uint64_t count = others->values[quantity][op].count++;
        if (count == 0 || isnan(value)) {
            *min = value;
            *max = value;
        } else if (!isnan(*min)) {
            *min = value < *min ? value : *min;
            *max = value > *max ? value : *max;
        }
    }
}

void tp_others_put(const tp_others *others, uint32_t rank, tp_buf *summary)
{
    for (uint32_t kind = 1; kind < TP_OTHERS_KINDS; kind++) {
        for (uint32_t op = 1; op <= TP_OP_COUNT; op++) {
            char tag[96];
            if (others->values[kind][op].count == 0) {
                continue;
            }
            snprintf(tag, sizeof tag, "others/rank%" PRIu32 "/%s_%s_min", rank, tp_tag_kind(kind),
                     tp_op_name(op));
            tp_event_put_scalar(summary, tag, others->values[kind][op].min, true);
            memcpy(tag + strlen(tag) - 3, "max", 3);
            tp_event_put_scalar(summary, tag, others->values[kind][op].max, true);
        }
    }
}
