/* Gradient scalers, which torch gives no hooks: python/tensorprobe/_scaling.py tells what they do.
 * Methods of the optimizer's hook. */
#ifndef TP_EXT_SCALER_HOOKS_H
#define TP_EXT_SCALER_HOOKS_H

#include "optimizer_hooks.h"

/* unscaled(optimizer): its gradients have just been divided by the scale; clipping comes later. */
PyObject *scaler_unscaled(PyObject *self, PyObject *optimizer);

/* scaler_begin(optimizer, scale): a scaler's step begins, which may call the optimizer's. */
PyObject *scaler_begin(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* scaler_end(optimizer, failed): it has ended. An optimizer that was not called was kept from its
 * step, which is one of the training all the same. */
PyObject *scaler_end(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* While a scaler runs a fused optimizer, the gradients are still scaled, and the optimizer decides
 * by itself that it makes no update: notes both before its step. False: an error is set. */
bool scaler_note_fused(optimizer_hook *hook, PyObject *optimizer);

#endif
