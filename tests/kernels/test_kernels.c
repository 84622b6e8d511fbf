/* Every kernel gives the bytes of the scalar one, the specification: for random tensors of every
 * dtype, length, layout and kind of content, with everything that can be asked for beside the
 * statistics; and what can be said in advance is found. TP_TEST_SEED and TP_TEST_CASES change the
 * draw. `test_kernels --write FILE` writes random tensors with what the specification finds in
 * them, which tests/python/test_kernels.py compares with NumPy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "draw.h"
#include "stats/kernels.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define MOST_BINS 1000
#define DTYPES TP_C128

typedef struct outputs {
    tp_stats stats;
    uint64_t hash;
    uint64_t bins[MOST_BINS];
    tp_exponents exponents;
} outputs;

enum { WITH_BINS = 1, WITH_EXPONENTS = 2, WITH_HASH = 4 };

static tp_stats_options options_of(const draw_tensor *drawn, uint64_t with, outputs *out)
{
    return (tp_stats_options){
        .eps = drawn->eps,
        .bins = (with & WITH_BINS) != 0 ? out->bins : NULL,
        .bin_count = drawn->bin_count,
        .low = drawn->low,
        .high = drawn->high,
        .exponents = (with & WITH_EXPONENTS) != 0 ? &out->exponents : NULL,
        .hash = (with & WITH_HASH) != 0 ? &out->hash : NULL,
        .threads = drawn->threads,
    };
}

/* False when this processor, or this build, has no such kernels. */
static bool has_isa(int isa)
{
    static const tp_kernel *(*const of[])(uint32_t dtype) = {
        [TP_ISA_SCALAR] = tp_kernel_scalar,
        [TP_ISA_AVX2] = tp_kernel_avx2,
        [TP_ISA_AVX512] = tp_kernel_avx512,
        [TP_ISA_NEON] = tp_kernel_neon,
    };
    return isa <= tp_cpu_isa_supported() && of[isa](TP_F32) != NULL;
}

static void compute(const draw_tensor *drawn, uint64_t with, int isa, outputs *out)
{
    static const char *const types[] = {"", "f64", "f32", "f16", "bf16"};
    const tp_stats_options options = options_of(drawn, with, out);
    const uint32_t dtype = drawn->tensor.dtype;
    const char *kernel = "";
    char name[32];
    memset(&out->stats, 0xa5, sizeof(out->stats));
    out->hash = 0;
    assert_int_equal(tp_stats_compute_isa(&drawn->tensor, &options, isa, &out->stats, &kernel),
                     TP_OK);
    if (tp_dtype_size(dtype) == 1) { /* counted, the same code everywhere */
        assert_non_null(strstr(kernel, "_bytes"));
        return;
    }
    snprintf(name, sizeof(name), "%s_%s", types[dtype <= TP_BF16 ? dtype : TP_F64],
             tp_cpu_isa_name(isa));
    assert_string_equal(kernel, name);
}

static void describe(const draw_tensor *drawn)
{
    const tp_tensor *tensor = &drawn->tensor;
    printf("%s, eps %g,", tp_dtype_name(tensor->dtype), drawn->eps);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        printf(" %lld by %lld", (long long)tensor->shape[d], (long long)drawn->strides[d]);
    }
    printf("\n");
}

static void same(const draw_tensor *drawn, uint64_t with, const outputs *right,
                 const outputs *found, const char *who)
{
    const uint64_t *a = (const uint64_t *)(const void *)&right->stats;
    const uint64_t *b = (const uint64_t *)(const void *)&found->stats;
    for (size_t i = 0; i < sizeof(tp_stats) / sizeof(*a); i++) {
        if (a[i] != b[i]) {
            describe(drawn);
            fail_msg("%s: word %d of tp_stats is %#llx, not %#llx", who, (int)i,
                     (unsigned long long)b[i], (unsigned long long)a[i]);
        }
    }
    if (((with & WITH_BINS) != 0 &&
         memcmp(right->bins, found->bins, drawn->bin_count * sizeof(*right->bins)) != 0) ||
        ((with & WITH_EXPONENTS) != 0 &&
         memcmp(&right->exponents, &found->exponents, sizeof(right->exponents)) != 0) ||
        ((with & WITH_HASH) != 0 && right->hash != found->hash)) {
        describe(drawn);
        fail_msg("%s: histogram, exponents or hash differ", who);
    }
}

