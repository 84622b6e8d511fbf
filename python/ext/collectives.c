#include "collectives.h"

#include <string.h>

#include "base/mem.h"
#include "recording.h"

/* A call that has been issued and is not known to have ended. */
typedef struct open_call {
    bool used;
    tp_step *step; /* NULL: it has been recorded with the step in which it was issued */
    tp_record *slot;
    tp_record issued; /* a copy, for the record in a later step */
    uint64_t wait_begin_ns;
} open_call;

typedef struct collectives {
    PyObject ob_base;        /* as PyObject_HEAD */
    monitor_object *monitor; /* owned */
    PyObject *before_end;    /* owned callable: a last look at what has ended */
    open_call *calls;
    uint32_t capacity;
} collectives;

static PyObject *collectives_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"monitor", "before_end", NULL};
    PyObject *monitor = NULL;
    PyObject *before_end = NULL;
    core_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Collectives", names, state->monitor_type,
                                     &monitor, &before_end) ||
        core_load_torch(state) != 0) {
        return NULL;
    }
    collectives *self = PyObject_New(collectives, type);
    if (self != NULL) {
        self->monitor = (monitor_object *)Py_NewRef(monitor);
        self->before_end = Py_NewRef(before_end);
        self->calls = NULL;
        self->capacity = 0;
        self->monitor->collectives = (PyObject *)self;
    }
    return (PyObject *)self;
}

/* Publishes the call's slot: it belongs to the step in which the call was issued. */
static void publish(open_call *call)
{
    if (call->step != NULL) {
        call->slot->u.collective.flags |= call->issued.u.collective.flags;
        tp_step_fill(call->step, call->slot);
        call->step = NULL;
        call->slot = NULL;
    }
}

static void publish_all(collectives *self)
{
    const tp_monitor *monitor = self->monitor->monitor;
    if (monitor == NULL || !tp_monitor_is_active(monitor)) {
        return; /* a forked child: the slots are its parent's */
    }
    for (uint32_t i = 0; i < self->capacity; i++) {
        publish(&self->calls[i]);
    }
}

