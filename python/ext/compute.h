/* What the functions of the module share that compute statistics at once. */
#ifndef TP_EXT_COMPUTE_H
#define TP_EXT_COMPUTE_H

#include "core.h"
#include "tensorprobe/stats.h"

/* TP_ISA_…, the best one for NULL; -1 for an unknown name. */
int core_isa_from_name(const char *name);

/* New references; NULL: an error is set. */
PyObject *core_stats_to_dict(const tp_stats *stats, const char *kernel);
PyObject *core_list_of_counts(const uint64_t *counts, size_t n);

/* False for views made by conj().imag and the like, whose sign in memory is wrong. */
bool core_has_right_signs(const core_state *state, PyObject *tensor);

PyObject *core_compute_adam(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *core_compute_agreement(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
