/* What both file sinks need to know of a record: its value in a column, and bytes that are built
 * once for a series and used again at every step. */
#ifndef TP_SINKS_SERIES_H
#define TP_SINKS_SERIES_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/map.h"
#include "sinks/sink.h"

/* Longest row name that is written; longer ones are cut. */
#define TP_ROW_NAME_MAX 4352 /* of 4,096 bytes, with what comes behind */

/* Micro steps are told apart for activations and their gradients, and where it was asked for those
 * of parameters before their reduction; other quantities exist once a step. */
bool tp_has_micro_step(const tp_sink_options *options, uint32_t quantity);

/* The statistics that are written of a quantity: the configured ones, but of a scalar its value. */
typedef struct tp_columns {
    const uint32_t *ops;
    uint32_t count;
} tp_columns;

tp_columns tp_columns_of(uint32_t quantity, const tp_sink_options *options);

/* tp_stats_op, but the value itself (TP_OP_ID) only of tensors without dimensions. */
double tp_column_value(const tp_record *record, uint32_t op, uint32_t ndim);

/* The kind in it; NULL: of a newer version. Static. */
const char *tp_tag_kind(uint32_t quantity);

/* "<vpp>:<row>[:<micro step>]/rank<R>/<kind>": the ancestors' name of a series. */
#define TP_TAG_MAX (TP_ROW_NAME_MAX + 64)
void tp_series_tag(const tp_sink_options *options, const tp_key *key, const tp_record *record,
                   char tag[TP_TAG_MAX]);

typedef struct tp_series {
    uint32_t key; /* id in the registry */
    uint32_t call;
    uint32_t micro_step;
} tp_series;

typedef struct tp_blocks {
    tp_map index; /* series → offset in bytes of its block: its size (u32), then itself */
    tp_buf bytes;
    tp_buf first; /* uint32_t by key: offset + 1 of its first call and micro step; 0: none */
} tp_blocks;

/* NULL when the series has no block yet. Valid until the next tp_blocks_add. */
const uint8_t *tp_blocks_find(const tp_blocks *blocks, const tp_series *series, size_t *size);
tp_status tp_blocks_add(tp_blocks *blocks, const tp_series *series, const tp_buf *block);
void tp_blocks_free(tp_blocks *blocks);

#endif
