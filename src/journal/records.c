#include "journal/records.h"

#include <string.h>

#include "journal/differences.h"

#define RECORD_SIZE 192u
#define BATCH_HEADER_SIZE 128u
#define BATCH_HEADER_ARENA 112u /* without what stands behind its size: minor version 3 */
#define BATCH_HEADER_LEAST 104u /* without an arena: minor version 0 */
#define ALERTS_HEADER_SIZE 16u

/* Records that stay in the first-level cache while their bytes are dealt out. */
#define TILE 64u

_Static_assert(sizeof(tp_record) == RECORD_SIZE, "a record is three cache lines");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "records are stored as they lie in memory, and bytes are counted so in words");

static inline void exchange(uint64_t *a, uint64_t *b, unsigned bits, uint64_t mask)
{
    const uint64_t t = (*a >> bits ^ *b) & mask;
    *a ^= t << bits;
    *b ^= t;
}

/* Rows of 8 bytes become columns: byte b of word k becomes byte k of word b. */
static inline void turn(uint64_t w[8])
{
    const uint64_t bytes = UINT64_C(0x00ff00ff00ff00ff);
    const uint64_t pairs = UINT64_C(0x0000ffff0000ffff);
    const uint64_t halves = UINT64_C(0x00000000ffffffff);
    exchange(&w[0], &w[1], 8, bytes);
    exchange(&w[2], &w[3], 8, bytes);
    exchange(&w[4], &w[5], 8, bytes);
    exchange(&w[6], &w[7], 8, bytes);
    exchange(&w[0], &w[2], 16, pairs);
    exchange(&w[1], &w[3], 16, pairs);
    exchange(&w[4], &w[6], 16, pairs);
    exchange(&w[5], &w[7], 16, pairs);
    exchange(&w[0], &w[4], 32, halves);
    exchange(&w[1], &w[5], 32, halves);
    exchange(&w[2], &w[6], 32, halves);
    exchange(&w[3], &w[7], 32, halves);
}

/* Up to 8 rows of up to 8 bytes become columns. */
static inline void turn_block(uint8_t *to, uint64_t to_stride, const uint8_t *from,
                              uint64_t from_stride, unsigned rows, unsigned columns)
{
    uint64_t w[8];
    if (rows == 8 && columns == 8) {
        for (unsigned k = 0; k < 8; k++) {
            memcpy(&w[k], from + k * from_stride, 8);
        }
        turn(w);
        for (unsigned k = 0; k < 8; k++) {
            memcpy(to + k * to_stride, &w[k], 8);
        }
        return;
    }
    for (unsigned i = 0; i < rows; i++) {
        for (unsigned k = 0; k < columns; k++) {
            to[k * to_stride + i] = from[i * from_stride + k];
        }
    }
}

static inline unsigned at_most_8(uint64_t count)
{
    return count < 8 ? (unsigned)count : 8;
}

/* Deals out the bytes of items from `first` up to `end` (not included). */
static void deal_out(uint8_t *planes, const uint8_t *items, uint32_t size, uint64_t count,
                     uint64_t first, uint64_t end)
{
    for (uint32_t p = 0; p < size; p += 8) {
        for (uint64_t i = 0; i < end - first; i += 8) {
            turn_block(planes + p * count + first + i, count, items + i * size + p, size,
                       at_most_8(end - first - i), 8);
        }
    }
}

/* The inverse. */
static void gather(uint8_t *items, const uint8_t *planes, uint32_t size, uint64_t count,
                   uint64_t first, uint64_t end)
{
    for (uint32_t p = 0; p < size; p += 8) {
        for (uint64_t i = 0; i < end - first; i += 8) {
            turn_block(items + i * size + p, size, planes + p * count + first + i, count, 8,
                       at_most_8(end - first - i));
        }
    }
}

static uint8_t *make_planes(tp_buf *out, uint32_t size, uint64_t count)
{
    if (count > SIZE_MAX / size) {
        out->failed = true;
        return NULL;
    }
    return tp_buf_extend(out, count * size);
}

void tp_planes_put(tp_buf *out, const void *items, uint32_t size, uint64_t count)
{
    uint8_t *planes = make_planes(out, size, count);
    for (uint64_t tile = 0; planes != NULL && tile < count; tile += TILE) {
        uint64_t end = count - tile < TILE ? count : tile + TILE;
        deal_out(planes, (const uint8_t *)items + tile * size, size, count, tile, end);
    }
}

/* As differences. */
static void put_records(tp_buf *out, const tp_record *records, uint64_t count)
{
    uint64_t time = 0;
    uint8_t *planes = make_planes(out, RECORD_SIZE, count);
    for (uint64_t tile = 0; planes != NULL && tile < count; tile += TILE) {
        tp_record made[TILE];
        uint64_t end = count - tile < TILE ? count : tile + TILE;
        tp_differences_make(made, records + tile, end - tile, &time);
        deal_out(planes, (const uint8_t *)made, RECORD_SIZE, count, tile, end);
    }
}

