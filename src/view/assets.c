#include "view/assets.h"

#include <string.h>

/* TP_WEB and TP_DYGRAPHS are paths that the build gives. */
#define EMBED(symbol, path)                                                                        \
    __asm__(".section .rodata\n.balign 16\n"                                                       \
            ".global tp_web_" #symbol "\ntp_web_" #symbol ":\n.incbin \"" path "\"\n"              \
            ".global tp_web_" #symbol "_end\ntp_web_" #symbol "_end:\n.byte 0\n.previous\n");      \
    extern const uint8_t tp_web_##symbol[];                                                        \
    extern const uint8_t tp_web_##symbol##_end[];

EMBED(index, TP_WEB "/index.html")
EMBED(report, TP_WEB "/report.html")
EMBED(style, TP_WEB "/style.css")
EMBED(english, TP_WEB "/en.json")
EMBED(chinese, TP_WEB "/zh.json")
EMBED(format, TP_WEB "/format.js")
EMBED(state, TP_WEB "/state.js")
EMBED(draw, TP_WEB "/draw.js")
EMBED(chart, TP_WEB "/chart.js")
EMBED(run, TP_WEB "/run.js")
EMBED(map, TP_WEB "/map.js")
EMBED(series, TP_WEB "/series.js")
EMBED(histogram, TP_WEB "/histogram.js")
EMBED(incident, TP_WEB "/incident.js")
EMBED(communication, TP_WEB "/communication.js")
EMBED(compare, TP_WEB "/compare.js")
EMBED(main, TP_WEB "/main.js")
EMBED(dygraphs, TP_DYGRAPHS)

#define SCRIPT "text/javascript; charset=utf-8"

typedef struct entry {
    const char *name;
    const char *type;
    const uint8_t *begin;
    const uint8_t *end;
} entry;

#define ENTRY(name, type, symbol)                                                                  \
    {                                                                                              \
        name, type, tp_web_##symbol, tp_web_##symbol##_end                                         \
    }

static const entry entries[] = {
    ENTRY("index.html", "text/html; charset=utf-8", index),
    ENTRY("report.html", "text/html; charset=utf-8", report),
    ENTRY("style.css", "text/css; charset=utf-8", style),
    ENTRY("en.json", "application/json", english),
    ENTRY("zh.json", "application/json", chinese),
    ENTRY("dygraph.js", SCRIPT, dygraphs),
};

static const entry modules[] = {
    ENTRY("format.js", SCRIPT, format),
    ENTRY("state.js", SCRIPT, state),
    ENTRY("draw.js", SCRIPT, draw),
    ENTRY("chart.js", SCRIPT, chart),
    ENTRY("run.js", SCRIPT, run),
    ENTRY("map.js", SCRIPT, map),
    ENTRY("histogram.js", SCRIPT, histogram),
    ENTRY("series.js", SCRIPT, series),
    ENTRY("incident.js", SCRIPT, incident),
    ENTRY("communication.js", SCRIPT, communication),
    ENTRY("compare.js", SCRIPT, compare),
    ENTRY("main.js", SCRIPT, main),
};

const tp_asset *tp_asset_find(const char *name)
{
    static _Thread_local tp_asset found;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, name) == 0) {
            found = (tp_asset){entries[i].name, entries[i].type, entries[i].begin,
                               (size_t)(entries[i].end - entries[i].begin)};
            return &found;
        }
    }
    return NULL;
}

static void put_module(tp_buf *out, const entry *module)
{
    static const char import[] = "import ";
    static const char export[] = "export ";
    const char *at = (const char *)module->begin;
    const char *end = (const char *)module->end;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        const size_t length = line != NULL ? (size_t)(line - at) + 1 : (size_t)(end - at);
        const bool is_export = length > sizeof export && memcmp(at, export, sizeof export - 1) == 0;
        if (length <= sizeof import || memcmp(at, import, sizeof import - 1) != 0) {
            const size_t skip = is_export ? sizeof export - 1 : 0;
            tp_buf_put(out, at + skip, length - skip);
        }
        at += length;
    }
}

void tp_asset_put_script(tp_buf *out)
{
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        put_module(out, &modules[i]);
    }
}