/* A contiguous tensor, cut in pieces anywhere. */
static void stream(const draw_tensor *drawn, const outputs *right)
{
    const size_t size = tp_dtype_size(drawn->tensor.dtype);
    const int64_t n = drawn->shape[0];
    tp_stats_stream *pieces;
    outputs found;
    assert_int_equal(tp_stats_stream_open(&pieces, drawn->tensor.dtype, drawn->eps), TP_OK);
    for (int64_t at = 0; at < n;) {
        const int64_t part = 1 + (int64_t)draw_below((uint64_t)(n - at));
        const tp_tensor piece = {drawn->memory + (size_t)at * size, &part, NULL,
                                 drawn->tensor.dtype, 1};
        assert_int_equal(tp_stats_stream_add(pieces, &piece), TP_OK);
        at += part;
    }
    tp_stats_stream_result(pieces, &found.stats);
    tp_stats_stream_close(pieces);
    same(drawn, 0, right, &found, "stream");
}

/* FNV-1a over the results of the first cases of the usual seed. The same on every processor and for
 * every compiler; a change of it means that two journals can't be compared any more. */
#define USUAL_SEED 20261130
#define USUAL_CASES 200000
#define PINNED_CASES 20000
#define PINNED UINT64_C(0x2b9c98328d714e1c)

