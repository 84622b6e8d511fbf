/* The traversal of random layouts against index arithmetic: every index tuple is visited once (an
 * expanded dimension once in all), nested layouts in memory order, others in row-major order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/walk.h"

#define ROOM 20000

static float memory[ROOM]; /* element i holds i */

static uint64_t state;

static uint64_t below(uint64_t n)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
}

/* Address of the element with this row-major index, as an offset in elements. */
static int64_t offset_of(const tp_tensor *tensor, uint64_t index)
{
    int64_t offset = 0;
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        offset += (int64_t)(index % (uint64_t)tensor->shape[d]) * tensor->strides[d];
        index /= (uint64_t)tensor->shape[d];
    }
    return offset;
}

/* Reads the tensor in pieces of random length; returns the number of elements. */
static uint64_t read_all(const tp_tensor *tensor, const float *start, bool in_memory_order)
{
    static float buffer[ROOM];
    static uint8_t visited[ROOM];
    tp_walk walk;
    assert_int_equal(tp_walk_open(&walk, tensor), TP_OK);
    memset(visited, 0, sizeof(visited));
    double previous = -1.0;
    uint64_t position = 0;
    while (walk.left > 0) {
        const size_t n = 1 + below(walk.left < 700 ? walk.left : 700);
        const float *piece = tp_walk_next(&walk, n, buffer);
        for (size_t i = 0; i < n; i++, position++) {
            const uint64_t index = tp_walk_index(&walk, tensor, position);
            assert_true(piece[i] == start[offset_of(tensor, index)]);
            assert_true(index < ROOM && !visited[index]);
            visited[index] = 1;
            const double key = in_memory_order ? (double)piece[i] : (double)index;
            assert_true(key > previous);
            previous = key;
        }
    }
    assert_int_equal(position, walk.count);
    if (position > 0) { /* start again somewhere */
        const uint64_t from = below(position);
        tp_walk_seek(&walk, from);
        assert_int_equal(walk.left, position - from);
        const float *again = tp_walk_next(&walk, walk.left, buffer);
        const uint64_t last = tp_walk_index(&walk, tensor, position - 1);
        assert_true(again[position - 1 - from] == start[offset_of(tensor, last)]);
    }
    return walk.count * walk.weight;
}

static void random_layouts(void **unused)
{
    (void)unused;
    state = 20261130;
    printf("seed %llu\n", (unsigned long long)state);
    for (int i = 0; i < ROOM; i++) {
        memory[i] = (float)i;
    }
    for (int i = 0; i < 3000; i++) {
        int64_t shape[4];
        int64_t strides[4];
        int order[4] = {0, 1, 2, 3};
        const uint32_t ndim = 1 + (uint32_t)below(4);
        for (uint32_t d = ndim; d-- > 1;) {
            const uint32_t other = (uint32_t)below(d + 1);
            const int swap = order[d];
            order[d] = order[other];
            order[other] = swap;
        }
        uint64_t count = 1;
        int64_t stride = 1;
        for (uint32_t k = 0; k < ndim; k++) {
            const int d = order[k];
            const int64_t whole = 1 + (int64_t)below(10);
            shape[d] = 1 + (int64_t)below((uint64_t)whole);
            strides[d] = stride;
            stride *= whole;
            count *= (uint64_t)shape[d];
        }
        const float *start = memory;
        bool nested = true;
        const uint32_t odd = (uint32_t)below(ndim);
        switch (below(6)) {
        case 0:
            strides[odd] = 0;
            break;
        case 1:
            start += (shape[odd] - 1) * strides[odd];
            strides[odd] = -strides[odd];
            nested = shape[odd] == 1;
            break;
        default:
            break;
        }
        const tp_tensor tensor = {start, shape, strides, TP_F32, ndim};
        assert_int_equal(read_all(&tensor, start, nested), count);
    }
}

static void dense_permutation_is_one_run(void **unused)
{
    (void)unused;
    const int64_t shape[] = {10, 20, 1, 30};
    const int64_t strides[] = {20, 1, 77, 200};
    const tp_tensor tensor = {memory, shape, strides, TP_F32, 4};
    tp_walk walk;
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_OK);
    assert_int_equal(walk.count, 6000);
    assert_ptr_equal(tp_walk_next(&walk, 6000, NULL), memory); /* no copy */
    assert_int_equal(tp_walk_index(&walk, &tensor, 1), 30);    /* [0, 1, 0, 0] */
}

