/* The black box: many threads observe, and the process is killed at any moment. Afterwards the
 * journal has every record whose call had returned, once, under its name, also when recovering is
 * killed. And what becomes of a box that has no room, no place, or no owner. */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mapping.h"
#include "monitor/recover.h"
#include "tensorprobe/tensorprobe.h"

#define KILLS 30 /* TP_SOAK: ten times as many */
#define THREADS 3
#define MOST 200000 /* records of a thread */
#define PER_NAME 70 /* records of a thread under one name */

/* What the child says, in memory that the parent sees: records whose calls have returned. */
typedef struct progress {
    atomic_uint returned[THREADS];
    atomic_uint steps;
} progress;

static char base[] = "/tmp/tp-box-XXXXXX";
static char runs[TP_PATH_MAX];  /* where the runs' directories are */
static char boxes[TP_PATH_MAX]; /* where the boxes are */
static progress *seen;
static tp_monitor *monitor;

static tp_monitor *open_monitor(void)
{
    tp_monitor_options options;
    tp_monitor *opened = NULL;
    tp_monitor_defaults(&options);
    options.config_text = "{\"format\": [\"csv\"], \"xy_distribution\": true}";
    options.output_dir = runs;
    return tp_monitor_open(&opened, &options, NULL) == TP_OK ? opened : NULL;
}

static void name_of(char name[64], uint32_t thread, uint32_t number)
{
    snprintf(name, 64, "thread%u.layer%u", thread, number / PER_NAME);
}

/* Record i of a thread has i % 9 + 1 elements, all of them i. */
static void observe(uint32_t thread, uint32_t number)
{
    char name[64];
    double x[9];
    uint32_t id;
    const int64_t size = number % 9 + 1;
    name_of(name, thread, number);
    const tp_key key = {.name = name, .slot = (int32_t)thread, .quantity = TP_ACTIVATION};
    for (int64_t k = 0; k < size; k++) {
        x[k] = number;
    }
    const tp_tensor tensor = {x, &size, NULL, TP_F64, 1};
    if (tp_monitor_key(monitor, &key, &id) == TP_OK) {
        tp_monitor_observe(monitor, id, &tensor, number % 4);
    }
}

static void *observe_all(void *argument)
{
    const uint32_t thread = (uint32_t)(uintptr_t)argument;
    for (uint32_t number = 0; number < MOST; number++) {
        observe(thread, number);
        atomic_store(&seen->returned[thread], number + 1);
    }
    return NULL;
}

/* Threads that observe, while this one ends steps of any length. */
static void run_child(unsigned seed)
{
    pthread_t threads[THREADS];
    close(STDERR_FILENO);
    alarm(60); /* a test that has failed leaves nothing behind */
    srandom(seed);
    monitor = open_monitor();
    for (uintptr_t i = 0; monitor != NULL && i < THREADS; i++) {
        pthread_create(&threads[i], NULL, observe_all, (void *)i);
    }
    while (monitor != NULL) {
        usleep((useconds_t)random() % 4000);
        tp_monitor_step(monitor);
        atomic_fetch_add(&seen->steps, 1);
    }
    _exit(1);
}

/* The only directory below path; false: there is none. */
static bool find_one(char found[TP_PATH_MAX], const char *path)
{
    uint32_t count = 0;
    const struct dirent *entry;
    DIR *listing = opendir(path);
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] != '.') {
            count++;
            assert_int_equal(tp_path_join(found, path, entry->d_name), TP_OK);
        }
    }
    if (listing != NULL) {
        closedir(listing);
    }
    assert_true(count <= 1);
    return count == 1;
}

static bool find_box(char found[TP_PATH_MAX])
{
    char folder[TP_PATH_MAX];
    return find_one(folder, boxes) && find_one(found, folder);
}

/* How often each record of each thread is in the journal. */
static uint8_t counts[THREADS][MOST];

