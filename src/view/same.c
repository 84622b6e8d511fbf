#include "view/same.h"

#include <string.h>

#include "arrow/merger.h"

const char *tp_same_name(const tp_key *key)
{
    return key->global_name != NULL ? key->global_name : key->name;
}

/* The name without what wrappers have put into it. */
static void put_bare_name(tp_buf *out, const char *name)
{
    static const char *const wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                           "_checkpoint_wrapped_module."};
    while (strncmp(name, "module.", 7) == 0) { /* deeper inside it may be the model's own */
        name += 7;
    }
    for (const char *part = name; *part != '\0';) {
        bool is_wrapper = false;
        for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers && !is_wrapper; i++) {
            const size_t length = strlen(wrappers[i]);
            is_wrapper = strncmp(part, wrappers[i], length) == 0;
            part += is_wrapper ? length : 0;
        }
        if (!is_wrapper) {
            const char *end = strchr(part, '.');
            const size_t length = end != NULL ? (size_t)(end - part) + 1 : strlen(part);
            tp_buf_put(out, part, length);
            part += length;
        }
    }
    tp_buf_put(out, "", 1);
}

/* Which part of the tensor it is; nothing: all of it. */
static void put_part(tp_buf *out, const tp_span *span)
{
    bool is_whole = true;
    for (uint32_t i = 0; span != NULL && i < span->ndim; i++) {
        is_whole = is_whole && span->ranges[i].start == 0 &&
                   span->ranges[i].length == span->ranges[i].full;
    }
    if (!is_whole) {
        tp_buf_put_u32(out, span->kind);
        tp_buf_put(out, span->ranges, span->ndim * sizeof(tp_range));
    }
}

void tp_same_put(tp_buf *out, const tp_key *key, const tp_record *record, uint32_t rank,
                 bool with_part)
{
    const bool is_whole = tp_merger_takes(key->quantity);
    const uint32_t numbers[] = {key->quantity,
                                key->role,
                                (uint32_t)key->slot,
                                key->global_name != NULL ? 0 : (uint32_t)key->vpp_stage,
                                is_whole ? 0 : record->micro_step,
                                record->call,
                                rank,
                                with_part};
    tp_buf_clear(out);
    tp_buf_put(out, numbers, sizeof numbers);
    put_bare_name(out, tp_same_name(key));
    if (key->argument != NULL) {
        tp_buf_put(out, key->argument, strlen(key->argument));
    }
    if (with_part && is_whole) {
        tp_buf_put(out, "", 1);
        put_part(out, key->span);
    }
}
