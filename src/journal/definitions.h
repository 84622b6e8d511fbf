/* Names and shapes in a journal. An id means the same within one segment; a later segment of a run
 * that was started again may give it another meaning. */
#ifndef TP_JOURNAL_DEFINITIONS_H
#define TP_JOURNAL_DEFINITIONS_H

#include "base/buf.h"
#include "base/map.h"
#include "record/registry.h"

/* Appends the entries of keys and shapes from these ids on up to (not including) those. */
void tp_definitions_put(tp_buf *out, const tp_registry *registry, uint32_t key_from,
                        uint32_t key_to, uint32_t shape_from, uint32_t shape_to);

struct tp_definition;

/* One kind of definitions. Ids may have holes (a damaged frame), so they are looked up in a map. */
typedef struct tp_definition_table {
    tp_map places;  /* id -> index in latest */
    tp_buf latest;  /* struct tp_definition * */
    uint32_t count; /* of this segment: the highest id + 1 */
} tp_definition_table;

/* What a reader has learnt. Zeroed is empty. Definitions that got another meaning stay in memory,
 * so that pointers handed out are good until free. */
typedef struct tp_definitions {
    tp_definition_table keys;
    tp_definition_table shapes;
    uint64_t segments; /* how many have been begun */
} tp_definitions;

void tp_definitions_free(tp_definitions *definitions);

/* A new segment begins: nothing is defined until its definitions have been taken in. */
void tp_definitions_begin(tp_definitions *definitions);

/* Takes in a payload. TP_ERR_CORRUPT, TP_ERR_NOMEM: part of it may have been taken in. */
tp_status tp_definitions_get(tp_definitions *definitions, const tp_buf *payload);

const tp_key *tp_definitions_key(const tp_definitions *definitions, uint32_t id);
/* One after the other, as tp_reader_next_key. */
const tp_key *tp_definitions_next_key(const tp_definitions *definitions, uint64_t *place,
                                      uint32_t *id);

const int64_t *tp_definitions_shape(const tp_definitions *definitions, uint32_t id, uint32_t *ndim);

#endif
