/* The module tensorprobe._core. */
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "compute.h"
#include "core.h"
#include "stats/kernels.h"
#include "tensor_access.h"
#include "tensorprobe/record.h"
#include "tensorprobe/version.h"
#include "torch_calls.h"

int core_isa_from_name(const char *name)
{
    if (name == NULL) {
        return tp_cpu_isa();
    }
    for (int isa = TP_ISA_SCALAR; isa <= TP_ISA_NEON; isa++) {
        if (strcmp(name, tp_cpu_isa_name(isa)) == 0) {
            return isa;
        }
    }
    return -1;
}

PyObject *core_stats_to_dict(const tp_stats *s, const char *kernel)
{
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:d,s:d,s:d,s:K,s:d,s:d,s:d,s:d,s:L,s:d,s:d,s:d,s:s}",
        "count", (unsigned long long)s->count, "nan", (unsigned long long)s->nan, "pos_inf",
        (unsigned long long)s->pos_inf, "neg_inf", (unsigned long long)s->neg_inf, "zeros",
        (unsigned long long)s->zeros, "subnormal", (unsigned long long)s->subnormal, "min", s->min,
        "max", s->max, "finite_min", s->finite_min, "finite_max", s->finite_max, "abs_max",
        s->abs_max, "abs_max_index", (unsigned long long)s->abs_max_index, "sum", s->sum, "sum_abs",
        s->sum_abs, "sum_sq", s->sum_sq, "m2", s->m2, "sq_exp", (long long)s->sq_exp, "norm",
        tp_stats_norm(s), "mean", tp_stats_mean(s), "std", tp_stats_std(s), "kernel", kernel);
}

/* False for views made by conj().imag and the like, whose sign in memory is wrong. */
bool core_has_right_signs(const core_state *state, PyObject *tensor)
{
    PyObject *negative = PyObject_CallFunctionObjArgs(state->is_neg, tensor, NULL);
    const bool right = negative == Py_False;
    Py_XDECREF(negative);
    core_clear_error();
    return right;
}