static void count_record(tp_reader *reader, const tp_record *record)
{
    char name[64];
    uint32_t ndim;
    const tp_key *key = tp_reader_key(reader, record->key);
    const int64_t *dims = tp_reader_shape(reader, record->shape, &ndim);
    if (record->state != TP_SLOT_DONE) {
        return; /* it was not finished */
    }
    assert_non_null(key);
    assert_non_null(dims);
    const uint32_t number = (uint32_t)record->u.stats.max;
    assert_true(number < MOST && key->slot >= 0 && key->slot < THREADS);
    name_of(name, (uint32_t)key->slot, number);
    assert_string_equal(key->name, name);
    assert_int_equal(dims[0], number % 9 + 1);
    assert_int_equal(record->u.stats.count, number % 9 + 1);
    assert_true(record->u.stats.sum == (double)number * (double)dims[0]);
    assert_int_equal(record->micro_step, number % 4);
    counts[key->slot][number]++;
}

/* Steps are 0, 1, 2 …; those that are partial lack a slot that was to be filled, or were open: the
 * last one, and the one before if the kill came between the two. Returns how many there are. */
static uint64_t check_journal(const char *directory)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t steps = 0;
    int open = 0;
    memset(counts, 0, sizeof counts);
    tp_status status = tp_reader_open(&reader, directory, NULL);
    while (status == TP_OK && (status = tp_reader_next(reader, &item, NULL)) == TP_OK) {
        if (item.type != TP_ITEM_BATCH) {
            continue;
        }
        assert_true(open == 0 || (open == 1 && (item.batch.flags & TP_BATCH_PARTIAL) != 0));
        assert_int_equal(item.batch.step, steps++);
        open += (item.batch.flags & TP_BATCH_PARTIAL) != 0 && item.batch.unfilled == 0;
        for (uint64_t i = 0; i < item.batch.count; i++) {
            count_record(reader, &item.batch.records[i]);
        }
    }
    assert_true(status == TP_END || (status == TP_ERR_NOTFOUND && steps == 0));
    tp_reader_close(&reader);
    for (uint32_t thread = 0; thread < THREADS; thread++) {
        const uint32_t returned = atomic_load(&seen->returned[thread]);
        for (uint32_t number = 0; number < MOST; number++) {
            if (number < returned) {
                assert_int_equal(counts[thread][number], 1);
            } else { /* one may have been recorded and its call not have returned */
                assert_true(counts[thread][number] <= (number == returned));
            }
        }
    }
    return steps;
}

