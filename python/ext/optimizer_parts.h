/* Where a framework keeps what belongs to a parameter: its adapter says it, row by row. */
#ifndef TP_EXT_OPTIMIZER_PARTS_H
#define TP_EXT_OPTIMIZER_PARTS_H

#include "optimizer_hooks.h"

/* What locate() gives for a row is None (this process has no part of it) or a tuple of these, each
 * None where there is no such thing. */
enum {
    PART_WEIGHT,
    PART_GRADIENT,
    PART_STATE, /* a dict: exp_avg, exp_avg_sq, step */
    PART_GROUP, /* a dict: betas, eps, step */
    PARTS,
};

/* Asks the adapter, if there is one, where everything is now. optimizer: what steps; after: it has
 * made its update. False: an error is set. Ends with parts_end in any case. */
bool optimizer_parts_begin(optimizer_hook *hook, PyObject *optimizer, bool after);
void optimizer_parts_end(optimizer_hook *hook);

/* A new reference; None where there is nothing. Without an adapter NULL, without an error. What is
 * a function is called: it makes what the framework keeps in no such form. */
PyObject *optimizer_parts_get(const optimizer_hook *hook, const watched *entry, int part);

/* Is it made by a function? Then it should be let go of at once. */
bool optimizer_parts_makes(const optimizer_hook *hook, const watched *entry, int part);

/* take(quantity, rows, tensors, micro): records these tensors, or what functions make, for rows
 * with these numbers, as of the running micro step if micro is true, or of the one with this
 * number. Method of the hook; what fails is told as in a hook. */
PyObject *optimizer_parts_take(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* accumulated(parameter): a hook that torch calls when a gradient has been added up. Records it as
 * not yet reduced: of each micro step (monitor_mbs_grad), else where the reduction comes next. */
PyObject *optimizer_parts_accumulated(PyObject *self, PyObject *parameter);

/* Calls what is to be called before the training's step ends. False: an error is set. */
bool optimizer_parts_ending(optimizer_hook *hook);

/* locate, reducer, ending and reduced_sq of the hook. */
extern PyGetSetDef optimizer_parts_properties[];

/* mark_skipped(): the step that ends next has made no update. */
PyObject *optimizer_parts_mark_skipped(PyObject *self, PyObject *unused);

#endif
