#include "config_object.h"

#include "metrics.h"

static PyObject *target_names(const tp_config *config)
{
    PyObject *names = PyList_New(0);
    for (uint32_t i = 0; names != NULL && i < config->target_count; i++) {
        PyObject *name = PyUnicode_FromString(config->targets[i].name);
        if (name == NULL || PyList_Append(names, name) != 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

/* For each target whether it is a pattern. */
static PyObject *patterns(const tp_config *config)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < config->target_count; i++) {
        if (PyList_Append(list, config->targets[i].pattern != NULL ? Py_True : Py_False) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *ranks(const tp_config *config)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < config->module_rank_count; i++) {
        PyObject *rank = PyLong_FromUnsignedLong(config->module_ranks[i]);
        if (rank == NULL || PyList_Append(list, rank) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(rank);
    }
    return list;
}

static PyObject *texts(const tp_texts *texts)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < texts->count; i++) {
        PyObject *text = PyUnicode_FromString(texts->items[i]);
        if (text == NULL || PyList_Append(list, text) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    return list;
}

PyObject *config_to_dict(const tp_config *config)
{
    return Py_BuildValue(
        "{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:d,s:N,s:N,s:N,s:N,s:N,s:N,"
        "s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:K,s:N}", /* */
        "targets", target_names(config), "ops", metrics_op_names(config->ops, config->op_count),
        "xy_distribution", PyBool_FromLong(config->xy_distribution), "all_xy",
        PyBool_FromLong(config->all_xy), "forward_only", PyBool_FromLong(config->forward_only),
        "backward_only", PyBool_FromLong(config->backward_only), "wg_distribution",
        PyBool_FromLong(config->wg_distribution), "param_distribution",
        PyBool_FromLong(config->param_distribution), "mv_distribution",
        PyBool_FromLong(config->mv_distribution), "input_grad_tensor",
        PyBool_FromLong(config->input_grad_tensor), "strict", PyBool_FromLong(config->strict),
        "eps", config->eps, "module_ranks", ranks(config), "squash_name",
        PyBool_FromLong(config->squash_name), "print_struct", PyBool_FromLong(config->print_struct),
        "exit_after_struct", PyBool_FromLong(config->exit_after_struct), "patterns",
        patterns(config), "string_prefix", PyBool_FromLong(config->string_prefix), "dynamic_on",
        PyBool_FromLong(config->dynamic_on), "ur_distribution",
        PyBool_FromLong(config->ur_distribution), "mg_direction",
        PyBool_FromLong(config->mg_direction), "monitor_mbs_grad",
        PyBool_FromLong(config->monitor_mbs_grad), "cc_enable", PyBool_FromLong(config->cc_enable),
        "cc_codeline", texts(&config->cc_codeline), "cc_pre_hook",
        PyBool_FromLong(config->cc_pre_hook), "cc_log_only", PyBool_FromLong(config->cc_log_only),
        "self_check", PyBool_FromLong(config->self_check), "replica_check",
        (unsigned long long)config->replica_check, "zoom_tensors",
        PyBool_FromLong(config->zoom.tensors));
}
