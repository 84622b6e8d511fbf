#!/bin/sh
# Every public header compiles alone, as C11 and as C++17, without a warning, with both compilers.
set -eu
cd "$(dirname "$0")/../.."
for header in include/tensorprobe/*.h; do
    for compiler in gcc clang; do
        for dialect in "c -std=c11 -Wstrict-prototypes" "c++ -std=c++17"; do
            # $dialect is a list of words.
            # shellcheck disable=SC2086
            echo "#include <${header#include/}>" |
                "$compiler" -x $dialect -Wall -Wextra -Wpedantic -Wundef -Werror -Iinclude \
                    -fsyntax-only -
        done
    done
done
echo "headers: all $(find include/tensorprobe -name '*.h' | wc -l) compile alone as C11 and C++17"
