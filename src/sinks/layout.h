/* What a TensorBoard event file says about itself: a page that explains the tags, and a layout of
 * the custom scalars page that groups them. */
#ifndef TP_SINKS_LAYOUT_H
#define TP_SINKS_LAYOUT_H

#include "sinks/sink.h"

/* Markdown: what the tags of this rank mean. */
void tp_layout_put_page(tp_buf *out, const tp_sink_options *options);

/* A packed layout: a category for each kind of value that the batch has, with a chart for each
 * layer. */
tp_status tp_layout_put(tp_buf *out, const tp_batch *batch, const tp_names *names,
                        const tp_sink_options *options);

#endif
