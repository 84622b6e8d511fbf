/* Hooks on nodes of the autograd graph. They die with the graph. */
#ifndef TP_EXT_GRADIENT_HOOKS_H
#define TP_EXT_GRADIENT_HOOKS_H

#include "module_hooks.h"

/* Hooks the node at which the whole gradient of this tensor arrives. Does nothing when the tensor
 * requires none. False: an error is set. */
bool gradient_hook_tensor(module_hook *hook, PyObject *tensor, uint32_t role, int32_t slot,
                          const frame *running);

/* The whole gradient that arrives at a node is that of this input. */
bool gradient_hook_node(const input_row *row, PyObject *node, uint32_t output_nr);

/* The gradient of one input, made of the parts that consuming nodes send. */
typedef struct input_grad input_grad;

/* Hooks one consuming node: positions are those of its inputs that are this edge. geometry: of a
 * view whose base the edge is, else NULL. leader: the object made for the first consuming node of
 * the same edge, or NULL when this is it. expected is the number of consuming nodes. A new
 * reference; NULL: an error is set. */
PyObject *input_grad_hook_node(const input_row *row, PyObject *node, const uint32_t *positions,
                               uint32_t position_count, PyObject *geometry, input_grad *leader,
                               uint32_t expected);

/* Records what has arrived when some consuming nodes never ran in this backward. */
bool input_grad_finish(input_grad *leader);

#endif
