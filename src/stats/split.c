#include "stats/split.h"

#include <stdatomic.h>
#include <string.h>

#include "base/pool.h"
#include "stats/environment.h"

#define LEAST_LEVEL 4       /* blocks of a share: 2^4, more in large tensors */
#define LEAST_LEVEL_BYTES 8 /* as many where bytes are counted in pairs */
#define MOST_SHARES 128
#define MOST_BINS 1024

/* What the helpers take one after the other: 2^level blocks, the last one fewer. */
typedef struct share {
    tp_part part; /* of all blocks; not of the last share */
    tp_block seen;
    double abs_max;
    unsigned best; /* of counted bytes */
    uint64_t abs_max_from;
    uint64_t hash;
} share;

typedef struct split {
    const tp_walk *walk;
    const tp_pass *pass;
    const tp_extras *extras;
    uint64_t counts[256]; /* of bytes */
    int level;
    unsigned shares;
    atomic_uint next;
    tp_tree last;
    share share[MOST_SHARES];
} split;

/* What one thread reads with. */
typedef struct reader {
    tp_walk walk;
    tp_pass pass;
    tp_extras extras;
    tp_stats_options options; /* with these as outputs */
    uint64_t bins[MOST_BINS];
    tp_exponents exponents;
    tp_pass_space space;
} reader;

static int level_of(const tp_pass *pass)
{
    return pass->bytes != NULL ? LEAST_LEVEL_BYTES : LEAST_LEVEL;
}

bool tp_split_is_worth(const tp_pass *pass, const tp_walk *walk, const tp_stats_options *options)
{
    return walk->count * walk->element >= TP_SPLIT_BYTES &&
           walk->count > ((uint64_t)TP_BLOCK << level_of(pass)) &&
           (options->bins == NULL || options->bin_count <= MOST_BINS);
}

static void open_reader(reader *self, const split *job)
{
    self->walk = *job->walk;
    self->pass = *job->pass;
    self->extras = *job->extras;
    self->options = *job->extras->options;
    self->options.bins = self->options.bins != NULL ? self->bins : NULL;
    self->options.exponents = self->options.exponents != NULL ? &self->exponents : NULL;
    self->extras.options = &self->options;
    memset(self->bins, 0, sizeof(self->bins));
    memset(&self->exponents, 0, sizeof(self->exponents));
}

static void add_counts(uint64_t *to, const uint64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (from[i] != 0) {
            __atomic_fetch_add(&to[i], from[i], __ATOMIC_RELAXED);
        }
    }
}

static void read_share(split *job, reader *self, unsigned number)
{
    const uint64_t size = (uint64_t)TP_BLOCK << job->level;
    const uint64_t from = number * size;
    const uint64_t left = job->walk->count - from;
    share *out = &job->share[number];
    tp_walk_seek(&self->walk, from);
    tp_pass_restart(&self->pass);
    if (self->extras.hashes) {
        self->extras.hash.sum = 0;
        tp_hash_seek(&self->extras.hash, from);
    }
    out->abs_max_from = tp_extras_read(&self->extras, &self->pass, &self->walk,
                                       left < size ? left : size, &self->space, from);
    out->seen = self->pass.seen;
    out->abs_max = self->pass.abs_max;
    out->best = self->pass.bytes != NULL ? self->pass.counts.best : 256;
    out->hash = self->extras.hash.sum;
    if (self->pass.bytes == NULL && number + 1 == job->shares) {
        job->last = self->pass.tree;
    } else if (self->pass.bytes == NULL) {
        out->part = self->pass.tree.level[job->level];
    } else {
        add_counts(job->counts, self->pass.counts.of, 256);
    }
}

static void read_shares(void *context)
{
    split *job = context;
    unsigned number = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (number >= job->shares) {
        return;
    }
    reader self;
    open_reader(&self, job);
    do {
        read_share(job, &self, number);
        number = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    } while (number < job->shares);
    const tp_stats_options *wanted = job->extras->options;
    if (wanted->bins != NULL) {
        add_counts(wanted->bins, self.bins, wanted->bin_count);
    }
    if (wanted->exponents != NULL) {
        add_counts(wanted->exponents->negative, self.exponents.negative, TP_EXPONENT_BINS);
        add_counts(wanted->exponents->positive, self.exponents.positive, TP_EXPONENT_BINS);
    }
}

static void help(void *context)
{
    tp_in_default_environment(read_shares, context);
}

static double magnitude_of(const tp_pass *pass, const share *of)
{
    if (pass->bytes == NULL) {
        return of->abs_max;
    }
    return of->best < 256 ? pass->bytes->magnitude[pass->bytes->falling[of->best]] : -1.0;
}

uint64_t tp_split_read(unsigned threads, tp_extras *extras, tp_pass *pass, const tp_walk *walk)
{
    split job = {.walk = walk, .pass = pass, .extras = extras, .level = level_of(pass)};
    while (walk->count > ((uint64_t)TP_BLOCK << job.level) * MOST_SHARES) {
        job.level++;
    }
    const uint64_t size = (uint64_t)TP_BLOCK << job.level;
    job.shares = (unsigned)((walk->count + size - 1) / size);
    tp_pool_run(threads < job.shares ? threads : job.shares, help, &job);

    uint64_t abs_max_from = 0;
    double abs_max = -1.0;
    for (unsigned i = 0; i < job.shares; i++) {
        const share *done = &job.share[i];
        const double magnitude = magnitude_of(pass, done);
        if (magnitude > abs_max) {
            abs_max = magnitude;
            abs_max_from = done->abs_max_from;
            pass->counts.best = done->best;
        }
        tp_pass_see(pass, &done->seen);
        if (extras->hashes) {
            tp_hash_join(&extras->hash, done->hash);
        }
        if (pass->bytes == NULL && i + 1 < job.shares) {
            tp_tree_add(&pass->tree, &done->part, job.level);
        }
    }
    if (pass->bytes != NULL) {
        memcpy(pass->counts.of, job.counts, sizeof(job.counts));
    } else {
        pass->abs_max = abs_max;
        if (job.last.blocks >> job.level != 0) {
            tp_tree_add(&pass->tree, &job.last.level[job.level], job.level);
        } else {
            tp_tree_append(&pass->tree, &job.last);
        }
    }
    return abs_max_from;
}