PyObject *core_list_of_counts(const uint64_t *counts, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(counts[i]);
        if (count == NULL || PyList_SetItem(list, (Py_ssize_t)i, count) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Adds the outputs that the options asked for to the dict. */
static bool add_outputs(PyObject *dict, const tp_stats_options *options)
{
    PyObject *bins =
        options->bins != NULL ? core_list_of_counts(options->bins, options->bin_count) : NULL;
    bool ok = options->bins == NULL ||
              (bins != NULL && PyDict_SetItemString(dict, "histogram", bins) == 0);
    Py_XDECREF(bins);
    if (ok && options->exponents != NULL) {
        PyObject *negative = core_list_of_counts(options->exponents->negative, TP_EXPONENT_BINS);
        PyObject *positive = core_list_of_counts(options->exponents->positive, TP_EXPONENT_BINS);
        ok = negative != NULL && positive != NULL &&
             PyDict_SetItemString(dict, "exponents_negative", negative) == 0 &&
             PyDict_SetItemString(dict, "exponents_positive", positive) == 0;
        Py_XDECREF(negative);
        Py_XDECREF(positive);
    }
    if (ok && options->hash != NULL) {
        PyObject *hash = PyLong_FromUnsignedLongLong(*options->hash);
        ok = hash != NULL && PyDict_SetItemString(dict, "content_hash", hash) == 0;
        Py_XDECREF(hash);
    }
    return ok;
}

static PyObject *compute_stats(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tensor",    "eps",          "isa",     "histogram",
                            "exponents", "content_hash", "threads", NULL};
    core_state *state = PyModule_GetState(module);
    PyObject *tensor = NULL;
    const char *isa_name = NULL;
    PyObject *histogram = Py_None;
    int wants_exponents = 0;
    int wants_hash = 0;
    tp_exponents exponents;
    uint64_t hash;
    tp_stats_options options;
    tp_stats_options_defaults(&options);
    options.threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|dz$OppI:compute_stats", names, &tensor,
                                     &options.eps, &isa_name, &histogram, &wants_exponents,
                                     &wants_hash, &options.threads) ||
        core_load_torch(state) != 0) {
        return NULL;
    }
    const int isa = core_isa_from_name(isa_name);
    if (isa < 0) {
        return PyErr_Format(PyExc_ValueError,
                            "isa is 'scalar', 'avx2', 'avx512' or 'neon', not '%s'", isa_name);
    }
    if (histogram != Py_None &&
        (!PyTuple_Check(histogram) ||
         !PyArg_ParseTuple(histogram, "Idd;histogram is (bins, low, high)", &options.bin_count,
                           &options.low, &options.high))) {
        return PyErr_Occurred() != NULL
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "histogram is (bins, low, high)");
    }
    tensor_view view;
    if (tensor_type_kind(state, Py_TYPE(tensor)) == TYPE_OTHER ||
        !tensor_view_open_any(state, tensor, &view)) {
        PyErr_SetString(PyExc_TypeError, "compute_stats takes a tensor");
        return NULL;
    }
    if (histogram != Py_None) {
        const uint32_t room = options.bin_count <= TP_MAX_BINS ? options.bin_count : 0;
        options.bins = tp_calloc((size_t)room + 1, sizeof(*options.bins));
    }
    options.exponents = wants_exponents ? &exponents : NULL;
    options.hash = wants_hash ? &hash : NULL;
    tp_stats stats;
    const char *kernel = NULL;
    tp_status status = TP_ERR_UNSUPPORTED;
    if (view.why == NULL && !core_has_right_signs(state, tensor)) {
        view.why = "its negative bit is set";
    }
    if (view.why == NULL) {
        status = histogram != Py_None && options.bins == NULL
                     ? TP_ERR_NOMEM
                     : tp_stats_compute_isa(&view.data, &options, isa, &stats, &kernel);
    }
    const char *why = view.why != NULL ? view.why : tp_status_name(status);
    tensor_view_close(&view);
    PyObject *dict = NULL;
    if (status == TP_OK) {
        dict = core_stats_to_dict(&stats, kernel);
        if (dict != NULL && !add_outputs(dict, &options)) {
            Py_CLEAR(dict);
        }
    } else {
        PyErr_Format(PyExc_ValueError, "the tensor can't be read: %s", why);
    }
    tp_free(options.bins);
    return dict;
}

static bool add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **place, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    *place = (PyTypeObject *)(void *)type;
    return type != NULL && (name == NULL || PyModule_AddObjectRef(module, name, type) == 0);
}

static bool add_names(core_state *state)
{
    const struct {
        const char *text;
        PyObject **place;
    } names[] = {
        {"requires_grad", &state->name_requires_grad},
        {"grad_fn", &state->name_grad_fn},
        {"output_nr", &state->name_output_nr},
        {"_version", &state->name_version},
        {"training", &state->name_training},
        {"next_functions", &state->name_next_functions},
        {"_sequence_nr", &state->name_sequence_nr},
        {"register_hook", &state->name_register_hook},
        {"register_prehook", &state->name_register_prehook},
        {"grad", &state->name_grad},
        {"main_grad", &state->name_main_grad},
        {"state", &state->name_state},
        {"exp_avg", &state->name_exp_avg},
        {"exp_avg_sq", &state->name_exp_avg_sq},
        {"_parameters", &state->name_parameters},
        {"_modules", &state->name_modules},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].text);
        if (*names[i].place == NULL) {
            return false;
        }
    }
    return true;
}

