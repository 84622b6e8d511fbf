/* The files of the pages, as they were when the program was built (web/). */
#ifndef TP_VIEW_ASSETS_H
#define TP_VIEW_ASSETS_H

#include "base/buf.h"

typedef struct tp_asset {
    const char *name; /* "style.css" … */
    const char *type; /* of its content */
    const uint8_t *bytes;
    size_t size;
} tp_asset;

const tp_asset *tp_asset_find(const char *name); /* NULL: there is no such file */

/* All our modules as one: in the order in which they need each other, without what ties them
 * together. A page has one file to load, and a report can hold it. */
void tp_asset_put_script(tp_buf *out);

#endif
