/* The results must not depend on what the program has set (torch.set_flush_denormal flushes
 * subnormals to 0), so tensors are read in the default floating-point environment. */
#ifndef TP_STATS_ENVIRONMENT_H
#define TP_STATS_ENVIRONMENT_H

/* Calls run(context) with nothing flushed and rounding to nearest, and puts the thread's own
 * settings back. By pointer, so that no arithmetic moves across the change. */
void tp_in_default_environment(void (*run)(void *context), void *context);

#endif
