#include "monitor/box.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "journal/definitions.h"
#include "monitor/run.h"

#define TRIES                                                                                      \
    3 /* names for a box: a start beside this one may take an unfinished box for a dead one */
#define RUN_MAGIC "TPBOXRUN"

struct tp_box {
    char path[TP_PATH_MAX];
    tp_box_run run;
    tp_mapping *memory;
    tp_registry *registry;
    int lock_fd;
    int names_fd; /* -1: names can't be written (any more) */
    char names_path[TP_PATH_MAX];
    uint64_t names_size;
    uint32_t keys, shapes; /* that are in the file of names */
    bool reported;
};

uint32_t tp_box_places(const char *places[TP_BOX_PLACES])
{
    const char *given = getenv("TENSORPROBE_JOURNAL_DIR");
    const char *temporary = getenv("TMPDIR");
    if (given != NULL && given[0] != '\0') {
        places[0] = given;
        return 1;
    }
    places[0] = "/dev/shm";
    places[1] = temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp";
    places[2] = "/tmp";
    return strcmp(places[1], places[2]) == 0 ? 2 : 3;
}

tp_status tp_box_folder(char path[TP_PATH_MAX], const char *place)
{
    char name[32];
    snprintf(name, sizeof name, "tensorprobe-%u", (unsigned)geteuid());
    return tp_path_join(path, place, name);
}

void tp_box_machine(tp_buf *out)
{
    char host[256] = "?";
    tp_buf boot = TP_BUF_INIT;
    gethostname(host, sizeof host - 1);
    tp_buf_printf(out, "%s\n", host);
    if (tp_file_read("/proc/sys/kernel/random/boot_id", &boot, NULL) == TP_OK) {
        tp_buf_put_buf(out, &boot);
    } else {
        tp_buf_put(out, "?\n", 2);
    }
    tp_buf_free(&boot);
}

static tp_status store_run(const tp_box *box, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    tp_status status = tp_path_join(path, box->path, TP_BOX_RUN);
    tp_buf_put(&bytes, RUN_MAGIC, 8);
    tp_buf_put(&bytes, &box->run, sizeof box->run);
    if (status == TP_OK) {
        status = bytes.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for a black box")
                              : tp_file_replace(path, bytes.data, bytes.size, error);
    }
    tp_buf_free(&bytes);
    return status;
}

void tp_box_remove(const char *box)
{
    char path[TP_PATH_MAX];
    if (tp_path_join(path, box, TP_BOX_RUN) == TP_OK) {
        tp_file_remove(path);
    }
    tp_dir_remove(box, TP_BOX_LOCK);
}

tp_status tp_box_run_load(tp_box_run *out, const char *box, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    tp_status status = tp_path_join(path, box, TP_BOX_RUN);
    if (status == TP_OK) {
        status = tp_file_read_at_most(path, 8 + sizeof *out + 1, &bytes, error);
    }
    if (status == TP_OK &&
        (bytes.size != 8 + sizeof *out || memcmp(bytes.data, RUN_MAGIC, 8) != 0)) {
        status = tp_fail(error, TP_ERR_CORRUPT, "%s is damaged, or of another version", path);
    }
    if (status == TP_OK) {
        memcpy(out, bytes.data + 8, sizeof *out);
        out->directory[TP_PATH_MAX - 1] = '\0';
        out->run.run_id[sizeof out->run.run_id - 1] = '\0';
        if (out->plan.op_count > TP_OP_COUNT) {
            status = tp_fail(error, TP_ERR_CORRUPT, "%s is damaged", path);
        }
    }
    tp_buf_free(&bytes);
    return status;
}

/* Writes the names that the file lacks: with the lock of the registry, before anybody has their
 * ids. What fails is tried again with the next one. */
static void store_names(void *watcher)
{
    tp_box *box = watcher;
    const uint32_t keys = tp_registry_key_count(box->registry);
    const uint32_t shapes = tp_registry_shape_count(box->registry);
    tp_buf bytes = TP_BUF_INIT;
    if (box->names_fd < 0) {
        return;
    }
    tp_definitions_put(&bytes, box->registry, box->keys, keys, box->shapes, shapes);
    if (!bytes.failed &&
        tp_file_write(box->names_fd, box->names_path, bytes.data, bytes.size, NULL) == TP_OK) {
        box->names_size += bytes.size;
        box->keys = keys;
        box->shapes = shapes;
    } else if (tp_file_truncate(box->names_fd, box->names_path, box->names_size, NULL) != TP_OK) {
        tp_file_close(box->names_fd);
        box->names_fd = -1;
    }
    tp_buf_free(&bytes);
}