static void collectives_dealloc(PyObject *object)
{
    collectives *self = (collectives *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->monitor->collectives == object) {
        publish_all(self);
        self->monitor->collectives = NULL;
    }
    tp_free(self->calls);
    Py_DECREF((PyObject *)self->monitor);
    Py_XDECREF(self->before_end);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

bool collectives_end_step(monitor_object *monitor)
{
    collectives *self = (collectives *)monitor->collectives;
    bool ok = true;
    if (self == NULL) {
        return true;
    }
    Py_INCREF((PyObject *)self); /* what is called may let go of it */
    if (!monitor->closing && self->before_end != NULL) {
        PyObject *callable = Py_NewRef(self->before_end);
        PyObject *done = PyObject_CallFunctionObjArgs(callable, NULL);
        Py_DECREF(callable);
        if (done == NULL) {
            done = monitor_trouble(monitor, "collectives");
        }
        ok = done != NULL;
        Py_XDECREF(done);
    }
    publish_all(self);
    if (monitor->closing) {
        monitor->collectives = NULL;
    }
    Py_DECREF((PyObject *)self);
    return ok;
}

/* An unused place; its number is the call's handle. NULL: an error is set. */
static open_call *take_place(collectives *self, uint32_t *number)
{
    for (uint32_t i = 0; i < self->capacity; i++) {
        if (!self->calls[i].used) {
            *number = i;
            return &self->calls[i];
        }
    }
    const uint32_t capacity = self->capacity == 0 ? 16 : 2 * self->capacity;
    open_call *calls = tp_realloc(self->calls, capacity * sizeof(*calls));
    if (calls == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(&calls[self->capacity], 0, (capacity - self->capacity) * sizeof(*calls));
    *number = self->capacity;
    self->calls = calls;
    self->capacity = capacity;
    return &calls[*number];
}

/* Where nobody ends the step meanwhile, no lock is needed. */
static tp_record *reserve(monitor_object *monitor, uint32_t key, uint64_t now, tp_step **step)
{
    *step = monitor->step;
    tp_record *slot = *step != NULL ? tp_step_reserve(*step, key, now)
                                    : tp_monitor_reserve(monitor->monitor, key, now, step);
    if (slot == NULL) {
        PyErr_NoMemory();
    }
    return slot;
}

/* What the record shows of the tensors: dtype and shape of the first. False: an error is set. */
static bool describe(monitor_object *monitor, PyObject *tensor, tp_record *record)
{
    static const int64_t none = 0;
    tensor_view view;
    uint32_t ndim = 0;
    const int64_t *shape = &none;
    const bool is_tensor = tensor != Py_None &&
                           tensor_type_kind(monitor->state, Py_TYPE(tensor)) != TYPE_OTHER &&
                           tensor_view_open_any(monitor->state, tensor, &view);
    if (is_tensor) {
        record->dtype = view.data.dtype;
        ndim = view.data.ndim;
        shape = ndim > 0 ? view.data.shape : &none;
    }
    const tp_status status =
        tp_registry_add_shape(tp_monitor_registry(monitor->monitor), ndim, shape, &record->shape);
    if (is_tensor) {
        tensor_view_close(&view);
    }
    if (status != TP_OK) {
        PyErr_NoMemory();
    }
    return status == TP_OK;
}

/* issue(…): the number of the call, or -1 when the open step isn't collected. */
static PyObject *collectives_issue(PyObject *object, PyObject *args)
{
    collectives *self = (collectives *)object;
    monitor_object *monitor = self->monitor;
    tp_record record = {.kind = TP_RECORD_COLLECTIVE};
    tp_collective *call = &record.u.collective;
    PyObject *tensor = NULL;
    unsigned long long sequence = 0;
    unsigned long long bytes[2] = {0};
    unsigned long long hashes[2] = {0};
    unsigned long long location = 0;
    unsigned long long flags = 0;
    if (!PyArg_ParseTuple(args, "IIOIIiIKKKKKKK:issue", &record.key, &record.call, &tensor,
                          &call->op, &call->tag, &call->peer, &call->group_size, &sequence,
                          &bytes[0], &bytes[1], &hashes[0], &hashes[1], &location, &flags)) {
        return NULL;
    }
    if (!monitor_is_collecting(monitor)) {
        return PyLong_FromLong(-1);
    }
    uint32_t number = 0;
    tp_step *step = NULL;
    open_call *place = NULL;
    tp_record *slot = NULL;
    const bool ok = describe(monitor, tensor, &record);
    /* From here on no Python code runs, and so no other thread takes the place. */
    const uint64_t begin = monitor_now(monitor);
    if (!ok || (place = take_place(self, &number)) == NULL ||
        (slot = reserve(monitor, record.key, begin, &step)) == NULL) {
        return monitor_trouble(monitor, "collectives");
    }
    call->sequence = sequence;
    call->bytes_in = bytes[0];
    call->bytes_out = bytes[1];
    call->signature = hashes[0];
    call->running = hashes[1];
    call->location = location;
    call->issue_ns = begin;
    record.order = slot->order;
    record.time_ns = slot->time_ns;
    record.micro_step = monitor_micro_step(monitor, 0);
    record.state = TP_SLOT_RESERVED;
    *slot = record;
    tp_step_issue(slot);
    call->flags = flags;
    *place = (open_call){.used = true, .step = step, .slot = slot, .issued = record};
    monitor_add_time(monitor, begin);
    return PyLong_FromUnsignedLong(number);
}

/* The open call with this number; NULL with an error set. */
static open_call *call_at(collectives *self, PyObject *number)
{
    const unsigned long i = PyLong_AsUnsignedLong(number);
    if (i < self->capacity && self->calls[i].used) {
        return &self->calls[i];
    }
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "no call has this number");
    }
    return NULL;
}

