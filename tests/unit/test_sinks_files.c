/* The bytes of both sinks' files, to the letter, and what happens when memory runs out. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "check.h"
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

typedef struct fixture {
    char directory[32];
    tp_registry *registry;
    tp_names names;
    tp_record records[2];
    tp_batch batch;
    tp_buf content;
} fixture;

/* Step 7: the input number 1 of "fc" in its second call, and the gradient of the scalar "scale". */
static int set_up(void **state)
{
    static const int64_t dims[] = {3, 4};
    static const tp_key keys[] = {
        {"fc", NULL, 2, 1, TP_ACTIVATION, TP_ROLE_INPUT, NULL, NULL},
        {"scale", NULL, 0, -1, TP_GRAD_UNREDUCED, TP_ROLE_NONE, NULL, NULL}};
    fixture *f = tp_calloc(1, sizeof *f);
    uint32_t id;
    assert_non_null(f);
    strcpy(f->directory, "/tmp/tp_sinks_XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    assert_int_equal(tp_registry_new(&f->registry), TP_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tp_registry_add_key(f->registry, &keys[i], &id), TP_OK);
    }
    assert_int_equal(tp_registry_add_shape(f->registry, 2, dims, &id), TP_OK);
    assert_int_equal(tp_registry_add_shape(f->registry, 0, NULL, &id), TP_OK);
    f->names = (tp_names){f->registry, get_key, get_shape};
    f->records[0] = (tp_record){.state = TP_SLOT_DONE,
                                .key = 0,
                                .kind = TP_RECORD_STATS,
                                .micro_step = 4,
                                .call = 1,
                                .dtype = TP_BF16,
                                .shape = 0};
    f->records[0].u.stats = (tp_stats){.count = 12, .zeros = 3, .min = (double)NAN, .max = -0.5};
    f->records[1] = (tp_record){
        .state = TP_SLOT_DONE, .key = 1, .kind = TP_RECORD_STATS, .dtype = TP_F32, .shape = 1};
    f->records[1].u.stats = (tp_stats){.count = 1, .nan = 1, .min = 0.25, .max = (double)INFINITY};
    f->batch = (tp_batch){.step = 7, .wall_ns = 1500000000, .count = 2, .records = f->records};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char path[TP_PATH_MAX];
    const struct dirent *entry;
    DIR *directory = opendir(f->directory);
    while ((entry = readdir(directory)) != NULL) {
        tp_path_join(path, f->directory, entry->d_name);
        unlink(path);
    }
    closedir(directory);
    rmdir(f->directory);
    tp_registry_free(f->registry);
    tp_buf_free(&f->content);
    tp_free(f);
    return 0;
}

/* Opens the sink, writes the batch and once more as the next step, closes. */
static tp_status write_two_steps(fixture *f, const tp_sink *sink, const tp_sink_options *options)
{
    tp_error error = {0};
    void *private = tp_calloc(1, sink->private_size);
    tp_batch next = f->batch;
    if (private == NULL) {
        return TP_ERR_NOMEM;
    }
    next.step++;
    next.wall_ns += 1000000000;
    tp_status status = sink->open(private, options, NULL, 0, &error);
    if (status == TP_OK) {
        status = sink->write(private, &f->batch, &f->names, &error);
    }
    if (status == TP_OK) {
        status = sink->write(private, &next, &f->names, &error);
    }
    assert_int_equal(error.code, status);
    sink->close(private);
    tp_free(private);
    return status;
}

static const char *read_text(fixture *f, const char *name)
{
    char path[TP_PATH_MAX];
    tp_path_join(path, f->directory, name);
    assert_int_equal(tp_file_read(path, &f->content, NULL), TP_OK);
    tp_buf_put(&f->content, "", 1);
    return (const char *)f->content.data;
}

static void test_csv(void **state)
{
    static const uint32_t ops[] = {TP_OP_MAX, TP_OP_ZEROS, TP_OP_SHAPE, TP_OP_NANS,
                                   TP_OP_MIN, TP_OP_DTYPE, TP_OP_ID};
    fixture *f = *state;
    const tp_sink_options options = {f->directory, 3, 7, ops, 0, 5, 0, false};
    assert_int_equal(write_two_steps(f, &tp_sink_csv, &options), TP_OK);
    assert_string_equal(read_text(f, "actv_5-9.csv"),
                        "vpp_stage,name,step,micro_step,max,zeros,shape,nans,min,dtype,id\n"
                        "2,fc.input_1#1,7,4,-0.5,0.25,\"[3, 4]\",0,nan,torch.bfloat16,nan\n"
                        "2,fc.input_1#1,8,4,-0.5,0.25,\"[3, 4]\",0,nan,torch.bfloat16,nan\n");
    assert_string_equal(read_text(f, "grad_unreduced_5-9.csv"),
                        "vpp_stage,name,step,max,zeros,shape,nans,min,dtype,id\n"
                        "0,scale,7,inf,0,[],1,0.25,torch.float32,0.25\n"
                        "0,scale,8,inf,0,[],1,0.25,torch.float32,0.25\n");
}

