/* The gradient of a module's inputs that flows through this module, without changing the graph: the
 * inputs' gradient edges are noted before the forward; after it, the nodes that the forward made
 * are walked from the outputs back to those that consume the edges, and these are hooked. */
#ifndef TP_EXT_INPUT_EDGES_H
#define TP_EXT_INPUT_EDGES_H

#include "module_hooks.h"

/* Both return false with an error set. */
bool input_edges_capture(module_hook *hook, frame *running, const tensor_list *inputs);
bool input_edges_follow(module_hook *hook, const frame *running, const tensor_list *outputs);

/* The node that made the tensor (a new reference) and which of its outputs it is. None: a leaf. */
PyObject *made_by(core_state *state, PyObject *tensor, uint32_t *output_nr);

/* 1, 0, or -1 with an error set. */
int requires_grad(core_state *state, PyObject *tensor);

#endif
