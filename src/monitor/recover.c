#include "monitor/recover.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "journal/definitions.h"
#include "journal/writer.h"
#include "monitor/box.h"
#include "monitor/run.h"
#include "record/step.h"

/* What a box holds. */
typedef struct content {
    tp_box_run run;
    tp_pieces pieces;
    tp_step **steps; /* in the order of their begin; NULL: the journal has it */
    uint32_t count;
    bool is_first; /* there is no journal yet */
    tp_registry *registry;
} content;

static void content_free(content *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->steps[i] != NULL) {
            tp_step_bury(c->steps[i]);
        }
    }
    tp_free(c->steps);
    tp_pieces_free(&c->pieces);
    if (c->registry != NULL) {
        tp_registry_free(c->registry);
    }
}

/* A killed process may have left the last entry unfinished. */
static size_t size_of_whole_entries(const tp_buf *names)
{
    size_t size = 0;
    while (names->size - size >= 4) {
        const uint32_t length = tp_get_u32(names->data + size);
        if (length < 4 || length > names->size - size) {
            break;
        }
        size += length;
    }
    return size;
}

/* Gives the names to the registry, with the ids that they had. */
static tp_status register_names(tp_registry *registry, const tp_definitions *names)
{
    tp_status status = TP_OK;
    for (uint32_t id = 0; status == TP_OK && id < names->keys.count; id++) {
        const tp_key *key = tp_definitions_key(names, id);
        uint32_t given = id;
        status = key != NULL ? tp_registry_add_key(registry, key, &given) : TP_ERR_CORRUPT;
        status = status == TP_OK && given != id ? TP_ERR_CORRUPT : status;
    }
    for (uint32_t id = 0; status == TP_OK && id < names->shapes.count; id++) {
        uint32_t ndim = 0;
        uint32_t given = id;
        const int64_t *dims = tp_definitions_shape(names, id, &ndim);
        status =
            dims != NULL ? tp_registry_add_shape(registry, ndim, dims, &given) : TP_ERR_CORRUPT;
        status = status == TP_OK && given != id ? TP_ERR_CORRUPT : status;
    }
    return status;
}

static tp_status load_names(content *c, const char *box, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    tp_definitions names = {0};
    tp_status status = tp_path_join(path, box, TP_BOX_NAMES);
    if (status == TP_OK) {
        status = tp_file_read(path, &bytes, error);
    }
    if (status == TP_OK) {
        bytes.size = size_of_whole_entries(&bytes);
        tp_definitions_begin(&names);
        status = tp_definitions_get(&names, &bytes);
        if (status == TP_OK) {
            status = tp_registry_new(&c->registry);
        }
        if (status == TP_OK) {
            status = register_names(c->registry, &names);
        }
        if (status != TP_OK) {
            tp_fail(error, status, "%s: %s", path,
                    status == TP_ERR_NOMEM ? "no memory to read it" : "damaged");
        }
    }
    tp_definitions_free(&names);
    tp_buf_free(&bytes);
    return status;
}

static tp_status load_steps(content *c, const char *box, tp_error *error)
{
    tp_status status = tp_pieces_load(&c->pieces, box, error);
    if (status != TP_OK) {
        return status;
    }
    c->steps = tp_calloc(c->pieces.count, sizeof(*c->steps));
    if (c->steps == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", box);
    }
    for (uint32_t i = 0; i < c->pieces.count; i++) {
        tp_step *step = NULL;
        status = tp_step_revive(&step, &c->pieces, &c->pieces.pieces[i]);
        if (status == TP_ERR_VERSION) {
            return tp_fail(error, status, "%s was written by another version of the library", box);
        }
        if (status != TP_OK) {
            continue;
        }
        uint32_t place = c->count++;
        const uint64_t begin_ns = tp_step_header(step)->begin_ns;
        for (; place > 0 && tp_step_header(c->steps[place - 1])->begin_ns > begin_ns; place--) {
            c->steps[place] = c->steps[place - 1];
        }
        c->steps[place] = step;
    }
    return TP_OK;
}

/* Leaves out the step that a batch of the journal is. */
static void pass_over(content *c, const tp_batch *batch)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->steps[i] != NULL) {
            const tp_batch *header = tp_step_header(c->steps[i]);
            if (header->step == batch->step && header->attempt == batch->attempt &&
                header->begin_ns == batch->begin_ns) {
                tp_step_bury(c->steps[i]);
                c->steps[i] = NULL;
            }
        }
    }
}

/* The process may have died, or this recovery before, when the journal had a step and the box did
 * not know it. */
