#include "view/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/text.h"
#include "view/ask.h"
#include "view/assets.h"

#define INCIDENTS 5 /* that are told in full: the last ones */
#define SERIES 12   /* that are drawn, those of incidents among them */
#define BEFORE 200  /* steps that an incident shows, and as a map of ranks */
#define AFTER 40
#define RANKS_BEFORE 60
#define RANKS_AFTER 19

struct report {
    tp_buf *out;
    tp_library *library;
    const tp_view_run *run;
    uint64_t first;
    uint64_t last;
    tp_buf series; /* "quantity/row" with its end, each once */
    tp_map known;  /* them, and questions that are answered */
    const char *separator;
    tp_status status;
};
typedef struct report report;

static void put_base64(tp_buf *out, const uint8_t *bytes, size_t size)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        const uint32_t left = size - i < 3 ? (uint32_t)(size - i) : 3;
        const uint32_t three = (uint32_t)bytes[i] << 16 |
                               (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                               (left > 2 ? bytes[i + 2] : 0);
        char four[4];
        for (uint32_t k = 0; k < 4; k++) {
            four[k] = k <= left ? letters[three >> (18 - 6 * k) & 63] : '=';
        }
        tp_buf_put(out, four, sizeof four);
    }
}

/* JSON inside a page: nothing in it may end the element. */
static void put_json(tp_buf *out, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '<') {
            tp_buf_put(out, "\\u003c", 6);
        } else {
            tp_buf_put(out, &bytes[i], 1);
        }
    }
}

static void put_html(tp_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("<>&\"", *text) != NULL) {
            tp_buf_printf(out, "&#%d;", *text);
        } else {
            tp_buf_put(out, text, 1);
        }
    }
}

/* Answers a question of the pages and keeps it under the name that they will ask for it by: its
 * parameters in this order, without encoding. */
static void keep(report *in, const char *path, const tp_ask_param *params, uint32_t count)
{
    tp_ask ask = {.path = path, .count = count + 1};
    tp_answer answer;
    tp_buf name = TP_BUF_INIT;
    tp_buf quoted = TP_BUF_INIT;
    uint32_t unused;
    ask.params[0] = (tp_ask_param){"r", in->run->id};
    tp_buf_printf(&name, "%s?r=%s", path, in->run->id);
    for (uint32_t i = 0; i < count; i++) {
        ask.params[i + 1] = params[i];
        tp_buf_printf(&name, "&%s=%s", params[i].name, params[i].value);
    }
    if (name.failed || tp_map_get(&in->known, name.data, name.size, &unused) == TP_OK) {
        in->status = name.failed ? TP_ERR_NOMEM : in->status;
        tp_buf_free(&name);
        return;
    }
    tp_answer_ask(in->library, &ask, &answer);
    if (answer.code == 200 && tp_map_set(&in->known, name.data, name.size, 0) == TP_OK) {
        const bool is_json = strcmp(answer.type, "application/json") == 0;
        tp_buf_put(&name, "", 1);
        tp_text_put_json(&quoted, name.failed ? "" : (const char *)name.data);
        tp_buf_printf(in->out, "%s", in->separator);
        put_json(in->out, quoted.data, quoted.size);
        tp_buf_printf(in->out, is_json ? ":{\"json\":" : ":{\"bytes\":\"");
        if (is_json) {
            put_json(in->out, answer.body.data, answer.body.size);
        } else {
            put_base64(in->out, answer.body.data, answer.body.size);
        }
        tp_buf_printf(in->out, is_json ? "}" : "\"}");
        in->separator = ",\n";
        in->status = quoted.failed ? TP_ERR_NOMEM : in->status;
    }
    tp_buf_free(&answer.body);
    tp_buf_free(&name);
    tp_buf_free(&quoted);
}

static void add_series(report *in, const char *quantity, const char *row)
{
    tp_buf key = TP_BUF_INIT;
    uint32_t unused;
    tp_buf_printf(&key, "%s/%s", quantity, row);
    if (!key.failed && in->known.count < UINT32_MAX &&
        tp_map_get(&in->known, key.data, key.size, &unused) != TP_OK &&
        tp_map_set(&in->known, key.data, key.size, 1) == TP_OK) {
        tp_buf_put_buf(&in->series, &key);
        tp_buf_put(&in->series, "", 1);
    }
    tp_buf_free(&key);
}

