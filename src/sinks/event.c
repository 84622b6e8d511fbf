#include "sinks/event.h"

#include <string.h>

#include "base/crc32c.h"

#define DT_FLOAT 1
#define DT_STRING 7
#define DATA_CLASS_SCALAR 1
#define DATA_CLASS_TENSOR 2
#define RGB 3
#define FRAME_HEADER 12 /* length, and its checksum */

void tp_event_put_packed(tp_buf *out, const ProtobufCMessage *message)
{
    uint8_t *room = tp_buf_extend(out, protobuf_c_message_get_packed_size(message));
    if (room != NULL) {
        protobuf_c_message_pack(message, room);
    }
}

/* A summary of this value alone. */
static void put_value(tp_buf *out, TpEvent__Value *one)
{
    TpEvent__Summary summary;
    tp_event__summary__init(&summary);
    summary.n_value = 1;
    summary.value = &one;
    tp_event_put_packed(out, &summary.base);
}

/* A tensor without dimensions; plugin NULL: it isn't announced. */
static void put_tensor(tp_buf *out, char *tag, TpEvent__Tensor *tensor, char *plugin,
                       int data_class)
{
    TpEvent__PluginData plugin_data;
    TpEvent__SummaryMetadata metadata;
    TpEvent__TensorShape shape;
    TpEvent__Value one;
    tp_event__plugin_data__init(&plugin_data);
    tp_event__summary_metadata__init(&metadata);
    tp_event__tensor_shape__init(&shape);
    tp_event__value__init(&one);
    plugin_data.plugin_name = plugin;
    metadata.plugin_data = &plugin_data;
    metadata.data_class = data_class;
    tensor->tensor_shape = &shape;
    one.tag = tag;
    one.tensor = tensor;
    one.metadata = plugin != NULL ? &metadata : NULL;
    put_value(out, &one);
}

void tp_event_put_scalar(tp_buf *out, char *tag, double value, bool announce)
{
    static char plugin[] = "scalars";
    TpEvent__Tensor tensor;
    float shown = (float)value;
    tp_event__tensor__init(&tensor);
    tensor.dtype = DT_FLOAT;
    tensor.n_float_val = 1;
    tensor.float_val = &shown;
    tensor.n_double_val = 1;
    tensor.double_val = &value;
    put_tensor(out, tag, &tensor, announce ? plugin : NULL, DATA_CLASS_SCALAR);
}

void tp_event_put_histogram(tp_buf *out, char *tag, const tp_histogram *histogram, tp_buf *numbers)
{
    TpEvent__Histogram histo;
    TpEvent__Value one;
    const uint32_t n = histogram->bin_count;
    const double width = (histogram->high - histogram->low) / n;
    tp_buf_clear(numbers);
    double *limits = tp_buf_extend(numbers, 2 * (size_t)n * sizeof(*limits));
    if (limits == NULL) {
        out->failed = true;
        return;
    }
    double *counts = limits + n;
    tp_event__histogram__init(&histo);
    for (uint32_t i = 0; i < n; i++) {
        const double middle = histogram->low + width * (i + 0.5); /* the elements' own are lost */
        limits[i] = i + 1 < n ? histogram->low + width * (i + 1) : histogram->high;
        counts[i] = (double)histogram->bins[i];
        histo.num += counts[i];
        histo.sum += counts[i] * middle;
        histo.sum_squares += counts[i] * middle * middle;
    }
    histo.min = histogram->low;
    histo.max = histogram->high;
    histo.n_bucket_limit = n;
    histo.bucket_limit = limits;
    histo.n_bucket = n;
    histo.bucket = counts;
    tp_event__value__init(&one);
    one.tag = tag;
    one.histo = &histo;
    put_value(out, &one);
}

static uint32_t mask_crc(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

void tp_event_put_frame(tp_buf *out, const TpEvent__Event *event)
{
    size_t length = protobuf_c_message_get_packed_size(&event->base);
    size_t start = out->size;
    tp_buf_put_u64(out, length);
    tp_buf_put_u32(out, out->failed ? 0 : mask_crc(tp_crc32c(0, out->data + start, 8)));
    tp_event_put_packed(out, &event->base);
    tp_buf_put_u32(
        out, out->failed ? 0 : mask_crc(tp_crc32c(0, out->data + start + FRAME_HEADER, length)));
}

void tp_event_put_image(tp_buf *out, char *tag, uint32_t width, uint32_t height, const tp_buf *png)
{
    TpEvent__Image image;
    TpEvent__Value one;
    tp_event__image__init(&image);
    tp_event__value__init(&one);
    image.width = (int32_t)width;
    image.height = (int32_t)height;
    image.colorspace = RGB;
    image.encoded_image_string = (ProtobufCBinaryData){png->size, png->data};
    one.tag = tag;
    one.image = &image;
    put_value(out, &one);
    out->failed = out->failed || png->failed;
}

void tp_event_put_text(tp_buf *out, char *tag, char *plugin, const tp_buf *text)
{
    TpEvent__Tensor tensor;
    ProtobufCBinaryData content = {text->size, text->data};
    tp_event__tensor__init(&tensor);
    tensor.dtype = DT_STRING;
    tensor.n_string_val = 1;
    tensor.string_val = &content;
    put_tensor(out, tag, &tensor, plugin, DATA_CLASS_TENSOR);
    out->failed = out->failed || text->failed;
}
