/* What a fuzz target may offer besides LLVMFuzzerTestOneInput. */
#ifndef TP_TESTS_FUZZ_DRIVER_H
#define TP_TESTS_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes a valid input to begin from, of at most `capacity` bytes, and returns its size. Optional. */
size_t tp_fuzz_seed(uint8_t *data, size_t capacity);

#endif
