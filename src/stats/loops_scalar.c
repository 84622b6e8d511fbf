/* For any processor. */
#include "stats/loops_body.h"

/* In several tables: a number that is added to again at once would have to be waited for. */
#define TABLES 4

static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    uint32_t tables[TABLES][TP_NO_BIN + 1];
    memset(tables, 0, sizeof(tables));
    for (size_t i = 0; i < TP_BLOCK; i += TABLES) {
        for (size_t t = 0; t < TABLES; t++) {
            tables[t][bin[i + t]]++;
        }
    }
    for (uint32_t b = 0; b < bins; b++) {
        for (size_t t = 0; t < TABLES; t++) {
            counts[b] += tables[t][b];
        }
    }
}

TP_LOOPS_TABLE(scalar)