static uint64_t digest(uint64_t so_far, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        so_far = (so_far ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return so_far;
}

/* Every other case is one of the four common types, the rest go through all of them. */
static void draw_case(draw_tensor *drawn, uint64_t seed, uint64_t i)
{
    draw_seed(seed + i * 0x100000000U);
    draw_next(drawn, 1 + (uint32_t)(i / 2 % (i % 2 == 0 ? TP_BF16 : DTYPES)));
}

static uint64_t cases(void)
{
    return draw_setting("TP_TEST_CASES", getenv("TP_SOAK") != NULL ? 10000000 : USUAL_CASES);
}

static void same_bytes_on_every_isa(void **unused)
{
    (void)unused;
    static outputs right;
    static outputs found;
    const uint64_t seed = draw_setting("TP_TEST_SEED", USUAL_SEED);
    const uint64_t count = cases();
    uint64_t results = UINT64_C(0xcbf29ce484222325);
    printf("TP_TEST_SEED=%llu TP_TEST_CASES=%llu, in use: %s\n", (unsigned long long)seed,
           (unsigned long long)count, tp_stats_isa());
    for (int isa = TP_ISA_SCALAR; isa <= TP_ISA_NEON; isa++) {
        printf("%s: %s\n", tp_cpu_isa_name(isa), has_isa(isa) ? "compared" : "not on this machine");
    }
    for (uint64_t i = 0; i < count; i++) {
        draw_tensor drawn = {.threads = 1};
        draw_case(&drawn, seed, i);
        const uint64_t with = draw_below(4) == 0 ? draw_below(8) : 0;
        compute(&drawn, with, TP_ISA_SCALAR, &right);
        for (int isa = TP_ISA_AVX2; isa <= TP_ISA_NEON; isa++) {
            if (has_isa(isa)) {
                compute(&drawn, with, isa, &found);
                same(&drawn, with, &right, &found, tp_cpu_isa_name(isa));
            }
        }
        if (i % 8 == 0) { /* with the kernels in use, as the environment chose them */
            const tp_stats_options options = options_of(&drawn, with, &found);
            assert_int_equal(tp_stats_compute_with(&drawn.tensor, &options, &found.stats), TP_OK);
            same(&drawn, with, &right, &found, "as chosen");
        }
        if (i % 8 == 1 && drawn.tensor.ndim == 1 && drawn.strides[0] == 1 &&
            drawn.tensor.dtype != TP_F4_E2M1FN_X2) {
            stream(&drawn, &right);
        }
        if (i < PINNED_CASES) {
            results = digest(results, &right.stats, sizeof(right.stats));
        }
    }
    if (seed == USUAL_SEED && count >= PINNED_CASES && results != PINNED) {
        fail_msg("the results of the pinned cases are %#llx", (unsigned long long)results);
    }
}

/* Every instruction set on several threads, against scalar code on one. */
static void same_bytes_on_several_threads(void **unused)
{
    (void)unused;
    static outputs right;
    static outputs found;
    const uint32_t rounds = getenv("TP_SOAK") != NULL ? 100 : 1;
    const uint32_t step = cases() >= USUAL_CASES ? 1 : 4; /* few where all is slow */
    for (uint32_t i = 0; i < rounds * DTYPES; i += step) {
        const uint64_t with = WITH_BINS | WITH_EXPONENTS | WITH_HASH;
        draw_tensor drawn;
        draw_seed(draw_setting("TP_TEST_SEED", USUAL_SEED) + i);
        draw_large(&drawn, 1 + i % DTYPES);
        drawn.threads = 1;
        compute(&drawn, with, TP_ISA_SCALAR, &right);
        for (int isa = TP_ISA_SCALAR; isa <= TP_ISA_NEON; isa++) {
            drawn.threads = 2 + (uint32_t)draw_below(3);
            if (has_isa(isa)) {
                compute(&drawn, with, isa, &found);
                same(&drawn, with, &right, &found, tp_cpu_isa_name(isa));
            }
        }
    }
}

static void put_number(uint32_t dtype, uint8_t *at, double x)
{
    static const uint16_t halves[4] = {0x3e00, 0x7e00, 0x7c00, 0xfc00}; /* 1.5, NaN, +Inf, -Inf */
    static const uint16_t brains[4] = {0x3fc0, 0x7fc0, 0x7f80, 0xff80};
    const int which = x == 1.5 ? 0 : x != x ? 1 : x > 0 ? 2 : 3;
    const float f = (float)x;
    switch (dtype) {
    case TP_F64:
        memcpy(at, &x, sizeof(x));
        break;
    case TP_F32:
        memcpy(at, &f, sizeof(f));
        break;
    case TP_F16:
        memcpy(at, &halves[which], sizeof(uint16_t));
        break;
    default:
        memcpy(at, &brains[which], sizeof(uint16_t));
        break;
    }
}

/* n times 1.5, but `odd` at this place: all is known in advance. */
static tp_stats right_of(uint64_t n, uint64_t place, double odd)
{
    const double finite = (double)(n - 1);
    const bool is_nan = odd != odd;
    const double extreme = n > 1 ? 1.5 : (double)NAN;
    const double shown = is_nan ? (double)NAN : 1.5;
    return (tp_stats){
        .count = n,
        .nan = is_nan,
        .pos_inf = odd == INFINITY,
        .neg_inf = odd == -INFINITY,
        .min = odd == -INFINITY || n == 1 ? odd : shown,
        .max = odd == INFINITY || n == 1 ? odd : shown,
        .finite_min = extreme,
        .finite_max = extreme,
        .abs_max = is_nan ? extreme : INFINITY,
        .abs_max_index = !is_nan      ? place
                         : n == 1     ? TP_NO_INDEX
                         : place == 0 ? 1
                                      : 0,
        .sum = 1.5 * finite,
        .sum_abs = 1.5 * finite,
        .sum_sq = 2.25 * finite,
    };
}

static void one_odd_element(uint32_t dtype, uint64_t n, uint64_t place, double odd)
{
    const size_t size = tp_dtype_size(dtype);
    uint8_t *data = draw_place(n * size, n % 2 == 0);
    draw_tensor drawn = {.shape = {(int64_t)n}, .strides = {1}, .eps = 1.0};
    drawn.tensor = (tp_tensor){data, drawn.shape, NULL, dtype, 1};
    outputs found;
    put_number(dtype, data + place * size, odd);
    const outputs right = {.stats = right_of(n, place, odd)};
    const int first = n <= 200 || place % 111 == 0 ? TP_ISA_SCALAR : TP_ISA_AVX2; /* it is slow */
    for (int isa = first; isa <= TP_ISA_NEON; isa++) {
        if (has_isa(isa)) {
            compute(&drawn, 0, isa, &found);
            same(&drawn, 0, &right, &found, tp_cpu_isa_name(isa));
        }
    }
    put_number(dtype, data + place * size, 1.5);
}

/* Every place of a NaN or an infinity in short tensors, in a block, and in one more or less. */
static void every_place_of_what_is_not_finite(void **unused)
{
    (void)unused;
    static const double odd[] = {(double)NAN, INFINITY, -INFINITY};
    for (uint32_t dtype = TP_F64; dtype <= TP_BF16; dtype++) {
        for (uint64_t n = 1; n <= 4097; n = n == 200 ? 4095 : n + 1) {
            uint8_t *data = draw_place(n * tp_dtype_size(dtype), n % 2 == 0);
            for (uint64_t i = 0; i < n; i++) {
                put_number(dtype, data + i * tp_dtype_size(dtype), 1.5);
            }
            const uint64_t step = n <= 200 || cases() >= USUAL_CASES ? 1 : 111;
            for (uint64_t place = 0; place < n; place += step) {
                one_odd_element(dtype, n, place, odd[(place + n) % 3]);
            }
        }
    }
}

/* Nothing but NaN, nothing but one infinity, of any length. */
static void nothing_finite(void **unused)
{
    (void)unused;
    static const double odd[] = {(double)NAN, INFINITY, -INFINITY};
    for (uint32_t dtype = TP_F64; dtype <= TP_BF16; dtype++) {
        for (uint64_t n = 1; n <= 4097; n = n == 200 ? 4095 : n + 1) {
            for (int k = 0; k < 3; k++) {
                const size_t size = tp_dtype_size(dtype);
                uint8_t *data = draw_place(n * size, true);
                for (uint64_t i = 0; i < n; i++) {
                    put_number(dtype, data + i * size, odd[k]);
                }
                draw_tensor drawn = {.shape = {(int64_t)n}, .strides = {1}};
                drawn.tensor = (tp_tensor){data, drawn.shape, NULL, dtype, 1};
                outputs right = {.stats = right_of(1, 0, odd[k])};
                outputs found;
                right.stats.count = n;
                right.stats.nan *= n;
                right.stats.pos_inf *= n;
                right.stats.neg_inf *= n;
                for (int isa = TP_ISA_SCALAR; isa <= TP_ISA_NEON; isa++) {
                    if (has_isa(isa)) {
                        compute(&drawn, 0, isa, &found);
                        same(&drawn, 0, &right, &found, tp_cpu_isa_name(isa));
                    }
                }
            }
        }
    }
}

/* More elements than 32 bits can count: expanded dimensions are weighted, not read. */
static void more_than_four_billion(void **unused)
{
    (void)unused;
    const uint8_t bytes[3] = {3, 0, 250};
    const int64_t shapes[][4] = {{65536, 65537, 1, 3}, {1, 1, (INT64_C(1) << 61), 3}};
    for (size_t i = 0; i < 2; i++) {
        const uint64_t times = (uint64_t)(shapes[i][0] * shapes[i][1] * shapes[i][2]);
        draw_tensor drawn = {.strides = {0, 0, 0, 1}, .eps = 3.5, .bin_count = 2, .high = 251.0};
        memcpy(drawn.shape, shapes[i], sizeof(drawn.shape));
        drawn.tensor = (tp_tensor){bytes, drawn.shape, drawn.strides, TP_U8, 4};
        outputs found;
        compute(&drawn, WITH_BINS | WITH_EXPONENTS, TP_ISA_SCALAR, &found);
        const double weight = (double)times;
        const double m2 = 9.0 + 62500.0 - 253.0 * 253.0 / 3.0;
        const outputs right = {.stats = {.count = 3 * times,
                                         .zeros = 2 * times,
                                         .max = 250.0,
                                         .finite_max = 250.0,
                                         .abs_max = 250.0,
                                         .abs_max_index = 2,
                                         .sum = 253.0 * weight,
                                         .sum_abs = 253.0 * weight,
                                         .sum_sq = 62509.0 * weight,
                                         .m2 = found.stats.m2}};
        same(&drawn, 0, &right, &found, "expanded");
        assert_true(fabs(found.stats.m2 - m2 * weight) <= 1e-12 * m2 * weight);
        assert_true(found.bins[0] == 2 * times && found.bins[1] == times);
        assert_true(found.exponents.positive[160 + 1] == times); /* 3 */
        assert_true(found.exponents.positive[160 + 7] == times); /* 250 */
    }
    const int64_t too_many[] = {INT64_C(1) << 32, INT64_C(1) << 31};
    const int64_t expanded[] = {0, 0};
    const tp_tensor tensor = {bytes, too_many, expanded, TP_U8, 2};
    tp_stats stats;
    assert_int_equal(tp_stats_compute(&tensor, 0.0, &stats), TP_ERR_ARGUMENT);
}

/* The same really read, from pages of which only the last is there: the place of the largest
 * element needs more than 32 bits. */
static void more_than_four_billion_read(void **unused)
{
    (void)unused;
    const int64_t shape[] = {(INT64_C(1) << 32) + 4099};
    const size_t size = (size_t)shape[0];
    uint8_t *data = mmap(NULL, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, (off_t)0);
    assert_true(data != MAP_FAILED);
    data[size - 2] = 200;
    const tp_tensor tensor = {data, shape, NULL, TP_U8, 1};
    tp_stats stats;
    assert_int_equal(tp_stats_compute(&tensor, 1.0, &stats), TP_OK);
    munmap(data, size);
    assert_true(stats.count == size && stats.zeros == size - 1 && stats.abs_max_index == size - 2);
    assert_true(stats.sum == 200.0 && stats.sum_sq == 40000.0);
}

#if defined(__SSE2__)
/* Flushing subnormals to zero, or another rounding, must not show, and must be left as it was. */
static void environment_is_kept_out(void **unused)
{
    (void)unused;
    static const unsigned int environments[] = {0x8040, 0x2000, 0x4000, 0x6000, 0xe040};
    for (uint64_t i = 0; i < 400; i++) {
        draw_tensor drawn;
        outputs right;
        outputs found;
        draw_case(&drawn, 7, i);
        for (int isa = TP_ISA_SCALAR; isa <= tp_cpu_isa_supported(); isa++) {
            compute(&drawn, 0, isa, &right);
            const unsigned int before = _mm_getcsr();
            const unsigned int other = 0x1f80 | environments[i / 8 % 5];
            _mm_setcsr(other);
            compute(&drawn, 0, isa, &found);
            const unsigned int after = _mm_getcsr();
            _mm_setcsr(before);
            assert_int_equal(after & ~0x3fU, other);
            same(&drawn, 0, &right, &found, tp_cpu_isa_name(isa));
        }
    }
}
#endif

static void write_or_abort(FILE *file, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, size, 1, file) != 1) {
        abort();
    }
}

