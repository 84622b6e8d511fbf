/* _core.JournalReader: a journal's items as Python values. */
#include <string.h>

#include "compute.h"
#include "core.h"
#include "journal/select.h"
#include "spans.h"
#include "tensorprobe/reader.h"

typedef struct journal_object {
    PyObject ob_base; /* as PyObject_HEAD */
    tp_reader *reader;
} journal_object;

static PyObject *journal_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"directory", NULL};
    PyObject *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:JournalReader", names, PyUnicode_FSConverter,
                                     &path)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    journal_object *self = (journal_object *)(void *)alloc(type, 0);
    if (self != NULL) {
        tp_error error = {0};
        const tp_status status = tp_reader_open(&self->reader, PyBytes_AsString(path), &error);
        if (status != TP_OK) {
            self->reader = NULL;
            core_raise(status, &error);
            Py_DECREF((PyObject *)self);
            self = NULL;
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void journal_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    tp_reader_close(&((journal_object *)object)->reader);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

/* Puts a new reference into the dict. A NULL value is an error that is set already. */
static bool put(PyObject *dict, const char *name, PyObject *value)
{
    const bool ok = value != NULL && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static PyObject *shape_of(const tp_reader *reader, uint32_t shape)
{
    uint32_t ndim = 0;
    const int64_t *dims = tp_reader_shape(reader, shape, &ndim);
    if (dims == NULL) {
        return Py_NewRef(Py_None);
    }
    PyObject *tuple = PyTuple_New((Py_ssize_t)ndim);
    for (uint32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *number = PyLong_FromLongLong(dims[i]);
        if (number == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static bool put_stats(PyObject *dict, const tp_stats *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"count", s->count},
                  {"nan", s->nan},
                  {"pos_inf", s->pos_inf},
                  {"neg_inf", s->neg_inf},
                  {"zeros", s->zeros},
                  {"subnormal", s->subnormal},
                  {"abs_max_index", s->abs_max_index}};
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"min", s->min},
                   {"max", s->max},
                   {"finite_min", s->finite_min},
                   {"finite_max", s->finite_max},
                   {"abs_max", s->abs_max},
                   {"sum", s->sum},
                   {"sum_abs", s->sum_abs},
                   {"sum_sq", s->sum_sq},
                   {"m2", s->m2},
                   {"norm", tp_stats_norm(s)},
                   {"mean", tp_stats_mean(s)},
                   {"std", tp_stats_std(s)}};
    bool ok = put(dict, "sq_exp", PyLong_FromLongLong(s->sq_exp));
    for (size_t i = 0; ok && i < sizeof(counts) / sizeof(counts[0]); i++) {
        ok = put(dict, counts[i].name, PyLong_FromUnsignedLongLong(counts[i].value));
    }
    for (size_t i = 0; ok && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        ok = put(dict, numbers[i].name, PyFloat_FromDouble(numbers[i].value));
    }
    return ok;
}

static bool put_alert(PyObject *dict, const tp_alert *alert)
{
    const char *rule = tp_rule_name(alert->rule);
    const char *op = tp_op_name(alert->op);
    char text[TP_ALERT_TEXT];
    tp_alert_describe(alert, text, sizeof(text));
    return put(dict, "text", PyUnicode_FromString(text)) &&
           put(dict, "rule", PyUnicode_FromString(rule == NULL ? "" : rule)) &&
           put(dict, "op", PyUnicode_FromString(op == NULL ? "" : op)) &&
           put(dict, "value", PyFloat_FromDouble(alert->value)) &&
           put(dict, "baseline", PyFloat_FromDouble(alert->baseline)) &&
           put(dict, "threshold", PyFloat_FromDouble(alert->threshold)) &&
           put(dict, "samples", PyLong_FromUnsignedLongLong(alert->samples)) &&
           put(dict, "more", PyLong_FromUnsignedLongLong(alert->more)) &&
           put(dict, "incident", PyLong_FromUnsignedLongLong(alert->incident));
}

static PyObject *text_or_empty(const char *text)
{
    return PyUnicode_FromString(text == NULL ? "" : text);
}

static const char *state_name(uint32_t state)
{
    return state == TP_INCIDENT_BEGINS  ? "begins"
           : state == TP_INCIDENT_GROWS ? "grows"
           : state == TP_INCIDENT_ENDS  ? "ends"
                                        : "";
}

static bool put_witness(PyObject *dict, const tp_key *key)
{
    char row[1024] = "";
    if (key != NULL) {
        tp_row_name(key, 0, row, sizeof(row));
    }
    return put(dict, "witness", PyUnicode_FromString(row));
}

static bool put_incident(PyObject *dict, const tp_reader *reader, const tp_record *record)
{
    const tp_incident *i = &record->u.incident;
    const tp_key *key = tp_reader_key(reader, record->key);
    const tp_key *witness = tp_reader_key(reader, i->witness);
    char text[TP_INCIDENT_TEXT] = "";
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"number", i->number},         {"samples", i->samples}, {"steps", i->steps},
                  {"first_step", i->first_step}, {"alerts", i->alerts},   {"series", i->series},
                  {"last_step", i->last_step},   {"parent", i->parent},   {"bits", i->bits},
                  {"zoom_steps", i->zoom_steps}};
    if (key != NULL) {
        tp_incident_describe(record, key, witness, text, sizeof(text));
    }
    bool ok =
        put(dict, "state", text_or_empty(state_name(i->state))) &&
        put(dict, "severity", text_or_empty(tp_severity_name(i->severity))) &&
        put(dict, "cause", text_or_empty(tp_cause_name(i->cause))) &&
        put(dict, "rule", text_or_empty(tp_rule_name(i->rule))) &&
        put(dict, "op", text_or_empty(tp_op_name(i->op))) &&
        put(dict, "value", PyFloat_FromDouble(i->value)) &&
        put(dict, "baseline", PyFloat_FromDouble(i->baseline)) &&
        put(dict, "threshold", PyFloat_FromDouble(i->threshold)) &&
        put(dict, "evidence", PyFloat_FromDouble(i->evidence)) &&
        put(dict, "element",
            i->element == TP_NO_INDEX ? PyLong_FromLong(-1)
                                      : PyLong_FromUnsignedLongLong(i->element)) &&
        put(dict, "zoom_first",
            i->zoom_steps == 0 ? PyLong_FromLong(-1)
                               : PyLong_FromUnsignedLongLong(i->first_step + i->zoom_after)) &&
        put_witness(dict, witness) && put(dict, "text", PyUnicode_FromString(text));
    for (size_t n = 0; ok && n < sizeof(counts) / sizeof(counts[0]); n++) {
        ok = put(dict, counts[n].name, PyLong_FromUnsignedLongLong(counts[n].value));
    }
    return ok;
}

