/* `tensorprobe tail`: a run in a terminal, or line by line where there is none. */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ncurses.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "monitor/run.h"
#include "view/library.h"
#include "view/tail.h"

#define FRAME_MS 250 /* between two drawings, at least */
#define SECOND_NS 1000000000LL
#define LINE_NS (60 * SECOND_NS) /* between two lines when nothing has happened */
#define WIDTH 120                /* of --once where there is no terminal */
#define HEIGHT 40
#define ESCAPE 27

static const char help[] =
    "usage: tensorprobe tail [OPTION…] DIRECTORY…\n"
    "\n"
    "Shows the newest run in the directories, and below them, in this terminal while it goes on: "
    "is it\n"
    "healthy, what went wrong first, which series are farthest from normal. Where standard output "
    "is no\n"
    "terminal it prints a line when something has changed, and one a minute, until the run ends.\n"
    "\n"
    "  --once       prints the screen once, as text, and ends\n"
    "  --plain      lines, also to a terminal\n"
    "  --run ID     the run whose id begins like this, instead of the newest\n"
    "  --stat S     norm, max_abs, mean, std, min, max or zeros; without it norm or max_abs, "
    "whichever\n"
    "               is farther from normal\n"
    "  --filter P   series whose names have P in them, or match it (a glob)\n"
    "  --help       this text\n"
    "\n"
    "Keys: up, down, page up, page down move; enter one series in full, and back; / filter; s "
    "statistic;\n"
    "o order (worst first, as executed, largest first); space pause, and go on; q quit.\n"
    "NO_COLOR turns colours off. Nothing is written.\n";

static volatile sig_atomic_t ends;

static void on_end(int signal)
{
    (void)signal;
    ends = 1;
}

/* What the processes of the ranks do. */
static uint32_t find_state(const tp_view_run *run)
{
    uint32_t closed = 0;
    bool is_left = false;
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        char *const *directories = (char *const *)(const void *)rank->directories.data;
        const size_t count = rank->directories.size / sizeof *directories;
        const uint32_t state = count > 0 ? tp_run_state(directories[count - 1]) : TP_RUN_NOT_KNOWN;
        if (state == TP_RUN_OPEN) {
            return TP_STATE_LIVE;
        }
        is_left = is_left || state == TP_RUN_LEFT;
        closed += rank->closed && state != TP_RUN_LEFT;
    }
    return is_left                             ? TP_STATE_KILLED
           : closed == tp_view_rank_count(run) ? TP_STATE_CLOSED
                                               : TP_STATE_UNKNOWN;
}

static void refresh_state(tp_tail *tail, const tp_view_run *run)
{
    tail->now_ns = tp_clock_wall();
    tail->state = find_state(run);
}

/* ---- lines ---- */

static void put_time(tp_buf *out, int64_t ns)
{
    char text[32];
    const time_t seconds = (time_t)(ns / SECOND_NS);
    struct tm local;
    localtime_r(&seconds, &local);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &local);
    tp_buf_printf(out, "%s", text);
}

static void put_incident_line(tp_buf *out, const tp_tail *tail, const tp_view_run *run, uint64_t n)
{
    tp_incident_place one;
    if (tp_incident_find(run, n, &one)) {
        put_time(out, tail->now_ns);
        tp_buf_printf(out, " step=%" PRIu64 " incident=%" PRIu64 " first=", one.step, n);
        tp_text_put_json(out, one.row);
        tp_buf_printf(out, " quantity=%s rank=%" PRIu32 " what=", one.quantity, one.rank);
        tp_text_put_json(out, one.text);
        tp_buf_printf(out, "\n");
    }
}

static void put_status_line(tp_buf *out, const tp_tail *tail, const tp_view_run *run,
                            uint64_t incidents)
{
    static const char *const losses[] = {"loss", NULL};
    char text[96];
    char number[TP_NUMBER_TEXT];
    double value;
    double finite;
    uint32_t part;
    uint64_t first;
    uint64_t last;
    tp_tail_state_text(tail, run, text, sizeof text, &part);
    put_time(out, tail->now_ns);
    tp_buf_printf(out, " run=");
    tp_text_put_json(out, run->id);
    tp_buf_printf(out, " state=\"%s\"", text);
    if (tp_view_run_steps(run, &first, &last)) {
        uint64_t abnormal = 0;
        uint64_t series = 0;
        tp_buf_printf(out, " step=%" PRIu64, last);
        if (tp_tail_scalar(run, tp_view_find_scalar(run, losses), last, &value, &finite)) {
            tp_buf_printf(out, " loss=%s", tp_number_text(number, value));
        }
        value = tp_tail_gradient(run, last, &finite);
        if (!isnan(value) || isfinite(finite)) {
            tp_buf_printf(out, " grad_norm=%s", tp_number_text(number, value));
        }
        for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
            const tp_view_column *column = tp_view_column_find(tp_view_rank_at(run, r), last);
            for (uint32_t q = 0; column != NULL && q < TP_VIEW_QUANTITIES; q++) {
                abnormal += column->abnormal[q];
                series += column->series[q];
            }
        }
        tp_buf_printf(out, " abnormal=%" PRIu64 "/%" PRIu64, abnormal, series);
    }
    tp_buf_printf(out, " incidents=%" PRIu64 "\n", incidents);
}

