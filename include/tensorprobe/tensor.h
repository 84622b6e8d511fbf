/* A borrowed view of a tensor in host memory. */
#ifndef TENSORPROBE_TENSOR_H
#define TENSORPROBE_TENSOR_H

#include <stdint.h>

#include "tensorprobe/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. The numbers are stored in journals: never renumber. */
#define TP_DTYPE_NONE 0
#define TP_F64 1
#define TP_F32 2
#define TP_F16 3
#define TP_BF16 4
#define TP_F8_E4M3FN 5 /* no Inf; NaN is s.1111.111 */
#define TP_F8_E5M2 6
#define TP_F8_E4M3FNUZ 7 /* no Inf, no -0; NaN is 0x80, and so in the next */
#define TP_F8_E5M2FNUZ 8
#define TP_F8_E8M0FNU 9    /* 2^(byte - 127); 255 is NaN */
#define TP_F4_E2M1FN_X2 10 /* two elements a byte, low half first; the shape counts bytes */
#define TP_I8 11
#define TP_I16 12
#define TP_I32 13
#define TP_I64 14
#define TP_U8 15
#define TP_U16 16
#define TP_U32 17
#define TP_U64 18
#define TP_BOOL 19 /* a byte: 0 is 0, the others are 1 */
#define TP_C64 20  /* two f32: real and imaginary part */
#define TP_C128 21

#define TP_MAX_DIMS 32

/* Nothing is owned: data, shape and strides must stay valid for the duration of the call that
 * takes the view. strides count elements, may be 0 (expanded) or NULL (row-major contiguous).
 * ndim 0 is a scalar. data may be NULL when the tensor is empty. */
typedef struct tp_tensor {
    const void *data;
    const int64_t *shape;
    const int64_t *strides;
    uint32_t dtype;
    uint32_t ndim;
} tp_tensor;

/* Bytes of one element, or 0 for an unknown dtype. */
TP_API uint32_t tp_dtype_size(uint32_t dtype);

/* The framework's name, as in "torch.bfloat16"; "unknown" for an unknown dtype. Static. */
TP_API const char *tp_dtype_name(uint32_t dtype);

#ifdef __cplusplus
}
#endif

#endif
