/* How much room records of a training run take: statistics of tensors as a transformer has them. */
#include <math.h>

#include "journal_fixture.h"

#define KEYS 300
#define STEPS 20
#define MAX_ELEMENTS 4096

static float normal(uint64_t *state)
{
    double u = ((double)(random_u64(state) >> 11) + 0.5) / 9007199254740992.0;
    double v = (double)(random_u64(state) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void fill_record(fixture *f, tp_record *record, uint32_t dtype)
{
    static float values[MAX_ELEMENTS];
    static uint16_t halves[MAX_ELEMENTS];
    const int64_t rows = 1 + record->key % 64;
    const int64_t shape[] = {rows, 64};
    const float scale = expf(normal(&f->random) - (float)(record->key % 7));
    for (int64_t i = 0; i < rows * 64; i++) {
        uint32_t bits;
        values[i] = scale * normal(&f->random);
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    const tp_tensor tensor = {.data = dtype == TP_F32 ? (const void *)values : halves,
                              .shape = shape,
                              .dtype = dtype,
                              .ndim = 2};
    assert_int_equal(tp_stats_compute(&tensor, 1e-8, &record->u.stats), TP_OK);
    assert_int_equal(tp_registry_add_shape(f->registry, 2, shape, &record->shape), TP_OK);
    record->kind = TP_RECORD_STATS;
    record->dtype = dtype;
    record->state = TP_SLOT_DONE;
}

static uint64_t bytes_per_record(uint32_t dtype)
{
    static tp_record records[KEYS];
    fixture *f = fixture_new(1, 0);
    tp_error error;
    for (uint32_t i = 0; i < KEYS; i++) {
        char name[64];
        uint32_t id;
        snprintf(name, sizeof name, "transformer.h.%u.mlp.c_fc.%u", i / 12, i % 12);
        const tp_key key = {
            .name = name, .slot = -1, .quantity = 1 + i % 4, .role = TP_ROLE_OUTPUT};
        assert_int_equal(tp_registry_add_key(f->registry, &key, &id), TP_OK);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        uint64_t time = 0;
        for (uint32_t i = 0; i < KEYS; i++) {
            time += 20000 + random_u64(&f->random) % 100000;
            records[i] = (tp_record){.key = i * 7 % KEYS, .order = i, .time_ns = time};
            fill_record(f, &records[i], dtype);
        }
        const tp_batch batch = {.step = step, .count = KEYS, .records = records};
        assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
    }
    uint64_t bytes = tp_journal_bytes(f->journal);
    fixture_close(f);
    fixture_free(f);
    printf("%s: %.1f bytes a record, names included\n", tp_dtype_name(dtype),
           (double)bytes / (KEYS * STEPS));
    return bytes / (KEYS * STEPS);
}

static void records_are_packed(void **state)
{
    (void)state;
    assert_in_range(bytes_per_record(TP_F32), 1, 40);
    assert_in_range(bytes_per_record(TP_BF16), 1, 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(records_are_packed)};
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