static void overlapping_is_read_in_row_major_order(void **unused)
{
    (void)unused;
    const int64_t shape[] = {3, 4};
    const int64_t strides[] = {2, 1};
    const tp_tensor tensor = {memory, shape, strides, TP_F32, 2};
    const float expected[] = {0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7};
    float buffer[12];
    tp_walk walk;
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_OK);
    assert_memory_equal(tp_walk_next(&walk, 12, buffer), expected, sizeof(expected));
}

static void arguments(void **unused)
{
    (void)unused;
    tp_walk walk;
    const int64_t negative[] = {-1};
    const int64_t too_many[] = {INT64_MAX, 3};
    const int64_t none[] = {INT64_MAX, 3, 0};
    const int64_t ones[TP_MAX_DIMS + 1] = {1};
    tp_tensor tensor = {memory, negative, NULL, TP_F32, 1};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_ARGUMENT);
    tensor = (tp_tensor){memory, too_many, NULL, TP_F32, 2};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_ARGUMENT);
    tensor = (tp_tensor){NULL, none, NULL, TP_F32, 3};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_OK);
    assert_int_equal(walk.count * walk.weight, 0);
    assert_int_equal(walk.left, 0);
    tensor = (tp_tensor){NULL, ones, NULL, TP_F32, 1};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_ARGUMENT);
    tensor = (tp_tensor){memory, NULL, NULL, TP_F32, 1};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_ARGUMENT);
    tensor = (tp_tensor){memory, ones, NULL, 99, 1};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_UNSUPPORTED);
    tensor = (tp_tensor){memory, ones, NULL, TP_F32, TP_MAX_DIMS + 1};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_ERR_UNSUPPORTED);
    tensor = (tp_tensor){memory, NULL, NULL, TP_F32, 0};
    assert_int_equal(tp_walk_open(&walk, &tensor), TP_OK);
    assert_int_equal(walk.count, 1);
}

static void dtypes(void **unused)
{
    (void)unused;
    assert_int_equal(tp_dtype_size(TP_F64), 8);
    assert_int_equal(tp_dtype_size(TP_F32), 4);
    assert_int_equal(tp_dtype_size(TP_F16), 2);
    assert_int_equal(tp_dtype_size(TP_BF16), 2);
    assert_int_equal(tp_dtype_size(TP_DTYPE_NONE), 0);
    assert_int_equal(tp_dtype_size(UINT32_MAX), 0);
    assert_string_equal(tp_dtype_name(TP_BF16), "torch.bfloat16");
    assert_int_equal(tp_dtype_size(TP_F4_E2M1FN_X2), 1);
    assert_int_equal(tp_dtype_size(TP_C128), 16);
    assert_string_equal(tp_dtype_name(TP_C128), "torch.complex128");
    assert_string_equal(tp_dtype_name(TP_C128 + 1), "unknown");
    /* Stored in journals. */
    static const struct {
        uint32_t number;
        const char *name;
    } pinned[] = {
        {1, "torch.float64"},         {2, "torch.float32"},
        {3, "torch.float16"},         {4, "torch.bfloat16"},
        {5, "torch.float8_e4m3fn"},   {6, "torch.float8_e5m2"},
        {7, "torch.float8_e4m3fnuz"}, {8, "torch.float8_e5m2fnuz"},
        {9, "torch.float8_e8m0fnu"},  {10, "torch.float4_e2m1fn_x2"},
        {11, "torch.int8"},           {12, "torch.int16"},
        {13, "torch.int32"},          {14, "torch.int64"},
        {15, "torch.uint8"},          {16, "torch.uint16"},
        {17, "torch.uint32"},         {18, "torch.uint64"},
        {19, "torch.bool"},           {20, "torch.complex64"},
        {21, "torch.complex128"},
    };
    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
        assert_string_equal(tp_dtype_name(pinned[i].number), pinned[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts),
        cmocka_unit_test(dense_permutation_is_one_run),
        cmocka_unit_test(overlapping_is_read_in_row_major_order),
        cmocka_unit_test(arguments),
        cmocka_unit_test(dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
