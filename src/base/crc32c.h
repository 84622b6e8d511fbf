/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as in iSCSI and TensorBoard's files. */
#ifndef TP_BASE_CRC32C_H
#define TP_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Goes on from crc; start with 0. Any thread. */
uint32_t tp_crc32c(uint32_t crc, const void *bytes, size_t size);

#endif
