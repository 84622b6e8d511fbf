#include "base/mapping.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/countdown.h"
#include "base/mem.h"

#define MAGIC UINT64_C(0x31786f426f725054) /* "TProBox1" */

struct tp_mapping {
    atomic_uint references; /* of its owner, and of each piece */
    atomic_uint files;      /* how many names have been given */
    atomic_int trouble;
    char folder[];
};

/* In front of each piece, in the file too. It is as large as a cache line. */
typedef struct header {
    uint64_t magic; /* 0: heap, or not ready */
    uint64_t address;
    uint64_t size; /* of the piece */
    uint32_t kind;
    uint32_t number; /* of the file */
    tp_mapping *mapping;
    uint64_t reserved[3];
} header;

static tp_countdown countdown; /* of mapped pieces */
static atomic_int fail_errno;

void tp_mapping_fail_after(unsigned long n, int error_number)
{
    atomic_store(&fail_errno, error_number);
    tp_countdown_start(&countdown, n);
}

tp_mapping *tp_mapping_open(const char *folder)
{
    const size_t size = strlen(folder) + 1;
    tp_mapping *mapping = tp_calloc(1, sizeof *mapping + size);
    if (mapping != NULL) {
        atomic_store(&mapping->references, 1);
        memcpy(mapping->folder, folder, size);
    }
    return mapping;
}

void tp_mapping_close(tp_mapping *mapping)
{
    if (mapping != NULL && atomic_fetch_sub(&mapping->references, 1) == 1) {
        tp_free(mapping);
    }
}

int tp_mapping_trouble(const tp_mapping *mapping)
{
    return atomic_load(&mapping->trouble);
}

static tp_status piece_path(char path[TP_PATH_MAX], const char *folder, uint32_t number)
{
    const int length = snprintf(path, TP_PATH_MAX, "%s/m%u", folder, number);
    return length < 0 || length >= TP_PATH_MAX ? TP_ERR_ARGUMENT : TP_OK;
}

/* Gives the file all its blocks: a hole would kill the process once the device is full. Others need
 * room on it too, so that no more than a quarter of it is taken at a time. Returns an errno. */
static int reserve_blocks(int fd, uint64_t size)
{
    struct statvfs room;
    int failed;
    if (fstatvfs(fd, &room) == 0 && size / room.f_frsize >= room.f_bavail / 4) {
        return ENOSPC;
    }
    do {
        failed = posix_fallocate(fd, 0, (off_t)size);
    } while (failed == EINTR);
    return failed;
}

