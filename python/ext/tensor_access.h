/* From a torch tensor to a view of its memory, without copying. */
#ifndef TP_EXT_TENSOR_ACCESS_H
#define TP_EXT_TENSOR_ACCESS_H

#include "core.h"
#include "tensorprobe/tensor.h"

/* A view is good while the tensor lives, is not resized, and the view has not been closed. While
 * one of a subclass's tensor is open, nobody's __torch_function__ is called in this thread: views
 * are closed in the opposite order. */
typedef struct tensor_view {
    PyObject *tensor;  /* borrowed */
    PyObject *keyword; /* borrowed; of the argument that holds it, NULL: it has none */
    PyObject *capsule; /* owned; NULL on the fast path */
    PyObject *guard;   /* owned; the entered context manager, NULL: none was needed */
    PyObject *inner; /* owned; the tensor inside of one that keeps its values elsewhere, or NULL */
    const char *why; /* NULL: data can be read; else why not, static */
    bool is_plain;   /* its values are what its memory says: no view by conj() or the like */
    bool on_device;  /* why says so, and nothing else is in the way: torch can read it there */
    tp_tensor data;  /* shape and strides are borrowed from the tensor */
    uint64_t bytes;  /* of its elements, expanded dimensions included */
} tensor_view;

/* Of the elements, expanded dimensions included. */
static inline uint64_t tensor_bytes(const tp_tensor *data)
{
    uint64_t bytes = tp_dtype_size(data->dtype);
    for (uint32_t i = 0; i < data->ndim; i++) {
        bytes *= (uint64_t)data->shape[i];
    }
    return bytes;
}

enum type_kind tensor_type_kind(core_state *state, PyTypeObject *type);

/* True: a tensor of floating-point or complex numbers, *view is filled (it may be unreadable:
 * view->why). False: integers and bools. Never leaves a Python error set. */
bool tensor_view_open(core_state *state, PyObject *tensor, tensor_view *view);

/* Likewise for integers and bools, too: true for every tensor. */
bool tensor_view_open_any(core_state *state, PyObject *tensor, tensor_view *view);
void tensor_view_close(tensor_view *view);

/* The tensors of one side of a module, in order. */
#define TENSOR_LIST_INLINE 8
typedef struct tensor_list {
    tensor_view *items;
    uint32_t count;
    uint32_t capacity;
    PyObject *keyword; /* borrowed; of the tensors that are added next */
    PyObject *kept;    /* list: what was unpacked on the way; NULL: nothing */
    const PyObject *seen[TENSOR_LIST_INLINE]; /* containers on the way, the first of them */
    uint32_t seen_count;
    PyObject *seen_more; /* set: the addresses of the others; NULL: there are none */
    tensor_view inline_items[TENSOR_LIST_INLINE];
} tensor_list;

void tensor_list_init(tensor_list *list);

/* Appends the tensors in value: a tensor, or containers of such; those of integers and bools if
 * they are wanted. Anything else is passed over, and so is a container that was there before
 * (parts of a tree may know their parents; a tuple can't). False when memory ran out. The value
 * must outlive the list. */
bool tensor_list_add(core_state *state, tensor_list *list, PyObject *value, bool integers);
void tensor_list_free(tensor_list *list);

/* The elements of a dataclass, a UserDict or a deque, held by the list. NULL: it is none. */
PyObject *tensor_list_unpack(core_state *state, tensor_list *list, PyObject *value);

#endif
