/* From a tensor to a record of the open step. */
#ifndef TP_EXT_RECORDING_H
#define TP_EXT_RECORDING_H

#include "monitor_object.h"

/* Values of one tensor, taken once, written under one key or several. */
typedef struct reading {
    tp_stats stats;
    uint32_t dtype;
    uint32_t ndim;
    const int64_t *shape;              /* the tensor's own */
    const tp_tensor *data;             /* to look for what is broken; NULL: not to be read */
    memo_entry *entry;                 /* NULL: not remembered */
    const tp_stats_options *histogram; /* has the bins; NULL: there is none */
    bool has_exponents;
    tp_exponents exponents; /* 5 KiB: only then set to anything */
} reading;

#define RELEASE_GIL_BYTES (UINT64_C(4) << 20) /* below, releasing costs more than it gives */

#define READ_OK 0
#define READ_NOTHING 1 /* can't be read (counted and warned of), or not open any more */
#define READ_FAILED 2  /* an error is set */

/* A smaller tensor is read again in less time than it takes to remember that it has been read. */
#define READ_AGAIN_BYTES 1024

/* A hook that reads no larger ones is quick. */
#define QUICK_BYTES 4096

/* Reads the tensor (GIL released from 4 MiB on). remember: look into the memo first, and remember.
 * quantity: what it is read as, which says whether its exponents are counted; 0: they aren't.
 * The view must stay open while the reading is used. name is for the warning. */
int reading_take(monitor_object *monitor, const tensor_view *view, bool remember, uint32_t quantity,
                 const char *name, reading *out);

/* A reading of statistics that are known. */
void reading_begin(reading *out, uint32_t dtype, uint32_t ndim, const int64_t *shape);

/* Whether exponents are counted of what is read as this quantity. */
static inline bool reading_wants_exponents(const monitor_object *monitor, uint32_t quantity)
{
    return (monitor->config->exponents >> quantity & 1) != 0;
}

/* The same of a Python number, as a tensor without dimensions. False: an error is set. */
bool reading_of_number(const monitor_object *monitor, PyObject *number, reading *out);

/* As many threads as torch would take for an operation on a large tensor. */
uint32_t reading_threads(core_state *state);

/* The tensor's count of in-place changes; -1 when it has none (inference tensors). */
int64_t reading_version(core_state *state, PyObject *tensor);

/* Defines the site's key when it has none yet. */
bool site_define(monitor_object *monitor, site *place, const tp_key *key);

/* Is this the shape that the site's last tensor had? */
static inline bool site_has_shape(const site *place, uint32_t ndim, const int64_t *shape)
{
    bool same = place->has_shape && place->ndim == ndim;
    for (uint32_t i = 0; same && i < ndim; i++) {
        same = place->dims[i] == shape[i];
    }
    return same;
}

/* Else: finds the number of that shape. False: memory ran out. */
bool site_define_shape(monitor_object *monitor, site *place, uint32_t ndim, const int64_t *shape);

/* Writes the reading into the open step. False: memory ran out. */
bool reading_record(monitor_object *monitor, const reading *values, site *place,
                    uint32_t micro_step, uint32_t call);

#endif
