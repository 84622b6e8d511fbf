/* Any bytes as a journal, read as each of the tables: see journal_file.h for the first byte. Streams
 * must end, and every buffer must hold what its array promises. */
#include "journal_file.h"

#include "arrow/query.h"

static volatile uint64_t touched; /* keeps reads from being left out */

static void touch_bytes(const void *from, size_t size)
{
    uint64_t sum = 0;
    check(size == 0 || from != NULL);
    for (size_t i = 0; i < size; i++) {
        sum += ((const uint8_t *)from)[i];
    }
    touched += sum;
}

/* Reads all that an array of this format points to, as a consumer would. */
static void touch(const struct ArrowArray *array, const struct ArrowSchema *schema)
{
    const size_t length = (size_t)array->length;
    const int32_t *offsets = array->n_buffers > 1 ? array->buffers[1] : NULL;
    switch (schema->format[0]) {
    case 'i':
        touch_bytes(array->buffers[1], 4 * length);
        for (size_t i = 0; array->dictionary != NULL && i < length; i++) {
            check(offsets[i] >= 0 && offsets[i] < array->dictionary->length);
        }
        break;
    case 'l':
    case 'g':
    case 't':
        touch_bytes(array->buffers[1], 8 * length);
        break;
    case 'b':
        touch_bytes(array->buffers[1], (length + 7) / 8);
        break;
    case 'u':
        for (size_t i = 0; i < length; i++) {
            check(offsets[i] <= offsets[i + 1]);
        }
        touch_bytes(array->buffers[2], (size_t)offsets[length]);
        break;
    default: /* a list, or the rows */
        if (schema->format[1] == 'l') {
            touch_bytes(array->buffers[0], (length + 7) / 8);
            check(offsets[length] == array->children[0]->length);
        }
        break;
    }
    for (int64_t i = 0; i < array->n_children; i++) {
        touch(array->children[i], schema->children[i]);
    }
    if (array->dictionary != NULL) {
        touch(array->dictionary, schema->dictionary);
    }
}

static void read_table(uint32_t table, size_t size)
{
    const char *const here = directory;
    tp_query_options options = tp_query_options_defaults(table);
    tp_query *query = NULL;
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    tp_error error;
    options.directories = &here;
    options.directory_count = 1;
    options.batch_rows = 5;
    check(tp_query_new(&query, &options, &error) == TP_OK);
    check(tp_query_stream(query, &stream) == TP_OK);
    tp_query_drop(query);
    check(stream.get_schema(&stream, &schema) == 0);
    for (size_t arrays = 0;; arrays++) {
        struct ArrowArray array;
        check(arrays <= 200 * (size + 1)); /* 5 rows of what packs well */
        if (stream.get_next(&stream, &array) != 0) {
            check(stream.get_last_error(&stream) != NULL);
            break;
        }
        if (array.release == NULL) {
            break;
        }
        /* Of what is merged a step stays together. */
        check(array.length > 0 && (array.length <= 5 || table == TP_TABLE_MERGED));
        check(array.n_children == schema.n_children);
        touch(&array, &schema);
        array.release(&array);
    }
    schema.release(&schema);
    stream.release(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    journal_file_begin(data, size);
    size = journal_file_finish();
    for (uint32_t table = TP_TABLE_RUNS; table <= TP_TABLE_COUNT; table++) {
        read_table(table, size);
    }
    return 0;
}