static void remove_directory(const char *path)
{
    char command[TP_PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/* Recovers, in children that are killed as well, and at last to the end. */
static void recover(void)
{
    const int stop = 0;
    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            tp_recover_boxes(runs, &stop);
            _exit(0);
        }
        usleep((useconds_t)random() % 3000);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    tp_recover_boxes(runs, &stop);
}

static void start_child(pid_t *child)
{
    memset(seen, 0, sizeof *seen);
    const unsigned seed = (unsigned)random();
    *child = fork();
    if (*child == 0) {
        run_child(seed);
    }
}

static void test_kill(void **state)
{
    (void)state;
    const int most = getenv("TP_SOAK") != NULL ? 10 * KILLS : KILLS;
    uint64_t steps = 0;
    uint64_t returned = 0;
    for (int kills = 0; kills < most; kills++) {
        char directory[TP_PATH_MAX];
        char box[TP_PATH_MAX];
        pid_t child;
        start_child(&child);
        usleep((useconds_t)random() % 60000);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        recover();
        assert_false(find_box(box));
        if (find_one(directory, runs)) {
            steps += check_journal(directory);
            remove_directory(runs);
        } else {
            directory[0] = '\0'; /* nothing had been recorded */
            for (uint32_t thread = 0; thread < THREADS; thread++) {
                assert_int_equal(atomic_load(&seen->returned[thread]), 0);
            }
        }
        for (uint32_t thread = 0; thread < THREADS; thread++) {
            returned += atomic_load(&seen->returned[thread]);
        }
    }
    print_message("%llu records in %llu steps of %d killed processes\n",
                  (unsigned long long)returned, (unsigned long long)steps, most);
    assert_true(returned > 0 && steps > 0);
}

static uint32_t observe_some(uint32_t from, uint32_t count)
{
    for (uint32_t number = from; number < from + count; number++) {
        observe(0, number);
    }
    atomic_store(&seen->returned[0], from + count);
    return from + count;
}

/* Whatever request for a piece of the box fails: the run goes on, and nothing is missed in the
 * end. A clean end leaves no box. */
static void test_no_room(void **state)
{
    (void)state;
    for (unsigned long n = 1; n < 12; n++) {
        char directory[TP_PATH_MAX];
        char box[TP_PATH_MAX];
        uint32_t number = 0;
        memset(seen, 0, sizeof *seen);
        tp_mapping_fail_after(n, n % 2 == 0 ? ENOSPC : ENOMEM);
        monitor = open_monitor();
        assert_non_null(monitor);
        for (int step = 0; step < 3; step++) {
            number = observe_some(number, 3000);
            assert_int_equal(tp_monitor_step(monitor), TP_OK);
        }
        assert_true(find_box(box));
        assert_int_equal(tp_monitor_close(&monitor), TP_OK);
        tp_mapping_fail_after(0, 0);
        assert_false(find_box(box));
        assert_true(find_one(directory, runs));
        assert_int_equal(check_journal(directory), 3);
        char path[TP_PATH_MAX];
        tp_path_join(path, directory, "box");
        assert_int_equal(access(path, F_OK), -1);
        remove_directory(runs);
    }
}

/* Without a place for a box there is none. */
static void test_no_place(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    setenv("TENSORPROBE_JOURNAL_DIR", "/proc/nothing", 1);
    memset(seen, 0, sizeof *seen);
    monitor = open_monitor();
    assert_non_null(monitor);
    observe_some(0, 100);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    setenv("TENSORPROBE_JOURNAL_DIR", boxes, 1);
    assert_true(find_one(directory, runs));
    assert_int_equal(check_journal(directory), 1);
    remove_directory(runs);
}

/* A child of fork leaves its parent's box alone, whatever it calls. */
static void test_fork(void **state)
{
    (void)state;
    char box[TP_PATH_MAX];
    char directory[TP_PATH_MAX];
    int status;
    memset(seen, 0, sizeof *seen);
    monitor = open_monitor();
    assert_non_null(monitor);
    observe_some(0, 100);
    const pid_t child = fork();
    if (child == 0) {
        for (uint32_t i = 0; i < 1000; i++) {
            observe(1, i);
        }
        tp_monitor_step(monitor);
        tp_monitor_close(&monitor);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(find_box(box));
    const int stop = 0;
    tp_recover_boxes(runs, &stop); /* its process lives */
    assert_true(find_box(box));
    observe_some(100, 100);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    assert_false(find_box(box));
    assert_true(find_one(directory, runs));
    assert_int_equal(check_journal(directory), 1);
    remove_directory(runs);
}

/* Kills a process that has recorded something and whose run has a directory. */
static void kill_one(char directory[TP_PATH_MAX], char box[TP_PATH_MAX])
{
    char path[TP_PATH_MAX];
    pid_t child;
    start_child(&child);
    do {
        usleep(1000);
    } while (!find_one(directory, runs) || tp_path_join(path, directory, "journal") != TP_OK ||
             access(path, F_OK) != 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(find_box(box));
}

/* Another machine's box, and one of an earlier boot, are not touched; neither is one that somebody
 * only claims to be one. */
static void test_elsewhere(void **state)
{
    (void)state;
    static const char *const others[] = {"otherhost\n", NULL};
    char directory[TP_PATH_MAX];
    char box[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    tp_buf text = TP_BUF_INIT;
    uint64_t steps;
    tp_error error;
    kill_one(directory, box);
    tp_path_join(path, directory, "box");
    assert_int_equal(tp_file_read(path, &text, NULL), TP_OK);
    for (size_t i = 0; i < 2; i++) {
        tp_buf other = TP_BUF_INIT;
        const char *boot = memchr(text.data, '\n', text.size);
        if (others[i] != NULL) {
            tp_buf_put(&other, others[i], strlen(others[i]));
            tp_buf_put(&other, boot + 1, text.size - (size_t)(boot + 1 - (char *)text.data));
        } else {
            tp_buf_put(&other, text.data, text.size);
            char *first = (char *)other.data + (boot + 1 - (char *)text.data);
            *first = *first == 'a' ? 'b' : 'a';
        }
        assert_int_equal(tp_file_replace(path, other.data, other.size, NULL), TP_OK);
        assert_int_equal(tp_recover_run(directory, &steps, &error), TP_OK);
        assert_int_equal(steps, 0);
        assert_int_equal(access(box, F_OK), 0);
        assert_int_equal(access(path, F_OK), 0);
        tp_buf_free(&other);
    }
    /* A folder of other people's files is no box. */
    char folder[TP_PATH_MAX];
    char file[TP_PATH_MAX];
    tp_buf claim = TP_BUF_INIT;
    tp_path_join(folder, base, "mine");
    bool made;
    assert_int_equal(tp_dir_make_private(folder, &made, NULL), TP_OK);
    tp_path_join(file, folder, "thesis.txt");
    assert_int_equal(tp_file_replace(file, "x", 1, NULL), TP_OK);
    tp_buf_put(&claim, text.data, text.size - strlen(box) - 1);
    tp_buf_printf(&claim, "%s\n", folder);
    assert_int_equal(tp_file_replace(path, claim.data, claim.size, NULL), TP_OK);
    assert_int_equal(tp_recover_run(directory, &steps, &error), TP_OK);
    assert_int_equal(access(file, F_OK), 0);
    tp_buf_free(&claim);
    /* As it was. */
    assert_int_equal(tp_file_replace(path, text.data, text.size, NULL), TP_OK);
    assert_int_equal(tp_recover_run(directory, &steps, &error), TP_OK);
    assert_true(steps > 0);
    assert_false(find_box(box));
    assert_int_equal(access(path, F_OK), -1);
    check_journal(directory);
    tp_buf_free(&text);
    remove_directory(runs);
}

/* Nobody misses the box of a run whose directory has been removed. */
static void test_removed(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    char box[TP_PATH_MAX];
    const int stop = 0;
    kill_one(directory, box);
    remove_directory(directory);
    tp_recover_boxes(runs, &stop);
    assert_false(find_box(box));
    assert_int_equal(access(directory, F_OK), -1);
    remove_directory(runs);
}

/* Whatever write fails while recovering: the box stays, and the next time brings all. */
static void test_failing_writes(void **state)
{
    (void)state;
    for (unsigned long n = 1; n < 4; n++) {
        char directory[TP_PATH_MAX];
        char box[TP_PATH_MAX];
        const int stop = 0;
        kill_one(directory, box);
        tp_file_fail_after(n, ENOSPC);
        tp_recover_boxes(runs, &stop);
        tp_file_fail_after(0, 0);
        assert_true(n > 1 || find_box(box)); /* how many there are hangs on when it was killed */
        tp_recover_boxes(runs, &stop);
        assert_false(find_box(box));
        check_journal(directory);
        remove_directory(runs);
    }
}

static int clean(void **state)
{
    (void)state;
    tp_mapping_fail_after(0, 0);
    tp_file_fail_after(0, 0);
    remove_directory(runs);
    remove_directory(boxes);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    const char *given = getenv("TENSORPROBE_TEST_SEED");
    const unsigned seed = given != NULL ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
    print_message("TENSORPROBE_TEST_SEED=%u\n", seed);
    srandom(seed);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED || mkdtemp(base) == NULL) {
        return -1;
    }
    tp_path_join(runs, base, "runs");
    tp_path_join(boxes, base, "boxes");
    return setenv("TENSORPROBE_JOURNAL_DIR", boxes, 1);
}

static int end(void **state)
{
    (void)state;
    remove_directory(base);
    return munmap(seen, sizeof *seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_kill, clean),
        cmocka_unit_test_teardown(test_no_room, clean),
        cmocka_unit_test_teardown(test_no_place, clean),
        cmocka_unit_test_teardown(test_fork, clean),
        cmocka_unit_test_teardown(test_elsewhere, clean),
        cmocka_unit_test_teardown(test_removed, clean),
        cmocka_unit_test_teardown(test_failing_writes, clean),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