/* What TensorBoard's own RecordWriter makes of the same events. */
static const uint8_t first_event[] = {
    0xdb, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x18, 0x69, 0x3a, 0x6e, 0x09, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0xf8, 0x3f, 0x10, 0x07, 0x2a, 0xcd, 0x01, 0x0a, 0x46, 0x0a, 0x1f, 0x32, 0x3a,
    0x66, 0x63, 0x2e, 0x69, 0x6e, 0x70, 0x75, 0x74, 0x5f, 0x31, 0x23, 0x31, 0x3a, 0x34, 0x2f, 0x72,
    0x61, 0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x74, 0x76, 0x5f, 0x6d, 0x61, 0x78, 0x42, 0x14, 0x08,
    0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x00, 0xbf, 0x32, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xe0, 0xbf, 0x4a, 0x0d, 0x0a, 0x09, 0x0a, 0x07, 0x73, 0x63, 0x61, 0x6c, 0x61, 0x72, 0x73,
    0x20, 0x01, 0x0a, 0x41, 0x0a, 0x1a, 0x30, 0x3a, 0x73, 0x63, 0x61, 0x6c, 0x65, 0x2f, 0x72, 0x61,
    0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x63, 0x5f, 0x67, 0x72, 0x61, 0x64, 0x5f, 0x6d, 0x61, 0x78,
    0x42, 0x14, 0x08, 0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x80, 0x7f, 0x32, 0x08, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0xf0, 0x7f, 0x4a, 0x0d, 0x0a, 0x09, 0x0a, 0x07, 0x73, 0x63, 0x61, 0x6c,
    0x61, 0x72, 0x73, 0x20, 0x01, 0x0a, 0x40, 0x0a, 0x19, 0x30, 0x3a, 0x73, 0x63, 0x61, 0x6c, 0x65,
    0x2f, 0x72, 0x61, 0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x63, 0x5f, 0x67, 0x72, 0x61, 0x64, 0x5f,
    0x69, 0x64, 0x42, 0x14, 0x08, 0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x80, 0x3e, 0x32, 0x08,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xd0, 0x3f, 0x4a, 0x0d, 0x0a, 0x09, 0x0a, 0x07, 0x73, 0x63,
    0x61, 0x6c, 0x61, 0x72, 0x73, 0x20, 0x01, 0x3b, 0xf4, 0x64, 0xed,
};
static const uint8_t later_event[] = {
    0xae, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc6, 0x73, 0x9f, 0x1d, 0x09, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x04, 0x40, 0x10, 0x08, 0x2a, 0xa0, 0x01, 0x0a, 0x37, 0x0a, 0x1f, 0x32, 0x3a,
    0x66, 0x63, 0x2e, 0x69, 0x6e, 0x70, 0x75, 0x74, 0x5f, 0x31, 0x23, 0x31, 0x3a, 0x34, 0x2f, 0x72,
    0x61, 0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x74, 0x76, 0x5f, 0x6d, 0x61, 0x78, 0x42, 0x14, 0x08,
    0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x00, 0xbf, 0x32, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xe0, 0xbf, 0x0a, 0x32, 0x0a, 0x1a, 0x30, 0x3a, 0x73, 0x63, 0x61, 0x6c, 0x65, 0x2f, 0x72,
    0x61, 0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x63, 0x5f, 0x67, 0x72, 0x61, 0x64, 0x5f, 0x6d, 0x61,
    0x78, 0x42, 0x14, 0x08, 0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x80, 0x7f, 0x32, 0x08, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x7f, 0x0a, 0x31, 0x0a, 0x19, 0x30, 0x3a, 0x73, 0x63, 0x61,
    0x6c, 0x65, 0x2f, 0x72, 0x61, 0x6e, 0x6b, 0x33, 0x2f, 0x61, 0x63, 0x63, 0x5f, 0x67, 0x72, 0x61,
    0x64, 0x5f, 0x69, 0x64, 0x42, 0x14, 0x08, 0x01, 0x12, 0x00, 0x2a, 0x04, 0x00, 0x00, 0x80, 0x3e,
    0x32, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xd0, 0x3f, 0xce, 0xe3, 0x92, 0x26,
};