static bool put_out(tp_buf *out)
{
    const bool fine =
        !out->failed && fwrite(out->data, 1, out->size, stdout) == out->size && fflush(stdout) == 0;
    tp_buf_clear(out);
    return fine;
}

/* What is the same as long as nothing happens: everything of the state but how long it lasts. */
static uint32_t state_kind(const tp_tail *tail, const tp_view_run *run)
{
    char text[96];
    uint32_t part;
    tp_tail_state_text(tail, run, text, sizeof text, &part);
    return tail->state * TP_PARTS + part;
}

static int follow_lines(tp_library *library, const char *id, tp_tail *tail)
{
    const struct timespec pause = {.tv_nsec = FRAME_MS * 1000000L};
    tp_view_run *shown = NULL;
    tp_buf out = TP_BUF_INIT;
    uint64_t told = 0;
    uint32_t kind = 0;
    int64_t last_line = 0;
    bool fine = true;
    bool over = false;
    while (fine && !over && !ends) {
        tp_view_run *run = tp_library_find(library, id);
        tp_library_wait(library, run);
        pthread_rwlock_rdlock(&run->lock);
        refresh_state(tail, run);
        const uint64_t incidents = tp_incident_count(run);
        if (run != shown) {
            told = 0;
            last_line = 0;
            shown = run;
        }
        for (; told < incidents; told++) {
            put_incident_line(&out, tail, run, told + 1);
        }
        over = tail->state == TP_STATE_CLOSED || tail->state == TP_STATE_KILLED;
        if (over || tail->now_ns - last_line >= LINE_NS || state_kind(tail, run) != kind) {
            kind = state_kind(tail, run);
            put_status_line(&out, tail, run, incidents);
            last_line = tail->now_ns;
        }
        pthread_rwlock_unlock(&run->lock);
        fine = put_out(&out);
        if (!over) {
            nanosleep(&pause, NULL);
        }
    }
    tp_buf_free(&out);
    return fine ? TP_EXIT_OK : TP_EXIT_FAILED;
}

/* ---- once ---- */

static uint32_t size_from(const char *variable, uint32_t fallback)
{
    const char *text = getenv(variable);
    const unsigned long value = text != NULL ? strtoul(text, NULL, 10) : 0;
    return value >= 1 && value <= 1000 ? (uint32_t)value : fallback;
}

static int print_once(tp_library *library, const char *id, tp_tail *tail, tp_screen *screen)
{
    tp_view_run *run = tp_library_find(library, id);
    tp_buf out = TP_BUF_INIT;
    tp_library_wait(library, run);
    pthread_rwlock_rdlock(&run->lock);
    refresh_state(tail, run);
    tp_status status =
        tp_screen_clear(screen, size_from("COLUMNS", WIDTH), size_from("LINES", HEIGHT));
    if (status == TP_OK) {
        status = tp_tail_draw(tail, run, screen);
    }
    pthread_rwlock_unlock(&run->lock);
    uint32_t rows = screen->height;
    for (uint32_t row = 0; row < rows; row++) {
        tp_screen_put_line(screen, row, &out);
    }
    while (out.size >= 2 && memcmp(out.data + out.size - 2, "\n\n", 2) == 0) {
        out.size--;
    }
    const bool fine = status == TP_OK && put_out(&out);
    tp_buf_free(&out);
    return fine ? TP_EXIT_OK : TP_EXIT_FAILED;
}

/* ---- a terminal ---- */