static tp_status pass_over_journaled(content *c, const char *directory, tp_error *error)
{
    tp_reader *reader = NULL;
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    tp_status status = tp_reader_open(&reader, directory, error);
    c->is_first = status == TP_ERR_NOTFOUND;
    if (c->is_first) {
        return TP_OK;
    }
    for (uint32_t i = 0; i < c->count; i++) {
        const uint64_t step = tp_step_header(c->steps[i])->step;
        first = step < first ? step : first;
        last = step > last ? step : last;
    }
    if (status == TP_OK) {
        tp_reader_all_attempts(reader);
        tp_reader_limit(reader, first, last, 0);
    }
    while (status == TP_OK) {
        tp_item item;
        status = tp_reader_next(reader, &item, error);
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            pass_over(c, &item.batch);
        }
        status = status == TP_ERR_CORRUPT ? TP_OK : status; /* it goes on behind the damage */
    }
    tp_reader_close(&reader);
    return status == TP_END ? TP_OK : status;
}

static tp_status append_steps(content *c, const char *directory, uint64_t *steps, tp_error *error)
{
    tp_journal *journal = NULL;
    tp_status status = TP_OK;
    for (uint32_t i = 0; status == TP_OK && i < c->count; i++) {
        tp_batch batch;
        if (c->steps[i] == NULL) {
            continue;
        }
        if (tp_step_view(c->steps[i], &batch) != TP_OK) {
            status = tp_fail(error, TP_ERR_NOMEM, "no memory to recover a step");
        } else if (journal == NULL) {
            tp_run_info run = c->run.run;
            run.attempt = batch.attempt;
            status = tp_journal_open(&journal, directory, &run, c->registry, 0, error);
        }
        if (status == TP_OK) {
            tp_journal_begin_attempt(journal, batch.attempt);
            status = tp_journal_append_batch(journal, &batch, error);
            *steps += status == TP_OK;
        }
    }
    tp_journal_leave(&journal);
    return status;
}

/* The cursors, which say what is to be made of a journal, come before it. */
static tp_status make_cursors(const content *c, const char *directory, tp_error *error)
{
    tp_status status = TP_OK;
    for (uint32_t i = 0; status == TP_OK && c->is_first && i < TP_PLAN_SINKS; i++) {
        tp_follower *follower = NULL;
        if (tp_plan_wants(&c->run.plan, i)) {
            status = tp_plan_open(&c->run.plan, i, directory, &follower, error);
        }
        tp_follower_close(&follower);
    }
    return status;
}

/* All that is missed of a box goes into the journal. Both are locked. */
static tp_status bring_in(content *c, const char *box, const char *directory, uint64_t *steps,
                          tp_error *error)
{
    tp_status status = pass_over_journaled(c, directory, error);
    if (status == TP_OK) {
        status = load_names(c, box, error);
    }
    if (status == TP_OK) {
        status = make_cursors(c, directory, error);
    }
    if (status == TP_OK) {
        status = append_steps(c, directory, steps, error);
    }
    if (*steps > 0) {
        tp_log(TP_LOG_INFO, "%s: %llu %s from the black box of its killed process", directory,
               (unsigned long long)*steps, *steps == 1 ? "step" : "steps");
    }
    return status;
}

/* TP_END: nothing is missed. */
static tp_status load(content *c, const char *box, tp_error *error)
{
    *c = (content){0};
    tp_status status = tp_box_run_load(&c->run, box, error);
    if (status == TP_OK) {
        status = load_steps(c, box, error);
    }
    return status == TP_OK && c->count == 0 ? TP_END : status;
}

static tp_status open_box(const char *directory, const char *box, uint64_t *steps, tp_error *error)
{
    content c;
    int lock = -1;
    bool made;
    if (access(box, F_OK) != 0) {
        return TP_OK; /* it has been emptied */
    }
    tp_status status = tp_dir_make_private(box, &made, error);
    if (status == TP_OK) {
        status = tp_run_lock(box, &lock, error);
    }
    if (status != TP_OK) {
        return status;
    }
    status = load(&c, box, error);
    if (status == TP_OK) {
        status = bring_in(&c, box, directory, steps, error);
        status = status == TP_ERR_NOTFOUND ? TP_ERR_CORRUPT : status; /* a file of it is missing */
    }
    content_free(&c);
    const bool is_box = status != TP_ERR_NOTFOUND; /* else it is being removed, or never was one */
    status = status == TP_END || !is_box ? TP_OK : status;
    if (status == TP_OK && is_box) {
        tp_box_remove(box);
    }
    tp_run_unlock(box, lock, status == TP_OK);
    return status;
}

