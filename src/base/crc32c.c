#include "base/crc32c.h"

#include <pthread.h>

/* Slicing by eight: table[k][b] is the CRC of byte b followed by k zero bytes. */
static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? UINT32_C(0x82f63b78) : 0);
        }
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t before = table[k - 1][b];
            table[k][b] = (before >> 8) ^ table[0][before & 0xff];
        }
    }
}

uint32_t tp_crc32c(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    pthread_once(&once, make_table);
    crc = ~crc;
    for (; size >= 8; size -= 8, p += 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = table[7][crc & 0xff] ^ table[6][(crc >> 8) & 0xff] ^ table[5][(crc >> 16) & 0xff] ^
              table[4][crc >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; size > 0; size--, p++) {
        crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
    }
    return ~crc;
}