/* What the page of an incident asks for. */
static void keep_incident(report *in, uint64_t number)
{
    tp_incident_place at;
    char text[5][24];
    if (!tp_incident_find(in->run, number, &at)) {
        return;
    }
    const char *stat = strcmp(at.quantity, "scalar") == 0 ? "mean"
                       : at.is_nonfinite                  ? "max_abs"
                                                          : "norm";
    const uint64_t limits[4] = {
        at.step > BEFORE + in->first ? at.step - BEFORE : in->first,
        at.step + AFTER < in->last ? at.step + AFTER : in->last,
        at.step > RANKS_BEFORE + in->first ? at.step - RANKS_BEFORE : in->first,
        at.step + RANKS_AFTER < in->last ? at.step + RANKS_AFTER : in->last};
    for (int i = 0; i < 4; i++) {
        snprintf(text[i], sizeof text[i], "%" PRIu64, limits[i]);
    }
    snprintf(text[4], sizeof text[4], "%" PRIu64, number);
    keep(in, "incident", &(tp_ask_param){"i", text[4]}, 1);
    const tp_ask_param line[] = {{"q", at.quantity}, {"row", at.row}, {"s", stat},
                                 {"from", text[0]},  {"to", text[1]}, {"w", "300"}};
    keep(in, "series", line, 6);
    const tp_ask_param ranks[] = {{"q", at.quantity}, {"s", stat},          {"side", "all"},
                                  {"rows", at.row},   {"cut", "rank-step"}, {"from", text[2]},
                                  {"to", text[3]},    {"w", "80"}};
    keep(in, "map", ranks, 8);
    add_series(in, at.quantity, at.row);
}

static void put_texts(report *in, const tp_buf *texts, const char *name)
{
    const char *separator = "";
    tp_buf_printf(in->out, ",\n\"%s\":[", name);
    for (size_t at = 0; at < texts->size; at += strlen((const char *)texts->data + at) + 1) {
        tp_buf quoted = TP_BUF_INIT;
        tp_text_put_json(&quoted, (const char *)texts->data + at);
        tp_buf_printf(in->out, "%s", separator);
        put_json(in->out, quoted.data, quoted.size);
        tp_buf_free(&quoted);
        separator = ",";
    }
    tp_buf_printf(in->out, "]");
}

/* A map of the first incident's quantity, and one of gradients, as far as there are any. */
static void keep_maps(report *in, const tp_buf *quantities)
{
    tp_buf_printf(in->out, "%s\"maps\":[", in->separator);
    const char *separator = "";
    for (size_t at = 0; at < quantities->size;
         at += strlen((const char *)quantities->data + at) + 1) {
        tp_buf_printf(in->out, "%s{\"q\":\"%s\"}", separator, (const char *)quantities->data + at);
        separator = ",";
    }
    tp_buf_printf(in->out, "]");
    in->separator = ",\n";
    for (size_t at = 0; at < quantities->size;
         at += strlen((const char *)quantities->data + at) + 1) {
        const tp_ask_param map[] = {
            {"q", (const char *)quantities->data + at}, {"s", "norm"}, {"w", "400"}, {"h", "400"}};
        keep(in, "map", map, 4);
    }
}

static void choose_quantities(const report *in, tp_buf *out)
{
    bool has[TP_VIEW_QUANTITIES] = {false};
    for (uint32_t i = 0; i < tp_view_key_count(in->run); i++) {
        has[tp_view_key_at(in->run, i)->quantity] = true;
    }
    static const uint32_t wanted[] = {TP_ACTIVATION, TP_ACTIVATION_GRAD, TP_GRAD_REDUCED,
                                      TP_PARAM_ORIGIN, TP_EXP_AVG_SQ};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (has[wanted[i]]) {
            const char *name = tp_quantity_name(wanted[i]);
            tp_buf_put(out, name, strlen(name) + 1);
        }
    }
}