tp_status tp_recover_run(const char *directory, uint64_t *steps, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_buf text = TP_BUF_INIT;
    tp_buf machine = TP_BUF_INIT;
    *steps = 0;
    tp_status status = tp_path_join(path, directory, TP_BOX_NAME);
    if (status == TP_OK) {
        status = tp_file_read(path, &text, error);
    }
    if (status != TP_OK) {
        tp_buf_free(&text);
        return status == TP_ERR_NOTFOUND ? TP_OK : status;
    }
    tp_box_machine(&machine);
    tp_buf_put(&text, "", 1);
    char *words = (char *)text.data;
    if (text.failed || machine.failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", path);
    } else if (text.size <= machine.size + 2 || memcmp(words, machine.data, machine.size) != 0) {
        words[strcspn(words, "\n")] = '\0';
        tp_log(TP_LOG_WARNING,
               "%s: what its killed process had recorded last is in a black box on %s, and can "
               "only be read there, before its next boot",
               directory, words);
    } else {
        char *box = words + machine.size;
        box[strlen(box) - 1] = '\0'; /* the end of the line */
        status = open_box(directory, box, steps, error);
        if (status == TP_OK) {
            tp_file_remove(path);
        }
    }
    tp_buf_free(&text);
    tp_buf_free(&machine);
    return status;
}

/* Whether the run of a box, which has or had this directory, is to be recovered. One whose
 * directory somebody has removed isn't missed. */
static bool is_missed(const tp_box_run *run, const char *base)
{
    char parent[TP_PATH_MAX];
    if (access(run->directory, F_OK) == 0 || run->announced != 0) {
        return access(run->directory, F_OK) == 0;
    }
    strcpy(parent, run->directory);
    *strrchr(parent, '/') = '\0';
    return access(parent, F_OK) == 0 || strcmp(parent, base) == 0;
}

/* The box is locked, and its process gone. TP_OK: it can be removed. */
static tp_status recover_box(const char *box, const char *base, tp_error *error)
{
    content c;
    int lock = -1;
    uint64_t steps = 0;
    tp_status status = load(&c, box, error);
    if (status != TP_OK || c.run.directory[0] != '/' || !is_missed(&c.run, base)) {
        content_free(&c);
        /* One that never was ready, that holds nothing, or whose run is gone. */
        return status == TP_ERR_NOMEM || status == TP_ERR_IO || status == TP_ERR_VERSION ? status
                                                                                         : TP_OK;
    }
    status = tp_dir_make(c.run.directory, error);
    if (status == TP_OK) {
        status = tp_run_lock(c.run.directory, &lock, error);
    }
    if (status == TP_OK) {
        status = bring_in(&c, box, c.run.directory, &steps, error);
    }
    /* The lock file stays: csv and event files are brought up to the journal by who sees it. */
    tp_run_unlock(c.run.directory, lock, 0);
    content_free(&c);
    return status;
}

static void recover_folder(const char *folder, const char *base, const int *stop)
{
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    while (listing != NULL && !__atomic_load_n(stop, __ATOMIC_ACQUIRE) &&
           (entry = readdir(listing)) != NULL) {
        char box[TP_PATH_MAX];
        int lock;
        tp_error error;
        if (entry->d_name[0] == '.' || tp_path_join(box, folder, entry->d_name) != TP_OK ||
            tp_run_lock(box, &lock, NULL) != TP_OK) {
            continue;
        }
        tp_status status = recover_box(box, base, &error);
        if (status == TP_OK) {
            tp_box_remove(box);
        } else {
            tp_log(TP_LOG_WARNING, "the black box %s is left as it is: %s", box, error.message);
        }
        tp_run_unlock(box, lock, status == TP_OK);
    }
    if (listing != NULL) {
        closedir(listing);
    }
}

void tp_recover_boxes(const char *base, const int *stop)
{
    const char *places[TP_BOX_PLACES];
    const uint32_t count = tp_box_places(places);
    char absolute[TP_PATH_MAX];
    for (uint32_t i = 0; tp_path_absolute(absolute, base) == TP_OK && i < count; i++) {
        char folder[TP_PATH_MAX];
        bool made;
        if (tp_box_folder(folder, places[i]) == TP_OK && access(folder, F_OK) == 0 &&
            tp_dir_make_private(folder, &made, NULL) == TP_OK) {
            recover_folder(folder, absolute, stop);
        }
    }
}
