#include "core.h"

#include <stdarg.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "monitor_object.h"
#include "tensor_layout.h"
#include "torch_calls.h"

int64_t core_call_int(PyObject *function)
{
    PyObject *number = PyObject_CallNoArgs(function);
    const int64_t value = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return value;
}

PyObject *core_enter(PyObject *make)
{
    PyObject *guard = PyObject_CallNoArgs(make);
    PyObject *done = guard == NULL ? NULL : PyObject_CallMethod(guard, "__enter__", NULL);
    if (done == NULL) {
        core_clear_error();
        Py_CLEAR(guard);
    }
    Py_XDECREF(done);
    return guard;
}

void core_show(PyObject *guard)
{
    if (guard == NULL) {
        return;
    }
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    Py_XDECREF(PyObject_CallMethod(guard, "__exit__", "OOO", Py_None, Py_None, Py_None));
    core_clear_error();
    PyErr_Restore(type, value, traceback);
    Py_DECREF(guard);
}

PyObject *core_hide_from_functions(core_state *state)
{
    return torch_function_modes(state) > 0 ? core_enter(state->disable_torch_function) : NULL;
}

PyObject *core_hide_from_dispatch(core_state *state)
{
    if (state->dispatch_modes == NULL || state->disable_dispatch_modes == NULL) {
        return NULL;
    }
    const int64_t modes = core_call_int(state->dispatch_modes);
    core_clear_error();
    return modes > 0 ? core_enter(state->disable_dispatch_modes) : NULL;
}

