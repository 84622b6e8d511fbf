#include "tensor_access.h"

#include <string.h>

#include "base/mem.h"
#include "containers.h"
#include "tensor_layout.h"

#define MAX_NESTING 32 /* containers in containers; a list may contain itself */
#define MAX_WRAPPERS 4 /* tensors in tensors */

static enum type_kind classify(core_state *state, PyTypeObject *type)
{
    if (!PyType_IsSubtype(type, state->tensor_type)) {
        return TYPE_OTHER;
    }
    /* A type that takes over dispatch decides itself what its values are. */
    PyObject *dispatch = PyObject_GetAttrString((PyObject *)type, "__torch_dispatch__");
    const bool plain = dispatch == state->disabled_dispatch;
    core_clear_error();
    Py_XDECREF(dispatch);
    return plain ? TYPE_TENSOR : TYPE_WRAPPER;
}

enum type_kind tensor_type_kind(core_state *state, PyTypeObject *type)
{
    if (type == state->tensor_type || type == state->parameter_type) {
        return TYPE_TENSOR;
    }
    for (unsigned i = 0; i < state->type_count; i++) {
        if (state->type_cache[i].type == type) {
            return state->type_cache[i].kind;
        }
    }
    const enum type_kind kind = classify(state, type);
    if (state->type_count < CORE_TYPE_CACHE) {
        Py_INCREF((PyObject *)type); /* the address must not be given to another type */
        state->type_cache[state->type_count].type = type;
        state->type_cache[state->type_count].kind = kind;
        state->type_count++;
    }
    return kind;
}

static bool attribute_is_true(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    const bool yes = value != NULL && PyObject_IsTrue(value) == 1;
    Py_XDECREF(value);
    core_clear_error();
    return yes;
}

static bool method_is_true(PyObject *object, const char *name)
{
    PyObject *value = PyObject_CallMethod(object, name, NULL);
    const bool yes = value != NULL && PyObject_IsTrue(value) == 1;
    Py_XDECREF(value);
    core_clear_error();
    return yes;
}

/* A tensor that gives no view: is it one that would have been read, and what is it? */
static bool explain(PyObject *tensor, tensor_view *view, const char *otherwise, bool all)
{
    if (!all && !method_is_true(tensor, "is_floating_point") &&
        !method_is_true(tensor, "is_complex")) {
        return false;
    }
    if (attribute_is_true(tensor, "is_meta")) {
        view->why = "it is on the meta device";
    } else if (attribute_is_true(tensor, "is_sparse") ||
               attribute_is_true(tensor, "is_sparse_csr")) {
        view->why = "it is sparse";
    } else {
        view->why = otherwise;
    }
    return true;
}

/* What older capsules don't know, by the dtype's name. They are read as bytes. */
static bool is_of_bytes(PyObject *tensor, dl_dtype *dtype)
{
    static const struct {
        const char *name;
        dl_dtype dtype;
    } rows[] = {
        {"torch.bool", {DL_BOOL, 8, 1}},
        {"torch.float8_e4m3fn", {DL_FLOAT8_E4M3FN, 8, 1}},
        {"torch.float8_e5m2", {DL_FLOAT8_E5M2, 8, 1}},
        {"torch.float8_e4m3fnuz", {DL_FLOAT8_E4M3FNUZ, 8, 1}},
        {"torch.float8_e5m2fnuz", {DL_FLOAT8_E5M2FNUZ, 8, 1}},
        {"torch.float8_e8m0fnu", {DL_FLOAT8_E8M0FNU, 8, 1}},
    };
    PyObject *own = PyObject_GetAttrString(tensor, "dtype");
    PyObject *text = own == NULL ? NULL : PyObject_Str(own);
    const char *name = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
    bool found = false;
    for (size_t i = 0; name != NULL && !found && i < sizeof(rows) / sizeof(rows[0]); i++) {
        found = strcmp(rows[i].name, name) == 0;
        *dtype = rows[i].dtype;
    }
    Py_XDECREF(text);
    Py_XDECREF(own);
    core_clear_error();
    return found;
}

/* A tensor of bytes on the same memory. It is a view, which would be a node of the graph. */
static PyObject *as_bytes(core_state *state, PyObject *tensor)
{
    PyObject *view = PyObject_GetAttrString(tensor, "view");
    PyObject *bytes = view == NULL ? NULL : core_call_without_grad(state, view, state->uint8);
    Py_XDECREF(view);
    return bytes;
}

/* PyTorch before 2.10: a capsule around a managed tensor, which is kept until the view is
 * closed. */
