#include "stats/hash.h"

#include <stdbool.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

#define PRIME ((UINT64_C(1) << 61) - 1)
#define R UINT64_C(0x0f58c6cd7a2c3e95)

/* x below 2^122 */
static uint64_t reduce(uint128 x)
{
    const uint64_t once = (uint64_t)(x & PRIME) + (uint64_t)(x >> 61);
    const uint64_t twice = (once & PRIME) + (once >> 61);
    return twice >= PRIME ? twice - PRIME : twice;
}

/* Both below 2^61. */
static uint64_t times(uint64_t a, uint64_t b)
{
    return reduce((uint128)a * b);
}

static uint64_t power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent > 0; exponent >>= 1) {
        result = (exponent & 1) != 0 ? times(result, base) : result;
        base = times(base, base);
    }
    return result;
}

/* 1 + base + … + base^(n - 1), by doubling. */
static uint64_t geometric(uint64_t base, uint64_t n)
{
    uint64_t sum = 0;
    uint64_t next = 1; /* base to the number of terms */
    for (int bit = 63; bit >= 0; bit--) {
        sum = times(sum, reduce((uint128)next + 1));
        next = times(next, next);
        if ((n >> bit & 1) != 0) {
            sum = reduce((uint128)times(sum, base) + 1);
            next = times(next, base);
        }
    }
    return sum;
}

/* No dimension that has more than one index lies between these two. */
static bool neighbours(const tp_tensor *tensor, uint32_t outer, uint32_t inner)
{
    for (uint32_t d = outer + 1; d < inner; d++) {
        if (tensor->shape[d] != 1) {
            return false;
        }
    }
    return outer < inner;
}

/* What a run of the innermost loop is added up with. */
static void make_tables(tp_hash *hash)
{
    const uint64_t inner = hash->loop[hash->loops - 1].step;
    for (uint32_t j = 0; j < hash->words; j++) {
        hash->table[j][0] = power(R, j);
        for (uint32_t k = 1; k < TP_HASH_RUN; k++) {
            hash->table[j][k] = times(hash->table[j][k - 1], inner);
        }
    }
    hash->run = power(inner, TP_HASH_RUN);
}

static void begin(tp_hash *hash, uint32_t element)
{
    hash->sum = 0;
    hash->expanded = 1;
    hash->word = element < 4 ? element : 4;
    hash->words = element / hash->word;
}

void tp_hash_open_sequence(tp_hash *hash, uint32_t element)
{
    begin(hash, element);
    hash->count = 0;
    hash->loops = 1;
    hash->loop[0] = (tp_hash_loop){UINT64_MAX, 0, power(R, hash->words), 1};
    make_tables(hash);
}

void tp_hash_open(tp_hash *hash, const tp_tensor *tensor, const tp_walk *walk)
{
    begin(hash, walk->element);
    hash->count = walk->count * walk->weight;
    uint64_t step[TP_MAX_DIMS];
    bool in_order[TP_MAX_DIMS] = {false};
    uint64_t factor = power(R, hash->words);
    for (uint32_t i = 0; i < walk->order_size; i++) {
        in_order[walk->order[i]] = true;
    }
    for (uint32_t d = tensor->ndim; d-- > 0 && hash->count > 0;) {
        const uint64_t size = (uint64_t)tensor->shape[d];
        step[d] = factor;
        if (!in_order[d]) {
            hash->expanded = times(hash->expanded, geometric(factor, size));
        }
        factor = power(factor, size);
    }
    hash->loops = 0;
    for (uint32_t i = 0; i < walk->order_size; i++) {
        const uint32_t d = walk->order[i];
        const uint64_t size = (uint64_t)tensor->shape[d];
        if (i > 0 && neighbours(tensor, walk->order[i - 1], d)) {
            hash->loop[hash->loops - 1].size *= size;
            hash->loop[hash->loops - 1].step = step[d];
        } else {
            hash->loop[hash->loops++] = (tp_hash_loop){size, 0, step[d], 1};
        }
    }
    if (hash->loops == 0) { /* a single element, or none */
        hash->loop[hash->loops++] = (tp_hash_loop){walk->count, 0, 1, 1};
    }
    make_tables(hash);
}

/* The word at this place; its size is a constant in the callers' loops. */
static inline uint64_t word_at(const uint8_t *at, uint32_t size)
{
    uint32_t four;
    uint16_t two;
    switch (size) {
    case 4:
        memcpy(&four, at, sizeof(four));
        return four;
    case 2:
        memcpy(&two, at, sizeof(two));
        return two;
    default:
        return *at;
    }
}

/* At most TP_HASH_RUN elements: less than 2^8 products below 2^93. */
static inline uint64_t run_of(const tp_hash *hash, const uint8_t *from, size_t n, uint32_t word)
{
    uint128 sum = 0;
    if (hash->words == 1) {
        for (size_t k = 0; k < n; k++) {
            sum += (uint128)word_at(from + k * word, word) * hash->table[0][k];
        }
        return reduce(sum);
    }
    for (size_t k = 0; k < n; k++) {
        for (uint32_t j = 0; j < hash->words; j++) {
            sum += (uint128)word_at(from + 4 * (k * hash->words + j), 4) * hash->table[j][k];
        }
    }
    return reduce(sum);
}

static uint64_t short_run(const tp_hash *hash, const uint8_t *from, size_t n)
{
    switch (hash->word) {
    case 4:
        return run_of(hash, from, n, 4);
    case 2:
        return run_of(hash, from, n, 2);
    default:
        return run_of(hash, from, n, 1);
    }
}

/* The innermost loop has ended: the next index of the loops around it. */
static void carry(tp_hash *hash)
{
    uint32_t i = hash->loops - 1;
    while (i > 0 && hash->loop[i].at == hash->loop[i].size) {
        hash->loop[i].at = 0;
        i--;
        hash->loop[i].at++;
        hash->loop[i].power = times(hash->loop[i].power, hash->loop[i].step);
    }
    for (uint32_t k = i + 1; k < hash->loops; k++) {
        hash->loop[k].power = hash->loop[i].power;
    }
}

void tp_hash_add(tp_hash *hash, const void *data, size_t n)
{
    const uint8_t *from = data;
    tp_hash_loop *inner = &hash->loop[hash->loops - 1];
    while (n > 0) {
        const uint64_t left = inner->size - inner->at;
        size_t part = n < TP_HASH_RUN ? n : TP_HASH_RUN;
        part = part < left ? part : (size_t)left;
        const uint64_t sum = times(short_run(hash, from, part), inner->power);
        hash->sum = reduce((uint128)hash->sum + sum);
        inner->power =
            times(inner->power, part == TP_HASH_RUN ? hash->run : power(inner->step, part));
        inner->at += part;
        from += part * hash->word * hash->words;
        n -= part;
        if (inner->at == inner->size) {
            carry(hash);
        }
    }
}

void tp_hash_seek(tp_hash *hash, uint64_t position)
{
    for (uint32_t i = hash->loops; i-- > 0;) {
        hash->loop[i].at = position % hash->loop[i].size;
        position /= hash->loop[i].size;
    }
    uint64_t so_far = 1;
    for (uint32_t i = 0; i < hash->loops; i++) {
        so_far = times(so_far, power(hash->loop[i].step, hash->loop[i].at));
        hash->loop[i].power = so_far;
    }
}

void tp_hash_join(tp_hash *hash, uint64_t sum)
{
    hash->sum = reduce((uint128)hash->sum + sum);
}

uint64_t tp_hash_value(const tp_hash *hash)
{
    /* splitmix64 */
    uint64_t z = times(hash->sum, hash->expanded) + hash->count * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
