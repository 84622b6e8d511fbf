/* Writes the journals of a made-up run, for tests that compare what arrives at a server with the
 * same formulas in NumPy:
 *
 *     write_journals DIRECTORY RUN_ID RANKS SERIES STEPS SEGMENT_BYTES PAUSE_US [END]
 *
 * A step of each rank in turn, then the pause. Each rank has its directory's lock until its end.
 * END "leave" ends without a word, as a killed process does. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "journal/writer.h"
#include "record/registry.h"

#define RANKS_MAX 64
#define SERIES_MAX 100000
#define ALERT_STEP 7

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "write_journals: %s\n", what);
        exit(2);
    }
}

static void fill_registry(tp_registry *registry, uint32_t series)
{
    static const int64_t dims[] = {3, 5};
    static const uint32_t quantities[] = {TP_ACTIVATION, TP_GRAD_REDUCED, TP_PARAM_ORIGIN};
    uint32_t id;
    for (uint32_t i = 0; i < series; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%u.weight", i);
        const tp_key key = {
            .name = i == 0 ? "a \"b\", 'c' \\ d=e\nf\t🔥" : name,
            .vpp_stage = (int32_t)(i % 2),
            .slot = (int32_t)(i % 4) - 1,
            .quantity = quantities[i % 3],
            .role = i % 3 == 0 ? TP_ROLE_OUTPUT : TP_ROLE_NONE,
        };
        must(tp_registry_add_key(registry, &key, &id) == TP_OK && id == i, "no key");
    }
    must(tp_registry_add_shape(registry, 2, dims, &id) == TP_OK, "no shape");
}

static void fill_record(tp_record *record, uint32_t rank, uint32_t step, uint32_t series)
{
    const uint64_t number = series * UINT64_C(7919) + step * UINT64_C(104729) + rank * 1299709u;
    const double x = 1 + (double)(number % 1000003) / 1024;
    const bool nan = (series + step) % 97 == 0;
    const bool inf = (series + 2 * step) % 101 == 0;
    const uint64_t count = 100 + series % 7;
    const uint64_t finite = count - nan - inf;
    *record = (tp_record){.state = TP_SLOT_DONE,
                          .key = series,
                          .order = series,
                          .micro_step = series % 2,
                          .kind = TP_RECORD_STATS,
                          .dtype = TP_F32};
    record->u.stats = (tp_stats){
        .count = count,
        .nan = nan,
        .pos_inf = inf,
        .zeros = step,
        .subnormal = rank,
        .min = nan ? (double)NAN : -x,
        .max = nan   ? (double)NAN
               : inf ? (double)INFINITY
                     : x,
        .finite_min = -x,
        .finite_max = x,
        .abs_max = inf ? (double)INFINITY : x,
        .abs_max_index = series % 5 == 0 ? TP_NO_INDEX : series,
        .sum = x * (double)count,
        .sum_abs = 2 * x,
        .sum_sq = x * x,
        .m2 = x * x * (double)finite,
    };
}

static void append_step(tp_journal *journal, tp_record *records, uint32_t rank, uint32_t step,
                        uint32_t series)
{
    tp_error error = {0};
    for (uint32_t i = 0; i < series; i++) {
        fill_record(&records[i], rank, step, i);
    }
    const tp_batch batch = {
        .step = step,
        .rank = rank,
        .pp_stage = rank == 0 ? -1 : (int32_t)rank,
        .micro_steps = 2,
        .begin_ns = 1000,
        .end_ns = 3000,
        .wall_ns = INT64_C(1700000000000000000) + step * INT64_C(500000000) + rank,
        .hook_ns = 77,
        .count = series,
        .records = records,
    };
    must(tp_journal_append_batch(journal, &batch, &error) == TP_OK, error.message);
    if (step == ALERT_STEP && (rank == 1 || rank == 2)) {
        tp_record alert = {.state = TP_SLOT_DONE, .key = 5, .order = 5, .kind = TP_RECORD_ALERT};
        alert.micro_step = 1;
        tp_record both[] = {alert, alert};
        both[0].u.alert = (tp_alert){.rule = TP_RULE_ANOMALY_NAN,
                                     .op = TP_OP_NANS,
                                     .value = 1,
                                     .baseline = (double)NAN,
                                     .threshold = (double)NAN,
                                     .more = 3,
                                     .incident = 1};
        both[1].kind = TP_RECORD_INCIDENT;
        both[1].u.incident = (tp_incident){.number = 1,
                                           .state = TP_INCIDENT_BEGINS,
                                           .severity = TP_SEVERITY_CRITICAL,
                                           .rule = TP_RULE_ANOMALY_NAN,
                                           .op = TP_OP_NANS,
                                           .value = 1,
                                           .baseline = (double)NAN,
                                           .threshold = (double)NAN,
                                           .first_step = step,
                                           .last_step = step,
                                           .steps = 1,
                                           .alerts = 4,
                                           .series = 4,
                                           .element = TP_NO_INDEX,
                                           .evidence = (double)NAN,
                                           .witness = TP_NO_KEY};
        must(tp_journal_append_alerts(journal, step, both, 2, &error) == TP_OK, error.message);
    }
}

static int take_lock(const char *directory, char path[4096])
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    must(mkdir(directory, 0755) == 0, "the directory is there already");
    snprintf(path, 4096, "%s/lock", directory);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    must(fd >= 0 && fcntl(fd, F_OFD_SETLK, &whole) == 0, "no lock");
    return fd;
}

int main(int argc, char **argv)
{
    static char locks[RANKS_MAX][4096];
    tp_journal *journals[RANKS_MAX];
    tp_registry *registry = NULL;
    tp_error error = {0};
    must(argc >= 8, "wrong arguments");
    const uint32_t ranks = (uint32_t)atoi(argv[3]);
    const uint32_t series = (uint32_t)atoi(argv[4]);
    const uint32_t steps = (uint32_t)atoi(argv[5]);
    const long pause_us = atol(argv[7]);
    const struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
    must(ranks <= RANKS_MAX && series <= SERIES_MAX, "too much");
    tp_record *records = calloc(series, sizeof *records);
    must(records != NULL && tp_registry_new(&registry) == TP_OK, "no memory");
    fill_registry(registry, series);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        char directory[4000];
        tp_run_info run = {.rank = rank, .start_wall_ns = 1700000000000000000};
        snprintf(run.run_id, sizeof run.run_id, "%s", argv[2]);
        snprintf(directory, sizeof directory, "%s/Dec01_12-00-00-rank%u-%s", argv[1], rank,
                 argv[2]);
        take_lock(directory, locks[rank]);
        must(tp_journal_open(&journals[rank], directory, &run, registry,
                             strtoull(argv[6], NULL, 10), &error) == TP_OK,
             error.message);
    }
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            append_step(journals[rank], records, rank, step, series);
        }
        nanosleep(&pause, NULL);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (argc > 8) {
            tp_journal_leave(&journals[rank]);
        } else {
            must(tp_journal_close(&journals[rank], &error) == TP_OK, error.message);
            unlink(locks[rank]);
        }
    }
    free(records);
    tp_registry_free(registry);
    return 0;
}
