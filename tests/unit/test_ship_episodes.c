/* Findings of ranks become few messages. */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ship/episodes.h"

static tp_status add(tp_episodes *e, const char *job, uint32_t rank, uint64_t step, uint32_t kind,
                     tp_finding_state state)
{
    const tp_finding finding = {.job = job,
                                .rank = rank,
                                .kind = kind,
                                .state = state,
                                .step = step,
                                .wall_ns = (int64_t)step + 1000,
                                .rule = "Rule",
                                .text = "what\nhas happened"};
    return tp_episodes_add(e, &finding);
}

static const tp_message *pending(const tp_episodes *e, size_t i)
{
    assert_true(i < e->pending.size / sizeof(tp_pending));
    return &((const tp_pending *)(const void *)e->pending.data)[i].message;
}

static uint32_t count(const tp_episodes *e)
{
    return tp_episodes_ready(e, UINT64_MAX);
}

static void test_one_message_for_all_ranks(void **state)
{
    tp_episodes e = {0};
    (void)state;
    for (uint32_t rank = 8; rank-- > 0;) {
        assert_int_equal(
            add(&e, "run", rank, rank == 3 ? 99 : 100, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    }
    assert_int_equal(count(&e), 1);
    assert_int_equal(pending(&e, 0)->ranks, 8);
    assert_int_equal(pending(&e, 0)->rank, 3);
    assert_int_equal(pending(&e, 0)->step, 99);
    assert_int_equal(pending(&e, 0)->wall_ns, 1099);
    assert_string_equal(pending(&e, 0)->text, "step 99, rank 3: what has happened");
    /* Another kind, and another run, are others. */
    assert_int_equal(add(&e, "run", 0, 100, TP_KIND_OTHER, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(add(&e, "other", 0, 100, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(count(&e), 3);
    /* What comes when it has been told is news only when it grows where it began. */
    tp_episodes_sent(&e, 3);
    assert_int_equal(add(&e, "run", 9, 101, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(add(&e, "run", 4, 110, TP_KIND_BROKEN, TP_FINDING_GROWS), TP_OK);
    assert_int_equal(count(&e), 0);
    assert_int_equal(add(&e, "run", 3, 110, TP_KIND_BROKEN, TP_FINDING_GROWS), TP_OK);
    assert_int_equal(count(&e), 1);
    assert_string_equal(pending(&e, 0)->text, "step 110, rank 3: goes on: what has happened");
    tp_episodes_free(&e);
}

static void test_when_an_episode_ends(void **state)
{
    tp_episodes e = {0};
    tp_buf blob = TP_BUF_INIT;
    (void)state;
    assert_int_equal(add(&e, "run", 0, 100, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    tp_episodes_sent(&e, 1);
    for (uint64_t step = 101; step <= 200; step++) {
        assert_int_equal(add(&e, "run", 0, step, TP_KIND_BROKEN, TP_FINDING_GOES_ON), TP_OK);
    }
    assert_int_equal(add(&e, "run", 1, 220, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(count(&e), 0); /* within the pause that an incident may have */
    tp_episodes_store(&e, "run", &blob);
    tp_episodes_free(&e);
    /* Another process goes on with what the cursor has. */
    e = (tp_episodes){0};
    assert_int_equal(tp_episodes_load(&e, "run", &blob), TP_OK);
    assert_int_equal(tp_episodes_load(&e, "run", &blob), TP_OK);
    assert_int_equal(add(&e, "run", 2, 240, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(count(&e), 0);
    assert_int_equal(add(&e, "run", 2, 261, TP_KIND_BROKEN, TP_FINDING_GOES_ON), TP_OK);
    assert_int_equal(count(&e), 0); /* nobody has seen it begin */
    assert_int_equal(add(&e, "run", 2, 261, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(count(&e), 1);
    /* A training that goes on from a checkpoint is at an earlier step again. */
    assert_int_equal(add(&e, "run", 2, 50, TP_KIND_BROKEN, TP_FINDING_BEGINS), TP_OK);
    assert_int_equal(count(&e), 2);
    tp_buf_free(&blob);
    tp_episodes_free(&e);
}

static void test_every_request_for_memory_may_fail(void **state)
{
    (void)state;
    for (unsigned long n = 1;; n++) {
        tp_episodes e = {0};
        tp_mem_fail_after(n);
        tp_status status = add(&e, "run", 1, 10, TP_KIND_OTHER, TP_FINDING_BEGINS);
        if (status == TP_OK) {
            status = add(&e, "run", 0, 10, TP_KIND_OTHER, TP_FINDING_BEGINS);
        }
        tp_mem_fail_after(0);
        const bool done = status == TP_OK;
        assert_true(done || status == TP_ERR_NOMEM);
        if (!done) { /* what has failed can be said again */
            e.episodes.failed = false;
            assert_int_equal(add(&e, "run", 0, 10, TP_KIND_OTHER, TP_FINDING_BEGINS), TP_OK);
        }
        assert_true(count(&e) >= 1);
        tp_episodes_free(&e);
        if (done) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message_for_all_ranks),
        cmocka_unit_test(test_when_an_episode_ends),
        cmocka_unit_test(test_every_request_for_memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
