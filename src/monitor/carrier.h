/* Starts `tensorprobe ship` beside the training, where the configuration has work for it. */
#ifndef TP_MONITOR_CARRIER_H
#define TP_MONITOR_CARRIER_H

#include "config/config.h"
#include "tensorprobe/reader.h"

/* Does nothing when nothing is to be delivered, or another rank of this node does it. The process
 * is nobody's child, has no descriptor of this one, and gets what it must know through memory.
 * base: the directory of all runs, which exists. Not for a thread that must not wait. */
void tp_carrier_start(const tp_config *config, const char *base, const tp_run_info *run);

#endif