static bool put_number(PyObject *dict, const char *name, uint64_t value)
{
    return put(dict, name, PyLong_FromUnsignedLongLong(value));
}

/* times are null while the call isn't known to have ended. */
static bool put_collective(PyObject *dict, const tp_reader *reader, const tp_collective *call)
{
    const bool done = (call->flags & TP_COLLECTIVE_DONE) != 0;
    const tp_key *place =
        call->location > 0 ? tp_reader_key(reader, (uint32_t)(call->location - 1)) : NULL;
    return put_number(dict, "op", call->op) && put_number(dict, "tag", call->tag) &&
           put(dict, "peer", PyLong_FromLong(call->peer)) &&
           put_number(dict, "group_size", call->group_size) &&
           put_number(dict, "sequence", call->sequence) &&
           put_number(dict, "bytes_in", call->bytes_in) &&
           put_number(dict, "bytes_out", call->bytes_out) &&
           put_number(dict, "signature", call->signature) &&
           put_number(dict, "running", call->running) &&
           put_number(dict, "issue_ns", call->issue_ns) &&
           put(dict, "location",
               place != NULL ? PyUnicode_FromString(place->name) : Py_NewRef(Py_None)) &&
           put_number(dict, "flags", call->flags) && put_number(dict, "call_ns", call->call_ns) &&
           put(dict, "done_ns",
               done ? PyLong_FromUnsignedLongLong(call->done_ns) : Py_NewRef(Py_None)) &&
           put_number(dict, "waited_ns", call->wait_ns);
}

static bool put_key(PyObject *dict, const tp_key *key, uint32_t call)
{
    char row[1024];
    tp_row_name(key, call, row, sizeof(row));
    const char *quantity = tp_quantity_name(key->quantity);
    const char *role = tp_role_name(key->role);
    return put(dict, "name", PyUnicode_FromString(key->name)) &&
           put(dict, "row", PyUnicode_FromString(row)) &&
           put(dict, "quantity", PyUnicode_FromString(quantity == NULL ? "" : quantity)) &&
           put(dict, "role", PyUnicode_FromString(role == NULL ? "" : role)) &&
           put(dict, "vpp_stage", PyLong_FromLong(key->vpp_stage)) &&
           put(dict, "slot", PyLong_FromLong(key->slot)) &&
           put(dict, "argument",
               key->argument == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(key->argument)) &&
           (key->quantity != TP_COMM || put(dict, "group", PyUnicode_FromString(key->global_name)));
}

