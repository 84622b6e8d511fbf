/* Memory that survives the death of its process: each piece is a file of its own, mapped, in a
 * folder on this machine; and reading what a dead process has left there. Where it can't be had it
 * is heap memory. The pieces refer to each other by the addresses that they had. */
#ifndef TP_BASE_MAPPING_H
#define TP_BASE_MAPPING_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"

typedef struct tp_mapping tp_mapping;

/* folder exists, and only this process makes files in it. NULL without memory. It lives until it is
 * closed and its last piece is freed. */
tp_mapping *tp_mapping_open(const char *folder);
void tp_mapping_close(tp_mapping *mapping); /* accepts NULL */

/* The errno of the first request that had to be met by the heap; 0: there was none. */
int tp_mapping_trouble(const tp_mapping *mapping);

/* Zeroed memory, aligned to 16 bytes. All of it is backed by the file system from the beginning, so
 * that touching it can't fail. After a first failure all further requests go to the heap. mapping
 * NULL: the heap. kind is kept with a piece. NULL without memory. Any thread. */
void *tp_mapping_alloc(tp_mapping *mapping, size_t size, uint32_t kind);

/* Accepts NULL. Any thread. */
void tp_mapping_free(void *memory);

/* Whether the folder's file system is one of this machine, not of the network. TP_ERR_UNSUPPORTED
 * when it isn't. */
tp_status tp_mapping_check(const char *folder, tp_error *error);

/* A piece of a dead process. */
typedef struct tp_piece {
    uint64_t address; /* that it had */
    uint64_t size;
    uint8_t *memory; /* where it is now, writable: the file stays as it is */
    uint32_t kind;
} tp_piece;

typedef struct tp_pieces {
    tp_piece *pieces; /* in the order of their addresses */
    uint32_t count;
} tp_pieces;

/* Reads all pieces of a folder. Files that are none are left out. */
tp_status tp_pieces_load(tp_pieces *out, const char *folder, tp_error *error);
void tp_pieces_free(tp_pieces *pieces);

/* The memory of at least size bytes that had this address; NULL: there is no such piece. */
void *tp_pieces_find(const tp_pieces *pieces, const void *address, uint64_t size);

/* Tests only: the n-th request for a mapped piece from now on (1 is the next) fails with this
 * errno, and so does every one after it; 0 ends that. */
void tp_mapping_fail_after(unsigned long n, int error_number);

#endif
