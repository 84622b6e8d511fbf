#include "graph_walk.h"

#include <string.h>

#include "base/mem.h"
#include "input_edges.h"

int64_t walk_sequence_nr(core_state *state, PyObject *node)
{
    if (Py_TYPE(node) == state->accumulate_grad_type) {
        return INT64_MAX;
    }
    PyObject *number = PyObject_CallMethodObjArgs(node, state->name_sequence_nr, NULL);
    const uint64_t sequence_nr = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        return -1;
    }
    return sequence_nr > INT64_MAX ? INT64_MAX : (int64_t)sequence_nr;
}

/* Numbers grow over time in a thread. */
int walk_made_inside(const walk *way, PyObject *node)
{
    const int64_t number = walk_sequence_nr(way->state, node);
    if (number < 0) {
        return -1;
    }
    return number != INT64_MAX && number >= way->running->entry_sequence_nr;
}

static bool add_use(walk *way, PyObject *node, uint32_t position, uint32_t edge, PyObject *geometry)
{
    if (way->use_count == way->use_capacity) {
        const uint32_t capacity = way->use_capacity == 0 ? 8 : way->use_capacity * 2;
        found_use *uses = tp_realloc(way->uses, capacity * sizeof(*uses));
        if (uses == NULL) {
            PyErr_NoMemory();
            return false;
        }
        way->uses = uses;
        way->use_capacity = capacity;
    }
    way->uses[way->use_count++] = (found_use){node, position, edge, geometry};
    return true;
}

static bool reach(walk *way, PyObject *node)
{
    const Py_ssize_t before = PySet_Size(way->queued);
    if (PySet_Add(way->queued, node) != 0) {
        return false;
    }
    return PySet_Size(way->queued) == before || PyList_Append(way->nodes, node) == 0;
}

/* Most leaves are parameters, for which nobody waits. */
static bool is_awaited(const frame *running, const PyObject *leaf)
{
    const monitor_object *monitor = running->hook->monitor;
    for (uint32_t i = 0; i < monitor->frame_count; i++) {
        const frame *outer = monitor->frames[i];
        for (uint32_t edge = 0; edge < outer->edge_count; edge++) {
            if (outer->edges[edge].node == leaf) {
                return true;
            }
        }
        for (uint32_t edge = 0; outer->within != NULL && edge < outer->within->handed_count;
             edge++) {
            if (outer->within->handed[edge].node == leaf) {
                return true;
            }
        }
    }
    return false;
}

/* An edge that leaves the part: of interest for the walks around this one. */
static bool leave(walk *way, PyObject *node, uint32_t position, PyObject *to, uint32_t output_nr)
{
    if (Py_TYPE(to) == way->state->accumulate_grad_type && !is_awaited(way->running, to)) {
        return true;
    }
    if (position == 0 && Py_TYPE(node) == way->state->copy_slices_type &&
        !edge_list_add(&way->slices, node, position, to, output_nr)) {
        return false;
    }
    return edge_list_add(&way->leaving, node, position, to, output_nr);
}

static bool handle_edge(walk *way, PyObject *node, uint32_t position, PyObject *to,
                        uint32_t output_nr)
{
    const frame *running = way->running;
    for (uint32_t i = 0; i < running->edge_count; i++) {
        if (running->edges[i].node == to && running->edges[i].output_nr == output_nr &&
            !add_use(way, node, position, i, NULL)) {
            return false;
        }
    }
    const passages *within = running->within;
    for (uint32_t i = 0; within != NULL && i < within->handed_count; i++) {
        if (within->handed[i].node == to && within->handed[i].output_nr == output_nr &&
            !add_use(way, node, position, running->edge_count + i, NULL)) {
            return false;
        }
    }
    const int inside = walk_made_inside(way, to);
    if (inside != 0) {
        return inside > 0 && reach(way, to);
    }
    return leave(way, node, position, to, output_nr);
}

static bool visit_node(walk *way, PyObject *node)
{
    PyObject *next = PyObject_GetAttr(node, way->state->name_next_functions);
    if (next == NULL) {
        return false;
    }
    way->running->hook->monitor->graph_nodes++;
    bool ok = true;
    const Py_ssize_t size = PyTuple_Size(next);
    for (Py_ssize_t i = 0; ok && i < size; i++) {
        PyObject *pair = PyTuple_GetItem(next, i);
        PyObject *to = PyTuple_GetItem(pair, 0);
        if (to != Py_None) {
            const uint32_t number = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(pair, 1));
            ok = handle_edge(way, node, (uint32_t)i, to, number);
        }
    }
    Py_DECREF(next);
    return ok;
}

/* Goes over the part of an inner module by the edges that leave it. Nodes of it that were reached
 * by another way have been passed already. */
static bool visit_passage(walk *way, passage *part)
{
    const graph_edge *edges = way->running->within->edges.edges + part->first;
    part->taken = true;
    for (uint32_t i = 0; i < part->count;) {
        PyObject *node = edges[i].node;
        const int handled = PySet_Contains(way->handled, node);
        if (handled < 0 || (handled == 0 && PySet_Add(way->handled, node) != 0)) {
            return false;
        }
        for (; i < part->count && edges[i].node == node; i++) {
            way->running->hook->monitor->graph_nodes++;
            if (!handled &&
                !handle_edge(way, node, edges[i].position, edges[i].to, edges[i].output_nr)) {
                return false;
            }
        }
    }
    return true;
}

static bool visit(walk *way, PyObject *node)
{
    if (way->handled == NULL) {
        return visit_node(way, node);
    }
    passage *part = passages_find(way->running->within, node);
    if (PyErr_Occurred()) {
        return false;
    }
    if (part != NULL) {
        return part->taken || visit_passage(way, part);
    }
    const int handled = PySet_Contains(way->handled, node);
    return handled > 0 ||
           (handled == 0 && PySet_Add(way->handled, node) == 0 && visit_node(way, node));
}

