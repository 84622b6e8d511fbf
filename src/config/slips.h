/* What people write in a JSON file that is no JSON, but can mean one thing only. */
#ifndef TP_CONFIG_SLIPS_H
#define TP_CONFIG_SLIPS_H

#include <stddef.h>
#include <stdint.h>

typedef struct tp_slips {
    uint32_t count;
    size_t first;     /* where the first one stands */
    const char *what; /* and what it is, as a message */
} tp_slips;

/* Puts JSON in their place: comments and commas in front of } and ] become spaces, full-width
 * commas, colons, brackets and quotes become ASCII with spaces around. Bytes keep their offsets,
 * lines their ends; strings are left alone. */
tp_slips tp_slips_blank(char *text, size_t size);

#endif