static int view_by_capsule(core_state *state, PyObject *tensor, tensor_view *view, dl_tensor *out)
{
    dl_dtype dtype;
    const bool of_bytes = is_of_bytes(tensor, &dtype);
    PyObject *source = of_bytes ? as_bytes(state, tensor) : Py_NewRef(tensor);
    /* This makes a view, too. */
    PyObject *capsule =
        source == NULL ? NULL : core_call_without_grad(state, state->to_dlpack, source);
    Py_XDECREF(source);
    if (capsule == NULL) {
        return -1;
    }
    const dl_managed_tensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
    if (managed == NULL) {
        Py_DECREF(capsule);
        return -1;
    }
    *out = managed->tensor;
    if (of_bytes) {
        out->dtype = dtype;
    }
    view->capsule = capsule;
    return 0;
}

static uint32_t dtype_of(const dl_tensor *dl)
{
    static const struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
        uint32_t dtype;
    } rows[] = {
        {DL_FLOAT, 64, 1, TP_F64},
        {DL_FLOAT, 32, 1, TP_F32},
        {DL_FLOAT, 16, 1, TP_F16},
        {DL_BFLOAT, 16, 1, TP_BF16},
        {DL_FLOAT8_E4M3FN, 8, 1, TP_F8_E4M3FN},
        {DL_FLOAT8_E5M2, 8, 1, TP_F8_E5M2},
        {DL_FLOAT8_E4M3FNUZ, 8, 1, TP_F8_E4M3FNUZ},
        {DL_FLOAT8_E5M2FNUZ, 8, 1, TP_F8_E5M2FNUZ},
        {DL_FLOAT8_E8M0FNU, 8, 1, TP_F8_E8M0FNU},
        {DL_FLOAT4_E2M1FN, 4, 2, TP_F4_E2M1FN_X2},
        {DL_INT, 8, 1, TP_I8},
        {DL_INT, 16, 1, TP_I16},
        {DL_INT, 32, 1, TP_I32},
        {DL_INT, 64, 1, TP_I64},
        {DL_UINT, 8, 1, TP_U8},
        {DL_UINT, 16, 1, TP_U16},
        {DL_UINT, 32, 1, TP_U32},
        {DL_UINT, 64, 1, TP_U64},
        {DL_BOOL, 8, 1, TP_BOOL},
        {DL_COMPLEX, 64, 1, TP_C64},
        {DL_COMPLEX, 128, 1, TP_C128},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].code == dl->dtype.code && rows[i].bits == dl->dtype.bits &&
            rows[i].lanes == dl->dtype.lanes) {
            return rows[i].dtype;
        }
    }
    return TP_DTYPE_NONE;
}

static bool host_can_read(int32_t device)
{
    return device == DL_CPU || device == DL_CUDA_HOST || device == DL_ROCM_HOST ||
           device == DL_CUDA_MANAGED;
}

static bool is_same_attribute(PyObject *a, PyObject *b, const char *name)
{
    PyObject *of_a = PyObject_GetAttrString(a, name);
    PyObject *of_b = PyObject_GetAttrString(b, name);
    const bool same =
        of_a != NULL && of_b != NULL && PyObject_RichCompareBool(of_a, of_b, Py_EQ) == 1;
    Py_XDECREF(of_a);
    Py_XDECREF(of_b);
    return same;
}

/* The only tensor that a wrapper says it is made of, if that has the wrapper's shape and dtype:
 * what is made of one of another kind gives it a meaning (a scale, a place) that isn't known here.
 * NULL: there is none such, with or without an error set. */
static PyObject *only_part(PyObject *tensor)
{
    PyObject *flat = PyObject_CallMethod(tensor, "__tensor_flatten__", NULL);
    PyObject *names = flat == NULL ? NULL : PySequence_GetItem(flat, 0);
    PyObject *name =
        names != NULL && PySequence_Size(names) == 1 ? PySequence_GetItem(names, 0) : NULL;
    PyObject *part = name == NULL ? NULL : PyObject_GetAttr(tensor, name);
    if (part != NULL &&
        (!is_same_attribute(tensor, part, "shape") || !is_same_attribute(tensor, part, "dtype"))) {
        Py_CLEAR(part);
    }
    Py_XDECREF(name);
    Py_XDECREF(names);
    Py_XDECREF(flat);
    return part;
}

/* The tensor that holds a wrapper's values, new; NULL when there is none that is known. */
static PyObject *inner_tensor(core_state *state, PyObject *tensor)
{
    PyObject *inner = NULL;
    if (PyObject_HasAttrString(tensor, "to_local")) {
        PyObject *to_local = PyObject_GetAttrString((PyObject *)Py_TYPE(tensor), "to_local");
        inner = to_local == NULL ? NULL : core_call_without_grad(state, to_local, tensor);
        Py_XDECREF(to_local);
    } else if (!PyObject_HasAttrString(tensor, "trigger_wait")) { /* its collective may still run */
        inner = only_part(tensor);
    }
    core_clear_error();
    if (inner != NULL && tensor_type_kind(state, Py_TYPE(inner)) == TYPE_OTHER) {
        Py_CLEAR(inner);
    }
    return inner;
}

