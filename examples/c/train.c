/* Trains a small network in C and watches it with TensorProbe; no Python, no framework.
 *
 * The network learns to spell this very file: from eight bytes of text it predicts the next one.
 * embedding (16 numbers a byte) -> hidden (tanh) -> output (one score a byte), with its backward
 * pass and Adam written out below. What concerns TensorProbe is in the functions that begin with
 * watch_.
 *
 *     cc -std=c11 -O2 -o train train.c $(pkg-config --cflags --libs tensorprobe) -lm
 *     ./train
 *     tensorprobe show monitor_output/…
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorprobe/tensorprobe.h"

enum { CONTEXT = 8, WIDTH = 16, INPUT = CONTEXT * WIDTH, HIDDEN = 128, BYTES = 256, BATCH = 64 };

/* A parameter matrix (a vector has one column), its gradient, and Adam's moments. */
struct parameter {
    const char *name;
    int64_t shape[2];
    uint32_t ndim;
    float *value, *grad, *exp_avg, *exp_avg_sq;
    uint32_t grad_key, origin_key, updated_key, exp_avg_key, exp_avg_sq_key;
};

enum { EMBEDDING, HIDDEN_WEIGHT, HIDDEN_BIAS, OUTPUT_WEIGHT, OUTPUT_BIAS, PARAMETERS };

struct network {
    struct parameter parameters[PARAMETERS];
    /* Activations of one batch, row by row, and the gradients of the loss by them. */
    float input[BATCH * INPUT], input_grad[BATCH * INPUT];
    float hidden[BATCH * HIDDEN], hidden_grad[BATCH * HIDDEN];
    float logits[BATCH * BYTES], logits_grad[BATCH * BYTES];
    uint8_t context[BATCH][CONTEXT], target[BATCH];
};

struct arguments {
    const char *text, *output_dir;
    int steps, every, break_at;
};

/* ---- watching -------------------------------------------------------------------------------- */

/* Which tensors of the forward and backward pass are observed. */
struct activation {
    const char *module;
    uint32_t quantity, role;
    int64_t columns;
    size_t offset; /* in struct network */
    uint32_t key;
};

#define AT(field) offsetof(struct network, field)

static struct activation forward_values[] = {
    {"hidden", TP_ACTIVATION, TP_ROLE_INPUT, INPUT, AT(input), 0},
    {"hidden", TP_ACTIVATION, TP_ROLE_OUTPUT, HIDDEN, AT(hidden), 0},
    {"output", TP_ACTIVATION, TP_ROLE_OUTPUT, BYTES, AT(logits), 0},
};
static struct activation backward_values[] = {
    {"output", TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT, BYTES, AT(logits_grad), 0},
    {"hidden", TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT, HIDDEN, AT(hidden_grad), 0},
    {"hidden", TP_ACTIVATION_GRAD, TP_ROLE_INPUT, INPUT, AT(input_grad), 0},
};

static void check(tp_status status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, tp_status_name(status));
        exit(1);
    }
}

static tp_monitor *watch_open(const struct arguments *arguments)
{
    tp_monitor_options options;
    tp_error error;
    tp_monitor *monitor = NULL;
    tp_monitor_defaults(&options);
    options.output_dir = arguments->output_dir;
    options.watch_defaults = 1; /* csv and TensorBoard files, and the two alert rules */
    if (tp_monitor_open(&monitor, &options, &error) != TP_OK) {
        char text[1024];
        fprintf(stderr, "%s\n", tp_error_format(&error, text, sizeof text));
        exit(1);
    }
    return monitor;
}

static uint32_t watch_key(tp_monitor *monitor, const char *name, uint32_t quantity, uint32_t role)
{
    const tp_key key = {.name = name, .slot = -1, .quantity = quantity, .role = role};
    uint32_t id;
    check(tp_monitor_key(monitor, &key, &id), name);
    return id;
}

static void watch_activation_keys(tp_monitor *monitor, struct activation *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i].key = watch_key(monitor, values[i].module, values[i].quantity, values[i].role);
    }
}

