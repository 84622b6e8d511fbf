/* _core.Table: a query of journals that hands out Arrow streams. Reading takes place in the
 * consumer, on its thread and without Python's lock. */
#include <string.h>

#include "arrow/drift.h"
#include "arrow/query.h"
#include "base/mem.h"
#include "core.h"
#include "journal/find.h"

typedef struct table_object {
    PyObject ob_base; /* as PyObject_HEAD */
    tp_query *query;
} table_object;

/* Borrowed pointers to the bytes objects of a list; NULL with an error set. */
static const char **texts_of(PyObject *list, uint32_t *count)
{
    const Py_ssize_t size = PyList_Size(list);
    const char **texts = size < 0 ? NULL : tp_calloc((size_t)size, sizeof *texts);
    if (texts == NULL && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; texts != NULL && i < size; i++) {
        texts[i] = PyBytes_AsString(PyList_GetItem(list, i));
        if (texts[i] == NULL) {
            tp_free(texts);
            texts = NULL;
        }
    }
    *count = (uint32_t)size;
    return texts;
}

static uint32_t *ranks_of(PyObject *list, uint32_t *count)
{
    const Py_ssize_t size = PyList_Size(list);
    uint32_t *ranks = size < 0 ? NULL : tp_calloc((size_t)size, sizeof *ranks);
    if (ranks == NULL && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; ranks != NULL && i < size; i++) {
        ranks[i] = (uint32_t)PyLong_AsUnsignedLong(PyList_GetItem(list, i));
        if (PyErr_Occurred()) {
            tp_free(ranks);
            ranks = NULL;
        }
    }
    *count = (uint32_t)size;
    return ranks;
}

/* What the arguments are while they are parsed. */
typedef struct arguments {
    const char *table;
    PyObject *directories, *columns, *ranks, *names, *quantities, *roles; /* lists */
    unsigned long long first_step, last_step;
    int slot;
    long long call, micro_step;
    unsigned long long width;
} arguments;

static tp_status add_words(PyObject *list, tp_selection *selection,
                           tp_status (*add)(tp_selection *, const char *, tp_error *),
                           tp_error *error)
{
    uint32_t count = 0;
    const char **words = texts_of(list, &count);
    tp_status status = words == NULL ? TP_ERR_NOMEM : TP_OK;
    for (uint32_t i = 0; status == TP_OK && i < count; i++) {
        status = add(selection, words[i], error);
    }
    tp_free(words);
    return status;
}

/* NULL with an error set. */
static tp_query *make_query(const arguments *given)
{
    tp_query_options options = tp_query_options_defaults(tp_table_from_name(given->table));
    tp_query *query = NULL;
    tp_error error = {0};
    if (options.table == 0) {
        PyErr_Format(PyExc_ValueError, "no such table: '%s'", given->table);
        return NULL;
    }
    options.first_step = given->first_step;
    options.last_step = given->last_step;
    options.selection.slot = given->slot;
    options.selection.call = given->call;
    options.selection.micro_step = given->micro_step;
    options.width = given->width;
    const char **directories = texts_of(given->directories, &options.directory_count);
    const char **columns =
        directories == NULL ? NULL : texts_of(given->columns, &options.column_count);
    const char **names =
        columns == NULL ? NULL : texts_of(given->names, &options.selection.name_count);
    uint32_t *ranks = names == NULL ? NULL : ranks_of(given->ranks, &options.rank_count);
    if (ranks != NULL) {
        options.directories = directories;
        options.columns = columns;
        options.selection.names = names;
        options.ranks = ranks;
        tp_status status =
            add_words(given->quantities, &options.selection, tp_selection_add_quantity, &error);
        if (status == TP_OK) {
            status = add_words(given->roles, &options.selection, tp_selection_add_role, &error);
        }
        if (status == TP_OK) {
            status = tp_query_new(&query, &options, &error);
        }
        if (status != TP_OK && !PyErr_Occurred()) {
            core_raise(status, &error);
        }
    }
    tp_free(directories);
    tp_free(columns);
    tp_free(names);
    tp_free(ranks);
    return query;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"table",     "directories", "columns",    "ranks", "first_step",
                            "last_step", "names",       "quantities", "roles", "slot",
                            "call",      "micro_step",  "width",      NULL};
    arguments given = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!O!O!KKO!O!O!iLLK:Table", names, &given.table,
                                     &PyList_Type, &given.directories, &PyList_Type, &given.columns,
                                     &PyList_Type, &given.ranks, &given.first_step,
                                     &given.last_step, &PyList_Type, &given.names, &PyList_Type,
                                     &given.quantities, &PyList_Type, &given.roles, &given.slot,
                                     &given.call, &given.micro_step, &given.width)) {
        return NULL;
    }
    tp_query *query = make_query(&given);
    if (query == NULL) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    table_object *self = (table_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        tp_query_drop(query);
        return NULL;
    }
    self->query = query;
    return (PyObject *)self;
}

