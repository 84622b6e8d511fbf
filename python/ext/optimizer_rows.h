/* The parameters that an optimizer's hooks look at, under each of their names. */
#ifndef TP_EXT_OPTIMIZER_ROWS_H
#define TP_EXT_OPTIMIZER_ROWS_H

#include "optimizer_hooks.h"

/* Takes a list of rows: (name, parameter, vpp stage), and perhaps (…, span, global name, span
 * before the reduction, absent, duplicate, place in the parameter). False: an error is set, and
 * what has been taken is to be freed with the hook. */
bool optimizer_rows_take(optimizer_hook *hook, PyObject *rows);

void optimizer_rows_free(watched *parameters, uint32_t count);

/* The number of the series that a quantity is recorded in; -1: in none. */
int optimizer_rows_series(uint32_t quantity);

/* Its inverse. */
uint32_t optimizer_rows_quantity(int series);

/* The row of this parameter that isn't an alias; NULL: it has none, or an error is set. */
watched *optimizer_rows_find(optimizer_hook *hook, PyObject *parameter);

#endif