/* Every series gets its number before the loop begins. */
static void watch_keys(tp_monitor *monitor, struct network *network)
{
    watch_activation_keys(monitor, forward_values, sizeof forward_values / sizeof *forward_values);
    watch_activation_keys(monitor, backward_values,
                          sizeof backward_values / sizeof *backward_values);
    for (int i = 0; i < PARAMETERS; i++) {
        struct parameter *p = &network->parameters[i];
        p->grad_key = watch_key(monitor, p->name, TP_GRAD_REDUCED, TP_ROLE_NONE);
        p->origin_key = watch_key(monitor, p->name, TP_PARAM_ORIGIN, TP_ROLE_NONE);
        p->updated_key = watch_key(monitor, p->name, TP_PARAM_UPDATED, TP_ROLE_NONE);
        p->exp_avg_key = watch_key(monitor, p->name, TP_EXP_AVG, TP_ROLE_NONE);
        p->exp_avg_sq_key = watch_key(monitor, p->name, TP_EXP_AVG_SQ, TP_ROLE_NONE);
    }
}

/* The monitor reads the memory now and keeps nothing of it. */
static void watch_activations(tp_monitor *monitor, const struct network *network,
                              const struct activation *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int64_t shape[2] = {BATCH, values[i].columns};
        const tp_tensor tensor = {.data = (const char *)network + values[i].offset,
                                  .shape = shape,
                                  .dtype = TP_F32,
                                  .ndim = 2};
        check(tp_monitor_observe(monitor, values[i].key, &tensor, 0), values[i].module);
    }
}

static void watch_values(tp_monitor *monitor, const struct parameter *p, uint32_t key,
                         const float *values)
{
    const tp_tensor tensor = {.data = values, .shape = p->shape, .dtype = TP_F32, .ndim = p->ndim};
    check(tp_monitor_observe(monitor, key, &tensor, 0), p->name);
}

static void watch_before_update(tp_monitor *monitor, const struct network *network, int step)
{
    for (int i = 0; i < PARAMETERS; i++) {
        const struct parameter *p = &network->parameters[i];
        watch_values(monitor, p, p->grad_key, p->grad);
        watch_values(monitor, p, p->origin_key, p->value);
        if (step > 0) { /* before the first update there are no moments */
            watch_values(monitor, p, p->exp_avg_key, p->exp_avg);
            watch_values(monitor, p, p->exp_avg_sq_key, p->exp_avg_sq);
        }
    }
}

static void watch_after_update(tp_monitor *monitor, const struct network *network)
{
    for (int i = 0; i < PARAMETERS; i++) {
        const struct parameter *p = &network->parameters[i];
        watch_values(monitor, p, p->updated_key, p->value);
    }
    check(tp_monitor_step(monitor), "step");
}

static void watch_report(const tp_monitor *monitor)
{
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    printf("monitor: %llu steps, %llu records, %llu alerts\nfiles: %s\n",
           (unsigned long long)counters.steps, (unsigned long long)counters.records,
           (unsigned long long)counters.alerts, tp_monitor_directory(monitor));
}

/* ---- the network ----------------------------------------------------------------------------- */

static uint64_t random_state = 20240229;

static uint32_t random_u32(void) /* PCG */
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t mixed = (uint32_t)(((random_state >> 18) ^ random_state) >> 27);
    uint32_t turn = (uint32_t)(random_state >> 59);
    return (mixed >> turn) | (mixed << (-turn & 31));
}

static float *zeros(size_t count)
{
    float *values = calloc(count, sizeof *values);
    if (values == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return values;
}

static size_t size_of(const struct parameter *p)
{
    return (size_t)(p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0]);
}

static void make_parameter(struct parameter *p, const char *name, int64_t rows, int64_t columns,
                           float range)
{
    *p = (struct parameter){.name = name, .shape = {rows, columns}, .ndim = columns > 0 ? 2 : 1};
    size_t count = size_of(p);
    p->value = zeros(count);
    p->grad = zeros(count);
    p->exp_avg = zeros(count);
    p->exp_avg_sq = zeros(count);
    for (size_t i = 0; i < count; i++) {
        p->value[i] = range * (2.0f * (float)random_u32() / 4294967296.0f - 1.0f);
    }
}

static void make_network(struct network *network)
{
    struct parameter *parameters = network->parameters;
    make_parameter(&parameters[EMBEDDING], "embedding.weight", BYTES, WIDTH, 1.0f);
    make_parameter(&parameters[HIDDEN_WEIGHT], "hidden.weight", HIDDEN, INPUT, 0.088f);
    make_parameter(&parameters[HIDDEN_BIAS], "hidden.bias", HIDDEN, 0, 0.088f);
    make_parameter(&parameters[OUTPUT_WEIGHT], "output.weight", BYTES, HIDDEN, 0.088f);
    make_parameter(&parameters[OUTPUT_BIAS], "output.bias", BYTES, 0, 0.088f);
}

