/* A growable byte buffer with little-endian writers. A failed allocation is remembered, so that a
 * run of writes needs one check at its end. */
#ifndef TP_BASE_BUF_H
#define TP_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tp_buf {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool failed; /* an allocation failed; the content is not to be used */
} tp_buf;

#define TP_BUF_INIT                                                                                \
    {                                                                                              \
        NULL, 0, 0, false                                                                          \
    }

void tp_buf_free(tp_buf *buf);

/* Empties the buffer, keeps its memory, forgets a failure. */
void tp_buf_clear(tp_buf *buf);

/* Room for size more bytes at the end, which count as written; NULL on failure. */
void *tp_buf_extend(tp_buf *buf, size_t size);

void tp_buf_put(tp_buf *buf, const void *bytes, size_t size);

/* All of another one, its failure included: what it lacks isn't passed over. */
void tp_buf_put_buf(tp_buf *buf, const tp_buf *other);
void tp_buf_put_u16(tp_buf *buf, uint16_t value);
void tp_buf_put_u32(tp_buf *buf, uint32_t value);
void tp_buf_put_u64(tp_buf *buf, uint64_t value);
void tp_buf_printf(tp_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reading little-endian numbers from unaligned bytes. */
uint16_t tp_get_u16(const uint8_t *bytes);
uint32_t tp_get_u32(const uint8_t *bytes);
uint64_t tp_get_u64(const uint8_t *bytes);

#endif
