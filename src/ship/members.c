#include "ship/members.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "journal/find.h"
#include "tensorprobe/reader.h"

#define LOOK_NS UINT64_C(1000000000)
#define LOOK_PAUSES UINT64_C(20)      /* where looking takes long, a twentieth of the time */
#define GRACE_NS UINT64_C(5000000000) /* for journals of ranks that come after the trainer's end */

bool tp_member_is_written(const tp_member *member)
{
    char path[TP_PATH_MAX];
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (tp_path_join(path, member->directory, "lock") != TP_OK) {
        return false;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false; /* closed cleanly */
    }
    const bool is_locked = fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
    close(fd);
    return is_locked;
}

/* Whether the journal is in the scope: asks the journal, for names are people's. TP_END: not yet to
 * be told. */
static tp_status is_wanted(const tp_ship_scope *scope, const char *directory, bool *wanted)
{
    tp_reader *reader = NULL;
    *wanted = true;
    if (scope->run_id == NULL && scope->first_rank == 0 && scope->last_rank == UINT32_MAX) {
        return TP_OK;
    }
    if (tp_reader_open(&reader, directory, NULL) != TP_OK) {
        return TP_END;
    }
    const tp_run_info *run = tp_reader_run(reader);
    *wanted = (scope->run_id == NULL || strcmp(scope->run_id, run->run_id) == 0) &&
              run->rank >= scope->first_rank && run->rank <= scope->last_rank;
    tp_reader_close(&reader);
    return TP_OK;
}

static bool is_known(const tp_members *members, const char *directory)
{
    for (uint32_t i = 0; i < members->count; i++) {
        if (strcmp(members->list[i].directory, directory) == 0) {
            return true;
        }
    }
    return false;
}

static tp_status add(tp_members *members, const char *directory)
{
    bool wanted;
    if (is_known(members, directory) || is_wanted(members->scope, directory, &wanted) != TP_OK) {
        return TP_OK;
    }
    /* Others' are kept, too, as done: they need not be asked again. */
    char *copy = tp_strdup(directory);
    tp_member *larger =
        copy != NULL ? tp_realloc(members->list, (members->count + 1) * sizeof *larger) : NULL;
    if (larger == NULL) {
        tp_free(copy);
        return TP_ERR_NOMEM;
    }
    members->list = larger;
    members->list[members->count++] =
        (tp_member){.directory = copy, .is_mine = wanted, .is_done = !wanted};
    return TP_OK;
}

tp_status tp_members_look(tp_members *members, tp_error *error)
{
    const uint64_t begin = tp_clock_monotonic();
    tp_journals journals;
    if (begin < members->next_look) {
        return TP_OK;
    }
    tp_status status = tp_journals_find(&journals, members->scope->directory, error);
    if (status == TP_OK) {
        for (uint32_t i = 0; i < journals.count && status == TP_OK; i++) {
            status = add(members, journals.directories[i]);
        }
        tp_journals_free(&journals);
        if (status != TP_OK) {
            tp_fail(error, status, "no memory to follow %s", members->scope->directory);
        }
    } else if (status == TP_ERR_NOTFOUND && members->scope->trainer >= 0) {
        status = TP_OK; /* not yet */
    }
    const uint64_t end = tp_clock_monotonic();
    const uint64_t pause = (end - begin) * LOOK_PAUSES;
    members->next_look = end + (pause > LOOK_NS ? pause : LOOK_NS);
    return status;
}

static bool all_done(const tp_members *members)
{
    for (uint32_t i = 0; i < members->count; i++) {
        if (!members->list[i].is_done) {
            return false;
        }
    }
    return true;
}

/* Whether no more journals will come. */
static bool is_complete(tp_members *members)
{
    const tp_ship_scope *scope = members->scope;
    if (scope->trainer < 0) {
        return true;
    }
    uint32_t mine = 0;
    for (uint32_t i = 0; i < members->count; i++) {
        mine += members->list[i].is_mine;
    }
    if (scope->expected > 0 && mine >= scope->expected) {
        return true;
    }
    struct pollfd trainer = {.fd = scope->trainer, .events = POLLIN};
    if (members->ended_at == 0 && poll(&trainer, 1, 0) > 0) {
        members->ended_at = tp_clock_monotonic();
    }
    return members->ended_at != 0 && tp_clock_monotonic() - members->ended_at > GRACE_NS;
}

bool tp_members_are_done(tp_members *members)
{
    return all_done(members) && is_complete(members);
}

bool tp_members_have_ended(tp_members *members)
{
    for (uint32_t i = 0; i < members->count; i++) {
        if (!members->list[i].is_done && tp_member_is_written(&members->list[i])) {
            return false;
        }
    }
    return is_complete(members);
}

void tp_members_free(tp_members *members)
{
    for (uint32_t i = 0; i < members->count; i++) {
        tp_free(members->list[i].directory);
    }
    tp_free(members->list);
    members->list = NULL;
    members->count = 0;
}
