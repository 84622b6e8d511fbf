# Flags of every C file. Bits of results must not depend on the compiler: no contraction of a*b+c, and
# never -ffast-math.
add_compile_options(
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef
    -Wpointer-arith -Wcast-qual -Werror=implicit-function-declaration
    -ffp-contract=off -fno-math-errno)
add_compile_definitions(_GNU_SOURCE)
if(TP_WERROR)
    add_compile_options(-Werror)
endif()
if(TP_SANITIZE)
    add_compile_options(-fsanitize=${TP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${TP_SANITIZE})
endif()