static void free_network(struct network *network)
{
    for (int i = 0; i < PARAMETERS; i++) {
        struct parameter *p = &network->parameters[i];
        free(p->value);
        free(p->grad);
        free(p->exp_avg);
        free(p->exp_avg_sq);
    }
    free(network);
}

/* out[b][r] = bias[r] + sum over c of weight[r][c] * in[b][c] */
static void linear_forward(float *out, const float *in, const struct parameter *weight,
                           const struct parameter *bias)
{
    int64_t rows = weight->shape[0], columns = weight->shape[1];
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t r = 0; r < rows; r++) {
            const float *w = weight->value + r * columns;
            float sum = bias->value[r];
            for (int64_t c = 0; c < columns; c++) {
                sum += w[c] * in[b * columns + c];
            }
            out[b * rows + r] = sum;
        }
    }
}

/* Gradients of weight, bias and in, from the gradient of out. */
static void linear_backward(float *in_grad, const float *out_grad, const float *in,
                            struct parameter *weight, struct parameter *bias)
{
    int64_t rows = weight->shape[0], columns = weight->shape[1];
    memset(weight->grad, 0, size_of(weight) * sizeof(float));
    memset(bias->grad, 0, size_of(bias) * sizeof(float));
    memset(in_grad, 0, (size_t)(BATCH * columns) * sizeof(float));
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t r = 0; r < rows; r++) {
            float g = out_grad[b * rows + r];
            bias->grad[r] += g;
            for (int64_t c = 0; c < columns; c++) {
                weight->grad[r * columns + c] += g * in[b * columns + c];
                in_grad[b * columns + c] += g * weight->value[r * columns + c];
            }
        }
    }
}

static void forward(struct network *network)
{
    struct parameter *p = network->parameters;
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        memcpy(network->input + i * WIDTH,
               p[EMBEDDING].value + network->context[i / CONTEXT][i % CONTEXT] * WIDTH,
               WIDTH * sizeof(float));
    }
    linear_forward(network->hidden, network->input, &p[HIDDEN_WEIGHT], &p[HIDDEN_BIAS]);
    for (int i = 0; i < BATCH * HIDDEN; i++) {
        network->hidden[i] = tanhf(network->hidden[i]);
    }
    linear_forward(network->logits, network->hidden, &p[OUTPUT_WEIGHT], &p[OUTPUT_BIAS]);
}

/* Mean cross entropy of the batch, and its gradient by the logits. */
static double loss_and_gradient(struct network *network)
{
    double loss = 0.0;
    for (int b = 0; b < BATCH; b++) {
        const float *logits = network->logits + b * BYTES;
        float *grad = network->logits_grad + b * BYTES;
        float largest = logits[0];
        for (int k = 1; k < BYTES; k++) {
            largest = fmaxf(largest, logits[k]);
        }
        float sum = 0.0f;
        for (int k = 0; k < BYTES; k++) {
            grad[k] = expf(logits[k] - largest);
            sum += grad[k];
        }
        for (int k = 0; k < BYTES; k++) {
            grad[k] /= sum * BATCH;
        }
        loss += log(sum) + largest - logits[network->target[b]];
        grad[network->target[b]] -= 1.0f / BATCH;
    }
    return loss / BATCH;
}

static void backward(struct network *network)
{
    struct parameter *p = network->parameters;
    linear_backward(network->hidden_grad, network->logits_grad, network->hidden, &p[OUTPUT_WEIGHT],
                    &p[OUTPUT_BIAS]);
    float through_tanh[BATCH * HIDDEN];
    for (int i = 0; i < BATCH * HIDDEN; i++) {
        through_tanh[i] =
            network->hidden_grad[i] * (1.0f - network->hidden[i] * network->hidden[i]);
    }
    linear_backward(network->input_grad, through_tanh, network->input, &p[HIDDEN_WEIGHT],
                    &p[HIDDEN_BIAS]);
    memset(p[EMBEDDING].grad, 0, size_of(&p[EMBEDDING]) * sizeof(float));
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        float *grad = p[EMBEDDING].grad + network->context[i / CONTEXT][i % CONTEXT] * WIDTH;
        for (int k = 0; k < WIDTH; k++) {
            grad[k] += network->input_grad[i * WIDTH + k];
        }
    }
}

