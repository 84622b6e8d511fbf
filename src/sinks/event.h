/* The parts of TensorBoard's event files: summaries of one value, and frames of events. Summaries
 * can be joined end to end: that is how protobuf repeats. */
#ifndef TP_SINKS_EVENT_H
#define TP_SINKS_EVENT_H

#include <stdbool.h>

#include "base/buf.h"
#include "event.pb-c.h"
#include "tensorprobe/record.h"

/* A packed value that is not announced ends in float_val (4 bytes), two bytes of double_val's tag
 * and length, and double_val (8 bytes). */
#define TP_EVENT_FLOAT_FROM_END 14
#define TP_EVENT_DOUBLE_FROM_END 8

/* Each appends one value; a failed allocation shows in out->failed. What isn't const is only read,
 * but protobuf-c wants it so. */

/* announce: with the name of the plugin, as the first of a tag in a file has to be. */
void tp_event_put_scalar(tp_buf *out, char *tag, double value, bool announce);

/* As torch's SummaryWriter writes one, of the elements that are in its bins. numbers: scratch. */
void tp_event_put_histogram(tp_buf *out, char *tag, const tp_histogram *histogram, tp_buf *numbers);

void tp_event_put_image(tp_buf *out, char *tag, uint32_t width, uint32_t height, const tp_buf *png);

/* A text for a plugin ("text": Markdown). */
void tp_event_put_text(tp_buf *out, char *tag, char *plugin, const tp_buf *text);

/* Appends the event as a TFRecord: length, its masked CRC-32C, data, its masked CRC-32C. */
void tp_event_put_frame(tp_buf *out, const TpEvent__Event *event);

void tp_event_put_packed(tp_buf *out, const ProtobufCMessage *message);

#endif
