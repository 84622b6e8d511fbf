/* What the files of the extension share: Python.h in the limited API, and the module's state. */
#ifndef TP_EXT_CORE_H
#define TP_EXT_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "dlpack.h"
#include "tensorprobe/status.h"

#define CORE_TYPE_CACHE 32

/* How a Python type has to be treated as a value in the data flow of a model. */
enum type_kind {
    TYPE_OTHER,   /* not a tensor */
    TYPE_TENSOR,  /* its memory is its value */
    TYPE_WRAPPER, /* a tensor whose memory is elsewhere (fake, distributed, quantized …) */
};

/* torch's own functions; NULL: this torch has none of that name. See torch_calls.h. */
typedef struct torch_calls {
    bool (*grad_enabled)(void);
    int (*graph_task)(void);
    uint64_t (*sequence_nr)(void);
    int64_t (*function_modes)(void);
} torch_calls;

/* Places in torch's objects, in bytes. See tensor_layout.h. */
#define LAYOUT_DTYPES 64
#define LAYOUT_DIMS 5
typedef struct tensor_layout {
    bool known;
    uint16_t object; /* of the Python object: the implementation's address */
    uint16_t keys;   /* of the implementation, as the next six: its dispatch keys */
    uint16_t dtype, ndim, sizes, strides;
    uint16_t storage; /* the storage's address */
    uint16_t offset;  /* of the first element in the storage, in elements */
    uint16_t memory;  /* of the storage: the memory's address */
    uint64_t key_set; /* of strided tensors in the CPU's memory */
    struct {
        uint8_t dtype;       /* TP_F64 … */
        uint8_t size;        /* of an element, in bytes */
    } dtypes[LAYOUT_DTYPES]; /* by torch's number of a dtype */
} tensor_layout;

/* State of the module object. Everything under "torch" is looked up at the first use. */
typedef struct core_state {
    PyTypeObject *monitor_type;
    PyTypeObject *module_hook_type;
    PyTypeObject *output_grad_type;
    PyTypeObject *input_grad_type;
    PyTypeObject *optimizer_hook_type;
    PyTypeObject *journal_type;
    PyTypeObject *table_type;
    PyTypeObject *collectives_type;
    PyObject *config_error;

    /* Attribute names, interned. */
    PyObject *name_requires_grad, *name_grad_fn, *name_output_nr, *name_version, *name_training;
    PyObject *name_next_functions, *name_sequence_nr, *name_register_hook, *name_register_prehook;
    PyObject *name_grad, *name_main_grad, *name_state, *name_exp_avg, *name_exp_avg_sq;
    PyObject *name_parameters, *name_modules;

    /* torch */
    bool torch_loaded;
    PyTypeObject *tensor_type;
    PyTypeObject *parameter_type;
    PyTypeObject *accumulate_grad_type, *copy_slices_type, *view_type; /* of nodes */
    torch_calls calls;
    tensor_layout layout;
    const dl_exchange_api *exchange; /* NULL: this torch has none */
    PyObject *to_dlpack;
    PyObject *uint8; /* a dtype */
    PyObject *is_neg;
    PyObject *disabled_dispatch; /* __torch_dispatch__ of a plain tensor type */
    PyObject *sequence_nr, *graph_task_id, *current_node;
    PyObject *top_saved_tensors_hooks; /* NULL: this torch has none */
    PyObject *is_exporting;            /* likewise */
    PyObject *is_grad_enabled, *set_grad_enabled, *is_fwd_grad_enabled, *is_inference_mode;
    PyObject *add, *as_strided, *get_num_threads;
    PyObject *linear_forward;
    PyObject *queue_callback;
    PyObject *disable_torch_function; /* a context manager's type */
    PyObject *function_modes, *dispatch_modes, *disable_dispatch_modes; /* NULL: there are none */
    PyObject *containers;  /* dict: type → how it holds its elements; NULL until it is needed */
    PyObject *torch_stats; /* tensorprobe._torch_stats.compute; NULL until it is needed */
    struct {
        PyTypeObject *type;
        enum type_kind kind;
    } type_cache[CORE_TYPE_CACHE];
    unsigned type_count;
} core_state;

/* Imports torch and looks up what the hooks call. 0, or -1 with an error set. Cheap when done. */
int core_load_torch(core_state *state);

/* Calls function(argument) that gives a number; -1 with an error set when it fails. */
int64_t core_call_int(PyObject *function);

/* What hooks ask and compute is not for the program's modes (TorchFunctionMode, and so the device
 * of set_default_device; TorchDispatchMode): one may draw random numbers. For core_show; NULL: no
 * mode is on. The second is for where a hook computes. */
PyObject *core_hide_from_functions(core_state *state);
PyObject *core_hide_from_dispatch(core_state *state);

/* Enters a context manager that make() gives; NULL without an error: that failed. */
PyObject *core_enter(PyObject *make);

/* Leaves it (NULL: does nothing). An error that is set stays. */
void core_show(PyObject *guard);

/* function(argument), or function(*arguments), in no_grad mode, which is left as it was, and
 * without the program's dispatch modes: no node gets into a graph. */
PyObject *core_call_without_grad(core_state *state, PyObject *function, PyObject *argument);
PyObject *core_apply_without_grad(core_state *state, PyObject *function, PyObject *arguments);

/* Clears the error that is set, if one is, where there is no way to report it. What isn't an
 * Exception (KeyboardInterrupt, SystemExit: a signal's handler raised it while Python code ran) is
 * raised again in the main thread, after the hook. */
void core_clear_error(void);

/* A RuntimeWarning, unless TENSORPROBE_LOG_LEVEL drops warnings. format: as PyUnicode_FromFormat
 * takes it. It may have been turned into an error, which must not reach the training: none but
 * KeyboardInterrupt and the like is left set. */
void core_warn(const char *format, ...);

/* The object's attribute, new; NULL without an error: it has none, or it is None. */
PyObject *core_attribute(PyObject *object, const char *name);

/* A name as UTF-8, to be freed with tp_free: NUL and lone surrogates are written as escapes. NULL:
 * an error is set. */
char *core_name(PyObject *text);

/* Raises what fits the status; returns NULL. */
PyObject *core_raise(tp_status status, const tp_error *error);

/* The types, made by the module's exec slot. */
extern PyType_Spec core_monitor_spec;
extern PyType_Spec core_module_hook_spec;
extern PyType_Spec core_output_grad_spec;
extern PyType_Spec core_input_grad_spec;
extern PyType_Spec core_optimizer_hook_spec;
extern PyType_Spec core_journal_spec;
extern PyType_Spec core_table_spec;
extern PyType_Spec core_collectives_spec;

/* _core.inert_hook(): what a hook becomes when a model is pickled; it does nothing. */
PyObject *core_inert_hook(PyObject *module, PyObject *unused);

/* _core.find_journals(directory): those in and below it. */
PyObject *core_find_journals(PyObject *module, PyObject *path);

/* _core.find_drift(directories): where the ranks of one run part. */
PyObject *core_find_drift(PyObject *module, PyObject *list);
PyObject *core_export_journal(PyObject *module, PyObject *args);

#endif