static bool add_constants(PyObject *module)
{
    const struct {
        const char *name;
        long value;
    } constants[] = {
        {"ACTIVATION", TP_ACTIVATION},
        {"ACTIVATION_GRAD", TP_ACTIVATION_GRAD},
        {"GRAD_UNREDUCED", TP_GRAD_UNREDUCED},
        {"GRAD_REDUCED", TP_GRAD_REDUCED},
        {"PARAM_ORIGIN", TP_PARAM_ORIGIN},
        {"PARAM_UPDATED", TP_PARAM_UPDATED},
        {"EXP_AVG", TP_EXP_AVG},
        {"EXP_AVG_SQ", TP_EXP_AVG_SQ},
        {"SCALAR", TP_SCALAR},
        {"ROLE_NONE", TP_ROLE_NONE},
        {"ROLE_INPUT", TP_ROLE_INPUT},
        {"ROLE_OUTPUT", TP_ROLE_OUTPUT},
        {"COMM", TP_COMM},
        {"ROLE_PRE", TP_ROLE_PRE},
        {"ROLE_POST", TP_ROLE_POST},
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0) {
            return false;
        }
    }
    return true;
}

static int module_exec(PyObject *module)
{
    core_state *state = PyModule_GetState(module);
    state->config_error = PyErr_NewExceptionWithDoc(
        "tensorprobe.ConfigError",
        "The configuration is wrong: file, line, column and field tell where.", PyExc_ValueError,
        NULL);
    const bool ok =
        state->config_error != NULL &&
        PyModule_AddObjectRef(module, "ConfigError", state->config_error) == 0 &&
        add_type(module, &core_monitor_spec, &state->monitor_type, "Monitor") &&
        add_type(module, &core_journal_spec, &state->journal_type, "JournalReader") &&
        add_type(module, &core_table_spec, &state->table_type, "Table") &&
        add_type(module, &core_collectives_spec, &state->collectives_type, "Collectives") &&
        add_type(module, &core_module_hook_spec, &state->module_hook_type, NULL) &&
        add_type(module, &core_output_grad_spec, &state->output_grad_type, NULL) &&
        add_type(module, &core_input_grad_spec, &state->input_grad_type, NULL) &&
        add_type(module, &core_optimizer_hook_spec, &state->optimizer_hook_type, NULL) &&
        add_names(state) && add_constants(module) &&
        PyModule_AddStringConstant(module, "version", TP_VERSION_STRING) == 0 &&
        PyModule_AddStringConstant(module, "isa", tp_stats_isa()) == 0;
    return ok ? 0 : -1;
}

/* Calls visit for every reference that the state owns. */
static int for_each_reference(core_state *state, int (*visit)(PyObject **place, void *data),
                              void *data)
{
    PyObject **const places[] = {
        (PyObject **)(void *)&state->monitor_type,
        (PyObject **)(void *)&state->module_hook_type,
        (PyObject **)(void *)&state->output_grad_type,
        (PyObject **)(void *)&state->input_grad_type,
        (PyObject **)(void *)&state->optimizer_hook_type,
        (PyObject **)(void *)&state->journal_type,
        (PyObject **)(void *)&state->table_type,
        (PyObject **)(void *)&state->collectives_type,
        &state->config_error,
        &state->name_requires_grad,
        &state->name_grad_fn,
        &state->name_output_nr,
        &state->name_version,
        &state->name_training,
        &state->name_next_functions,
        &state->name_sequence_nr,
        &state->name_register_hook,
        &state->name_register_prehook,
        &state->name_grad,
        &state->name_main_grad,
        &state->name_state,
        &state->name_exp_avg,
        &state->name_exp_avg_sq,
        &state->name_parameters,
        &state->name_modules,
        (PyObject **)(void *)&state->tensor_type,
        (PyObject **)(void *)&state->parameter_type,
        (PyObject **)(void *)&state->accumulate_grad_type,
        (PyObject **)(void *)&state->copy_slices_type,
        (PyObject **)(void *)&state->view_type,
        &state->to_dlpack,
        &state->uint8,
        &state->is_neg,
        &state->disabled_dispatch,
        &state->sequence_nr,
        &state->graph_task_id,
        &state->current_node,
        &state->top_saved_tensors_hooks,
        &state->is_exporting,
        &state->is_grad_enabled,
        &state->set_grad_enabled,
        &state->is_fwd_grad_enabled,
        &state->is_inference_mode,
        &state->add,
        &state->as_strided,
        &state->containers,
        &state->linear_forward,
        &state->queue_callback,
        &state->disable_torch_function,
        &state->function_modes,
        &state->dispatch_modes,
        &state->disable_dispatch_modes,
        &state->get_num_threads,
        &state->torch_stats,
    };
    int result = 0;
    for (size_t i = 0; result == 0 && i < sizeof(places) / sizeof(places[0]); i++) {
        result = visit(places[i], data);
    }
    for (unsigned i = 0; result == 0 && i < state->type_count; i++) {
        result = visit((PyObject **)(void *)&state->type_cache[i].type, data);
    }
    return result;
}

