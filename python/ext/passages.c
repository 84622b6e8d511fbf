#include "passages.h"

#include <string.h>

#include "base/mem.h"
#include "module_hooks.h"

/* Room for one more. False: an error is set. */
static bool grow(void **items, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count < *capacity) {
        return true;
    }
    const uint32_t more = *capacity == 0 ? 8 : *capacity * 2;
    void *moved = tp_realloc(*items, more * size);
    if (moved == NULL) {
        PyErr_NoMemory();
        return false;
    }
    *items = moved;
    *capacity = more;
    return true;
}

bool edge_list_add(edge_list *list, PyObject *node, uint32_t position, PyObject *to,
                   uint32_t output_nr)
{
    if (!grow((void **)&list->edges, list->count, &list->capacity, sizeof(*list->edges))) {
        return false;
    }
    list->edges[list->count++] = (graph_edge){Py_NewRef(node), position, Py_NewRef(to), output_nr};
    return true;
}

void edge_list_free(edge_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        Py_DECREF(list->edges[i].node);
        Py_DECREF(list->edges[i].to);
    }
    tp_free(list->edges);
    *list = (edge_list){0};
}

void handed_on_clear(handed_on *input)
{
    Py_CLEAR(input->node);
    if (input->row.hook != NULL) {
        Py_DECREF((PyObject *)input->row.hook);
        input->row.hook = NULL;
    }
    edge_list_free(&input->uses);
}

static passages *made(passages **left)
{
    if (*left == NULL) {
        passages *fresh = tp_calloc(1, sizeof(*fresh));
        if (fresh == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        fresh->by_start = PyDict_New();
        if (fresh->by_start == NULL) {
            tp_free(fresh);
            return NULL;
        }
        *left = fresh;
    }
    return *left;
}

bool passages_add(passages **left, PyObject *starts, edge_list *edges)
{
    passages *to = made(left);
    bool ok = to != NULL && grow((void **)&to->items, to->count, &to->capacity, sizeof(*to->items));
    if (ok) {
        to->items[to->count] = (passage){to->edges.count, edges->count, false};
    }
    for (uint32_t i = 0; ok && i < edges->count; i++) {
        const graph_edge *edge = &edges->edges[i];
        ok = edge_list_add(&to->edges, edge->node, edge->position, edge->to, edge->output_nr);
    }
    PyObject *number = ok ? PyLong_FromUnsignedLong(to->count) : NULL;
    ok = number != NULL;
    for (Py_ssize_t i = 0; ok && i < PyList_Size(starts); i++) {
        ok = PyDict_SetItem(to->by_start, PyList_GetItem(starts, i), number) == 0;
    }
    if (ok) {
        to->count++;
    }
    Py_XDECREF(number);
    Py_DECREF(starts);
    edge_list_free(edges);
    return ok;
}

bool passages_hand_on(passages **left, handed_on *input)
{
    passages *to = made(left);
    if (to == NULL ||
        !grow((void **)&to->handed, to->handed_count, &to->handed_capacity, sizeof(*to->handed))) {
        handed_on_clear(input);
        return false;
    }
    to->handed[to->handed_count++] = *input;
    *input = (handed_on){0};
    return true;
}

bool passages_move(passages **left, passages *from)
{
    if (*left == NULL) {
        *left = from;
        return true;
    }
    if (from == NULL) {
        return true;
    }
    passages *to = *left;
    const uint32_t edges_before = to->edges.count;
    const uint32_t items_before = to->count;
    bool ok = true;
    for (uint32_t i = 0; ok && i < from->edges.count; i++) {
        const graph_edge *edge = &from->edges.edges[i];
        ok = edge_list_add(&to->edges, edge->node, edge->position, edge->to, edge->output_nr);
    }
    for (uint32_t i = 0; ok && i < from->count; i++) {
        ok = grow((void **)&to->items, to->count, &to->capacity, sizeof(*to->items));
        if (ok) {
            to->items[to->count++] =
                (passage){edges_before + from->items[i].first, from->items[i].count, false};
        }
    }
    PyObject *start = NULL;
    PyObject *number = NULL;
    Py_ssize_t position = 0;
    while (ok && PyDict_Next(from->by_start, &position, &start, &number)) {
        PyObject *moved = PyLong_FromUnsignedLong(items_before + PyLong_AsUnsignedLong(number));
        ok = moved != NULL && PyDict_SetItem(to->by_start, start, moved) == 0;
        Py_XDECREF(moved);
    }
    for (uint32_t i = 0; ok && i < from->handed_count; i++) {
        ok = passages_hand_on(left, &from->handed[i]);
    }
    passages_free(from);
    return ok;
}

passage *passages_find(const passages *left, PyObject *node)
{
    PyObject *number = PyDict_GetItemWithError(left->by_start, node);
    return number == NULL ? NULL : &left->items[PyLong_AsUnsignedLong(number)];
}

void passages_free(passages *left)
{
    if (left == NULL) {
        return;
    }
    Py_DECREF(left->by_start);
    edge_list_free(&left->edges);
    for (uint32_t i = 0; i < left->handed_count; i++) {
        handed_on_clear(&left->handed[i]);
    }
    tp_free(left->handed);
    tp_free(left->items);
    tp_free(left);
}
