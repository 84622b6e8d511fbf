/* Arrays and schemas with the memory that they own, as Arrow's C data interface wants them. */
#ifndef TP_ARROW_ARRAY_H
#define TP_ARROW_ARRAY_H

#include "arrow/abi.h"
#include "base/buf.h"
#include "tensorprobe/status.h"

/* Bytes that several arrays share; any thread may let go of one. */
typedef struct tp_shared tp_shared;

/* Takes the buffer's memory (buf is empty afterwards). NULL: no memory; buf is as it was. */
tp_shared *tp_shared_new(tp_buf *buf);
tp_shared *tp_shared_hold(tp_shared *shared);
void tp_shared_drop(tp_shared *shared); /* NULL is fine */

/* An array without buffers, its children and dictionary still released. TP_ERR_NOMEM. */
tp_status tp_array_new(struct ArrowArray *out, int64_t length, uint32_t buffers, uint32_t children,
                       bool dictionary);

/* Gives a buffer's memory to the array (buf is empty afterwards). */
void tp_array_own(struct ArrowArray *array, uint32_t index, tp_buf *buf);

/* Holds shared bytes as a buffer. */
void tp_array_share(struct ArrowArray *array, uint32_t index, tp_shared *shared);

/* format and name are static. TP_ERR_NOMEM. */
tp_status tp_schema_new(struct ArrowSchema *out, const char *format, const char *name,
                        uint32_t children, bool dictionary);

#endif
