/* Carries journals to a server, and messages to people: beside the training, in a process of its
 * own. */
#ifndef TP_SHIP_SHIP_H
#define TP_SHIP_SHIP_H

#include "config/config.h"
#include "config/url.h"
#include "ship/backend.h"
#include "ship/members.h"

typedef struct tp_ship_options {
    tp_ship_scope scope;
    const tp_config *config; /* its `database` and `alert.inform` */
    /* How long a server may be away when nothing new comes any more. Until then it is tried again
     * for as long as it takes. */
    uint64_t patience_ns;
} tp_ship_options;

typedef struct tp_ship_report {
    uint64_t journals;
    uint64_t steps;
    uint64_t messages;
} tp_ship_report;

/* What can be said without speaking to anybody: secrets that are not there, URLs of unknown kinds,
 * libraries that this build lacks, nothing to deliver. */
tp_status tp_ship_check(const tp_config *config, tp_error *error);

/* Delivers until there is nothing left, or *stop becomes 1 (TP_END). Errors name no secret. */
tp_status tp_ship_run(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                      tp_error *error);

/* Where the values go. The caller frees *url. */
tp_status tp_ship_find_server(const tp_config *config, tp_url *url, const tp_backend **backend,
                              tp_error *error);

/* One half of it each. */
tp_status tp_ship_values(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                         tp_error *error);
tp_status tp_ship_messages(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                           tp_error *error);

#endif