typedef struct traversal {
    visitproc visit;
    void *arg;
} traversal;

static int visit_reference(PyObject **place, void *data)
{
    const traversal *way = data;
    return *place == NULL ? 0 : way->visit(*place, way->arg);
}

static int clear_reference(PyObject **place, void *Py_UNUSED(data))
{
    Py_CLEAR(*place);
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    traversal way = {visit, arg};
    return for_each_reference(PyModule_GetState(module), visit_reference, &way);
}

static int module_clear(PyObject *module)
{
    core_state *state = PyModule_GetState(module);
    for_each_reference(state, clear_reference, NULL);
    state->type_count = 0;
    state->torch_loaded = false;
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyMethodDef module_methods[] = {
    {"compute_stats", (PyCFunction)(void (*)(void))compute_stats, METH_VARARGS | METH_KEYWORDS,
     "compute_stats(tensor, eps=1e-08, isa=None, *, histogram=None, exponents=False, "
     "content_hash=False, threads=1)"
     "\n--\n\nStatistics of one tensor from one read of its memory. isa: 'scalar', 'avx2', "
     "'avx512' or 'neon'; None is the best. On request: the histogram of (bins, low, high), equal "
     "to "
     "torch.histc; exponents_negative and exponents_positive, whose element k counts the numbers "
     "with 2**(k - 160) <= |x| < 2**(k - 159); a hash of the bits that doesn't depend on strides. "
     "threads share a tensor of 1 MiB or more; the values don't depend on them."},
    {"find_drift", core_find_drift, METH_O,
     "find_drift(directories, /)\n--\n\nThe first step in which a parameter that several ranks "
     "have isn't the same in all of their journals (a list of bytes); None: there is none."},
    {"find_journals", core_find_journals, METH_O,
     "find_journals(directory, /)\n--\n\nThe directories in and below this one that hold a "
     "journal."},
    {"export_journal", core_export_journal, METH_VARARGS,
     "export_journal(journal, sink, directory, /)\n--\n\nWrites what the journal of a run "
     "directory has with the sink of this name (csv, tensorboard, sqlite) into another directory, "
     "which "
     "exists; returns how many steps."},
    {"compute_adam", (PyCFunction)(void (*)(void))core_compute_adam, METH_VARARGS | METH_KEYWORDS,
     "compute_adam(exp_avg, exp_avg_sq, *, beta1=0.9, beta2=0.999, eps=1e-08, step=0.0, "
     "zeros_eps=1e-08, histogram=None, isa=None)\n--\n\nStatistics of Adam's update and ratio from "
     "one read of its moments, as (update, ratio). step 0: without bias correction."},
    {"compute_agreement", (PyCFunction)(void (*)(void))core_compute_agreement,
     METH_VARARGS | METH_KEYWORDS,
     "compute_agreement(gradient, momentum, isa=None)\n--\n\nHow many elements have the same sign: "
     "count, same, opposite, zero, nan, and the share that they make."},
    {"shortcuts", core_shortcuts, METH_NOARGS,
     "shortcuts()\n--\n\nWhich ways into torch are in use that don't go through Python or DLPack: "
     "a "
     "torch that lacks one is asked in the slower way."},
    {"inert_hook", core_inert_hook, METH_NOARGS,
     "inert_hook()\n--\n\nA module hook that does nothing: what a pickled one becomes."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tensorprobe._core",
    .m_doc = "The compiled part of tensorprobe.",
    .m_size = sizeof(core_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