/* Goes to the innermost tensor that has memory; NULL: there is none. */
static PyObject *find_memory(core_state *state, PyObject *tensor, tensor_view *view)
{
    if (Py_TYPE(tensor) == state->tensor_type) {
        return tensor;
    }
    for (int depth = 0; tensor_type_kind(state, Py_TYPE(tensor)) == TYPE_WRAPPER; depth++) {
        PyObject *inner = depth < MAX_WRAPPERS ? inner_tensor(state, tensor) : NULL;
        Py_XDECREF(view->inner); /* holds tensor from the second turn on */
        view->inner = inner;
        if (inner == NULL) {
            return NULL;
        }
        tensor = inner;
    }
    return tensor;
}

static bool is_of_whole_numbers(uint32_t dtype)
{
    return dtype >= TP_I8 && dtype <= TP_BOOL;
}

/* all: integers and bools too. */
static bool fill_view(core_state *state, PyObject *whole, tensor_view *view, bool all)
{
    PyObject *tensor = find_memory(state, whole, view);
    if (tensor == NULL) {
        return explain(whole, view, "its type keeps the values elsewhere", all);
    }
    if (state->layout.known && tensor_layout_read(&state->layout, tensor, &view->data)) {
        view->bytes = tensor_bytes(&view->data);
        view->is_plain = true;
        if (view->data.data == NULL && view->bytes > 0) {
            view->why = "its memory has been freed";
        }
        return all || !is_of_whole_numbers(view->data.dtype);
    }

    dl_tensor dl;
    const int failed = state->exchange != NULL
                           ? state->exchange->dltensor_from_py_object_no_sync(tensor, &dl)
                           : view_by_capsule(state, tensor, view, &dl);
    if (failed) {
        core_clear_error();
        return explain(tensor, view, "it has no memory that can be read", all);
    }
    const bool whole_numbers =
        dl.dtype.code == DL_INT || dl.dtype.code == DL_UINT || dl.dtype.code == DL_BOOL;
    if (whole_numbers && !all) {
        return false;
    }
    view->data.dtype = dtype_of(&dl);
    view->data.ndim = (uint32_t)dl.ndim;
    view->data.shape = dl.shape;
    view->data.strides = dl.strides;
    view->bytes = tensor_bytes(&view->data);
    view->data.data = dl.data == NULL ? NULL : (const char *)dl.data + dl.byte_offset;
    if (view->data.dtype == TP_DTYPE_NONE) {
        view->why = "its dtype is not supported";
    } else if (dl.ndim > TP_MAX_DIMS) {
        view->why = "it has too many dimensions";
    } else if (dl.data == NULL && view->bytes > 0) {
        view->why = "its memory has been freed";
    } else if (!host_can_read(dl.device.type)) {
        view->why = "it is on a device";
        view->on_device = true;
    }
    return true;
}

/* A subclass may have a __torch_function__, which must not learn of what hooks ask its tensors. */
static PyObject *hide_from_subclass(core_state *state, PyObject *tensor)
{
    const PyTypeObject *type = Py_TYPE(tensor);
    if (type == state->tensor_type || type == state->parameter_type) {
        return NULL;
    }
    return core_enter(state->disable_torch_function);
}

static bool view_open(core_state *state, PyObject *tensor, tensor_view *view, bool all)
{
    memset(view, 0, sizeof(*view));
    view->tensor = tensor;
    view->guard = hide_from_subclass(state, tensor);
    if (!fill_view(state, tensor, view, all)) {
        tensor_view_close(view);
        return false;
    }
    return true;
}

bool tensor_view_open(core_state *state, PyObject *tensor, tensor_view *view)
{
    return view_open(state, tensor, view, false);
}

bool tensor_view_open_any(core_state *state, PyObject *tensor, tensor_view *view)
{
    return view_open(state, tensor, view, true);
}

void tensor_view_close(tensor_view *view)
{
    Py_CLEAR(view->capsule);
    Py_CLEAR(view->inner);
    if (view->guard != NULL) {
        core_show(view->guard);
        view->guard = NULL;
    }
}

void tensor_list_init(tensor_list *list)
{
    list->items = list->inline_items;
    list->count = 0;
    list->keyword = NULL;
    list->kept = NULL;
    list->seen_count = 0;
    list->seen_more = NULL;
    list->capacity = TENSOR_LIST_INLINE;
}

