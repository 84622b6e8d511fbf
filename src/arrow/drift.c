#include "arrow/drift.h"

#include <stdio.h>

#include "arrow/merger.h"

static bool is_different(const tp_drift_options *options, const tp_row *row)
{
    return row->merged->different > 0 &&
           (options->applies == NULL || options->applies(options->context, row->key));
}

static bool look(const tp_drift_options *options, const tp_merged_step *step, tp_drift *out)
{
    out->parameters = 0;
    for (uint64_t i = 0; i < step->count; i++) {
        const tp_row *row = &step->rows[i];
        if (!is_different(options, row)) {
            continue;
        }
        if (out->parameters == 0) {
            out->step = step->source.batch->step;
            out->quantity = row->key->quantity;
            out->rank = row->merged->other;
            out->other = row->merged->first;
            snprintf(out->name, sizeof out->name, "%s", row->key->global_name);
        }
        out->parameters += row->key->quantity == out->quantity;
    }
    return out->parameters > 0;
}

tp_status tp_drift_find(const tp_drift_options *options, tp_drift *out, tp_error *error)
{
    tp_merger_options merged = {.directories = options->directories,
                                .directory_count = options->directory_count,
                                .last_step = UINT64_MAX,
                                .selection = tp_selection_all()};
    merged.selection.quantities = 1u << TP_PARAM_ORIGIN | 1u << TP_PARAM_UPDATED;
    tp_merger *merger = NULL;
    tp_merged_step step;
    tp_status status = tp_merger_open(&merger, &merged, error);
    while (status == TP_OK) {
        status = tp_merger_next(merger, &step, error);
        if (status == TP_OK && look(options, &step, out)) {
            break;
        }
    }
    tp_merger_close(merger);
    return status;
}
