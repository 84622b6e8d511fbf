/* _core.compute_adam and _core.compute_agreement. */
#include "base/cpu.h"
#include "base/mem.h"
#include "compute.h"
#include "stats/loops.h"
#include "tensor_access.h"

/* Opens the views of two tensors; false with an error set. */
static bool open_pair(core_state *state, PyObject *const tensors[2], tensor_view views[2])
{
    for (int k = 0; k < 2; k++) {
        if (tensor_type_kind(state, Py_TYPE(tensors[k])) == TYPE_OTHER ||
            !tensor_view_open_any(state, tensors[k], &views[k])) {
            PyErr_SetString(PyExc_TypeError, "two tensors are needed");
            if (k == 1) {
                tensor_view_close(&views[0]);
            }
            return false;
        }
    }
    return true;
}

static const char *obstacle(const core_state *state, const tensor_view views[2])
{
    for (int k = 0; k < 2; k++) {
        if (views[k].why != NULL) {
            return views[k].why;
        }
        if (!core_has_right_signs(state, views[k].tensor)) {
            return "its negative bit is set";
        }
    }
    return NULL;
}

static bool close_pair(tensor_view views[2], tp_status status, const char *why)
{
    tensor_view_close(&views[1]);
    tensor_view_close(&views[0]);
    if (why != NULL || status != TP_OK) {
        PyErr_Format(PyExc_ValueError, "the tensors can't be read: %s",
                     why != NULL ? why : tp_status_name(status));
        return false;
    }
    return true;
}

/* False with an error set. */
static bool find_isa(const char *name, int *isa)
{
    *isa = core_isa_from_name(name);
    if (*isa < 0) {
        PyErr_Format(PyExc_ValueError, "isa is 'scalar', 'avx2', 'avx512' or 'neon', not '%s'",
                     name);
    }
    return *isa >= 0;
}

static bool add_bins(PyObject *dict, const tp_stats_options *options)
{
    if (dict == NULL || options->bins == NULL) {
        return dict != NULL;
    }
    PyObject *bins = core_list_of_counts(options->bins, options->bin_count);
    const bool ok = bins != NULL && PyDict_SetItemString(dict, "histogram", bins) == 0;
    Py_XDECREF(bins);
    return ok;
}

/* False with an error set. */
static bool take_histogram(PyObject *histogram, tp_stats_options *options)
{
    if (histogram == Py_None) {
        return true;
    }
    if (!PyTuple_Check(histogram)) {
        PyErr_SetString(PyExc_TypeError, "histogram is (bins, low, high)");
        return false;
    }
    if (!PyArg_ParseTuple(histogram, "Idd;histogram is (bins, low, high)", &options->bin_count,
                          &options->low, &options->high)) {
        return false;
    }
    const uint32_t room = options->bin_count <= TP_MAX_BINS ? options->bin_count : 0;
    options->bins = tp_calloc((size_t)room + 1, sizeof(*options->bins));
    if (options->bins == NULL) {
        PyErr_NoMemory();
    }
    return options->bins != NULL;
}

PyObject *core_compute_adam(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"exp_avg", "exp_avg_sq", "beta1",     "beta2", "eps",
                            "step",    "zeros_eps",  "histogram", "isa",   NULL};
    core_state *state = PyModule_GetState(module);
    PyObject *tensors[2];
    PyObject *histogram = Py_None;
    const char *isa_name = NULL;
    int isa = 0;
    tp_adam_options options;
    tp_adam_options_defaults(&options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$dddddOz:compute_adam", names, &tensors[0],
                                     &tensors[1], &options.beta1, &options.beta2, &options.eps,
                                     &options.step, &options.update.eps, &histogram, &isa_name) ||
        core_load_torch(state) != 0 || !find_isa(isa_name, &isa)) {
        return NULL;
    }
    options.ratio.eps = options.update.eps;
    tensor_view views[2];
    tp_stats update;
    tp_stats ratio;
    PyObject *result = NULL;
    if (take_histogram(histogram, &options.update) && take_histogram(histogram, &options.ratio) &&
        open_pair(state, tensors, views)) {
        const char *why = obstacle(state, views);
        const tp_status status = why != NULL ? TP_OK
                                             : tp_adam_compute_isa(&views[0].data, &views[1].data,
                                                                   &options, isa, &update, &ratio);
        if (close_pair(views, status, why)) {
            PyObject *first = core_stats_to_dict(&update, tp_cpu_isa_name(isa));
            PyObject *second = core_stats_to_dict(&ratio, tp_cpu_isa_name(isa));
            if (add_bins(first, &options.update) && add_bins(second, &options.ratio)) {
                result = PyTuple_Pack(2, first, second);
            }
            Py_XDECREF(first);
            Py_XDECREF(second);
        }
    }
    tp_free(options.update.bins);
    tp_free(options.ratio.bins);
    return result;
}

PyObject *core_compute_agreement(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"gradient", "momentum", "isa", NULL};
    core_state *state = PyModule_GetState(module);
    PyObject *tensors[2];
    const char *isa_name = NULL;
    int isa = 0;
    tensor_view views[2];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|z:compute_agreement", names, &tensors[0],
                                     &tensors[1], &isa_name) ||
        core_load_torch(state) != 0 || !find_isa(isa_name, &isa) ||
        !open_pair(state, tensors, views)) {
        return NULL;
    }
    tp_agreement found = {0};
    const char *why = obstacle(state, views);
    const tp_status status =
        why != NULL ? TP_OK : tp_agreement_compute_isa(&views[0].data, &views[1].data, isa, &found);
    if (!close_pair(views, status, why)) {
        return NULL;
    }
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:d}", "count", (unsigned long long)found.count,
                         "same", (unsigned long long)found.same, "opposite",
                         (unsigned long long)found.opposite, "zero", (unsigned long long)found.zero,
                         "nan", (unsigned long long)found.nan, "direction",
                         tp_agreement_direction(&found));
}
