/* From a module's outputs back through the part of the graph that its forward made. */
#ifndef TP_EXT_GRAPH_WALK_H
#define TP_EXT_GRAPH_WALK_H

#include "module_hooks.h"

/* A node of the module that takes a watched edge as the input with this number. */
typedef struct found_use {
    PyObject *node; /* borrowed: held by the walk */
    uint32_t position;
    uint32_t edge;      /* of the frame; from edge_count on: what modules inside handed on */
    PyObject *geometry; /* borrowed: (shape, strides, offset) of a view within what it gets */
} found_use;

typedef struct walk {
    core_state *state;
    const frame *running;
    PyObject *nodes;   /* list: reached, in the order of their visit */
    PyObject *queued;  /* set: the same */
    PyObject *handled; /* set: nodes that have been passed; NULL without passages */
    PyObject *starts;  /* list: those that made an output */
    PyObject *kept;    /* list: geometries */
    uint32_t output_count;
    edge_list outputs; /* those that need a gradient; to: unused */
    edge_list leaving; /* the edges that leave the part */
    edge_list slices;  /* those of them that change a view in place */
    found_use *uses;
    uint32_t use_count, use_capacity;
} walk;

/* inputs: the arguments and the keyword arguments. False: an error is set. Always free it. */
bool walk_graph(walk *way, const frame *running, const tensor_list *outputs,
                PyObject *const *inputs);
void walk_free(walk *way);

/* -1: an error is set. An accumulating node has the largest possible number. */
int64_t walk_sequence_nr(core_state *state, PyObject *node);

/* 1, 0, or -1 with an error set: did this forward make the node? */
int walk_made_inside(const walk *way, PyObject *node);

#endif