static void start_colours(void)
{
    /* By role, on the terminal's own ground; none of them is lost on a light or a dark one. */
    static const short colours[TP_PARTS] = {[TP_PART_GOOD] = COLOR_GREEN,
                                            [TP_PART_BAD] = COLOR_MAGENTA,
                                            [TP_PART_ABOVE] = COLOR_RED,
                                            [TP_PART_BELOW] = COLOR_BLUE};
    const char *no = getenv("NO_COLOR");
    if ((no != NULL && no[0] != '\0') || !has_colors() || start_color() != OK ||
        use_default_colors() != OK) {
        return;
    }
    for (short part = 1; part < TP_PARTS; part++) {
        init_pair(part, colours[part] != 0 ? colours[part] : -1, -1);
    }
}

static void paint(const tp_screen *screen)
{
    static const attr_t attributes[TP_PARTS] = {
        [TP_PART_QUIET] = A_DIM,  [TP_PART_STRONG] = A_BOLD, [TP_PART_BAD] = A_BOLD,
        [TP_PART_ABOVE] = A_BOLD, [TP_PART_KEY] = A_REVERSE,
    };
    for (uint32_t row = 0; row < screen->height; row++) {
        for (uint32_t column = 0; column < screen->width; column++) {
            const tp_glyph *glyph = tp_screen_at(screen, row, column);
            const wchar_t text[2] = {(wchar_t)glyph->character, L'\0'};
            cchar_t cell;
            if (glyph->character != 0 &&
                setcchar(&cell, text, attributes[glyph->part], (short)glyph->part, NULL) == OK) {
                mvadd_wch((int)row, (int)column, &cell);
            }
        }
    }
    /* While it draws, ncurses ignores that the terminal asks to stop: it waits instead. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    refresh();
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
}

static void type_filter(tp_tail *tail, int key)
{
    const size_t length = strlen(tail->filter);
    if (key == '\n' || key == '\r' || key == KEY_ENTER) {
        tail->is_typing = false;
    } else if (key == ESCAPE) {
        tail->is_typing = false;
        tail->filter[0] = '\0';
    } else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
        size_t end = length;
        while (end > 0 && ((uint8_t)tail->filter[--end] & 0xc0) == 0x80) {
        }
        tail->filter[end] = '\0';
    } else if (key >= ' ' && key < 256 && length + 1 < sizeof tail->filter) {
        tail->filter[length] = (char)key;
        tail->filter[length + 1] = '\0';
    }
}

/* False: no more. */
static bool press(tp_tail *tail, int key)
{
    const int64_t page = tail->shown > 1 ? (int64_t)tail->shown - 1 : 1;
    if (tail->is_typing) {
        type_filter(tail, key);
        return true;
    }
    switch (key) {
    case 'q':
        return false;
    case KEY_UP:
    case 'k':
        tp_tail_move(tail, -1);
        break;
    case KEY_DOWN:
    case 'j':
        tp_tail_move(tail, 1);
        break;
    case KEY_PPAGE:
        tp_tail_move(tail, -page);
        break;
    case KEY_NPAGE:
        tp_tail_move(tail, page);
        break;
    case KEY_HOME:
    case 'g':
        tail->selected = TP_VIEW_NO_KEY;
        tail->top = 0;
        break;
    case '\n':
    case '\r':
    case KEY_ENTER:
        tp_tail_move(tail, 0); /* it stays the one, wherever the list goes */
        tail->is_detail = !tail->is_detail;
        break;
    case ESCAPE:
        tail->is_detail = false;
        tail->filter[0] = '\0';
        break;
    case '/':
        tail->is_typing = true;
        tail->is_detail = false;
        break;
    case 's':
        tail->stat = tail->stat == TP_TAIL_BOTH ? 0 : tail->stat + 1;
        break;
    case 'o':
    case KEY_RIGHT:
        tail->sort = (tail->sort + 1) % TP_TAIL_SORTS;
        break;
    case KEY_LEFT:
        tail->sort = (tail->sort + TP_TAIL_SORTS - 1) % TP_TAIL_SORTS;
        break;
    case ' ':
        tail->is_pinned = !tail->is_pinned;
        break;
    case 'L' - '@': /* draws all of it again */
        clearok(curscr, TRUE);
        break;
    default:
        break;
    }
    return true;
}

/* What stays on the terminal: how it stands, and the last incidents. */
static void say_goodbye(tp_library *library, const char *id, tp_tail *tail)
{
    tp_view_run *run = tp_library_find(library, id);
    tp_buf out = TP_BUF_INIT;
    pthread_rwlock_rdlock(&run->lock);
    refresh_state(tail, run);
    const uint64_t count = tp_incident_count(run);
    for (uint64_t n = count > 3 ? count - 2 : 1; n <= count; n++) {
        put_incident_line(&out, tail, run, n);
    }
    put_status_line(&out, tail, run, count);
    pthread_rwlock_unlock(&run->lock);
    put_out(&out);
    tp_buf_free(&out);
}

static bool draw(tp_library *library, const char *id, tp_tail *tail, tp_screen *screen,
                 tp_view_run **shown)
{
    tp_view_run *run = tp_library_find(library, id);
    const uint32_t width = COLS > 0 ? (uint32_t)COLS : 1;
    const uint32_t height = LINES > 0 ? (uint32_t)LINES : 1;
    tp_status status = tp_screen_clear(screen, width, height);
    if (run != *shown) { /* keys are the run's */
        tail->selected = TP_VIEW_NO_KEY;
        tail->is_pinned = false;
        tail->top = 0;
        *shown = run;
    }
    if (status == TP_OK) {
        pthread_rwlock_rdlock(&run->lock);
        refresh_state(tail, run);
        status = tp_tail_draw(tail, run, screen);
        pthread_rwlock_unlock(&run->lock);
    }
    paint(screen);
    return status == TP_OK;
}

static int show_screen(tp_library *library, const char *id, tp_tail *tail, tp_screen *screen)
{
    tp_view_run *shown = NULL;
    tail->has_keys = true;
    start_colours();
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    bool fine = true;
    bool more = true;
    while (fine && more && !ends) {
        const uint64_t begin = tp_clock_monotonic();
        fine = draw(library, id, tail, screen, &shown);
        /* A very large run takes long to look through: not more than a fifth of a processor. */
        const uint64_t pause = 4 * (tp_clock_monotonic() - begin) / 1000000;
        timeout(pause < FRAME_MS ? FRAME_MS : (int)pause);
        int key = getch();
        timeout(0); /* all that has been typed by now, before it is drawn again */
        for (; key != ERR && more; key = getch()) {
            more = press(tail, key);
        }
    }
    endwin();
    say_goodbye(library, id, tail);
    return fine ? TP_EXIT_OK : TP_EXIT_FAILED;
}

typedef struct wish {
    bool once;
    bool plain;
    const char *run;
} wish;

static int show(const char *name, const char *const *directories, uint32_t count, const wish *w,
                tp_tail *tail)
{
    tp_library *library = NULL;
    tp_error error = {0};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* the thread that reads leaves them to this one */
    const tp_status status = tp_library_open(&library, directories, count, &error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    int result;
    SCREEN *terminal = NULL;
    tp_screen screen = {.is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0};
    const struct sigaction action = {.sa_handler = on_end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (tp_library_find(library, w->run) == NULL) {
        fprintf(stderr, "tensorprobe %s: there is no run %.60s\n", name, w->run);
        result = TP_EXIT_FAILED;
    } else if (w->once) {
        result = print_once(library, w->run, tail, &screen);
    } else if (w->plain || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) ||
               (terminal = newterm(NULL, stdout, stdin)) == NULL) {
        result = follow_lines(library, w->run, tail);
    } else {
        result = show_screen(library, w->run, tail, &screen);
        delscreen(terminal);
    }
    tp_screen_free(&screen);
    tp_library_close(library);
    return result;
}

int tp_tool_tail(int argc, char **argv)
{
    static const struct option options[] = {{"once", no_argument, NULL, 'o'},
                                            {"plain", no_argument, NULL, 'p'},
                                            {"run", required_argument, NULL, 'r'},
                                            {"stat", required_argument, NULL, 's'},
                                            {"filter", required_argument, NULL, 'f'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    tp_tail tail = {.stat = TP_TAIL_BOTH, .selected = TP_VIEW_NO_KEY};
    wish w = {.run = ""};
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        if (letter == 'o') {
            w.once = true;
        } else if (letter == 'p') {
            w.plain = true;
        } else if (letter == 'r') {
            w.run = optarg;
        } else if (letter == 'f') {
            snprintf(tail.filter, sizeof tail.filter, "%s", optarg);
        } else {
            tail.stat = tp_grid_stat_from_name(optarg);
            if (tail.stat == TP_GRID_STATS) {
                fprintf(stderr, "tensorprobe %s: there is no statistic %.60s\n", argv[0], optarg);
                return tp_tool_usage(argv[0]);
            }
        }
    }
    if (letter < 0) {
        return result;
    }
    if (argc == optind) {
        return tp_tool_usage(argv[0]);
    }
    setlocale(LC_CTYPE, ""); /* which characters the terminal has */
    result =
        show(argv[0], (const char *const *)argv + optind, (uint32_t)(argc - optind), &w, &tail);
    tp_tail_free(&tail);
    return result;
}
