#include "tensor/walk.h"

#include <stdbool.h>
#include <string.h>

/* Number of elements, or false when it is negative or leaves int64_t. */
static bool shape_count(const tp_tensor *tensor, uint64_t *count)
{
    uint64_t product = 1;
    bool empty = false;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] < 0) {
            return false;
        }
        empty = empty || tensor->shape[d] == 0;
    }
    for (uint32_t d = 0; !empty && d < tensor->ndim; d++) {
        if (__builtin_mul_overflow(product, (uint64_t)tensor->shape[d], &product) ||
            product > (uint64_t)INT64_MAX) {
            return false;
        }
    }
    *count = empty ? 0 : product;
    return true;
}

/* Row-major strides of the shape; of no use when a dimension is empty. */
static void default_strides(const tp_tensor *tensor, int64_t strides[TP_MAX_DIMS])
{
    int64_t stride = 1;
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        strides[d] = stride;
        stride *= tensor->shape[d];
    }
}

/* Sorts the dimensions by falling stride if they then nest; else leaves their order alone. */
static void sort_if_nested(tp_walk *walk, const tp_tensor *tensor, const int64_t *strides)
{
    uint8_t sorted[TP_MAX_DIMS];
    for (uint32_t i = 0; i < walk->order_size; i++) {
        uint32_t place = i;
        for (; place > 0 && strides[sorted[place - 1]] < strides[walk->order[i]]; place--) {
            sorted[place] = sorted[place - 1];
        }
        sorted[place] = walk->order[i];
    }
    int64_t extent = 1; /* one more than the largest offset that the inner dimensions reach */
    for (uint32_t i = walk->order_size; i-- > 0;) {
        const int64_t stride = strides[sorted[i]];
        int64_t reach;
        if (stride < extent ||
            __builtin_mul_overflow(stride, tensor->shape[sorted[i]] - 1, &reach) ||
            __builtin_add_overflow(extent, reach, &extent)) {
            return;
        }
    }
    memcpy(walk->order, sorted, walk->order_size);
}

/* Joins dimensions that continue each other into loops. */
static void make_loops(tp_walk *walk, const tp_tensor *tensor, const int64_t *strides)
{
    walk->loops = 0;
    for (uint32_t i = 0; i < walk->order_size; i++) {
        const uint64_t size = (uint64_t)tensor->shape[walk->order[i]];
        const int64_t stride = strides[walk->order[i]];
        tp_walk_loop *outer = &walk->loop[walk->loops - (walk->loops > 0)];
        int64_t span;
        if (walk->loops > 0 && !__builtin_mul_overflow(stride, (int64_t)size, &span) &&
            outer->stride == span) {
            outer->size *= size;
            outer->stride = stride;
        } else {
            walk->loop[walk->loops++] = (tp_walk_loop){.size = size, .stride = stride};
        }
    }
    if (walk->loops == 0) { /* a single element, or none */
        walk->loop[walk->loops++] = (tp_walk_loop){.size = walk->count, .stride = 1};
    }
}

/* Checks the tensor, counts its elements, and finds its strides. */
static tp_status begin(tp_walk *walk, const tp_tensor *tensor, int64_t row_major[TP_MAX_DIMS],
                       const int64_t **strides)
{
    walk->element = tp_dtype_size(tensor->dtype);
    if (walk->element == 0 || tensor->ndim > TP_MAX_DIMS) {
        return TP_ERR_UNSUPPORTED;
    }
    if ((tensor->ndim > 0 && tensor->shape == NULL) || !shape_count(tensor, &walk->count) ||
        (walk->count > 0 && tensor->data == NULL)) {
        return TP_ERR_ARGUMENT;
    }
    *strides = tensor->strides;
    if (walk->count > 0 && tensor->strides == NULL) {
        default_strides(tensor, row_major);
        *strides = row_major;
    }
    walk->order_size = 0;
    walk->weight = 1;
    walk->data = tensor->data;
    walk->at = tensor->data;
    return TP_OK;
}

/* Takes the dimension in at the end of the order, or its size into the weight. */
static void add_dimension(tp_walk *walk, uint32_t d, int64_t size, bool expanded)
{
    if (expanded) {
        walk->weight *= (uint64_t)size;
    } else if (size > 1) {
        walk->order[walk->order_size++] = (uint8_t)d;
    }
}

tp_status tp_walk_open(tp_walk *walk, const tp_tensor *tensor)
{
    int64_t row_major[TP_MAX_DIMS];
    const int64_t *strides;
    const tp_status status = begin(walk, tensor, row_major, &strides);
    if (status != TP_OK) {
        return status;
    }
    for (uint32_t d = 0; walk->count > 0 && d < tensor->ndim; d++) {
        add_dimension(walk, d, tensor->shape[d], strides[d] == 0);
    }
    walk->count /= walk->weight;
    walk->left = walk->count;
    sort_if_nested(walk, tensor, strides);
    make_loops(walk, tensor, strides);
    return TP_OK;
}