static void table_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    tp_query_drop(((table_object *)object)->query);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

/* A consumer moves the struct out of the capsule and leaves release empty; what nobody took is
 * released here. */
static void free_stream(PyObject *capsule)
{
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (stream->release != NULL) {
        stream->release(stream);
    }
    tp_free(stream);
}

static void free_schema(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release != NULL) {
        schema->release(schema);
    }
    tp_free(schema);
}

/* __arrow_c_stream__(requested_schema=None): another schema than ours may be asked for, and need
 * not be given. */
static PyObject *table_stream(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__arrow_c_stream__", names, &requested)) {
        return NULL;
    }
    struct ArrowArrayStream *stream = tp_calloc(1, sizeof *stream);
    if (stream == NULL || tp_query_stream(((table_object *)object)->query, stream) != TP_OK) {
        tp_free(stream);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(stream, "arrow_array_stream", free_stream);
    if (capsule == NULL) {
        stream->release(stream);
        tp_free(stream);
    }
    return capsule;
}

static PyObject *table_schema(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct ArrowSchema *schema = tp_calloc(1, sizeof *schema);
    if (schema == NULL || tp_query_schema(((table_object *)object)->query, schema) != TP_OK) {
        tp_free(schema);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", free_schema);
    if (capsule == NULL) {
        schema->release(schema);
        tp_free(schema);
    }
    return capsule;
}

static PyObject *table_columns(PyObject *object, void *Py_UNUSED(closure))
{
    struct ArrowSchema schema;
    if (tp_query_schema(((table_object *)object)->query, &schema) != TP_OK) {
        return PyErr_NoMemory();
    }
    PyObject *list = PyList_New((Py_ssize_t)schema.n_children);
    for (int64_t i = 0; list != NULL && i < schema.n_children; i++) {
        PyObject *name = PyUnicode_FromString(schema.children[i]->name);
        if (name == NULL || PyList_SetItem(list, (Py_ssize_t)i, name) != 0) {
            Py_CLEAR(list);
        }
    }
    schema.release(&schema);
    return list;
}

static PyObject *table_damaged(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(tp_query_damaged(((table_object *)object)->query));
}

PyObject *core_find_journals(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *bytes = NULL;
    tp_journals found;
    tp_error error = {0};
    if (!PyUnicode_FSConverter(path, &bytes)) {
        return NULL;
    }
    const tp_status status = tp_journals_find(&found, PyBytes_AsString(bytes), &error);
    Py_DECREF(bytes);
    if (status != TP_OK) {
        return core_raise(status, &error);
    }
    PyObject *list = PyList_New((Py_ssize_t)found.count);
    for (uint32_t i = 0; list != NULL && i < found.count; i++) {
        PyObject *directory = PyUnicode_DecodeFSDefault(found.directories[i]);
        if (directory == NULL || PyList_SetItem(list, (Py_ssize_t)i, directory) != 0) {
            Py_CLEAR(list);
        }
    }
    tp_journals_free(&found);
    return list;
}

PyObject *core_find_drift(PyObject *Py_UNUSED(module), PyObject *list)
{
    tp_drift_options options = {0};
    tp_drift found;
    tp_error error = {0};
    tp_status status;
    const char **directories = texts_of(list, &options.directory_count);
    if (directories == NULL) {
        return NULL;
    }
    options.directories = directories;
    Py_BEGIN_ALLOW_THREADS;
    status = tp_drift_find(&options, &found, &error);
    Py_END_ALLOW_THREADS;
    tp_free(directories);
    if (status == TP_END) {
        Py_RETURN_NONE;
    }
    return status != TP_OK
               ? core_raise(status, &error)
               : Py_BuildValue("{s:K,s:s,s:s,s:I,s:I,s:K}", "step", (unsigned long long)found.step,
                               "name", found.name, "quantity", tp_quantity_name(found.quantity),
                               "rank", found.rank, "other", found.other, "parameters",
                               (unsigned long long)found.parameters);
}

static PyMethodDef table_methods[] = {
    {"__arrow_c_stream__", (PyCFunction)(void (*)(void))table_stream, METH_VARARGS | METH_KEYWORDS,
     "__arrow_c_stream__($self, requested_schema=None)\n--\n\nA new stream, from the beginning."},
    {"__arrow_c_schema__", table_schema, METH_NOARGS,
     "__arrow_c_schema__($self, /)\n--\n\nThe columns and their types."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef table_properties[] = {
    {"columns", table_columns, NULL, "Names of the columns.", NULL},
    {"damaged", table_damaged, NULL, "Damaged places that the last reading has passed over so far.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_getset, table_properties},
    {Py_tp_doc, "What was recorded, as columns. pandas, polars, DuckDB, pyarrow and whoever else "
                "knows __arrow_c_stream__ can read it; each reading begins anew."},
    {0, NULL},
};

PyType_Spec core_table_spec = {
    .name = "tensorprobe.Table",
    .basicsize = sizeof(table_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
