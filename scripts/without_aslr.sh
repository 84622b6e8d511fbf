#!/bin/sh
# Runs a command without address space randomisation where the system allows that: the TSan of gcc 12
# can't place its shadow on kernels that randomise more than 28 bits.
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
