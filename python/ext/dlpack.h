/* The binary layout of DLPack 1.x as far as it is needed here (https://dmlc.github.io/dlpack), in
 * our own words: nothing of a framework is included or linked. */
#ifndef TP_EXT_DLPACK_H
#define TP_EXT_DLPACK_H

#include <stdint.h>

#define DL_CPU 1        /* device types whose memory the host can read: these four */
#define DL_CUDA_HOST 3  /* pinned */
#define DL_ROCM_HOST 11 /* pinned */
#define DL_CUDA_MANAGED 13

#define DL_INT 0 /* codes of element types */
#define DL_UINT 1
#define DL_FLOAT 2
#define DL_BFLOAT 4
#define DL_COMPLEX 5
#define DL_BOOL 6
#define DL_FLOAT8_E4M3FN 10
#define DL_FLOAT8_E4M3FNUZ 11
#define DL_FLOAT8_E5M2 12
#define DL_FLOAT8_E5M2FNUZ 13
#define DL_FLOAT8_E8M0FNU 14
#define DL_FLOAT4_E2M1FN 17 /* torch: two lanes of 4 bits */

typedef struct dl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL from producers before 1.2: row-major contiguous */
    uint64_t byte_offset;
} dl_tensor;

_Static_assert(sizeof(dl_tensor) == 48, "DLTensor");

/* A capsule named "dltensor" points to this. */
typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct dl_managed_tensor *self);
} dl_managed_tensor;

/* type(tensor).__dlpack_c_exchange_api__, a capsule named "dlpack_exchange_api". Lives as long as
 * the process. Only the last but one function is used here. */
typedef struct dl_exchange_api {
    uint32_t major, minor;
    const struct dl_exchange_api *previous; /* an older table, or NULL */
    void *managed_tensor_allocator;
    void *managed_tensor_from_py_object_no_sync;
    void *managed_tensor_to_py_object_no_sync;
    /* Fills a view that borrows everything from the object. 0, or -1 with a Python error set. May
     * be absent (NULL). */
    int (*dltensor_from_py_object_no_sync)(void *object, dl_tensor *out);
    void *current_work_stream;
} dl_exchange_api;

_Static_assert(sizeof(dl_exchange_api) == 56, "DLPackExchangeAPI");

#endif
