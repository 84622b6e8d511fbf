/* Carries steps from the journal to one sink, in order, each once. In a running monitor the writer
 * thread hands it the batch that it has just written to the journal; a follower that has fallen
 * behind (a full disk, a killed process) reads the journal itself from its cursor on. */
#ifndef TP_MONITOR_FOLLOWER_H
#define TP_MONITOR_FOLLOWER_H

#include "sinks/sink.h"

typedef struct tp_follower tp_follower;

/* The names that the reader has read by the time that one is asked for. */
tp_names tp_names_of_reader(const tp_reader *reader);

/* Opens the sink at its cursor `<directory>/followers/<sink>.cursor`. directory is borrowed until
 * close. A failure that can pass (TP_ERR_NOSPACE, TP_ERR_IO) is kept inside: the follower then
 * starts behind. */
tp_status tp_follower_open(tp_follower **out, const tp_sink *sink, const tp_sink_options *options,
                           tp_error *error);

/* batch, and the alerts that it raised, have just been appended to the journal and end at position.
 * A failure is logged, remembered and tried again from the journal later. */
void tp_follower_write(tp_follower *follower, const tp_batch *batch, const tp_record *alerts,
                       uint64_t alert_count, const tp_names *names, tp_position position);

/* Whether it has been said that there is no room: once for all that write to the same disk. Who
 * shares *no_room clears it. */
void tp_follower_share(tp_follower *follower, bool *no_room);

/* The same for alerts of the open step, which has not been appended yet. Sinks that take no alerts
 * find them passed over. */
void tp_follower_tell(tp_follower *follower, uint64_t step, const tp_record *alerts, uint64_t count,
                      const tp_names *names, tp_position position);

/* The journal may hold steps that the sink lacks: the next write looks. */
void tp_follower_suspect(tp_follower *follower);

/* Brings the sink to the end of the journal. TP_OK: it is there; TP_END: limit_ns is used up and
 * there is more to do. */
tp_status tp_follower_catch_up(tp_follower *follower, uint64_t limit_ns, tp_error *error);

/* What is written from now on has these columns and decimals. What the journal has already, and the
 * sink not yet, is written first if that can be done now. */
void tp_follower_configure(tp_follower *follower, const tp_sink_options *options);

bool tp_follower_is_behind(const tp_follower *follower);

/* Steps written since open, and bytes. */
uint64_t tp_follower_steps(const tp_follower *follower);
uint64_t tp_follower_bytes(const tp_follower *follower);

void tp_follower_close(tp_follower **follower);

/* The options in the cursor file that a sink has in the directory; ops gets what they point to.
 * *found: there are some. */
tp_status tp_follower_load_options(const char *directory, const tp_sink *sink,
                                   tp_sink_options *options, uint32_t ops[TP_OP_COUNT], bool *found,
                                   tp_error *error);

/* Whether the journal there still has the steps of its first segment: what is made from it is all
 * there was. */
bool tp_follower_has_beginning(const char *directory);

/* Brings one sink, which nobody else has open, to the end of the journal, unless *stop becomes 1
 * before that (TP_END; stop may be NULL). *steps is raised to the number of steps added. */
tp_status tp_follower_bring(const tp_sink *sink, const tp_sink_options *options, const int *stop,
                            uint64_t *steps, tp_error *error);

#endif