/* A folder for the box, locked. */
static tp_status take_folder(tp_box *box, const char *place, tp_error *error)
{
    char folder[TP_PATH_MAX];
    bool made;
    tp_status status = tp_dir_make(place, error);
    if (status == TP_OK) {
        status = tp_mapping_check(place, error);
    }
    if (status == TP_OK) {
        status = tp_box_folder(folder, place);
    }
    if (status == TP_OK) {
        status = tp_dir_make_private(folder, &made, error);
    }
    for (int i = 0; status == TP_OK && i < TRIES; i++) {
        char id[9];
        char name[128];
        tp_run_make_id(id);
        snprintf(name, sizeof name, "%s-rank%u-%d-%s", box->run.run.run_id, box->run.run.rank,
                 (int)getpid(), id);
        status = tp_path_join(box->path, folder, name);
        if (status == TP_OK) {
            status = tp_dir_make_private(box->path, &made, error);
        }
        if (status == TP_OK && made && tp_run_lock(box->path, &box->lock_fd, error) == TP_OK) {
            return TP_OK;
        }
    }
    return status != TP_OK ? status : tp_fail(error, TP_ERR_IO, "can't lock %s", box->path);
}

static tp_status fill_folder(tp_box *box, tp_error *error)
{
    tp_status status = tp_path_join(box->names_path, box->path, TP_BOX_NAMES);
    if (status == TP_OK) {
        status = tp_file_append(box->names_path, &box->names_fd, &box->names_size, error);
    }
    if (status == TP_OK) {
        status = store_run(box, error);
    }
    if (status == TP_OK) {
        box->memory = tp_mapping_open(box->path);
        status = box->memory != NULL ? TP_OK : tp_fail(error, TP_ERR_NOMEM, "no memory for it");
    }
    return status;
}

tp_box *tp_box_open(const char *directory, const tp_run_info *run, const tp_plan *plan,
                    tp_registry *registry)
{
    tp_error error = {.message = "no memory"};
    const char *places[TP_BOX_PLACES];
    tp_status status = TP_ERR_NOMEM;
    tp_box *box = tp_calloc(1, sizeof *box);
    if (box != NULL) {
        box->run.run = *run;
        box->run.plan = *plan;
        box->registry = registry;
        box->lock_fd = -1;
        box->names_fd = -1;
        status = tp_path_absolute(box->run.directory, directory);
    }
    const uint32_t count = status == TP_OK ? tp_box_places(places) : 0;
    for (uint32_t i = 0; i < count; i++) {
        status = take_folder(box, places[i], &error);
        if (status == TP_OK) {
            status = fill_folder(box, &error);
            if (status == TP_OK) {
                tp_registry_watch(registry, store_names, box);
                return box;
            }
            break;
        }
    }
    tp_log(TP_LOG_WARNING,
           "no black box: should this process be killed, its unfinished step is lost (%s)",
           error.message);
    tp_box_close(box);
    return NULL;
}

tp_mapping *tp_box_memory(const tp_box *box)
{
    return box != NULL ? box->memory : NULL;
}

tp_status tp_box_announce(tp_box *box, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_buf text = TP_BUF_INIT;
    if (box == NULL) {
        return TP_OK;
    }
    tp_status status = tp_path_join(path, box->run.directory, TP_BOX_NAME);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %.100s", box->run.directory);
    }
    tp_box_machine(&text);
    tp_buf_printf(&text, "%s\n", box->path);
    status = text.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory to write %s", path)
                         : tp_file_replace(path, text.data, text.size, error);
    tp_buf_free(&text);
    if (status == TP_OK && box->run.announced == 0) {
        box->run.announced = 1;
        (void)store_run(box, NULL); /* should it fail, recovery takes the run for a younger one */
    }
    return status;
}

void tp_box_move(tp_box *box, const char *directory, const tp_run_info *run)
{
    if (box != NULL && tp_path_absolute(box->run.directory, directory) == TP_OK) {
        box->run.run = *run;
        (void)store_run(box,
                        NULL); /* should it fail, recovery brings it into the other directory */
    }
}

void tp_box_report(tp_box *box)
{
    if (box != NULL && !box->reported && tp_mapping_trouble(box->memory) != 0) {
        box->reported = true;
        tp_log(TP_LOG_WARNING,
               "no room for a black box in %s (%s): should this process be killed, its unfinished "
               "step is lost; TENSORPROBE_JOURNAL_DIR names a directory with more",
               box->path, strerror(tp_mapping_trouble(box->memory)));
    }
}

void tp_box_discard(tp_box *box)
{
    char path[TP_PATH_MAX];
    if (box != NULL) {
        tp_box_remove(box->path);
        if (tp_path_join(path, box->run.directory, TP_BOX_NAME) == TP_OK) {
            tp_file_remove(path);
        }
    }
}

void tp_box_close(tp_box *box)
{
    if (box != NULL) {
        tp_registry_watch(box->registry, NULL, NULL);
        if (box->lock_fd >= 0) {
            tp_box_remove(box->path);
        }
        tp_run_unlock(box->path, box->lock_fd, 1);
        tp_file_close(box->names_fd);
        tp_mapping_close(box->memory);
        tp_free(box);
    }
}

void tp_box_abandon(tp_box *box)
{
    if (box != NULL) {
        tp_file_close(box->names_fd);
        box->names_fd = -1;
        tp_file_close(box->lock_fd);
        box->lock_fd = -1;
    }
}
