#!/bin/bash
# Lets libFuzzer search in every fuzz target, each for SECONDS, from the target's own seed on:
#     scripts/fuzz.sh DRIVER_BUILD SECONDS
# DRIVER_BUILD is a build with TP_BUILD_FUZZ, whose programs know their seeds. What is found lies in
# build/fuzz/corpus/<target>; a crash is written to build/fuzz/ and ends the search.
set -eu
drivers=$1
seconds=$2
cmake --log-level=WARNING -S . -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang \
    -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS=-O1 -fsanitize=fuzzer-no-link" \
    -DTP_SANITIZE=address,undefined -DTP_BUILD_FUZZ=ON -DTP_FUZZ_ENGINE=libfuzzer \
    -DTP_BUILD_TESTS=OFF -DTP_BUILD_PYTHON=OFF -DTP_BUILD_TOOLS=OFF
ninja -C build/fuzz --quiet
for source in tests/fuzz/fuzz_*.c; do
    target=$(basename "$source" .c)
    corpus=build/fuzz/corpus/$target
    mkdir -p "$corpus"
    "$drivers/tests/fuzz/$target" --seed "$corpus/seed"
    "build/fuzz/tests/fuzz/$target" -max_total_time="$seconds" -max_len=65536 \
        -print_final_stats=1 -artifact_prefix=build/fuzz/ "$corpus"
done
