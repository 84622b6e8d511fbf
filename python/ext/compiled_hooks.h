/* What the operators of a compiled graph call: the same records as the hooks make, but the graph
 * says where in the model it is. */
#ifndef TP_EXT_COMPILED_HOOKS_H
#define TP_EXT_COMPILED_HOOKS_H

#include "module_hooks.h"

/* hook.compiled_forward(tensors, side): a training forward of the module begins (side 0, its
 * inputs) or has ended (1, its outputs), or both of one in a checkpointed part (2, its outputs).
 * Gives what identifies it: step, micro step, call. */
PyObject *compiled_forward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* hook.compiled_backward(tensor, side, slot, step, micro_step, call): the gradient of one tensor of
 * the forward that these identify. */
PyObject *compiled_backward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* hook.compiled_sides: for input, output, input_grad and output_grad what a compiled graph records:
 * None: nothing; (): every tensor; (0, 0): the only one; (n, i): element i of n. Then whether
 * tensors of integers are wanted. */
PyObject *compiled_sides(PyObject *self, void *closure);

/* The root's forward begins: does torch.export run it? Notes that, and warns once. */
bool compiled_is_exporting(monitor_object *monitor);

#endif