/* Room for one more; NULL when memory ran out. */
static tensor_view *next_view(tensor_list *list)
{
    if (list->count == list->capacity) {
        const bool was_inline = list->items == list->inline_items;
        const size_t size = (size_t)list->capacity * 2 * sizeof(tensor_view);
        tensor_view *items = tp_realloc(was_inline ? NULL : list->items, size);
        if (items == NULL) {
            return NULL;
        }
        if (was_inline) {
            memcpy(items, list->inline_items, sizeof(list->inline_items));
        }
        list->items = items;
        list->capacity *= 2;
    }
    return &list->items[list->count];
}

static bool add_tensor(core_state *state, tensor_list *list, PyObject *tensor, bool integers)
{
    tensor_view *view = next_view(list);
    if (view != NULL && view_open(state, tensor, view, integers)) {
        view->keyword = list->keyword;
        list->count++;
    }
    return view != NULL;
}

PyObject *tensor_list_unpack(core_state *state, tensor_list *list, PyObject *value)
{
    PyObject *elements = container_elements(state, value);
    if (elements == NULL) {
        return NULL;
    }
    if (list->kept == NULL) {
        list->kept = PyList_New(0);
    }
    const bool kept = list->kept != NULL && PyList_Append(list->kept, elements) == 0;
    Py_DECREF(elements);
    if (!kept) {
        core_clear_error();
    }
    return kept ? elements : NULL;
}

/* 1: the list hasn't come to this container yet, 0: it has, -1: memory ran out. */
static int is_new(tensor_list *list, const PyObject *container)
{
    for (uint32_t i = 0; i < list->seen_count; i++) {
        if (list->seen[i] == container) {
            return 0;
        }
    }
    if (list->seen_count < TENSOR_LIST_INLINE) {
        list->seen[list->seen_count++] = container;
        return 1;
    }
    if (list->seen_more == NULL) {
        list->seen_more = PySet_New(NULL);
    }
    PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)container);
    int known = -1;
    if (list->seen_more != NULL && address != NULL) {
        known = PySet_Contains(list->seen_more, address);
    }
    if (known == 0 && PySet_Add(list->seen_more, address) != 0) {
        known = -1;
    }
    Py_XDECREF(address);
    core_clear_error();
    return known < 0 ? -1 : !known;
}

static bool add_nested(core_state *state, tensor_list *list, PyObject *value, bool integers,
                       int depth);

static bool add_elements(core_state *state, tensor_list *list, PyObject *value, bool integers,
                         int depth)
{
    const int new = is_new(list, value);
    if (new <= 0) {
        return new == 0;
    }
    if (PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PyList_Size(value); i++) {
            if (!add_nested(state, list, PyList_GetItem(value, i), integers, depth + 1)) {
                return false;
            }
        }
    } else if (PyDict_Check(value)) {
        PyObject *key = NULL;
        PyObject *item = NULL;
        Py_ssize_t position = 0;
        while (PyDict_Next(value, &position, &key, &item)) {
            if (!add_nested(state, list, item, integers, depth + 1)) {
                return false;
            }
        }
    } else {
        PyObject *elements = tensor_list_unpack(state, list, value);
        return elements == NULL || add_nested(state, list, elements, integers, depth + 1);
    }
    return true;
}

static bool add_nested(core_state *state, tensor_list *list, PyObject *value, bool integers,
                       int depth)
{
    if (value == Py_None || depth > MAX_NESTING) {
        return true;
    }
    if (tensor_type_kind(state, Py_TYPE(value)) != TYPE_OTHER) {
        return add_tensor(state, list, value, integers);
    }
    if (PyTuple_Check(value)) {
        const Py_ssize_t size = PyTuple_Size(value);
        for (Py_ssize_t i = 0; i < size; i++) {
            if (!add_nested(state, list, PyTuple_GetItem(value, i), integers, depth + 1)) {
                return false;
            }
        }
        return true;
    }
    /* Numbers and texts are most of what else there is. */
    return PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value) ||
           add_elements(state, list, value, integers, depth);
}

bool tensor_list_add(core_state *state, tensor_list *list, PyObject *value, bool integers)
{
    if (Py_TYPE(value) == state->tensor_type) {
        return add_tensor(state, list, value, integers); /* most values are just that */
    }
    return add_nested(state, list, value, integers, 0);
}

void tensor_list_free(tensor_list *list)
{
    for (uint32_t i = list->count; i-- > 0;) {
        tensor_view_close(&list->items[i]);
    }
    if (list->items != list->inline_items) {
        tp_free(list->items);
    }
    Py_XDECREF(list->kept);
    Py_XDECREF(list->seen_more);
    tensor_list_init(list);
}