tp_status tp_planes_get(const uint8_t *planes, uint64_t available, uint32_t stored_size,
                        uint32_t size, uint64_t count, tp_buf *items)
{
    tp_buf_clear(items);
    if (stored_size < size || count > available / stored_size) {
        return TP_ERR_CORRUPT;
    }
    if (count == 0) {
        return TP_OK;
    }
    uint8_t *bytes = tp_buf_extend(items, count * size);
    if (bytes == NULL) {
        return TP_ERR_NOMEM;
    }
    for (uint64_t tile = 0; tile < count; tile += TILE) {
        uint64_t end = count - tile < TILE ? count : tile + TILE;
        gather(bytes + tile * size, planes, size, count, tile, end);
    }
    return TP_OK;
}

void tp_records_put_batch(tp_buf *out, const tp_batch *batch)
{
    tp_buf_put_u32(out, BATCH_HEADER_SIZE);
    tp_buf_put_u32(out, RECORD_SIZE);
    tp_buf_put_u64(out, batch->step);
    tp_buf_put_u32(out, batch->rank);
    tp_buf_put_u32(out, batch->attempt);
    tp_buf_put_u32(out, (uint32_t)batch->pp_stage);
    tp_buf_put_u32(out, batch->flags);
    tp_buf_put_u32(out, batch->micro_steps);
    tp_buf_put_u32(out, batch->unfilled);
    tp_buf_put_u64(out, batch->begin_ns);
    tp_buf_put_u64(out, batch->end_ns);
    tp_buf_put_u64(out, (uint64_t)batch->wall_ns);
    tp_buf_put_u64(out, batch->hook_ns);
    tp_buf_put_u64(out, batch->wait_ns);
    tp_buf_put_u64(out, batch->writer_ns);
    tp_buf_put_u64(out, batch->errors);
    tp_buf_put_u64(out, batch->count);
    const bool gap = (batch->flags & TP_BATCH_GAP) != 0;
    tp_buf_put_u64(out, gap ? 0 : batch->arena_size);
    tp_buf_put_u64(out, batch->bytes);
    tp_buf_put_u32(out, batch->left_out);
    tp_buf_put_u32(out, batch->zoom);
    if (!gap) {
        put_records(out, batch->records, batch->count);
        if (batch->arena_size > 0) {
            tp_buf_put(out, batch->arena, batch->arena_size);
        }
    }
}

void tp_records_put_alerts(tp_buf *out, const tp_record *alerts, uint64_t count)
{
    tp_buf_put_u32(out, ALERTS_HEADER_SIZE);
    tp_buf_put_u32(out, RECORD_SIZE);
    tp_buf_put_u64(out, count);
    tp_planes_put(out, alerts, RECORD_SIZE, count);
}

/* What lies behind the records, `size` bytes of it. */
static tp_status get_arena(const uint8_t *from, uint64_t size, uint64_t wanted, tp_buf *arena,
                           tp_batch *batch)
{
    if (wanted > size) {
        return TP_ERR_CORRUPT;
    }
    tp_buf_clear(arena);
    if (wanted > 0) {
        tp_buf_put(arena, from, wanted);
        batch->arena = arena->data;
        batch->arena_size = wanted;
    }
    return arena->failed ? TP_ERR_NOMEM : TP_OK;
}

tp_status tp_records_get_batch(const tp_buf *payload, tp_batch *batch, tp_buf *records,
                               tp_buf *arena)
{
    const uint8_t *p = payload->data;
    if (payload->size < BATCH_HEADER_LEAST) {
        return TP_ERR_CORRUPT;
    }
    uint32_t header_size = tp_get_u32(p);
    if (header_size < BATCH_HEADER_LEAST || header_size > payload->size) {
        return TP_ERR_CORRUPT;
    }
    batch->step = tp_get_u64(p + 8);
    batch->rank = tp_get_u32(p + 16);
    batch->attempt = tp_get_u32(p + 20);
    batch->pp_stage = (int32_t)tp_get_u32(p + 24);
    batch->flags = tp_get_u32(p + 28);
    batch->micro_steps = tp_get_u32(p + 32);
    batch->unfilled = tp_get_u32(p + 36);
    batch->begin_ns = tp_get_u64(p + 40);
    batch->end_ns = tp_get_u64(p + 48);
    batch->wall_ns = (int64_t)tp_get_u64(p + 56);
    batch->hook_ns = tp_get_u64(p + 64);
    batch->wait_ns = tp_get_u64(p + 72);
    batch->writer_ns = tp_get_u64(p + 80);
    batch->errors = tp_get_u64(p + 88);
    batch->count = tp_get_u64(p + 96);
    batch->records = NULL;
    batch->arena = NULL;
    batch->arena_size = 0;
    const bool told = header_size >= BATCH_HEADER_SIZE;
    batch->bytes = told ? tp_get_u64(p + 112) : 0;
    batch->left_out = told ? tp_get_u32(p + 120) : 0;
    batch->zoom = told ? tp_get_u32(p + 124) : 0;
    if ((batch->flags & TP_BATCH_GAP) != 0) {
        return TP_OK;
    }
    const uint32_t record_size = tp_get_u32(p + 4);
    const uint64_t size = payload->size - header_size;
    tp_status status =
        tp_planes_get(p + header_size, size, record_size, RECORD_SIZE, batch->count, records);
    batch->records = (const tp_record *)(const void *)records->data;
    if (status == TP_OK) {
        tp_differences_undo((tp_record *)(void *)records->data, batch->count);
    }
    if (status == TP_OK && header_size >= BATCH_HEADER_ARENA) {
        const uint64_t before = record_size * batch->count;
        status =
            get_arena(p + header_size + before, size - before, tp_get_u64(p + 104), arena, batch);
    }
    return status;
}

