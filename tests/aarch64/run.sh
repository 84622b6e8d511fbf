#!/bin/sh
# Compiles the statistics for AArch64 with Debian's cross compiler and runs their tests under qemu's
# user mode: NEON and scalar code give the same bits, there as here.
set -eu
cd "$(dirname "$0")/../.."
out=build/aarch64
mkdir -p "$out"
for test in test_stats_isa test_stats_stream test_tensor_walk; do
    echo "$test (AArch64)"
    # shellcheck disable=SC2046
    aarch64-linux-gnu-gcc -std=c11 -O2 -static -ffp-contract=off -fno-math-errno -D_GNU_SOURCE \
        -Wall -Wextra -Werror -Iinclude -Isrc -Itests/aarch64 \
        -o "$out/$test" "tests/unit/$test.c" $(ls src/stats/*.c src/tensor/*.c src/base/*.c) \
        -lpthread -lm
    TP_TEST_CASES=${TP_TEST_CASES:-3000} qemu-aarch64 "$out/$test"
done