tp_status tp_walk_open_pair(tp_walk *first, const tp_tensor *a, tp_walk *second, const tp_tensor *b)
{
    int64_t row_major[2][TP_MAX_DIMS];
    const int64_t *strides[2];
    tp_status status = begin(first, a, row_major[0], &strides[0]);
    if (status == TP_OK) {
        status = begin(second, b, row_major[1], &strides[1]);
    }
    if (status != TP_OK) {
        return status;
    }
    if (a->ndim != b->ndim ||
        (a->ndim > 0 && memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) != 0)) {
        return TP_ERR_ARGUMENT;
    }
    for (uint32_t d = 0; first->count > 0 && d < a->ndim; d++) {
        add_dimension(first, d, a->shape[d], strides[0][d] == 0 && strides[1][d] == 0);
    }
    first->count /= first->weight;
    first->left = first->count;
    sort_if_nested(first, a, strides[0]);
    make_loops(first, a, strides[0]);
    second->weight = first->weight;
    second->count = first->count;
    second->left = first->count;
    second->order_size = first->order_size;
    memcpy(second->order, first->order, first->order_size);
    make_loops(second, b, strides[1]);
    return TP_OK;
}

/* Steps over n elements of the innermost loop, which has that many left. */
static void advance(tp_walk *walk, uint64_t n)
{
    uint32_t i = walk->loops - 1;
    walk->left -= n;
    walk->loop[i].at += n;
    walk->at += walk->loop[i].stride * (int64_t)n * (int64_t)walk->element;
    while (i > 0 && walk->loop[i].at == walk->loop[i].size) {
        const tp_walk_loop *inner = &walk->loop[i];
        int64_t step = walk->loop[i - 1].stride - inner->stride * (int64_t)inner->size;
        walk->loop[i].at = 0;
        walk->loop[--i].at++;
        if (walk->left > 0) {
            walk->at += step * (int64_t)walk->element;
        }
    }
}

/* A copy of known size, so that each one becomes a move. */
static void copy_strided(uint8_t *to, const uint8_t *from, uint64_t n, int64_t bytes,
                         uint32_t element)
{
    for (uint64_t i = 0; i < n; i++, from += bytes, to += element) {
        switch (element) {
        case 16:
            memcpy(to, from, 16);
            break;
        case 8:
            memcpy(to, from, 8);
            break;
        case 4:
            memcpy(to, from, 4);
            break;
        case 2:
            memcpy(to, from, 2);
            break;
        default:
            *to = *from;
            break;
        }
    }
}

const void *tp_walk_next(tp_walk *walk, size_t n, void *buffer)
{
    const tp_walk_loop *inner = &walk->loop[walk->loops - 1];
    if (inner->stride == 1 && inner->size - inner->at >= n) {
        const void *run = walk->at;
        advance(walk, n);
        return run;
    }
    uint8_t *to = buffer;
    for (size_t filled = 0; filled < n;) {
        uint64_t part = inner->size - inner->at;
        part = part < n - filled ? part : n - filled;
        if (inner->stride == 1) {
            memcpy(to, walk->at, part * walk->element);
        } else {
            copy_strided(to, walk->at, part, inner->stride * (int64_t)walk->element, walk->element);
        }
        to += part * walk->element;
        filled += part;
        advance(walk, part);
    }
    return buffer;
}

uint64_t tp_walk_run(const tp_walk *walk)
{
    const tp_walk_loop *inner = &walk->loop[walk->loops - 1];
    return inner->stride == 1 ? inner->size - inner->at : 1;
}

void tp_walk_seek(tp_walk *walk, uint64_t position)
{
    walk->left = walk->count - position;
    walk->at = walk->data;
    for (uint32_t i = walk->loops; i-- > 0;) {
        tp_walk_loop *loop = &walk->loop[i];
        loop->at = position % loop->size;
        position /= loop->size;
        walk->at += (int64_t)loop->at * loop->stride * (int64_t)walk->element;
    }
}

uint64_t tp_walk_index(const tp_walk *walk, const tp_tensor *tensor, uint64_t position)
{
    uint64_t at[TP_MAX_DIMS];
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        at[d] = 0;
    }
    for (uint32_t i = walk->order_size; i-- > 0;) {
        const uint64_t size = (uint64_t)tensor->shape[walk->order[i]];
        at[walk->order[i]] = position % size;
        position /= size;
    }
    uint64_t index = 0;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        index = index * (uint64_t)tensor->shape[d] + at[d];
    }
    return index;
}