tp_status tp_records_get_alerts(const tp_buf *payload, tp_batch *batch, tp_buf *records)
{
    const uint8_t *p = payload->data;
    if (payload->size < ALERTS_HEADER_SIZE) {
        return TP_ERR_CORRUPT;
    }
    uint32_t header_size = tp_get_u32(p);
    if (header_size < ALERTS_HEADER_SIZE || header_size > payload->size) {
        return TP_ERR_CORRUPT;
    }
    batch->count = tp_get_u64(p + 8);
    tp_status status = tp_planes_get(p + header_size, payload->size - header_size,
                                     tp_get_u32(p + 4), RECORD_SIZE, batch->count, records);
    batch->records = (const tp_record *)(const void *)records->data;
    return status;
}

tp_frame_cut tp_records_cut(const tp_batch *batch)
{
    return (tp_frame_cut){
        .head = BATCH_HEADER_SIZE, .piece = (size_t)batch->count * 8, .count = RECORD_SIZE / 8};
}

/* What has to be unpacked: the header, and the planes of these words. */
static bool wants_words(const void *context, const tp_buf *raw, size_t begin, size_t end)
{
    const uint32_t words = *(const uint32_t *)context;
    bool wants = begin < BATCH_HEADER_SIZE;
    if (!wants) {
        const uint64_t header = tp_get_u32(raw->data);
        const uint64_t piece = tp_get_u64(raw->data + 96) * 8;
        for (uint64_t w = 0; w < RECORD_SIZE / 8 && !wants; w++) {
            wants = (words >> w & 1) != 0 && begin < header + (w + 1) * piece &&
                    end > header + w * piece;
        }
    }
    return wants;
}

/* Gathers the planes of one word. */
static void gather_word(uint8_t *items, const uint8_t *planes, uint64_t count, uint32_t word)
{
    uint64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t w[8];
        for (unsigned k = 0; k < 8; k++) {
            memcpy(&w[k], planes + k * count + i, 8);
        }
        turn(w);
        for (unsigned k = 0; k < 8; k++) {
            memcpy(items + (i + k) * RECORD_SIZE + (size_t)word * 8, &w[k], 8);
        }
    }
    for (; i < count; i++) {
        for (unsigned k = 0; k < 8; k++) {
            items[i * RECORD_SIZE + (size_t)word * 8 + k] = planes[k * count + i];
        }
    }
}

tp_status tp_records_get_words(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                               uint32_t words, tp_buf *payload, tp_buf *records, uint64_t *count)
{
    tp_status status = tp_frame_unpack_some(frame, stored, unpacker, wants_words, &words, payload);
    const uint8_t *p = payload->data;
    if (status != TP_OK || payload->size < BATCH_HEADER_LEAST) {
        return status != TP_OK ? status : TP_ERR_CORRUPT;
    }
    const uint64_t header = tp_get_u32(p);
    *count = (tp_get_u32(p + 28) & TP_BATCH_GAP) != 0 ? 0 : tp_get_u64(p + 96);
    if (header < BATCH_HEADER_LEAST || header > payload->size || tp_get_u32(p + 4) < RECORD_SIZE ||
        *count > (payload->size - header) / RECORD_SIZE) {
        return TP_ERR_CORRUPT;
    }
    const size_t size = *count * RECORD_SIZE;
    if (records->size < size) {
        const size_t more = size - records->size;
        uint8_t *room = tp_buf_extend(records, more);
        if (room == NULL) {
            return TP_ERR_NOMEM;
        }
        memset(room, 0, more);
    }
    for (uint32_t word = 0; word < RECORD_SIZE / 8; word++) {
        if ((words >> word & 1) != 0) {
            gather_word(records->data, p + header + (uint64_t)word * 8 * *count, *count, word);
        }
    }
    tp_differences_undo((tp_record *)(void *)records->data, *count);
    return TP_OK;
}
