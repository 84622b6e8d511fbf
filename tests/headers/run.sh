#!/bin/sh
# Every public header compiles alone, as C11 and as C++17, without a warning, with both compilers.
set -eu
cd "$(dirname "$0")/../.."

compiles_alone() { # HEADER COMPILER LANGUAGE DIALECT
    printf '#include <%s>\nextern int not_an_empty_file;\n' "$1" |
        "$2" -x "$3" "-std=$4" -Wall -Wextra -Wpedantic -Wundef -Werror -Iinclude -fsyntax-only -
}

for path in include/tensorprobe/*.h; do
    header=${path#include/}
    for compiler in gcc clang; do
        compiles_alone "$header" "$compiler" c c11
        compiles_alone "$header" "$compiler" c++ c++17
    done
done
echo "headers: all compile alone as C11 and as C++17"