/* Only records that have one get it. */
static bool put_histogram(PyObject *dict, const tp_batch *batch, const tp_record *record)
{
    tp_histogram found;
    if (tp_batch_histogram(batch, record, &found) != TP_OK) {
        return true;
    }
    PyObject *bins = core_list_of_counts(found.bins, found.bin_count);
    return bins != NULL &&
           put(dict, "histogram",
               Py_BuildValue("{s:d,s:d,s:N}", "low", found.low, "high", found.high, "bins", bins));
}

static bool put_exponents(PyObject *dict, const tp_batch *batch, const tp_record *record)
{
    tp_histogram found;
    if (tp_batch_exponents(batch, record, &found) != TP_OK) {
        return true;
    }
    PyObject *bins = core_list_of_counts(found.bins, found.bin_count);
    return bins != NULL && put(dict, "exponents",
                               Py_BuildValue("{s:i,s:N}", "first", (int)found.low, "bins", bins));
}

static PyObject *record_to_dict(const tp_reader *reader, const tp_batch *batch,
                                const tp_record *record)
{
    const tp_key *key = tp_reader_key(reader, record->key);
    PyObject *dict = PyDict_New();
    bool ok = dict != NULL && (key == NULL || put_key(dict, key, record->call)) &&
              put(dict, "step", PyLong_FromUnsignedLongLong(batch->step)) &&
              put(dict, "order", PyLong_FromUnsignedLongLong(record->order)) &&
              put(dict, "micro_step", PyLong_FromUnsignedLong(record->micro_step)) &&
              put(dict, "call", PyLong_FromUnsignedLong(record->call)) &&
              put(dict, "filled", PyBool_FromLong(record->state == TP_SLOT_DONE));
    if (ok && record->kind == TP_RECORD_ALERT) {
        ok = put_alert(dict, &record->u.alert);
    } else if (ok && record->kind == TP_RECORD_INCIDENT) {
        ok = put_incident(dict, reader, record);
    } else if (ok && record->kind == TP_RECORD_COLLECTIVE) {
        ok = put(dict, "dtype", PyUnicode_FromString(tp_dtype_name(record->dtype))) &&
             put(dict, "shape", shape_of(reader, record->shape)) &&
             put_collective(dict, reader, &record->u.collective);
    } else if (ok && record->kind == TP_RECORD_STATS) {
        ok = put(dict, "dtype", PyUnicode_FromString(tp_dtype_name(record->dtype))) &&
             put(dict, "shape", shape_of(reader, record->shape)) &&
             put(dict, "time_ns", PyLong_FromUnsignedLongLong(record->time_ns)) &&
             put_stats(dict, &record->u.stats) && put_histogram(dict, batch, record) &&
             put_exponents(dict, batch, record);
    }
    if (!ok) {
        Py_CLEAR(dict);
    }
    return dict;
}

/* Those of one kind; of all kinds where it is 0. */
static PyObject *records_to_list(const tp_reader *reader, const tp_batch *batch, uint32_t kind)
{
    const uint64_t count = batch->records == NULL ? 0 : batch->count;
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list != NULL && i < count; i++) {
        if (kind != 0 && batch->records[i].kind != kind) {
            continue;
        }
        PyObject *dict = record_to_dict(reader, batch, &batch->records[i]);
        if (dict == NULL || PyList_Append(list, dict) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(dict);
    }
    return list;
}