/* Reader: tests/python/test_kernels.py. */
static int write_cases(const char *path)
{
    static outputs right;
    const uint64_t seed = draw_setting("TP_TEST_SEED", USUAL_SEED);
    const uint64_t count = draw_setting("TP_TEST_CASES", 4000);
    FILE *file = fopen(path, "wb");
    for (uint64_t i = 0; file != NULL && i < count; i++) {
        draw_tensor drawn = {.threads = 1};
        draw_case(&drawn, seed + 1, i);
        if (i % 400 == 399) { /* of many blocks */
            draw_large(&drawn, 1 + (uint32_t)(i / 400 % DTYPES));
        }
        const tp_tensor *tensor = &drawn.tensor;
        compute(&drawn, WITH_BINS | WITH_EXPONENTS | WITH_HASH, TP_ISA_SCALAR, &right);
        const uint64_t words[] = {tensor->dtype, tensor->ndim, drawn.bytes, drawn.bin_count,
                                  (uint64_t)((const uint8_t *)tensor->data - drawn.memory)};
        const double numbers[] = {drawn.eps, drawn.low, drawn.high};
        write_or_abort(file, words, sizeof(words));
        write_or_abort(file, numbers, sizeof(numbers));
        write_or_abort(file, drawn.shape, sizeof(drawn.shape));
        write_or_abort(file, drawn.strides, sizeof(drawn.strides));
        write_or_abort(file, drawn.memory, drawn.bytes);
        write_or_abort(file, &right.stats, sizeof(right.stats));
        write_or_abort(file, &right.hash, sizeof(right.hash));
        write_or_abort(file, right.bins, drawn.bin_count * sizeof(*right.bins));
        write_or_abort(file, &right.exponents, sizeof(right.exponents));
    }
    return file == NULL || fclose(file) != 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_on_every_isa),
        cmocka_unit_test(same_bytes_on_several_threads),
        cmocka_unit_test(every_place_of_what_is_not_finite),
        cmocka_unit_test(nothing_finite),
        cmocka_unit_test(more_than_four_billion),
        cmocka_unit_test(more_than_four_billion_read),
#if defined(__SSE2__)
        cmocka_unit_test(environment_is_kept_out),
#endif
    };
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        return write_cases(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
