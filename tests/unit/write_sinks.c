/* Feeds a sink with batches from standard input, for tests that read the files with pandas and
 * TensorBoard:
 *
 *     write_sinks SINK DIRECTORY OPS NDIGITS STEPS_PER_FILE RANK FAIL_AFTER [CURSOR]
 *
 * OPS is a comma-separated list, CURSOR hexadecimal; FAIL_AFTER n makes the n-th write (1 is the
 * first) run out of space. Lines of input:
 *
 *     key QUANTITY ROLE VPP SLOT NAME
 *     shape NDIM DIM…
 *     batch STEP WALL_NS COUNT, then COUNT lines: KEY MICRO_STEP CALL SHAPE DTYPE WORD×17 (hex)
 *
 * After each batch the status and the sink's cursor are printed; the first failure ends the run. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "record/registry.h"
#include "sinks/sink.h"

static const tp_key *get_key(const void *source, uint32_t id)
{
    return tp_registry_key(source, id);
}

static const int64_t *get_shape(const void *source, uint32_t id, uint32_t *ndim)
{
    return tp_registry_shape(source, id, ndim);
}

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "write_sinks: bad input: %s\n", what);
        exit(2);
    }
}

static void read_key(tp_registry *registry)
{
    char name[1024] = "";
    tp_key key = {.name = name};
    uint32_t id;
    must(scanf("%u %u %d %d", &key.quantity, &key.role, &key.vpp_stage, &key.slot) == 4, "key");
    must(getchar() == ' ' && fgets(name, sizeof name, stdin) != NULL, "name");
    name[strcspn(name, "\n")] = '\0';
    must(tp_registry_add_key(registry, &key, &id) == TP_OK, "key");
}

static void read_shape(tp_registry *registry)
{
    int64_t dims[TP_MAX_DIMS];
    uint32_t ndim;
    uint32_t id;
    must(scanf("%u", &ndim) == 1 && ndim <= TP_MAX_DIMS, "shape");
    for (uint32_t i = 0; i < ndim; i++) {
        must(scanf("%" SCNd64, &dims[i]) == 1, "dimension");
    }
    must(tp_registry_add_shape(registry, ndim, dims, &id) == TP_OK, "shape");
}

static void read_batch(tp_batch *batch, tp_record **records)
{
    must(scanf("%" SCNu64 " %" SCNd64 " %" SCNu64, &batch->step, &batch->wall_ns, &batch->count) ==
             3,
         "batch");
    *records = tp_calloc((size_t)batch->count, sizeof **records);
    must(*records != NULL, "memory");
    for (uint64_t i = 0; i < batch->count; i++) {
        tp_record *record = &(*records)[i];
        record->state = TP_SLOT_DONE;
        record->kind = TP_RECORD_STATS;
        record->order = i;
        must(scanf("%u %u %u %u %u", &record->key, &record->micro_step, &record->call,
                   &record->shape, &record->dtype) == 5,
             "record");
        for (size_t w = 0; w < 17; w++) {
            must(scanf("%" SCNx64, &record->u.words[w]) == 1, "word");
        }
    }
    batch->records = *records;
}

static void print_cursor(const tp_sink *sink, const void *private)
{
    tp_buf cursor = TP_BUF_INIT;
    sink->cursor(private, &cursor);
    for (size_t i = 0; i < cursor.size; i++) {
        printf("%02x", cursor.data[i]);
    }
    tp_buf_free(&cursor);
}

static size_t parse_hex(const char *text, uint8_t *bytes, size_t room)
{
    size_t size = 0;
    for (; text[0] != '\0' && text[1] != '\0' && size < room; text += 2) {
        unsigned byte;
        must(sscanf(text, "%2x", &byte) == 1, "cursor");
        bytes[size++] = (uint8_t)byte;
    }
    return size;
}

int main(int argc, char **argv)
{
    must(argc == 8 || argc == 9, "arguments");
    const tp_sink *sink = strcmp(argv[1], "csv") == 0 ? &tp_sink_csv : &tp_sink_tensorboard;
    uint32_t ops[TP_OP_COUNT];
    tp_sink_options options = {.directory = argv[2],
                               .ops = ops,
                               .ndigits = (uint32_t)atoi(argv[4]),
                               .steps_per_file = (uint64_t)atoll(argv[5]),
                               .rank = (uint32_t)atoi(argv[6])};
    for (char *op = strtok(argv[3], ","); op != NULL; op = strtok(NULL, ",")) {
        ops[options.op_count++] = tp_op_from_name(op);
    }
    uint8_t cursor[4096];
    size_t cursor_size = argc == 9 ? parse_hex(argv[8], cursor, sizeof cursor) : 0;
    tp_registry *registry = NULL;
    tp_error error = {0};
    char word[16];
    uint64_t cpu = 0;
    uint64_t count = 0;
    void *private = tp_calloc(1, sink->private_size);
    must(private != NULL && tp_registry_new(&registry) == TP_OK, "memory");
    const tp_names names = {registry, get_key, get_shape};
    tp_status status = sink->open(private, &options, cursor, cursor_size, &error);
    tp_file_fail_after((unsigned long)atol(argv[7]), ENOSPC);
    while (status == TP_OK && scanf("%15s", word) == 1) {
        if (strcmp(word, "key") == 0) {
            read_key(registry);
        } else if (strcmp(word, "shape") == 0) {
            read_shape(registry);
        } else {
            tp_batch batch = {.pp_stage = -1};
            tp_record *records;
            read_batch(&batch, &records);
            uint64_t begin = tp_clock_thread_cpu();
            status = sink->write(private, &batch, &names, &error);
            cpu += tp_clock_thread_cpu() - begin;
            count += batch.count;
            tp_free(records);
            printf("%s ", tp_status_name(status));
            if (status == TP_OK) {
                print_cursor(sink, private);
            }
            printf("\n");
        }
    }
    if (status != TP_OK) {
        printf("%s %s\n", tp_status_name(status), error.message);
    }
    if (count > 0) {
        fprintf(stderr, "%s: %.0f ns of CPU time a value\n", sink->name,
                (double)cpu / (double)(count * options.op_count));
    }
    sink->close(private);
    tp_free(private);
    tp_registry_free(registry);
    return status == TP_OK ? 0 : 1;
}
