#include "counters.h"

#include "monitor_object.h"

PyObject *counters_get(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const monitor_object *self = (monitor_object *)object;
    tp_monitor_counters c = self->final_counters;
    if (self->monitor != NULL) {
        tp_monitor_get_counters(self->monitor, &c);
        c.hook_ns += self->hook_ns;
    }
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "steps",
        (unsigned long long)c.steps, "records", (unsigned long long)c.records, "gaps",
        (unsigned long long)c.gaps, "alerts", (unsigned long long)c.alerts, "errors",
        (unsigned long long)c.errors, "unreadable", (unsigned long long)self->unreadable, "hook_ns",
        (unsigned long long)c.hook_ns, "wait_ns", (unsigned long long)c.wait_ns, "writer_cpu_ns",
        (unsigned long long)c.writer_cpu_ns, "bytes_journal", (unsigned long long)c.bytes_journal,
        "bytes_csv", (unsigned long long)c.bytes_csv, "bytes_tensorboard",
        (unsigned long long)c.bytes_tensorboard, "journaled_steps",
        (unsigned long long)c.journaled_steps, "followed_steps",
        (unsigned long long)c.followed_steps, "graph_nodes", (unsigned long long)self->graph_nodes);
}