static void put_data(report *in)
{
    tp_buf quantities = TP_BUF_INIT;
    const uint64_t incidents = tp_incident_count(in->run);
    const uint64_t shown = incidents < INCIDENTS ? incidents : INCIDENTS;
    const tp_asset *english = tp_asset_find("en.json");
    tp_buf_printf(in->out, "{\"run\":");
    tp_text_put_json(in->out, in->run->id);
    tp_buf_printf(in->out, ",\n\"words\":{\"en\":");
    put_json(in->out, english->bytes, english->size);
    const tp_asset *chinese = tp_asset_find("zh.json");
    tp_buf_printf(in->out, ",\"zh\":");
    put_json(in->out, chinese->bytes, chinese->size);
    tp_buf_printf(in->out, "},\n\"shown\":[");
    for (uint64_t i = 0; i < shown; i++) {
        tp_buf_printf(in->out, "%s%" PRIu64, i > 0 ? "," : "", incidents - i);
    }
    tp_buf_printf(in->out, "]");
    in->separator = ",\n";
    keep(in, "run", NULL, 0);
    keep(in, "incidents", NULL, 0);
    keep(in, "timeline", &(tp_ask_param){"w", "600"}, 1);
    for (uint64_t i = 0; i < shown; i++) {
        keep_incident(in, incidents - i);
    }
    choose_quantities(in, &quantities);
    keep_maps(in, &quantities);
    tp_worst_rows(in->run, SERIES, add_series, in);
    for (size_t at = 0; at < in->series.size; at += strlen((char *)in->series.data + at) + 1) {
        char quantity[32];
        const char *key = (const char *)in->series.data + at;
        const char *slash = strchr(key, '/');
        snprintf(quantity, sizeof quantity, "%.*s", (int)(slash - key), key);
        const bool is_scalar = strcmp(quantity, "scalar") == 0;
        const tp_ask_param line[] = {
            {"q", quantity}, {"row", slash + 1}, {"s", is_scalar ? "mean" : "norm"}, {"w", "400"}};
        keep(in, "series", line, 4);
    }
    put_texts(in, &in->series, "series");
    keep(in, "communication", &(tp_ask_param){"w", "300"}, 1);
    tp_buf_printf(in->out, "}");
    tp_buf_free(&quantities);
}

/* What can be read without scripts. */
static void put_static(report *in)
{
    const uint64_t incidents = tp_incident_count(in->run);
    tp_buf_printf(in->out, "<div class=\"static\"><h1>TensorProbe, run ");
    put_html(in->out, in->run->id);
    tp_buf_printf(in->out,
                  "</h1><p>Steps %" PRIu64 " to %" PRIu64 ", %" PRIu32 " rank%s, %" PRIu32
                  " series; %" PRIu64 " incident%s.</p><ol>",
                  in->first, in->last, tp_view_rank_count(in->run),
                  tp_plural(tp_view_rank_count(in->run)), tp_view_key_count(in->run), incidents,
                  tp_plural(incidents));
    for (uint64_t i = 1; i <= incidents; i++) {
        tp_incident_place at;
        if (tp_incident_find(in->run, i, &at)) {
            tp_buf_printf(in->out, "<li>step %" PRIu64 ", rank %" PRIu32 ": ", at.step, at.rank);
            put_html(in->out, at.text);
            tp_buf_printf(in->out, "</li>\n");
        }
    }
    tp_buf_printf(in->out, "</ol></div>\n");
}

static void put_asset(tp_buf *out, const char *name)
{
    const tp_asset *asset = tp_asset_find(name);
    tp_buf_put(out, asset->bytes, asset->size);
}

tp_status tp_report_put(tp_buf *out, tp_library *library, const tp_view_run *run, tp_error *error)
{
    report in = {.out = out, .library = library, .run = run, .separator = ""};
    uint64_t once[2];
    if (!tp_view_run_steps(run, &in.first, &in.last)) {
        return tp_fail(error, TP_ERR_NOTFOUND, "run %s has no step yet", run->id);
    }
    if (getrandom(once, sizeof once, 0) != (ssize_t)sizeof once) {
        return tp_fail(error, TP_ERR_IO, "can't get random bytes");
    }
    char nonce[40];
    snprintf(nonce, sizeof nonce, "%016" PRIx64 "%016" PRIx64, once[0], once[1]);
    put_asset(out, "report.html");
    tp_buf_printf(out,
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "script-src 'nonce-%s'; style-src 'nonce-%s'; img-src data:\">\n"
                  "<style nonce=\"%s\">\n",
                  nonce, nonce, nonce);
    put_asset(out, "style.css");
    tp_buf_printf(out, "</style>\n</head>\n<body class=\"report\">\n<header id=\"top\"></header>\n"
                       "<div id=\"controls\"></div>\n<main id=\"page\">");
    put_static(&in);
    tp_buf_printf(out,
                  "</main>\n<footer id=\"foot\"></footer>\n<div id=\"live\" class=\"reader\" "
                  "aria-live=\"polite\"></div>\n<script type=\"application/json\" id=\"data\">\n");
    put_data(&in);
    tp_buf_printf(out, "\n</script>\n<script nonce=\"%s\">\n", nonce);
    put_asset(out, "dygraph.js");
    tp_buf_printf(out, "\n</script>\n<script type=\"module\" nonce=\"%s\">\n", nonce);
    tp_asset_put_script(out);
    tp_buf_printf(out, "\n</script>\n</body>\n</html>\n");
    tp_buf_free(&in.series);
    tp_map_free(&in.known);
    return in.status != TP_OK || out->failed
               ? tp_fail(error, TP_ERR_NOMEM, "no memory for a report")
               : TP_OK;
}
