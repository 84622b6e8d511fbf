#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void tp_buf_free(tp_buf *buf)
{
    tp_free(buf->data);
    *buf = (tp_buf)TP_BUF_INIT;
}

void tp_buf_clear(tp_buf *buf)
{
    buf->size = 0;
    buf->failed = false;
}

void *tp_buf_extend(tp_buf *buf, size_t size)
{
    if (buf->failed || size > SIZE_MAX - buf->size) {
        buf->failed = true;
        return NULL;
    }
    if (buf->size + size > buf->capacity) {
        size_t capacity = buf->capacity < 256 ? 256 : buf->capacity;
        while (capacity < buf->size + size) {
            capacity = capacity > SIZE_MAX / 2 ? SIZE_MAX : capacity * 2;
        }
        uint8_t *data = tp_realloc(buf->data, capacity);
        if (data == NULL) {
            buf->failed = true;
            return NULL;
        }
        buf->data = data;
        buf->capacity = capacity;
    }
    uint8_t *room = buf->data == NULL ? NULL : buf->data + buf->size; /* NULL + 0 is undefined */
    buf->size += size;
    return room;
}

void tp_buf_put(tp_buf *buf, const void *bytes, size_t size)
{
    void *room = tp_buf_extend(buf, size);
    if (room != NULL && size > 0) {
        memcpy(room, bytes, size);
    }
}

void tp_buf_put_buf(tp_buf *buf, const tp_buf *other)
{
    tp_buf_put(buf, other->data, other->size);
    buf->failed = buf->failed || other->failed;
}

static void put_number(tp_buf *buf, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    tp_buf_put(buf, bytes, size);
}

void tp_buf_put_u16(tp_buf *buf, uint16_t value)
{
    put_number(buf, value, 2);
}

void tp_buf_put_u32(tp_buf *buf, uint32_t value)
{
    put_number(buf, value, 4);
}

void tp_buf_put_u64(tp_buf *buf, uint64_t value)
{
    put_number(buf, value, 8);
}

void tp_buf_printf(tp_buf *buf, const char *format, ...)
{
    va_list arguments;
    va_list again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t room = buf->capacity - buf->size;
    int length =
        vsnprintf(room > 0 ? (char *)buf->data + buf->size : NULL, room, format, arguments);
    va_end(arguments);
    if (length < 0) {
        buf->failed = true;
    } else if (!buf->failed && (size_t)length < room) {
        buf->size += (size_t)length;
    } else {
        char *text = tp_buf_extend(buf, (size_t)length + 1);
        if (text != NULL) {
            vsnprintf(text, (size_t)length + 1, format, again);
            buf->size--; /* the terminator does not count */
        }
    }
    va_end(again);
}

static uint64_t get_number(const uint8_t *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

uint16_t tp_get_u16(const uint8_t *bytes)
{
    return (uint16_t)get_number(bytes, 2);
}

uint32_t tp_get_u32(const uint8_t *bytes)
{
    return (uint32_t)get_number(bytes, 4);
}

uint64_t tp_get_u64(const uint8_t *bytes)
{
    return get_number(bytes, 8);
}
