#!/bin/bash
# Runs the tests of the Python extension against a build with ASan and UBSan:
#     scripts/test_extension_asan.sh BUILD_DIRECTORY [PYTEST_ARGUMENT…]
# Python itself isn't instrumented, so the sanitizers are loaded before it, together with libstdc++,
# whose exceptions they must see from the start. Leaks are left to the C tests: Python keeps memory
# until it ends.
set -eu
build=$(realpath "$1") # some tests start Python elsewhere
shift
site=$build/site
rm -rf "$site"
cmake --install "$build" --component python --prefix "$site" >/dev/null
cp -r python/tensorprobe python/kj600 "$site"

library() {
    gcc -print-file-name="$1"
}

export PYTHONPATH=$site
export PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0
export UBSAN_OPTIONS=print_stacktrace=1
LD_PRELOAD="$(library libasan.so) $(library libubsan.so) $(library libstdc++.so.6)" \
    python -m pytest -q -m "not slow" tests/python/test_api.py tests/python/test_hooks.py \
    tests/python/test_checkpointing.py tests/python/test_dynamic.py \
    tests/python/test_input_gradients.py tests/python/test_modules.py tests/python/test_odd_runs.py \
    tests/python/test_loops.py tests/python/test_mixed.py tests/python/test_scalars.py \
    tests/python/test_tables.py tests/python/test_targets.py tests/python/test_trainer_mon.py "$@"
