/* Keys and shapes get small numbers, equal ones the same, from any thread, or none without memory. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "record/registry.h"

static tp_key key_named(const char *name, int32_t slot)
{
    return (tp_key){name, NULL, 0, slot, TP_ACTIVATION, TP_ROLE_INPUT, NULL, NULL};
}

static void test_keys(void **state)
{
    (void)state;
    tp_registry *registry = NULL;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    char name[32];
    uint32_t id;
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        tp_key key = key_named(name, -1);
        assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
        assert_int_equal(id, i);
    }
    const tp_key *first = tp_registry_key(registry, 0);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        tp_key key = key_named(name, -1);
        assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
        assert_int_equal(id, i);
        assert_string_equal(tp_registry_key(registry, id)->name, name);
        assert_string_equal(tp_registry_key(registry, id)->global_name, name);
    }
    assert_ptr_equal(first, tp_registry_key(registry, 0));
    tp_key other = key_named("layer.3", 0); /* another slot is another series */
    assert_int_equal(tp_registry_add_key(registry, &other, &id), TP_OK);
    assert_int_equal(id, 1000);
    other.argument = "mask";
    assert_int_equal(tp_registry_add_key(registry, &other, &id), TP_OK);
    assert_int_equal(id, 1001);
    assert_string_equal(tp_registry_key(registry, id)->argument, "mask");
    other.argument = "masks";
    assert_int_equal(tp_registry_add_key(registry, &other, &id), TP_OK);
    assert_int_equal(id, 1002);
    assert_null(tp_registry_key(registry, 1003));
    tp_registry_free(registry);
}

static void test_shapes(void **state)
{
    (void)state;
    const int64_t dims[] = {3, 4, 5};
    uint32_t id;
    uint32_t ndim;
    tp_registry *registry = NULL;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    assert_int_equal(tp_registry_add_shape(registry, 3, dims, &id), TP_OK);
    assert_int_equal(id, 0);
    assert_int_equal(tp_registry_add_shape(registry, 2, dims, &id), TP_OK);
    assert_int_equal(id, 1);
    assert_int_equal(tp_registry_add_shape(registry, 0, NULL, &id), TP_OK);
    assert_int_equal(id, 2);
    assert_int_equal(tp_registry_add_shape(registry, 3, dims, &id), TP_OK);
    assert_int_equal(id, 0);
    assert_memory_equal(tp_registry_shape(registry, 0, &ndim), dims, sizeof dims);
    assert_int_equal(ndim, 3);
    assert_non_null(tp_registry_shape(registry, 2, &ndim));
    assert_int_equal(ndim, 0);
    assert_null(tp_registry_shape(registry, 3, &ndim));
    assert_int_equal(tp_registry_add_shape(registry, TP_MAX_DIMS + 1, dims, &id), TP_ERR_ARGUMENT);
    tp_registry_free(registry);
}

static void test_row_names(void **state)
{
    (void)state;
    char text[64];
    tp_key key = key_named("fc1", -1);
    assert_int_equal(tp_row_name(&key, 0, text, sizeof text), 9);
    assert_string_equal(text, "fc1.input");
    key.slot = 2;
    key.role = TP_ROLE_OUTPUT;
    tp_row_name(&key, 1, text, sizeof text);
    assert_string_equal(text, "fc1.output_2#1");
    assert_int_equal(tp_row_name(&key, 1, text, 5), 4);
    assert_string_equal(text, "fc1.");
    key.role = TP_ROLE_INPUT;
    key.argument = "mask";
    tp_row_name(&key, 0, text, sizeof text);
    assert_string_equal(text, "fc1.input_mask.2");
    key.slot = -1;
    tp_row_name(&key, 3, text, sizeof text);
    assert_string_equal(text, "fc1.input_mask#3");
    key = (tp_key){"fc1.weight", NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
    tp_row_name(&key, 0, text, sizeof text);
    assert_string_equal(text, "fc1.weight");
    key.name = "a\xc3\xa9\xe2\x82\xac"; /* 1, 2 and 3 bytes */
    static const uint64_t kept[] = {0, 1, 1, 3, 3, 3, 6};
    for (uint64_t length = 0; length <= 6; length++) {
        assert_int_equal(tp_row_name(&key, 0, text, length + 1), kept[length]);
        assert_int_equal(strlen(text), kept[length]);
    }
    for (uint32_t op = 1; op <= TP_OP_COUNT; op++) {
        assert_int_equal(tp_op_from_name(tp_op_name(op)), op);
    }
    assert_int_equal(tp_op_from_name("median"), 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    int succeeded = 0;
    for (unsigned long n = 1; n < 20; n++) {
        tp_registry *registry = NULL;
        uint32_t id;
        tp_key key = key_named("fc1", -1);
        assert_int_equal(tp_registry_new(&registry), TP_OK);
        tp_mem_fail_after(n);
        tp_status status = tp_registry_add_key(registry, &key, &id);
        tp_mem_fail_after(0);
        succeeded += status == TP_OK;
        assert_true(status == TP_OK || status == TP_ERR_NOMEM);
        /* Failing left nothing behind that would make the second try wrong. */
        assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
        assert_int_equal(id, 0);
        assert_int_equal(tp_registry_key_count(registry), 1);
        tp_registry_free(registry);
    }
    assert_in_range(succeeded, 1, 18);
}

static void *add_keys(void *registry)
{
    char name[32];
    for (int i = 0; i < 2000; i++) {
        uint32_t id;
        snprintf(name, sizeof name, "layer.%d", i);
        tp_key key = key_named(name, -1);
        tp_registry_add_key(registry, &key, &id);
        if (strcmp(tp_registry_key(registry, id)->name, name) != 0) {
            return registry; /* wrong */
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[3];
    tp_registry *registry = NULL;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_keys, registry), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(tp_registry_key_count(registry), 2000);
    tp_registry_free(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_row_names), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
