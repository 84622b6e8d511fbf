/* A large run for bench/view.py.
 *
 *     bench_view DIRECTORY SERIES STEPS
 *
 * Five quantities of a model's layers, and a loss. Values wander by a percent; the series in the
 * middle is ten times as large in step STEPS / 2, and the one behind it NaN in step STEPS / 3. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tensorprobe/tensorprobe.h"

#define ELEMENTS 4

static const char *const modules[] = {"ln1",    "attn.qkv", "attn.out", "ln2",
                                      "mlp.up", "mlp.act",  "mlp.down"};
static const uint32_t quantities[] = {TP_ACTIVATION, TP_ACTIVATION_GRAD, TP_GRAD_REDUCED,
                                      TP_PARAM_ORIGIN, TP_EXP_AVG};

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_view: %s\n", what);
        exit(1);
    }
}

static uint32_t add_key(tp_monitor *monitor, uint32_t i, uint32_t series)
{
    char name[64];
    uint32_t id;
    const uint32_t each = (series + 4) / 5;
    const uint32_t quantity = quantities[i / each];
    const uint32_t place = i % each;
    snprintf(name, sizeof name, "layers.%u.%s", place / 7, modules[place % 7]);
    const tp_key key = {.name = name,
                        .slot = -1,
                        .quantity = quantity,
                        .role = quantity <= TP_ACTIVATION_GRAD ? TP_ROLE_OUTPUT : TP_ROLE_NONE};
    must(tp_monitor_key(monitor, &key, &id) == TP_OK, "no key");
    return id;
}

int main(int argc, char **argv)
{
    must(argc == 4, "arguments");
    const uint32_t series = (uint32_t)atoi(argv[2]);
    const uint32_t steps = (uint32_t)atoi(argv[3]);
    const int64_t dims[] = {ELEMENTS};
    const tp_key loss = {.name = "loss", .slot = -1, .quantity = TP_SCALAR};
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    tp_error error;
    uint32_t *ids = tp_calloc(series, sizeof *ids);
    uint32_t loss_id;
    uint64_t random = 1;
    tp_monitor_defaults(&options);
    options.config_text = "{\"format\": \"api\"}";
    options.output_dir = argv[1];
    options.run_id = "large";
    options.watch_defaults = 1;
    must(series > 0 && steps > 0 && ids != NULL, "arguments");
    must(tp_monitor_open(&monitor, &options, &error) == TP_OK, "can't open");
    for (uint32_t i = 0; i < series; i++) {
        ids[i] = add_key(monitor, i, series);
    }
    must(tp_monitor_key(monitor, &loss, &loss_id) == TP_OK, "no key");
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t i = 0; i < series; i++) {
            float values[ELEMENTS];
            const tp_tensor tensor = {values, dims, NULL, TP_F32, 1};
            for (uint32_t k = 0; k < ELEMENTS; k++) {
                random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                const float noise = (float)(random >> 40) * 0x1p-24F - 0.5F;
                values[k] = (k % 2 == 0 ? 1.0F : -1.0F) * (1.0F + 0.02F * noise);
            }
            if (i == series / 2 && step == steps / 2) {
                values[0] *= 10;
            }
            if (i == series / 2 + 1 && step == steps / 3) {
                values[0] = NAN;
            }
            must(tp_monitor_observe(monitor, ids[i], &tensor, 0) == TP_OK, "can't observe");
        }
        const double value = 1 + 9.0 / (1 + step);
        const tp_tensor scalar = {&value, NULL, NULL, TP_F64, 0};
        must(tp_monitor_observe(monitor, loss_id, &scalar, 0) == TP_OK, "can't observe");
        must(tp_monitor_step(monitor) == TP_OK, "no step");
    }
    must(tp_monitor_close(&monitor) == TP_OK, "can't close");
    tp_free(ids);
    return 0;
}
