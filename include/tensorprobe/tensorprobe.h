/* Everything that TensorProbe offers to a C program. */
#ifndef TENSORPROBE_H
#define TENSORPROBE_H

#include "tensorprobe/monitor.h"
#include "tensorprobe/optimizer.h"
#include "tensorprobe/reader.h"
#include "tensorprobe/record.h"
#include "tensorprobe/stats.h"
#include "tensorprobe/status.h"
#include "tensorprobe/tensor.h"
#include "tensorprobe/version.h"

#endif
