#!/bin/bash
# Fuzzes every target of tests/fuzz with clang's libFuzzer, under ASan and UBSan:
#     scripts/fuzz.sh [SECONDS_PER_TARGET]
# Inputs that reach new code are kept in build/fuzz/corpus, so that the next time goes on from there.
set -eu
seconds=${1:-300}
build=build/fuzz
options=(-G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DTP_BUILD_FUZZ=ON
    -DTP_BUILD_TESTS=OFF -DTP_BUILD_PYTHON=OFF -DTP_BUILD_TOOLS=OFF)

# The plain drivers know valid inputs to begin from.
cmake --log-level=WARNING -S . -B "$build/driver" "${options[@]}"
ninja -C "$build/driver" --quiet
cmake --log-level=WARNING -S . -B "$build/libfuzzer" "${options[@]}" -DTP_FUZZ_ENGINE=libfuzzer \
    -DTP_SANITIZE=address,undefined "-DCMAKE_C_FLAGS=-O1 -fsanitize=fuzzer-no-link"
ninja -C "$build/libfuzzer" --quiet

for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    corpus=$build/corpus/$name
    mkdir -p "$corpus"
    "$build/driver/tests/fuzz/$name" --seed "$corpus/seed"
    given=tests/fuzz/corpus/${name#fuzz_}
    "$build/libfuzzer/tests/fuzz/$name" -max_total_time="$seconds" -max_len=8192 -timeout=10 \
        -print_final_stats=1 "$corpus" $([ -d "$given" ] && echo "$given")
done
