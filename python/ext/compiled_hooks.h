/* What the operators of a compiled graph call: the same records as the hooks make, but the graph
 * says where in the model it is. */
#ifndef TP_EXT_COMPILED_HOOKS_H
#define TP_EXT_COMPILED_HOOKS_H

#include "module_hooks.h"

/* hook.compiled_forward(tensors, side, keywords): a training forward of the module begins (side 0,
 * its inputs) or has ended (1, its outputs), or both of one in a checkpointed part (2: outputs).
 * keywords: of each tensor's argument, "" for one without; none at all is an empty list. Gives what
 * identifies it: step, micro step, call. */
PyObject *compiled_forward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* hook.compiled_backward(tensor, side, slot, keyword, step, micro_step, call): the gradient of one
 * tensor of the forward that these identify. Of an argument with a keyword ("": none) the slot
 * counts the tensors in it. */
PyObject *compiled_backward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* hook.compiled_sides: for input, output, input_grad and output_grad what a compiled graph records:
 * None: nothing; (): every tensor; (0, 0): the only one; (n, i): element i of n. Then whether
 * tensors of integers are wanted. */
PyObject *compiled_sides(PyObject *self, void *closure);

/* The root's forward begins: does torch.export run it? Notes that, and warns once. */
bool compiled_is_exporting(monitor_object *monitor);

#endif
