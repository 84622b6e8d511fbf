/* What every C test starts with: cmocka and its prerequisites. */
#ifndef TP_TESTS_CHECK_H
#define TP_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