static bool start_at(walk *way, PyObject *tensor)
{
    const int required = requires_grad(way->state, tensor);
    if (required <= 0) {
        return required == 0;
    }
    uint32_t output_nr = 0;
    PyObject *node = gradient_node(way->state, tensor, &output_nr);
    if (node == NULL) {
        return false;
    }
    bool ok = edge_list_add(&way->outputs, node, 0, node, output_nr);
    const int inside = ok ? walk_made_inside(way, node) : -1;
    const Py_ssize_t before = PyList_Size(way->nodes);
    ok = inside == 0 || (inside > 0 && reach(way, node));
    if (ok && PyList_Size(way->nodes) > before) {
        ok = PyList_Append(way->starts, node) == 0;
    }
    Py_DECREF(node);
    return ok;
}

/* ---- Views that the module changed in place ---- */

/* The node that put the change of a view into its base, when the base was as it came in until then:
 * at its first input arrives the gradient of the old base. Borrowed from slices, or NULL. */
static PyObject *slice_of(const walk *way, PyObject *base)
{
    core_state *state = way->state;
    uint32_t output_nr = 0;
    PyObject *node = made_by(state, base, &output_nr);
    PyObject *found = NULL;
    while (node != NULL && Py_TYPE(node) == state->copy_slices_type && found == NULL) {
        for (uint32_t i = 0; i < way->slices.count && found == NULL; i++) {
            found = way->slices.edges[i].node == node ? node : NULL;
        }
        PyObject *next = PyObject_GetAttr(node, state->name_next_functions);
        PyObject *pair = next == NULL ? NULL : PyTuple_GetItem(next, 0);
        Py_DECREF(node);
        node = pair == NULL ? NULL : Py_NewRef(PyTuple_GetItem(pair, 0));
        Py_XDECREF(next);
    }
    Py_XDECREF(node);
    return found;
}

/* Where in its base a view lies: shape, strides, offset. */
static PyObject *geometry_of(PyObject *view, PyObject *base)
{
    PyObject *shape = PyObject_CallMethod(view, "size", NULL);
    PyObject *strides = shape == NULL ? NULL : PyObject_CallMethod(view, "stride", NULL);
    PyObject *offset = strides == NULL ? NULL : PyObject_CallMethod(view, "storage_offset", NULL);
    PyObject *start = offset == NULL ? NULL : PyObject_CallMethod(base, "storage_offset", NULL);
    PyObject *distance = start == NULL ? NULL : PyNumber_Subtract(offset, start);
    PyObject *geometry = distance == NULL ? NULL : PyTuple_Pack(3, shape, strides, distance);
    Py_XDECREF(distance);
    Py_XDECREF(start);
    Py_XDECREF(offset);
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    return geometry;
}

static bool match_view(walk *way, PyObject *tensor, uint32_t edge)
{
    uint32_t output_nr = 0;
    PyObject *now = made_by(way->state, tensor, &output_nr);
    if (now == NULL) {
        return false;
    }
    const bool changed = now != way->running->edges[edge].node;
    Py_DECREF(now);
    PyObject *base = changed ? PyObject_GetAttrString(tensor, "_base") : NULL;
    if (base == NULL || base == Py_None) {
        Py_XDECREF(base);
        return !PyErr_Occurred();
    }
    PyObject *node = slice_of(way, base);
    PyObject *geometry = node == NULL ? NULL : geometry_of(tensor, base);
    const bool ok = geometry == NULL ? !PyErr_Occurred()
                                     : PyList_Append(way->kept, geometry) == 0 &&
                                           add_use(way, node, 0, edge, geometry);
    Py_XDECREF(geometry);
    Py_DECREF(base);
    return ok;
}

/* An input that is a view, and was changed in place: its node is out of the graph, and the gradient
 * of what it was arrives at its base. */
static bool match_views(walk *way, PyObject *const *inputs)
{
    const frame *running = way->running;
    tensor_list list;
    bool ok = side_collect(running->hook, SIDE_INPUT_GRAD, inputs, &list);
    for (uint32_t edge = 0; ok && edge < running->edge_count; edge++) {
        const uint32_t number = running->edges[edge].number;
        if (number < list.count) {
            ok = match_view(way, list.items[number].tensor, edge);
        }
    }
    tensor_list_free(&list);
    return ok;
}

bool walk_graph(walk *way, const frame *running, const tensor_list *outputs,
                PyObject *const *inputs)
{
    const bool has_passages = running->within != NULL && running->within->count > 0;
    *way = (walk){
        .state = running->hook->monitor->state,
        .running = running,
        .output_count = outputs->count,
        .nodes = PyList_New(0),
        .queued = PySet_New(NULL),
        .handled = has_passages ? PySet_New(NULL) : NULL,
        .starts = PyList_New(0),
        .kept = PyList_New(0),
    };
    bool ok = !PyErr_Occurred();
    for (uint32_t i = 0; ok && i < outputs->count; i++) {
        ok = start_at(way, outputs->items[i].tensor);
    }
    for (Py_ssize_t i = 0; ok && i < PyList_Size(way->nodes); i++) {
        ok = visit(way, PyList_GetItem(way->nodes, i));
    }
    return ok && (way->slices.count == 0 || match_views(way, inputs));
}

void walk_free(walk *way)
{
    Py_XDECREF(way->nodes);
    Py_XDECREF(way->queued);
    Py_XDECREF(way->handled);
    Py_XDECREF(way->starts);
    Py_XDECREF(way->kept);
    edge_list_free(&way->outputs);
    edge_list_free(&way->leaving);
    edge_list_free(&way->slices);
    tp_free(way->uses);
}
