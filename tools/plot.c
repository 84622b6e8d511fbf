/* The small plots of `tensorprobe show --plot`. */
#include "tools/tool.h"

#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "view/library.h"
#include "view/tail.h"

#define WIDTH 100 /* where there is no terminal */

static uint32_t width_of_output(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    const unsigned long given = columns != NULL ? strtoul(columns, NULL, 10) : 0;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
    return given >= 1 && given <= 1000 ? (uint32_t)given : WIDTH;
}

/* A line for each series that is meant. */
static tp_status put_list(tp_tail *tail, const tp_view_run *run, tp_screen *screen, tp_buf *out)
{
    tp_status status = tp_tail_collect(tail, run);
    const size_t rows = tail->lines.size / sizeof(tp_tail_line) + 2;
    if (status == TP_OK) {
        status = tp_screen_clear(screen, width_of_output(), (uint32_t)rows);
    }
    const uint32_t used =
        status == TP_OK ? tp_tail_draw_list(tail, run, screen, 0, (uint32_t)rows) : 0;
    for (uint32_t row = 0; row < used; row++) {
        tp_screen_put_line(screen, row, out);
    }
    return status;
}

int tp_tool_plot(const char *name, const char *directory, const char *const *names, size_t count)
{
    tp_tail tail = {.stat = TP_GRID_NORM,
                    .sort = TP_TAIL_BY_ORDER,
                    .selected = TP_VIEW_NO_KEY,
                    .spark_steps = UINT32_MAX,
                    .is_pattern = true};
    tp_library *library = NULL;
    tp_error error = {0};
    tp_buf out = TP_BUF_INIT;
    tp_status status = tp_library_open(&library, &directory, 1, &error);
    if (status != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    setlocale(LC_CTYPE, "");
    tp_screen screen = {.is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0};
    tp_view_run *run = tp_library_find(library, "");
    uint64_t first;
    tp_library_wait(library, run);
    pthread_rwlock_rdlock(&run->lock);
    if (tp_view_run_steps(run, &first, &tail.step)) {
        for (size_t i = 0; i < (count > 0 ? count : 1) && status == TP_OK; i++) {
            snprintf(tail.filter, sizeof tail.filter, "%s", count > 0 ? names[i] : "");
            status = put_list(&tail, run, &screen, &out);
        }
    }
    pthread_rwlock_unlock(&run->lock);
    const bool fine = status == TP_OK && !out.failed &&
                      fwrite(out.data, 1, out.size, stdout) == out.size && fflush(stdout) == 0;
    tp_buf_free(&out);
    tp_screen_free(&screen);
    tp_tail_free(&tail);
    tp_library_close(library);
    return fine ? TP_EXIT_OK : TP_EXIT_FAILED;
}
