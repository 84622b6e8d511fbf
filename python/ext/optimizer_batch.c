#include "optimizer_batch.h"

#include <string.h>

#include "compute.h"
#include "optimizer_rows.h"
#include "recording.h"
#include "stats/split.h"

static void let_go(optimizer_batch *batch)
{
    const uint32_t count = batch->count;
    batch->count = 0;
    batch->bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        Py_DECREF(batch->items[i].tensor);
    }
}

static tp_status compute(optimizer_batch *batch, tp_stats *stats)
{
    monitor_object *monitor = batch->hook->monitor;
    tp_stats_options options = {.eps = monitor->config->eps, .threads = 1};
    if (batch->bytes >= TP_SPLIT_BYTES) {
        options.threads = reading_threads(monitor->state);
    }
    if (batch->bytes < RELEASE_GIL_BYTES) {
        return tp_stats_compute_many(batch->tensors, batch->count, &options, stats);
    }
    tp_status status;
    monitor->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = tp_stats_compute_many(batch->tensors, batch->count, &options, stats);
    Py_END_ALLOW_THREADS;
    monitor->users--;
    return status;
}

bool optimizer_batch_flush(optimizer_batch *batch)
{
    tp_stats stats[BATCH_TENSORS];
    monitor_object *monitor = batch->hook->monitor;
    if (batch->count == 0) {
        return true;
    }
    const tp_status status = monitor_is_active(monitor) ? compute(batch, stats) : TP_OK;
    bool ok = status == TP_OK;
    if (!ok) {
        PyErr_Format(PyExc_RuntimeError, "an optimizer's tensors: %s", tp_status_name(status));
    }
    for (uint32_t i = 0; ok && i < batch->count && monitor_is_active(monitor); i++) {
        const batch_item *item = &batch->items[i];
        const tp_tensor *tensor = &batch->tensors[i];
        reading values;
        reading_begin(&values, tensor->dtype, tensor->ndim, tensor->shape);
        values.stats = stats[i];
        values.data = tensor;
        for (int series = item->first; ok && series <= item->last; series++) {
            ok = optimizer_hook_record_rows(batch->hook, item->entry, &values, series,
                                            batch->micro_step);
        }
    }
    let_go(batch);
    return ok;
}

void optimizer_batch_begin(optimizer_batch *batch, optimizer_hook *hook)
{
    batch->hook = hook;
    batch->count = 0;
    batch->bytes = 0;
    batch->micro_step = 0;
    hook->busy++;
}

bool optimizer_batch_end(optimizer_batch *batch, bool ok)
{
    ok = ok && optimizer_batch_flush(batch);
    let_go(batch);
    batch->hook->busy--;
    return ok;
}

/* One that has to be looked at more closely, after those that came before it. */
static bool record_alone(optimizer_batch *batch, watched *entry, const tensor_view *view, int first,
                         int last)
{
    reading values;
    if (!optimizer_batch_flush(batch)) {
        return false;
    }
    const int result = reading_take(batch->hook->monitor, view, false,
                                    optimizer_rows_quantity(first), entry->name, &values);
    bool ok = result != READ_FAILED;
    for (int series = first; ok && result == READ_OK && series <= last; series++) {
        ok = optimizer_hook_record_rows(batch->hook, entry, &values, series, batch->micro_step);
    }
    return ok;
}

/* Nothing but the tensor itself has to be held to read it. */
static bool is_ordinary(const monitor_object *monitor, const tensor_view *view)
{
    return view->why == NULL && view->capsule == NULL && view->guard == NULL &&
           view->inner == NULL && view->data.ndim <= SITE_DIMS &&
           monitor->config->device_path != TP_DEVICE_PATH_TORCH &&
           core_has_right_signs(monitor->state, view->tensor);
}

static void add(optimizer_batch *batch, watched *entry, const tensor_view *view, int first,
                int last)
{
    batch_item *item = &batch->items[batch->count];
    tp_tensor *tensor = &batch->tensors[batch->count++];
    const size_t size = view->data.ndim * sizeof(*item->shape);
    item->tensor = Py_NewRef(view->tensor);
    item->entry = entry;
    item->first = first;
    item->last = last;
    *tensor = view->data;
    tensor->shape = item->shape;
    tensor->strides = view->data.strides == NULL ? NULL : item->strides;
    if (size > 0) {
        memcpy(item->shape, view->data.shape, size);
    }
    if (size > 0 && view->data.strides != NULL) {
        memcpy(item->strides, view->data.strides, size);
    }
    batch->bytes += view->bytes;
}

bool optimizer_batch_add(optimizer_batch *batch, watched *entry, PyObject *tensor, int first,
                         int last)
{
    monitor_object *monitor = batch->hook->monitor;
    tensor_view view;
    if (tensor == Py_None || tensor_type_kind(monitor->state, Py_TYPE(tensor)) == TYPE_OTHER ||
        !tensor_view_open(monitor->state, tensor, &view)) {
        return true;
    }
    const bool ordinary = is_ordinary(monitor, &view) &&
                          !reading_wants_exponents(monitor, optimizer_rows_quantity(first));
    const bool ok = ordinary || record_alone(batch, entry, &view, first, last);
    if (ordinary) {
        add(batch, entry, &view, first, last);
    }
    tensor_view_close(&view);
    return ok && (batch->count < BATCH_TENSORS || optimizer_batch_flush(batch));
}