static void adam(struct parameter *p, int step)
{
    const float rate = 0.003f, beta1 = 0.9f, beta2 = 0.99f;
    const float correct1 = 1.0f - powf(beta1, (float)(step + 1));
    const float correct2 = 1.0f - powf(beta2, (float)(step + 1));
    for (size_t i = 0; i < size_of(p); i++) {
        float g = p->grad[i];
        p->exp_avg[i] = beta1 * p->exp_avg[i] + (1.0f - beta1) * g;
        p->exp_avg_sq[i] = beta2 * p->exp_avg_sq[i] + (1.0f - beta2) * g * g;
        p->value[i] -=
            rate * (p->exp_avg[i] / correct1) / (sqrtf(p->exp_avg_sq[i] / correct2) + 1e-8f);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

static void draw_batch(struct network *network, const uint8_t *text, size_t size)
{
    for (int b = 0; b < BATCH; b++) {
        size_t at = random_u32() % (size - CONTEXT);
        memcpy(network->context[b], text + at, CONTEXT);
        network->target[b] = text[at + CONTEXT];
    }
}

static double norm_of(const float *values, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)values[i] * values[i];
    }
    return sqrt(sum);
}

static void train(const struct arguments *arguments, struct network *network, const uint8_t *text,
                  size_t size)
{
    tp_monitor *monitor = watch_open(arguments);
    watch_keys(monitor, network);
    struct parameter *hidden_weight = &network->parameters[HIDDEN_WEIGHT];
    puts("step  loss    norm of hidden.weight, of its gradient");
    for (int step = 0; step < arguments->steps; step++) {
        if (step == arguments->break_at) {
            hidden_weight->value[0] = NAN;
        }
        draw_batch(network, text, size);
        forward(network);
        watch_activations(monitor, network, forward_values,
                          sizeof forward_values / sizeof *forward_values);
        double loss = loss_and_gradient(network);
        backward(network);
        watch_activations(monitor, network, backward_values,
                          sizeof backward_values / sizeof *backward_values);
        watch_before_update(monitor, network, step);
        if (step % arguments->every == 0 || step == arguments->steps - 1) {
            printf("%-5d %-7.4f %.17g %.17g\n", step, loss,
                   norm_of(hidden_weight->value, size_of(hidden_weight)),
                   norm_of(hidden_weight->grad, size_of(hidden_weight)));
        }
        for (int i = 0; i < PARAMETERS; i++) {
            adam(&network->parameters[i], step);
        }
        watch_after_update(monitor, network);
    }
    watch_report(monitor);
    check(tp_monitor_close(&monitor), "close");
}

static uint8_t *read_text(const char *path, size_t *size)
{
    enum { LIMIT = 1 << 20 };
    uint8_t *text = malloc(LIMIT);
    FILE *file = fopen(path, "rb");
    if (text == NULL || file == NULL) {
        perror(path);
        exit(1);
    }
    *size = fread(text, 1, LIMIT, file);
    fclose(file);
    if (*size <= CONTEXT) {
        fprintf(stderr, "%s: too short to learn from\n", path);
        exit(1);
    }
    return text;
}

static struct arguments read_arguments(int argc, char **argv)
{
    struct arguments arguments = {.text = __FILE__, .steps = 300, .every = 25, .break_at = -1};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--text") == 0) {
            arguments.text = value;
        } else if (strcmp(argv[i], "--output") == 0) {
            arguments.output_dir = value;
        } else if (strcmp(argv[i], "--steps") == 0) {
            arguments.steps = atoi(value);
        } else if (strcmp(argv[i], "--every") == 0 && atoi(value) > 0) {
            arguments.every = atoi(value);
        } else if (strcmp(argv[i], "--break") == 0) {
            arguments.break_at = atoi(value);
        } else {
            fprintf(stderr,
                    "usage: %s [--text FILE] [--output DIRECTORY] [--steps N] [--every N]\n"
                    "       [--break STEP]  (a weight becomes NaN before this step)\n",
                    argv[0]);
            exit(2);
        }
    }
    return arguments;
}

int main(int argc, char **argv)
{
    const struct arguments arguments = read_arguments(argc, argv);
    size_t size;
    uint8_t *text = read_text(arguments.text, &size);
    struct network *network = calloc(1, sizeof *network);
    if (network == NULL) {
        perror("network");
        return 1;
    }
    make_network(network);
    train(&arguments, network, text, size);
    free_network(network);
    free(text);
    return 0;
}
