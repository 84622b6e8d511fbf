/* What happens to gradients between backward and step, for which torch has no hooks: scalers divide
 * them, and loops clip them. python/tensorprobe/_scaling.py and _clipping.py tell of it. Methods of
 * the optimizer's hook. */
#ifndef TP_EXT_SCALER_HOOKS_H
#define TP_EXT_SCALER_HOOKS_H

#include "optimizer_hooks.h"

/* unscaled(optimizer): its gradients have just been divided by the scale; clipping comes later. */
PyObject *scaler_unscaled(PyObject *self, PyObject *optimizer);

/* scaled(): a scaler multiplies a loss: gradients aren't what they seem until unscaled(). */
PyObject *scaler_scaled(PyObject *self, PyObject *unused);

/* clipping(): the loop is about to clip gradients of this optimizer, which are taken now, unless
 * they have been in this step, or are scaled, or the optimizer's step runs already. */
PyObject *scaler_clipping(PyObject *self, PyObject *unused);

/* Before the step: warns when forwards came behind the clipping, for what was taken was not all.
 * When that happens in two steps in a row, gradients are no longer taken so. */
void scaler_check_clipping(optimizer_hook *hook);

/* scaler_begin(optimizer, scale): a scaler's step begins, which may call the optimizer's. */
PyObject *scaler_begin(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* scaler_end(optimizer, failed): it has ended. An optimizer that was not called was kept from its
 * step, which is one of the training all the same. */
PyObject *scaler_end(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* While a scaler runs a fused optimizer, the gradients are still scaled, and the optimizer decides
 * by itself that it makes no update: notes both before its step. False: an error is set. */
bool scaler_note_fused(optimizer_hook *hook, PyObject *optimizer);

#endif
