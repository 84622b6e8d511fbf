#include "optimizer_owner.h"

/* Adds the optimizer's parameters to the set, or only counts them where that is NULL. -1: an error
 * is set. */
static Py_ssize_t visit_parameters(PyObject *optimizer, PyObject *set)
{
    Py_ssize_t total = 0;
    PyObject *groups = PyObject_GetAttrString(optimizer, "param_groups");
    const Py_ssize_t group_count = groups == NULL ? -1 : PySequence_Size(groups);
    for (Py_ssize_t i = 0; total >= 0 && i < group_count; i++) {
        PyObject *group = PySequence_GetItem(groups, i);
        PyObject *list = group == NULL ? NULL : PyMapping_GetItemString(group, "params");
        const Py_ssize_t count = list == NULL ? -1 : PySequence_Size(list);
        total = count < 0 ? -1 : total + count;
        for (Py_ssize_t k = 0; total >= 0 && set != NULL && k < count; k++) {
            PyObject *parameter = PySequence_GetItem(list, k);
            total = parameter == NULL || PySet_Add(set, parameter) != 0 ? -1 : total;
            Py_XDECREF(parameter);
        }
        Py_XDECREF(list);
        Py_XDECREF(group);
    }
    Py_XDECREF(groups);
    return group_count < 0 ? -1 : total;
}

bool optimizer_owner_find_foreign(optimizer_hook *hook, PyObject *optimizer)
{
    const Py_ssize_t total = visit_parameters(optimizer, NULL);
    if (total < 0 || (hook->foreign_to == optimizer && hook->foreign_at == total)) {
        return total >= 0;
    }
    PyObject *own = PySet_New(NULL);
    bool ok = own != NULL && visit_parameters(optimizer, own) >= 0;
    for (uint32_t i = 0; ok && i < hook->count; i++) {
        const int found = PySet_Contains(own, hook->parameters[i].parameter);
        hook->parameters[i].foreign = found == 0;
        ok = found >= 0;
    }
    Py_XDECREF(own);
    hook->foreign_to = ok ? optimizer : NULL;
    hook->foreign_at = total;
    return ok;
}

/* Does one of the optimizer's parameters belong to the model? 1, 0, or -1 with an error set. */
static int has_member(const optimizer_hook *hook, PyObject *optimizer)
{
    PyObject *own = PySet_New(NULL);
    PyObject *apart = own == NULL || visit_parameters(optimizer, own) < 0
                          ? NULL
                          : PyObject_CallMethod(own, "isdisjoint", "O", hook->members);
    const int found = apart == NULL ? -1 : apart == Py_False;
    Py_XDECREF(apart);
    Py_XDECREF(own);
    return found;
}

int optimizer_hook_owns(optimizer_hook *hook, PyObject *optimizer)
{
    if (hook->members == NULL) {
        return 1;
    }
    if (hook->optimizer != NULL) {
        PyObject *known = PyWeakref_GetObject(hook->optimizer);
        if (known != Py_None) {
            return known == optimizer;
        }
        Py_CLEAR(hook->optimizer);
    }
    const int found = has_member(hook, optimizer);
    if (found > 0) {
        hook->optimizer = PyWeakref_NewRef(optimizer, NULL);
        hook->foreign_to = NULL; /* an address comes again */
    }
    return found > 0 && hook->optimizer == NULL ? -1 : found;
}
