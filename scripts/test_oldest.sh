#!/bin/sh
# The hooks with the oldest PyTorch that they support, in an environment of its own below build/.
#   scripts/test_oldest.sh BUILD [PYTEST ARGUMENT…]
set -eu
cd "$(dirname "$0")/.."
build=$1
shift

torch=2.1.2
environment=build/torch-$torch
if [ ! -e "$environment/ready" ]; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check \
        "torch==$torch" "numpy<2" pytest
    touch "$environment/ready"
fi

# What isn't there in that version can't be tested: gradient scalers on the CPU.
PYTHONPATH=$build/python TP_BUILD_DIR=$build "$environment/bin/python" -m pytest \
    -p no:cacheprovider -k "not scaled_autocast" "$@" \
    tests/python/test_hooks.py tests/python/test_loops.py tests/python/test_odd_runs.py \
    tests/python/test_targets.py tests/python/test_lifetime.py tests/python/test_selftest.py \
    tests/python/test_shortcuts.py
