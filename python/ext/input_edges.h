/* The gradient of a module's inputs that flows through this module, without changing the graph: the
 * inputs' gradient edges are noted before the forward; after it, the nodes that the forward made
 * are walked from the outputs back to those that use the edges, and these are hooked. */
#ifndef TP_EXT_INPUT_EDGES_H
#define TP_EXT_INPUT_EDGES_H

#include "module_hooks.h"

/* All of these return false with an error set. */
bool input_edges_capture(module_hook *hook, frame *running, const tensor_list *inputs);

/* Does the forward have to be followed? Else what modules inside left is passed to the frame around
 * it, for nobody may go through their parts again. */
bool input_edges_wanted(const frame *running);
bool input_edges_pass(frame *running);

/* The frame has been taken out. outputs: all that the module returned. inputs: the arguments, then
 * the keyword arguments. */
bool input_edges_follow(const frame *running, const tensor_list *outputs, PyObject *const *inputs);

/* The node that made the tensor (a new reference) and which of its outputs it is. None: a leaf. */
PyObject *made_by(core_state *state, PyObject *tensor, uint32_t *output_nr);

/* The node at which the tensor's gradient arrives, also that of a leaf; a new reference. */
PyObject *gradient_node(core_state *state, PyObject *tensor, uint32_t *output_nr);

/* 1, 0, or -1 with an error set. */
int requires_grad(core_state *state, PyObject *tensor);

#endif
