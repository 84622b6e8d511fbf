/* What recording costs beyond the statistics, and how fast the sinks are; for bench/sinks.py.
 *
 *     bench_sinks monitor DIRECTORY SERIES STEPS CONFIG
 *     bench_sinks csv|tensorboard|sqlite DIRECTORY SERIES STEPS
 *
 * Prints one JSON object. Times are CPU time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "record/registry.h"
#include "sinks/sink.h"
#include "tensorprobe/tensorprobe.h"

#define NUMBERS 6

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_sinks: %s\n", what);
        exit(1);
    }
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Resident memory in MiB. */
static double memory(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    must(file != NULL && fscanf(file, "%*d %ld", &pages) == 1, "no /proc/self/statm");
    fclose(file);
    return (double)pages * 4096 / (1 << 20);
}

static void name_key(tp_key *key, char name[64], uint32_t i)
{
    snprintf(name, 64, "layers.%u.mlp.linear%u.weight", i / 100, i % 100);
    *key = (tp_key){.name = name, .slot = -1, .quantity = TP_GRAD_REDUCED};
}

static double value_of(uint32_t series, uint32_t step)
{
    uint64_t x = ((uint64_t)step << 32 | series) * UINT64_C(0x9e3779b97f4a7c15);
    return (double)(x >> 11) * 0x1p-53 - 0.5;
}

static void bench_monitor(const char *directory, uint32_t series, uint32_t steps,
                          const char *config)
{
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    tp_error error;
    tp_monitor_counters counters;
    uint32_t *ids = tp_calloc(series, sizeof *ids);
    const int64_t dims[] = {8};
    double values[8] = {0};
    const tp_tensor tensor = {values, dims, NULL, TP_F64, 1};
    double statistics = 0;
    double observing = 0;
    double early = 0;
    double late = 0;
    tp_stats stats;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = directory;
    options.watch_defaults = 1;
    must(ids != NULL && tp_monitor_open(&monitor, &options, &error) == TP_OK, "can't open");
    for (uint32_t i = 0; i < series; i++) {
        tp_key key;
        char name[64];
        name_key(&key, name, i);
        must(tp_monitor_key(monitor, &key, &ids[i]) == TP_OK, "no key");
    }
    for (uint32_t step = 0; step < steps; step++) {
        double begin = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (uint32_t i = 0; i < series; i++) {
            values[0] = value_of(i, step);
            must(tp_stats_compute(&tensor, 1e-8, &stats) == TP_OK, "no statistics");
        }
        const double middle = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (uint32_t i = 0; i < series; i++) {
            values[0] = value_of(i, step);
            must(tp_monitor_observe(monitor, ids[i], &tensor, 0) == TP_OK, "can't observe");
        }
        must(tp_monitor_step(monitor) == TP_OK, "no step");
        const double end = seconds(CLOCK_THREAD_CPUTIME_ID);
        if (step >= steps / 4) { /* memory is asked for in the first ones */
            statistics += middle - begin;
            observing += end - middle;
        }
        /* It goes up and down with the segment: the highest of the fourth tenth and of the last. */
        const double now = memory();
        early = step >= steps / 10 * 3 && step < steps / 10 * 4 && now > early ? now : early;
        late = step >= steps - steps / 10 && now > late ? now : late;
    }
    must(tp_monitor_finish(monitor) == TP_OK, "can't finish");
    tp_monitor_get_counters(monitor, &counters);
    const double records = (double)series * (steps - steps / 4);
    printf("{\"statistics_ns\": %.1f, \"beyond_ns\": %.1f, \"writer_ns\": %.1f, \"bytes\": %.1f, "
           "\"early_mib\": %.1f, \"late_mib\": %.1f, \"gaps\": %" PRIu64 "}\n",
           statistics / records * 1e9, (observing - statistics) / records * 1e9,
           (double)counters.writer_cpu_ns / ((double)series * steps),
           (double)counters.bytes_journal / ((double)series * steps), early, late, counters.gaps);
    must(tp_monitor_close(&monitor) == TP_OK, "can't close");
    tp_free(ids);
}

static const tp_key *get_key(const void *source, uint32_t id)
{
    return tp_registry_key(source, id);
}

static const int64_t *get_shape(const void *source, uint32_t id, uint32_t *ndim)
{
    return tp_registry_shape(source, id, ndim);
}

static void bench_sink(const tp_sink *sink, const char *directory, uint32_t series, uint32_t steps)
{
    static const uint32_t ops[NUMBERS] = {TP_OP_NORM, TP_OP_MIN,   TP_OP_MAX,
                                          TP_OP_MEAN, TP_OP_ZEROS, TP_OP_NANS};
    const tp_sink_options options = {
        .directory = directory, .op_count = NUMBERS, .ops = ops, .steps_per_file = 1000};
    tp_registry *registry = NULL;
    tp_record *records = tp_calloc(series, sizeof *records);
    void *private = tp_calloc(1, sink->private_size);
    tp_error error;
    uint32_t id;
    must(records != NULL && private != NULL && tp_registry_new(&registry) == TP_OK, "no memory");
    must(tp_registry_add_shape(registry, 0, NULL, &id) == TP_OK, "no memory");
    const tp_names names = {registry, get_key, get_shape};
    for (uint32_t i = 0; i < series; i++) {
        tp_key key;
        char name[64];
        name_key(&key, name, i);
        must(tp_registry_add_key(registry, &key, &records[i].key) == TP_OK, "no memory");
        records[i].state = TP_SLOT_DONE;
        records[i].kind = TP_RECORD_STATS;
        records[i].dtype = TP_F32;
    }
    must(sink->open(private, &options, NULL, 0, &error) == TP_OK, "can't open");
    double spent = 0;
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t i = 0; i < series; i++) {
            const float x = (float)value_of(i, step);
            const double values[] = {(double)x};
            const tp_tensor tensor = {values, NULL, NULL, TP_F64, 0};
            must(tp_stats_compute(&tensor, 1e-8, &records[i].u.stats) == TP_OK, "no statistics");
            records[i].u.stats.count = 4096;
            records[i].u.stats.sum_sq = (double)x * (double)x * 4096;
        }
        const tp_batch batch = {.step = step, .wall_ns = 1, .count = series, .records = records};
        const double begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
        must(sink->write(private, &batch, &names, &error) == TP_OK, "can't write");
        spent += step > 0 ? seconds(CLOCK_PROCESS_CPUTIME_ID) - begin : 0;
    }
    printf("{\"rows_per_s\": %.0f, \"bytes\": %.1f}\n", (double)series * (steps - 1) / spent,
           (double)sink->bytes(private) / ((double)series * steps));
    sink->close(private);
    tp_free(private);
    tp_free(records);
    tp_registry_free(registry);
}

int main(int argc, char **argv)
{
    must(argc >= 5, "arguments");
    const uint32_t series = (uint32_t)atoi(argv[3]);
    const uint32_t steps = (uint32_t)atoi(argv[4]);
    must(series > 0 && steps > 2, "arguments");
    if (strcmp(argv[1], "monitor") == 0 && argc == 6) {
        bench_monitor(argv[2], series, steps, argv[5]);
    } else {
        bench_sink(strcmp(argv[1], "csv") == 0           ? &tp_sink_csv
                   : strcmp(argv[1], "tensorboard") == 0 ? &tp_sink_tensorboard
                                                         : &tp_sink_sqlite,
                   argv[2], series, steps);
    }
    return 0;
}
