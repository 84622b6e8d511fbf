/* Runs a fuzz target without libFuzzer, the same way every time: each file named on the command line,
 * and the target's own seed, as they are and with TP_FUZZ_RUNS (default 5000) random changes.
 * TP_FUZZ_SECONDS goes on for so long at least, with further changes.
 * A failure is found again from the number of its run: TP_FUZZ_FIRST=<number> TP_FUZZ_RUNS=1.
 * --seed FILE writes the target's own seed, for a corpus. */
#include "driver.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CAPACITY (1u << 20)
#define SEED UINT64_C(20261130)

__attribute__((weak)) size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    (void)data;
    (void)capacity;
    return 0;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* One random change; returns the new size. */
static size_t change(uint8_t *data, size_t size, uint64_t *random)
{
    static const uint32_t borders[] = {0, 1, 2, 127, 128, 255, 256, 65535, 1u << 30, UINT32_MAX};
    size_t at = size > 0 ? next_random(random) % size : 0;
    size_t length = 1 + next_random(random) % (next_random(random) % 4 == 0 ? 4096 : 16);
    switch (next_random(random) % 6) {
    case 0: /* flip a bit */
        if (size > 0) {
            data[at] ^= (uint8_t)(1u << next_random(random) % 8);
        }
        return size;
    case 1: /* a number from the borders of its type */
        if (size >= at + 4) {
            uint32_t value = borders[next_random(random) % (sizeof borders / sizeof borders[0])];
            memcpy(data + at, &value, sizeof value);
        }
        return size;
    case 2: /* a small step up or down */
        if (size > 0) {
            data[at] = (uint8_t)(data[at] + next_random(random) % 7 - 3);
        }
        return size;
    case 3: /* cut off */
        return at;
    case 4: /* leave some out */
        length = length < size - at ? length : size - at;
        memmove(data + at, data + at + length, size - at - length);
        return size - length;
    default: /* say some twice */
        length = length < size - at ? length : size - at;
        length = length < CAPACITY - size ? length : CAPACITY - size;
        memmove(data + at + length, data + at, size - at);
        return size + length;
    }
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/* The target gets a copy that ends where its memory ends, so that a sanitizer sees the first byte
 * that is read too many. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    if (copy == NULL && size > 0) {
        abort();
    }
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_changed(const char *name, const uint8_t *seed, size_t seed_size)
{
    static uint8_t data[CAPACITY];
    uint64_t first = setting("TP_FUZZ_FIRST", 0);
    uint64_t runs = setting("TP_FUZZ_RUNS", 5000);
    static time_t end; /* of the time that all seeds have */
    end = end == 0 ? time(NULL) + (time_t)setting("TP_FUZZ_SECONDS", 0) : end;
    printf("%s: %zu bytes, seed %" PRIu64 "\n", name, seed_size, SEED);
    run(seed, seed_size);
    for (uint64_t n = first; n < first + runs || time(NULL) < end; n++) {
        uint64_t random = SEED + (n << 20);
        size_t size = seed_size;
        memcpy(data, seed, seed_size);
        for (uint64_t changes = 1 + next_random(&random) % 4; changes > 0; changes--) {
            size = change(data, size, &random);
        }
        if (n % 1000 == 0) {
            printf("run %" PRIu64 "\n", n);
            fflush(stdout);
        }
        run(data, size);
    }
}

int main(int argc, char **argv)
{
    static uint8_t seed[CAPACITY];
    size_t size = tp_fuzz_seed(seed, sizeof seed);
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        FILE *file = fopen(argv[2], "wb");
        return file == NULL || fwrite(seed, 1, size, file) != size || fclose(file) != 0;
    }
    if (size == 0 && argc == 1) {
        fprintf(stderr, "nothing to begin from\n");
        return 1;
    }
    if (size > 0) {
        run_changed("own seed", seed, size);
    }
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        run_changed(argv[i], seed, size);
    }
    return 0;
}