static void find_event_file(const fixture *f, char name[256])
{
    const struct dirent *entry;
    DIR *directory = opendir(f->directory);
    name[0] = '\0';
    while ((entry = readdir(directory)) != NULL) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            assert_string_equal(name, "");
            snprintf(name, 256, "%s", entry->d_name);
        }
    }
    closedir(directory);
}

static void test_events(void **state)
{
    static const uint32_t ops[] = {TP_OP_MAX, TP_OP_SHAPE, TP_OP_ID, TP_OP_DTYPE};
    fixture *f = *state;
    char name[256];
    const tp_sink_options options = {f->directory, 3, 4, ops, 0, 1, 0, false};
    assert_int_equal(write_two_steps(f, &tp_sink_tensorboard, &options), TP_OK);
    find_event_file(f, name);
    read_text(f, name);
    size_t version = 12 + 9 + 15 + 4; /* frame, wall time, "brain.Event:2", checksum */
    const size_t events = f->content.size - 1 - sizeof first_event - sizeof later_event;
    assert_true(events > version + 400); /* the page and the layout are between */
    assert_memory_equal(f->content.data + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    /* In front of each stands one of what the step took. */
    const uint8_t *end = f->content.data + f->content.size - 1;
    const uint8_t *first = f->content.data + events - 400;
    while (first < end - sizeof later_event - sizeof first_event &&
           memcmp(first, first_event, sizeof first_event) != 0) {
        first++;
    }
    assert_true(first < end - sizeof later_event - sizeof first_event);
    assert_memory_equal(end - sizeof later_event, later_event, sizeof later_event);
}

static void test_every_request_for_memory_may_fail(void **state)
{
    static const uint32_t ops[] = {TP_OP_NORM, TP_OP_MAX, TP_OP_ID};
    const tp_sink *const sinks[] = {&tp_sink_csv, &tp_sink_tensorboard};
    fixture *f = *state;
    const tp_sink_options options = {f->directory, 3, 3, ops, 0, 1, 0, false};
    for (size_t i = 0; i < 2; i++) {
        unsigned long n = 0;
        tp_status status = TP_ERR_NOMEM;
        while (status != TP_OK) {
            tp_mem_fail_after(++n);
            status = write_two_steps(f, sinks[i], &options);
            tp_mem_fail_after(0);
            assert_true(status == TP_OK || status == TP_ERR_NOMEM);
        }
        assert_true(n > 5);
    }
}

static void test_unknown_series_are_left_out(void **state)
{
    static const uint32_t ops[] = {TP_OP_MAX};
    fixture *f = *state;
    const tp_sink_options options = {f->directory, 3, 1, ops, 0, 5, 0, false};
    f->records[1].key = 9;
    assert_int_equal(write_two_steps(f, &tp_sink_csv, &options), TP_OK);
    assert_int_equal(write_two_steps(f, &tp_sink_tensorboard, &options), TP_OK);
    assert_string_equal(read_text(f, "actv_5-9.csv"), "vpp_stage,name,step,micro_step,max\n"
                                                      "2,fc.input_1#1,7,4,-0.5\n"
                                                      "2,fc.input_1#1,8,4,-0.5\n");
}

static void test_wrong_cursors_are_refused(void **state)
{
    static const uint32_t ops[] = {TP_OP_NORM};
    const tp_sink *const sinks[] = {&tp_sink_csv, &tp_sink_tensorboard, &tp_sink_sqlite,
                                    &tp_sink_anomaly};
    fixture *f = *state;
    const tp_sink_options options = {f->directory, 3, 1, ops, 0, 1, 0, false};
    uint8_t bytes[2000] = {0};
    for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; i++) {
        void *private = tp_calloc(1, sinks[i]->private_size);
        assert_int_equal(sinks[i]->open(private, &options, bytes, sizeof bytes, NULL),
                         TP_ERR_CORRUPT);
        sinks[i]->close(private);
        tp_free(private);
    }
}