static PyObject *quantities(uint32_t bits)
{
    PyObject *list = PyList_New(0);
    for (uint32_t quantity = 0; list != NULL && quantity < 32; quantity++) {
        const char *text = (bits >> quantity & 1) != 0 ? tp_quantity_name(quantity) : NULL;
        PyObject *name = text == NULL ? NULL : PyUnicode_FromString(text);
        if (text != NULL && (name == NULL || PyList_Append(list, name) != 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *batch_to_dict(const tp_batch *b)
{
    return Py_BuildValue(
        "{s:s,s:K,s:I,s:I,s:i,s:N,s:N,s:N,s:I,s:I,s:K,s:K,s:L,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:I}",
        "type", "step", "step", (unsigned long long)b->step, "rank", b->rank, "attempt", b->attempt,
        "pp_stage", b->pp_stage, "partial", PyBool_FromLong((b->flags & TP_BATCH_PARTIAL) != 0),
        "gap", PyBool_FromLong((b->flags & TP_BATCH_GAP) != 0), "skipped",
        PyBool_FromLong((b->flags & TP_BATCH_SKIPPED) != 0), "micro_steps", b->micro_steps,
        "unfilled", b->unfilled, "begin_ns", (unsigned long long)b->begin_ns, "end_ns",
        (unsigned long long)b->end_ns, "wall_ns", (long long)b->wall_ns, "hook_ns",
        (unsigned long long)b->hook_ns, "wait_ns", (unsigned long long)b->wait_ns, "writer_ns",
        (unsigned long long)b->writer_ns, "errors", (unsigned long long)b->errors, "count",
        (unsigned long long)b->count, "bytes", (unsigned long long)b->bytes, "left_out",
        quantities(b->left_out), "zoom", b->zoom);
}

static bool is_open(const journal_object *self)
{
    if (self->reader == NULL) {
        PyErr_SetString(PyExc_ValueError, "the journal is closed");
        return false;
    }
    return true;
}

/* frames_only(): from here on items tell what they are, and their step, and no more is read. */
static PyObject *journal_frames_only(PyObject *object, PyObject *Py_UNUSED(unused))
{
    journal_object *self = (journal_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    tp_reader_limit(self->reader, 0, UINT64_MAX, true);
    Py_RETURN_NONE;
}

/* next(records=True) */
static PyObject *journal_next(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", NULL};
    journal_object *self = (journal_object *)object;
    int records = 1;
    tp_item item;
    tp_error error = {0};
    if (!is_open(self) || !PyArg_ParseTupleAndKeywords(args, kwargs, "|p:next", names, &records)) {
        return NULL;
    }
    const tp_status status = tp_reader_next(self->reader, &item, &error);
    if (status == TP_END) {
        Py_RETURN_NONE;
    }
    if (status != TP_OK) {
        core_raise(status, &error);
        return NULL;
    }
    if (item.type == TP_ITEM_CLOSE) {
        return Py_BuildValue("{s:s}", "type", "close");
    }
    if (item.type == TP_ITEM_ALERTS) {
        PyObject *alerts = records_to_list(self->reader, &item.batch, TP_RECORD_ALERT);
        PyObject *incidents = records_to_list(self->reader, &item.batch, TP_RECORD_INCIDENT);
        if (alerts == NULL || incidents == NULL) {
            Py_XDECREF(alerts);
            Py_XDECREF(incidents);
            return NULL;
        }
        return Py_BuildValue("{s:s,s:K,s:N,s:N}", "type", "alerts", "step",
                             (unsigned long long)item.batch.step, "alerts", alerts, "incidents",
                             incidents);
    }
    if (item.type == TP_ITEM_REMOVED) {
        return Py_BuildValue("{s:s,s:K,s:K,s:K}", "type", "removed", "first_step",
                             (unsigned long long)item.batch.step, "last_step",
                             (unsigned long long)item.removed_last, "count",
                             (unsigned long long)item.batch.count);
    }
    PyObject *dict = batch_to_dict(&item.batch);
    if (dict != NULL && records &&
        !put(dict, "records", records_to_list(self->reader, &item.batch, 0))) {
        Py_CLEAR(dict);
    }
    return dict;
}

static bool append(PyObject *list, PyObject *value)
{
    const bool ok = value != NULL && PyList_Append(list, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static bool is_wanted(const tp_reader *reader, const tp_record *record,
                      const tp_selection *selection)
{
    const tp_key *key = tp_reader_key(reader, record->key);
    return record->kind == TP_RECORD_STATS && record->state == TP_SLOT_DONE && key != NULL &&
           tp_selection_has_record(selection, record) && tp_selection_has_key(selection, key);
}

static bool append_batch(const tp_reader *reader, const tp_batch *batch,
                         const tp_selection *selection, uint32_t op, PyObject *steps,
                         PyObject *values)
{
    bool ok = true;
    for (uint64_t i = 0; ok && batch->records != NULL && i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (is_wanted(reader, record, selection)) {
            ok = append(steps, PyLong_FromUnsignedLongLong(batch->step)) &&
                 append(values, PyFloat_FromDouble(tp_stats_op(&record->u.stats, op)));
        }
    }
    return ok;
}

/* A name under which nothing was recorded has no values; a word that means nothing is an error. */
static bool add_words(tp_selection *selection, const char *quantity, const char *role,
                      const char *op)
{
    tp_error error = {0};
    tp_status status = tp_selection_add_quantity(selection, quantity, &error);
    if (status == TP_OK && role != NULL) {
        status = tp_selection_add_role(selection, role, &error);
    }
    if (status == TP_OK && tp_op_from_name(op) == 0) {
        PyErr_Format(PyExc_ValueError, "no such op: '%s'", op);
        return false;
    }
    return status == TP_OK || core_raise(status, &error) != NULL;
}

/* series(name, quantity, role=None, op="norm", slot=None, call=None, micro_step=None) of what is
 * still ahead of the reader. */
static PyObject *journal_series(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "quantity", "role", "op", "slot", "call", "micro_step", NULL};
    journal_object *self = (journal_object *)object;
    const char *name = NULL;
    const char *quantity = NULL;
    const char *role = NULL;
    const char *op = "norm";
    int slot = TP_ANY_SLOT;
    long long call = -1;
    long long micro_step = -1;
    if (!is_open(self) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "ss|zsiLL:series", names, &name, &quantity,
                                     &role, &op, &slot, &call, &micro_step)) {
        return NULL;
    }
    tp_selection selection = {.names = &name,
                              .name_count = 1,
                              .exact = true,
                              .slot = slot,
                              .call = call,
                              .micro_step = micro_step};
    if (!add_words(&selection, quantity, role, op)) {
        return NULL;
    }
    PyObject *steps = PyList_New(0);
    PyObject *values = PyList_New(0);
    bool ok = steps != NULL && values != NULL;
    while (ok) {
        tp_item item;
        tp_error error = {0};
        const tp_status status = tp_reader_next(self->reader, &item, &error);
        if (status == TP_END) {
            return Py_BuildValue("(NN)", steps, values);
        }
        if (status != TP_OK) {
            core_raise(status, &error);
            ok = false;
        } else if (item.type == TP_ITEM_BATCH) {
            ok = append_batch(self->reader, &item.batch, &selection, tp_op_from_name(op), steps,
                              values);
        }
    }
    Py_XDECREF(steps);
    Py_XDECREF(values);
    return NULL;
}

static PyObject *journal_keys(PyObject *object, PyObject *Py_UNUSED(unused))
{
    journal_object *self = (journal_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    const uint32_t count = tp_reader_key_count(self->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *dict = PyDict_New();
        const tp_key *key = tp_reader_key(self->reader, i);
        if (dict == NULL || key == NULL || !put_key(dict, key, 0) ||
            !put(dict, "global_name", PyUnicode_FromString(key->global_name)) ||
            !put(dict, "span", span_to_python(key->span)) || PyList_Append(list, dict) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(dict);
    }
    return list;
}

static PyObject *journal_run(PyObject *object, void *Py_UNUSED(closure))
{
    journal_object *self = (journal_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    const tp_run_info *run = tp_reader_run(self->reader);
    return Py_BuildValue("{s:s,s:I,s:I,s:L}", "run_id", run->run_id, "rank", run->rank, "attempt",
                         run->attempt, "start_wall_ns", (long long)run->start_wall_ns);
}

static PyObject *journal_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    tp_reader_close(&((journal_object *)object)->reader);
    Py_RETURN_NONE;
}

static PyMethodDef journal_methods[] = {
    {"next", (PyCFunction)(void (*)(void))journal_next, METH_VARARGS | METH_KEYWORDS,
     "next($self, records=True)\n--\n\nThe next item as a dict, None when there is nothing more at "
     "present. ValueError at a damaged place; the next call goes on behind it."},
    {"frames_only", journal_frames_only, METH_NOARGS,
     "frames_only($self, /)\n--\n\nFrom here on items tell what they are, and their step; their "
     "contents are passed over."},
    {"series", (PyCFunction)(void (*)(void))journal_series, METH_VARARGS | METH_KEYWORDS,
     "series($self, name, quantity, role=None, op='norm', slot=-2, call=-1, micro_step=-1)\n--\n\n"
     "Steps and values of one series in what is still ahead."},
    {"keys", journal_keys, METH_NOARGS, "keys($self, /)\n--\n\nThe series defined so far."},
    {"close", journal_close, METH_NOARGS, "close($self, /)\n--\n\nCloses the files."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef journal_properties[] = {
    {"run", journal_run, NULL, "Run id, rank, attempt and start of the journal.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot journal_slots[] = {
    {Py_tp_new, journal_new},
    {Py_tp_dealloc, journal_dealloc},
    {Py_tp_methods, journal_methods},
    {Py_tp_getset, journal_properties},
    {Py_tp_doc, "JournalReader(directory)\n--\n\nReads a journal from its beginning."},
    {0, NULL},
};

PyType_Spec core_journal_spec = {
    .name = "tensorprobe._core.JournalReader",
    .basicsize = sizeof(journal_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = journal_slots,
};
