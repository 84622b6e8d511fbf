# Flags of every C file. Bits of results must not depend on the compiler: no contraction of a*b+c, and
# never -ffast-math.
add_compile_options(
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef
    -Wpointer-arith -Wcast-qual -Werror=implicit-function-declaration
    -ffp-contract=off -fno-math-errno)
add_compile_definitions(_GNU_SOURCE)
# On x86 gcc clears and copies a few hundred bytes by an instruction that takes longer to begin than
# to do it, which the path of a hook did five times.
include(CheckCCompilerFlag)
set(tp_small "unrolled_loop:512:noalign,libcall:-1:noalign")
check_c_compiler_flag("-mmemset-strategy=${tp_small}" TP_HAS_MEMSET_STRATEGY)
if(TP_HAS_MEMSET_STRATEGY)
    add_compile_options(-mmemset-strategy=${tp_small} -mmemcpy-strategy=${tp_small})
endif()
if(TP_WERROR)
    add_compile_options(-Werror)
endif()
if(TP_SANITIZE)
    add_compile_options(-fsanitize=${TP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${TP_SANITIZE})
endif()