static PyObject *collectives_returned(PyObject *object, PyObject *number)
{
    collectives *self = (collectives *)object;
    open_call *call = call_at(self, number);
    if (call == NULL) {
        return NULL;
    }
    tp_collective *issued = &call->issued.u.collective;
    issued->call_ns = monitor_now(self->monitor) - issued->issue_ns;
    if (call->slot != NULL) {
        call->slot->u.collective.call_ns = issued->call_ns;
    }
    Py_RETURN_NONE;
}

static PyObject *collectives_waiting(PyObject *object, PyObject *number)
{
    collectives *self = (collectives *)object;
    open_call *call = call_at(self, number);
    if (call == NULL) {
        return NULL;
    }
    call->wait_begin_ns = monitor_now(self->monitor);
    Py_RETURN_NONE;
}

/* end(number, flags): it has ended. True when it is recorded. */
static PyObject *collectives_end(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    collectives *self = (collectives *)object;
    monitor_object *monitor = self->monitor;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "end takes a call's number and flags");
        return NULL;
    }
    open_call *call = call_at(self, args[0]);
    const unsigned long flags = PyLong_AsUnsignedLong(args[1]);
    if (call == NULL || PyErr_Occurred()) {
        return NULL;
    }
    call->used = false;
    if (!monitor_is_active(monitor)) {
        Py_RETURN_FALSE; /* closed, which has published it; or a forked child */
    }
    const uint64_t now = monitor_now(monitor);
    if (call->step == NULL) {
        if (!monitor_is_collecting(monitor)) {
            Py_RETURN_FALSE;
        }
        call->slot = reserve(monitor, call->issued.key, now, &call->step);
        if (call->slot == NULL) {
            return monitor_trouble(monitor, "collectives");
        }
        call->issued.order = call->slot->order;
        call->issued.time_ns = call->slot->time_ns;
        *call->slot = call->issued;
        call->slot->u.collective.flags |= TP_COLLECTIVE_LATE;
    }
    tp_collective *ended = &call->slot->u.collective;
    ended->flags |= flags;
    ended->call_ns = call->issued.u.collective.call_ns;
    ended->done_ns = now - ended->issue_ns;
    /* Of what was found to have ended nobody knows how much of the time was waiting. */
    const bool waited = call->wait_begin_ns > 0 && (flags & TP_COLLECTIVE_POLLED) == 0;
    ended->wait_ns = waited ? now - call->wait_begin_ns : 0;
    publish(call);
    Py_RETURN_TRUE;
}

/* The tensors' shape, if they were one: of equal ones [n, …], else their elements. */
static uint32_t joined_shape(const reading *last, uint32_t tensors, bool alike, uint64_t elements,
                             int64_t shape[TP_MAX_DIMS])
{
    if (tensors > 1 && !alike) {
        shape[0] = (int64_t)elements;
        return 1;
    }
    const uint32_t stacked = tensors > 1 && last->ndim < TP_MAX_DIMS;
    shape[0] = tensors;
    if (last->ndim > 0) {
        memcpy(shape + stacked, last->shape, last->ndim * sizeof(*shape));
    }
    return last->ndim + stacked;
}

