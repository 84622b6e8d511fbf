/* A tensor's memory, shape and strides, read where torch keeps them. python/tensorprobe/_layout.py
 * finds the places and tells what they are good for; DLPack has the last word. */
#ifndef TP_EXT_TENSOR_LAYOUT_H
#define TP_EXT_TENSOR_LAYOUT_H

#include "core.h"
#include "tensorprobe/tensor.h"

/* Looks for the places, and leaves state->layout.known false unless all it finds there is what
 * DLPack's table says. Never leaves a Python error set. */
void tensor_layout_learn(core_state *state);

/* False: this isn't a tensor of the kind that is known, or its dtype isn't; *data is not touched.
 * tensor: not of a type that takes over dispatch. */
bool tensor_layout_read(const tensor_layout *layout, const PyObject *tensor, tp_tensor *data);

#endif