/* Returns an errno. */
static int map_file(tp_mapping *mapping, uint64_t size, uint32_t number, header **out)
{
    char path[TP_PATH_MAX];
    if (piece_path(path, mapping->folder, number) != TP_OK) {
        return ENAMETOOLONG;
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return errno;
    }
    int failed = tp_countdown_is_over(&countdown) ? atomic_load(&fail_errno) : 0;
    if (failed == 0) {
        failed = reserve_blocks(fd, size);
    }
    if (failed == 0) {
        *out = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        failed = *out == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (failed != 0) {
        unlink(path);
    }
    return failed;
}

void *tp_mapping_alloc(tp_mapping *mapping, size_t size, uint32_t kind)
{
    header *piece = NULL;
    const uint64_t whole = sizeof *piece + size;
    if (mapping != NULL && atomic_load(&mapping->trouble) == 0) {
        const uint32_t number = atomic_fetch_add(&mapping->files, 1);
        const int failed = map_file(mapping, whole, number, &piece);
        if (failed == 0) {
            *piece = (header){.address = (uint64_t)(uintptr_t)(piece + 1),
                              .size = size,
                              .kind = kind,
                              .number = number,
                              .mapping = mapping};
            atomic_fetch_add(&mapping->references, 1);
            __atomic_store_n(&piece->magic, MAGIC, __ATOMIC_RELEASE);
            return piece + 1;
        }
        int none = 0;
        atomic_compare_exchange_strong(&mapping->trouble, &none, failed);
    }
    piece = tp_calloc(1, whole);
    return piece != NULL ? piece + 1 : NULL;
}

void tp_mapping_free(void *memory)
{
    char path[TP_PATH_MAX];
    if (memory == NULL) {
        return;
    }
    header *piece = (header *)memory - 1;
    if (piece->magic != MAGIC) {
        tp_free(piece);
        return;
    }
    tp_mapping *mapping = piece->mapping;
    if (piece_path(path, mapping->folder, piece->number) == TP_OK) {
        unlink(path);
    }
    tp_mapping_close(mapping);
    munmap(piece, sizeof *piece + piece->size);
}

tp_status tp_mapping_check(const char *folder, tp_error *error)
{
    /* NFS, Lustre, SMB, CIFS, SMB 2, FUSE, Ceph, GPFS, AFS, Coda, 9P, GFS2, OCFS2, BeeGFS, PanFS */
    static const uint32_t network[] = {0x6969,     0x0bd00bd0, 0x517b,     0xff534d42, 0xfe534d42,
                                       0x65735546, 0x00c36400, 0x47504653, 0x5346414f, 0x73757245,
                                       0x01021997, 0x01161970, 0x7461636f, 0x19830326, 0xaad7aaea};
    struct statfs info;
    if (statfs(folder, &info) != 0) {
        return tp_fail(error, tp_status_from_errno(errno), "can't look at %s: %s", folder,
                       strerror(errno));
    }
    for (size_t i = 0; i < sizeof network / sizeof network[0]; i++) {
        if ((uint32_t)info.f_type == network[i]) {
            return tp_fail(error, TP_ERR_UNSUPPORTED, "%s is on a network file system", folder);
        }
    }
    return TP_OK;
}

/* One file; false when it isn't a piece. */
static bool load_piece(const char *path, tp_piece *piece)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return false;
    }
    void *memory = MAP_FAILED;
    if (fstat(fd, &info) == 0 && (uint64_t)info.st_size > sizeof(header)) {
        memory = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    }
    close(fd);
    if (memory == MAP_FAILED) {
        return false;
    }
    const header *found = memory;
    if (found->magic != MAGIC || found->size != (uint64_t)info.st_size - sizeof *found) {
        munmap(memory, (size_t)info.st_size);
        return false;
    }
    *piece =
        (tp_piece){found->address, found->size, (uint8_t *)memory + sizeof *found, found->kind};
    return true;
}

static int compare_addresses(const void *a, const void *b)
{
    const tp_piece *left = a;
    const tp_piece *right = b;
    return (left->address > right->address) - (left->address < right->address);
}

tp_status tp_pieces_load(tp_pieces *out, const char *folder, tp_error *error)
{
    tp_buf found = TP_BUF_INIT;
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    *out = (tp_pieces){0};
    if (listing == NULL) {
        return tp_fail(error, tp_status_from_errno(errno), "can't list %s: %s", folder,
                       strerror(errno));
    }
    while ((entry = readdir(listing)) != NULL) {
        char path[TP_PATH_MAX];
        tp_piece piece;
        if (entry->d_name[0] == 'm' && tp_path_join(path, folder, entry->d_name) == TP_OK &&
            load_piece(path, &piece)) {
            tp_buf_put(&found, &piece, sizeof piece);
            if (found.failed) {
                munmap(piece.memory - sizeof(header), sizeof(header) + piece.size);
                break;
            }
        }
    }
    closedir(listing);
    out->pieces = (tp_piece *)(void *)found.data;
    out->count = (uint32_t)(found.size / sizeof *out->pieces);
    if (found.failed) {
        tp_pieces_free(out);
        return tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", folder);
    }
    if (out->count > 0) {
        qsort(out->pieces, out->count, sizeof *out->pieces, compare_addresses);
    }
    return TP_OK;
}

void tp_pieces_free(tp_pieces *pieces)
{
    for (uint32_t i = 0; i < pieces->count; i++) {
        munmap(pieces->pieces[i].memory - sizeof(header), sizeof(header) + pieces->pieces[i].size);
    }
    tp_free(pieces->pieces);
    *pieces = (tp_pieces){0};
}

void *tp_pieces_find(const tp_pieces *pieces, const void *address, uint64_t size)
{
    const tp_piece wanted = {.address = (uint64_t)(uintptr_t)address};
    if (pieces->count == 0) {
        return NULL;
    }
    const tp_piece *found =
        bsearch(&wanted, pieces->pieces, pieces->count, sizeof wanted, compare_addresses);
    return found != NULL && found->size >= size ? found->memory : NULL;
}