/* Records the tensors of one slot as one. False: an error is set. */
static bool record_values(monitor_object *monitor, uint32_t key, uint32_t number, PyObject *tensors)
{
    site place = {.has_key = true, .key = key};
    reading all = {.dtype = 0};
    int64_t shape[TP_MAX_DIMS] = {0};
    int64_t first[TP_MAX_DIMS] = {0};
    uint32_t first_ndim = 0;
    uint32_t count = 0;
    bool alike = true;
    const Py_ssize_t size = PyList_Size(tensors);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *tensor = Py_NewRef(PyList_GetItem(tensors, i));
        tensor_view view;
        if (tensor_type_kind(monitor->state, Py_TYPE(tensor)) == TYPE_OTHER ||
            !tensor_view_open(monitor->state, tensor, &view)) {
            Py_DECREF(tensor);
            continue; /* integers */
        }
        reading one;
        const int result = reading_take(monitor, &view, false, 0, "collectives", &one);
        if (result == READ_OK) {
            const size_t bytes = one.ndim * sizeof(*shape);
            if (count == 0) {
                all = one;
                first_ndim = one.ndim;
                memcpy(first, one.shape, bytes);
            } else {
                tp_stats_merge(&all.stats, &one.stats);
            }
            alike = alike && one.ndim == first_ndim && memcmp(first, one.shape, bytes) == 0;
            all.shape = first;
            count++;
        }
        tensor_view_close(&view);
        Py_DECREF(tensor);
        if (result == READ_FAILED) {
            return false;
        }
    }
    if (size < 0 || count == 0) {
        return size >= 0;
    }
    all.ndim = first_ndim;
    all.ndim = joined_shape(&all, count, alike, all.stats.count, shape);
    all.shape = shape;
    return reading_record(monitor, &all, &place, monitor_micro_step(monitor, 0), number);
}

/* values(key, call, tensors) */
static PyObject *collectives_values(PyObject *object, PyObject *args)
{
    monitor_object *monitor = ((collectives *)object)->monitor;
    unsigned int key = 0;
    unsigned int number = 0;
    PyObject *tensors = NULL;
    if (!PyArg_ParseTuple(args, "IIO:values", &key, &number, &tensors)) {
        return NULL;
    }
    if (!monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    const bool ok = record_values(monitor, key, number, tensors);
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "collectives");
    if (monitor_is_active(monitor)) {
        monitor_add_time(monitor, begin);
    }
    return result;
}

static PyObject *collectives_trouble(PyObject *object, PyObject *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    return monitor_trouble(((collectives *)object)->monitor, "collectives");
}

static PyObject *collectives_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    collectives *self = (collectives *)object;
    if (self->monitor->collectives == object) {
        publish_all(self);
        self->monitor->collectives = NULL;
    }
    Py_CLEAR(self->before_end);
    Py_RETURN_NONE;
}

static PyMethodDef collectives_methods[] = {
    {"issue", collectives_issue, METH_VARARGS,
     "issue($self, key, call, tensor, op, tag, peer, group_size, sequence, bytes_in, bytes_out, "
     "signature, running, location, flags, /)\n--\n\nRecords that a call begins. Its number, "
     "or -1 "
     "when the open step isn't collected."},
    {"returned", collectives_returned, METH_O,
     "returned($self, number, /)\n--\n\nThe call has come back; it may still run."},
    {"waiting", collectives_waiting, METH_O,
     "waiting($self, number, /)\n--\n\nSomebody begins to wait for it."},
    {"end", (PyCFunction)(void (*)(void))collectives_end, METH_FASTCALL,
     "end($self, number, flags, /)\n--\n\nThe call has ended. False: that isn't recorded."},
    {"values", collectives_values, METH_VARARGS,
     "values($self, key, call, tensors, /)\n--\n\nRecords a list of tensors as if they were one; "
     "integers are left out."},
    {"trouble", collectives_trouble, METH_O,
     "trouble($self, error, /)\n--\n\nWatching has failed: counts and warns as a hook does."},
    {"close", collectives_close, METH_NOARGS,
     "close($self, /)\n--\n\nRecords what is known of the calls that still run."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot collectives_slots[] = {
    {Py_tp_new, collectives_new},
    {Py_tp_dealloc, collectives_dealloc},
    {Py_tp_methods, collectives_methods},
    {Py_tp_doc, "Collectives(monitor, before_end)\n--\n\nThe records of collectives. before_end is "
                "called before a step ends."},
    {0, NULL},
};

PyType_Spec core_collectives_spec = {
    .name = "tensorprobe._core.Collectives",
    .basicsize = sizeof(collectives),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = collectives_slots,
};