PyObject *core_apply_without_grad(core_state *state, PyObject *function, PyObject *arguments)
{
    PyObject *enabled = PyObject_CallNoArgs(state->is_grad_enabled);
    if (enabled == NULL) {
        return NULL;
    }
    PyObject *hidden = core_hide_from_dispatch(state);
    PyObject *off = NULL;
    if (enabled == Py_True) {
        off = PyObject_CallFunctionObjArgs(state->set_grad_enabled, Py_False, NULL);
    }
    const bool ready = off != NULL || enabled != Py_True;
    PyObject *result = ready ? PyObject_Call(function, arguments, NULL) : NULL;
    if (off != NULL) {
        PyObject *type = NULL;
        PyObject *value = NULL;
        PyObject *traceback = NULL;
        PyErr_Fetch(&type, &value, &traceback);
        Py_XDECREF(PyObject_CallFunctionObjArgs(state->set_grad_enabled, Py_True, NULL));
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(off);
    Py_DECREF(enabled);
    core_show(hidden);
    return result;
}

PyObject *core_call_without_grad(core_state *state, PyObject *function, PyObject *argument)
{
    PyObject *arguments = PyTuple_Pack(1, argument);
    PyObject *result =
        arguments == NULL ? NULL : core_apply_without_grad(state, function, arguments);
    Py_XDECREF(arguments);
    return result;
}

static int raise_again(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

void core_clear_error(void)
{
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    if (PyErr_Occurred() == NULL) {
        return;
    }
    const bool own = PyErr_ExceptionMatches(PyExc_Exception);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (!own && value != NULL && Py_AddPendingCall(raise_again, value) == 0) {
        value = NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

void core_warn(const char *format, ...)
{
    if (!tp_log_is_wanted(TP_LOG_WARNING)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    const char *bytes = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
    if (bytes == NULL || PyErr_WarnEx(PyExc_RuntimeWarning, bytes, 1) != 0) {
        monitor_clear_error();
    }
    Py_XDECREF(text);
}

PyObject *core_attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == Py_None) {
        Py_CLEAR(value);
    }
    core_clear_error();
    return value;
}

char *core_name(PyObject *text)
{
    static const char escape[] = "\\x00";
    PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (bytes == NULL) {
        return NULL;
    }
    const char *from = PyBytes_AsString(bytes);
    const size_t size = (size_t)PyBytes_Size(bytes);
    char *name = tp_alloc(size * (sizeof(escape) - 1) + 1);
    char *to = name;
    for (size_t i = 0; name != NULL && i < size; i++) {
        if (from[i] == '\0') {
            memcpy(to, escape, sizeof(escape) - 1);
            to += sizeof(escape) - 1;
        } else {
            *to++ = from[i];
        }
    }
    Py_DECREF(bytes);
    if (name == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *to = '\0';
    return name;
}

/* module.a.b.c, a new reference */
static PyObject *look_up(PyObject *module, const char *path)
{
    PyObject *found = Py_NewRef(module);
    while (found != NULL && *path != '\0') {
        const size_t length = strcspn(path, ".");
        PyObject *name = PyUnicode_FromStringAndSize(path, (Py_ssize_t)length);
        PyObject *next = name == NULL ? NULL : PyObject_GetAttr(found, name);
        Py_XDECREF(name);
        Py_DECREF(found);
        found = next;
        path += length + (path[length] == '.');
    }
    return found;
}

/* The table of DLPack 1.x behind a tensor type, NULL when it has none that can be used. */
static const dl_exchange_api *exchange_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const dl_exchange_api *table = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    while (table != NULL && table->major > 1) {
        table = table->previous;
    }
    Py_XDECREF(capsule);
    PyErr_Clear();
    const bool usable =
        table != NULL && table->major == 1 && table->dltensor_from_py_object_no_sync != NULL;
    return usable ? table : NULL;
}

int core_load_torch(core_state *state)
{
    if (state->torch_loaded) {
        return 0;
    }
    PyObject *torch = PyImport_ImportModule("torch");
    if (torch == NULL) {
        return -1;
    }
    const struct {
        const char *path;
        PyObject **place;
    } wanted[] = {
        {"_C._to_dlpack", &state->to_dlpack},
        {"uint8", &state->uint8},
        {"Tensor.is_neg", &state->is_neg},
        {"Tensor.__torch_dispatch__", &state->disabled_dispatch},
        {"_C._autograd._get_sequence_nr", &state->sequence_nr},
        {"_C._current_graph_task_id", &state->graph_task_id},
        {"_C._current_autograd_node", &state->current_node},
        {"is_grad_enabled", &state->is_grad_enabled},
        {"_C._is_fwd_grad_enabled", &state->is_fwd_grad_enabled},
        {"is_inference_mode_enabled", &state->is_inference_mode},
        {"_C._set_grad_enabled", &state->set_grad_enabled},
        {"add", &state->add},
        {"get_num_threads", &state->get_num_threads},
        {"as_strided", &state->as_strided},
        {"nn.Linear.forward", &state->linear_forward},
        {"autograd.Variable._execution_engine.queue_callback", &state->queue_callback},
        {"_C.DisableTorchFunction", &state->disable_torch_function},
        {"Tensor", (PyObject **)(void *)&state->tensor_type},
        {"_C._functions.AccumulateGrad", (PyObject **)(void *)&state->accumulate_grad_type},
        {"_C._functions.CopySlices", (PyObject **)(void *)&state->copy_slices_type},
        {"_C._functions.ViewBackward0", (PyObject **)(void *)&state->view_type},
        {"nn.Parameter", (PyObject **)(void *)&state->parameter_type},
    };
    int result = 0;
    for (size_t i = 0; result == 0 && i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        PyObject *found = look_up(torch, wanted[i].path);
        Py_XDECREF(*wanted[i].place);
        *wanted[i].place = found;
        result = found == NULL ? -1 : 0;
    }
    if (result == 0) {
        state->exchange = exchange_of((PyObject *)(void *)state->tensor_type);
        const struct {
            const char *path;
            PyObject **place;
        } optional[] = {
            {"_C._autograd._top_saved_tensors_default_hooks", &state->top_saved_tensors_hooks},
            {"compiler.is_exporting", &state->is_exporting},
            {"_C._len_torch_function_stack", &state->function_modes},
            {"_C._len_torch_dispatch_stack", &state->dispatch_modes},
            {"utils._python_dispatch._disable_current_modes", &state->disable_dispatch_modes},
        };
        for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++) {
            *optional[i].place = look_up(torch, optional[i].path);
            PyErr_Clear();
        }
        torch_calls_find(state);
        state->torch_loaded = true;
        if (state->exchange != NULL) {
            tensor_layout_learn(state);
        }
    }
    Py_DECREF(torch);
    return result;
}

PyObject *core_raise(tp_status status, const tp_error *error)
{
    char text[1024];
    tp_error_format(error, text, sizeof(text));
    PyObject *kind = status == TP_ERR_NOTFOUND   ? PyExc_FileNotFoundError
                     : status == TP_ERR_CORRUPT  ? PyExc_ValueError
                     : status == TP_ERR_VERSION  ? PyExc_ValueError
                     : status == TP_ERR_ARGUMENT ? PyExc_ValueError
                                                 : PyExc_OSError;
    if (status == TP_ERR_NOMEM) {
        PyErr_NoMemory();
    } else {
        PyErr_SetString(kind, text);
    }
    return NULL;
}
