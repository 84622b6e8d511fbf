#!/bin/sh
# Compiles the statistics for AArch64 with Debian's cross compiler and runs their tests under qemu's
# user mode: NEON and scalar code give the same bits, there as here.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
out=build/aarch64
rm -rf "$out"
mkdir -p "$out"
flags="-std=c11 -O2 -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -Wall -Wextra -Werror
    -I$root/include -I$root/src -I$root/tests/aarch64"
# shellcheck disable=SC2086
(cd "$out" && aarch64-linux-gnu-gcc $flags -c "$root"/src/stats/*.c "$root"/src/tensor/*.c "$root"/src/base/*.c)
for sources in "tests/kernels/test_kernels.c tests/kernels/draw.c" tests/unit/test_stats_optimizer.c \
    tests/unit/test_stats_stream.c tests/unit/test_tensor_walk.c; do
    name=$(basename "${sources%% *}" .c)
    echo "$name (AArch64)"
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc $flags -static -o "$out/$name" $sources "$out"/*.o -lpthread -lm
    TP_TEST_CASES=${TP_TEST_CASES:-20000} qemu-aarch64 "$out/$name"
done