/* Writes the batch as this step with the one column; the cursor is carried on. */
static void write_with(fixture *f, uint32_t op, uint64_t step, tp_buf *cursor)
{
    const tp_sink_options options = {f->directory, 3, 1, &op, 0, 5, 0, false};
    void *private = tp_calloc(1, tp_sink_csv.private_size);
    f->batch.step = step;
    assert_int_equal(tp_sink_csv.open(private, &options, cursor->data, cursor->size, NULL), TP_OK);
    assert_int_equal(tp_sink_csv.write(private, &f->batch, &f->names, NULL), TP_OK);
    tp_buf_clear(cursor);
    tp_sink_csv.cursor(private, cursor);
    tp_sink_csv.close(private);
    tp_free(private);
}

static void test_other_columns_go_into_another_file(void **state)
{
    fixture *f = *state;
    tp_buf cursor = TP_BUF_INIT;
    f->records[1].key = 9; /* which has no name: one row is enough */
    write_with(f, TP_OP_MAX, 3, &cursor);
    write_with(f, TP_OP_MIN, 4, &cursor);
    write_with(f, TP_OP_MIN, 6, &cursor); /* the next window */
    write_with(f, TP_OP_MAX, 7, &cursor);
    write_with(f, TP_OP_MAX, 2, &cursor); /* back to the first one, where part 1 has the minimum */
    write_with(f, TP_OP_MAX, 8, &cursor);
    write_with(f, TP_OP_MAX, 11, &cursor);
#define HEADER "vpp_stage,name,step,micro_step,"
    assert_string_equal(read_text(f, "actv_0-4.csv"), HEADER "max\n2,fc.input_1#1,3,4,-0.5\n");
    assert_string_equal(read_text(f, "actv_0-4_part_1.csv"),
                        HEADER "min\n2,fc.input_1#1,4,4,nan\n");
    assert_string_equal(read_text(f, "actv_5-9.csv"), HEADER "min\n2,fc.input_1#1,6,4,nan\n");
    assert_string_equal(read_text(f, "actv_5-9_part_2.csv"),
                        HEADER "max\n2,fc.input_1#1,7,4,-0.5\n2,fc.input_1#1,8,4,-0.5\n");
    assert_string_equal(read_text(f, "actv_0-4_part_2.csv"),
                        HEADER "max\n2,fc.input_1#1,2,4,-0.5\n");
    assert_string_equal(read_text(f, "actv_10-14.csv"), HEADER "max\n2,fc.input_1#1,11,4,-0.5\n");
#undef HEADER
    tp_buf_free(&cursor);
}

/* As get_key; memory that was missing for the first record is there again for the second. */
static const tp_key *get_key_and_memory(const void *source, uint32_t id)
{
    if (id == 1) {
        tp_mem_fail_after(0);
    }
    return tp_registry_key(source, id);
}

/* A request for memory fails, and the next one doesn't: a file without the rows is no success. */
static void test_one_request_for_memory_fails(void **state)
{
    static const uint32_t ops[] = {TP_OP_MAX};
    fixture *f = *state;
    const tp_sink_options options = {f->directory, 3, 1, ops, 0, 5, 0, false};
    unsigned failed = 0;
    f->names.key = get_key_and_memory;
    for (unsigned long n = 1; n < 20; n++) {
        tp_error error = {0};
        tp_buf cursor = TP_BUF_INIT;
        void *private = tp_calloc(1, tp_sink_csv.private_size);
        assert_int_equal(tp_sink_csv.open(private, &options, NULL, 0, &error), TP_OK);
        tp_sink_csv.cursor(private, &cursor);
        tp_mem_fail_after(n);
        tp_status status = tp_sink_csv.write(private, &f->batch, &f->names, &error);
        tp_mem_fail_after(0);
        tp_sink_csv.close(private);
        if (status != TP_OK) { /* it is offered again from the cursor on */
            assert_int_equal(status, TP_ERR_NOMEM);
            failed++;
            memset(private, 0, tp_sink_csv.private_size);
            status = tp_sink_csv.open(private, &options, cursor.data, cursor.size, &error);
            assert_int_equal(status, TP_OK);
            status = tp_sink_csv.write(private, &f->batch, &f->names, &error);
            assert_int_equal(status, TP_OK);
            tp_sink_csv.close(private);
        }
        tp_free(private);
        tp_buf_free(&cursor);
        assert_string_equal(read_text(f, "actv_5-9.csv"),
                            "vpp_stage,name,step,micro_step,max\n2,fc.input_1#1,7,4,-0.5\n");
        assert_string_equal(read_text(f, "grad_unreduced_5-9.csv"),
                            "vpp_stage,name,step,max\n0,scale,7,inf\n");
    }
    assert_true(failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_csv, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_request_for_memory_may_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_request_for_memory_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unknown_series_are_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_wrong_cursors_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_columns_go_into_another_file, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
