/* What each field means, and what happens to what is wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "config/fields.h"
#include "config_fixture.h"

static void test_trainer_mon_defaults(void **state)
{
    (void)state;
    tp_config c = read_good("{}", false);
    assert_int_equal(c.target_count, 1);
    assert_string_equal(c.targets[0].name, "");
    assert_false(c.targets[0].input.given || c.targets[0].output.given);
    assert_false(c.xy_distribution || c.all_xy || c.forward_only || c.backward_only);
    assert_false(c.wg_distribution || c.param_distribution || c.mv_distribution);
    assert_false(c.input_grad_tensor || c.strict);
    assert_int_equal(c.device_path, TP_DEVICE_PATH_NATIVE);
    assert_int_equal(c.op_count, 1);
    assert_int_equal(c.ops[0], TP_OP_NORM);
    assert_true(c.eps == 1e-8);
    assert_int_equal(c.formats, TP_FORMAT_TENSORBOARD);
    assert_int_equal(c.ndigits, 0);
    assert_int_equal(c.step_count_per_record, 1);
    assert_int_equal(c.rule_count, 0);
    assert_int_equal(c.segment_bytes, 33554432);
    assert_int_equal(c.budget_bytes, 268435456);
    assert_int_equal(c.wait_ms, 1000);
    assert_int_equal(c.module_rank_count, 0);
    assert_int_equal(c.start_step, 0);
    assert_int_equal(c.step_interval, 1);
    assert_int_equal(c.collect_times, 100000000);
    assert_false(c.squash_name || c.print_struct || c.mg_direction || c.ur_distribution);
    assert_false(c.monitor_mbs_grad || c.dynamic_on);
    assert_true(c.exit_after_struct);
    tp_config_free(&c);
}

static void check_ranks(const char *text, size_t count, const uint32_t *ranks)
{
    tp_config c = read_good(text, false);
    assert_int_equal(c.module_rank_count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(c.module_ranks[i], ranks[i]);
    }
    tp_config_free(&c);
}

static void test_ranks(void **state)
{
    static const uint32_t ranks[] = {0, 12, 3};
    (void)state;
    check_ranks("{\"module_ranks\": []}", 0, ranks);
    check_ranks("{\"module_ranks\": \"\"}", 0, ranks);
    check_ranks("{\"module_ranks\": [0, 12, 3]}", 3, ranks);
    check_ranks("{\"module_ranks\": \"0\"}", 1, ranks);
    check_ranks("{\"module_ranks\": \"0,12, 3 \"}", 3, ranks);
    check_ranks("{\"module_ranks\": [16777215]}", 1, &(uint32_t){16777215});
    assert_string_equal(read_bad("{\"module_ranks\": [0, -1]}"),
                        "t.json:1:22: module_ranks[1]: must be an integer from 0 to 16777215");
    static const char *const bad[] = {"\"a\"",   "\"0,\"",   "\",0\"",       "\"0 1\"", "0",
                                      "{}",      "\" \"",    "\"16777216\"", "\"-1\"",  "true",
                                      "\"0;1\"", "\"0,1,\"", "\"1,,2\"",     "\"0x1\""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"module_ranks\": %s}", bad[i]);
        assert_string_equal(read_bad(text),
                            "t.json:1:18: module_ranks: must be a list of ranks from 0 to "
                            "16777215, as in [0, 1] (all ranks: [])");
    }
}

static void test_steps_and_switches(void **state)
{
    (void)state;
    tp_config c = read_good(
        "{\"start_step\": 10, \"step_interval\": 5, \"collect_times\": 0, \"squash_name\": true, "
        "\"print_struct\": true, \"exit_after_struct\": false, \"mg_direction\": true, "
        "\"ur_distribution\": true, \"monitor_mbs_grad\": true, \"dynamic_on\": true}",
        false);
    assert_int_equal(c.start_step, 10);
    assert_int_equal(c.step_interval, 5);
    assert_int_equal(c.collect_times, 0);
    assert_true(c.squash_name && c.print_struct && c.mg_direction && c.ur_distribution);
    assert_true(c.monitor_mbs_grad && c.dynamic_on);
    assert_false(c.exit_after_struct);
    tp_config_free(&c);
    /* The ancestors' documents write the default as 1e8. */
    c = read_good("{\"collect_times\": 1e8, \"mg_distribution\": true, \"ndigits\": 6.0}", false);
    assert_int_equal(c.collect_times, 100000000);
    assert_int_equal(c.ndigits, 6);
    assert_true(c.mg_direction);
    tp_config_free(&c);
    assert_string_equal(read_bad("{\"step_interval\": 0}"),
                        "t.json:1:19: step_interval: must be "
                        "an integer from 1 to 1000000000000000");
}

#define DEFAULT_RULES                                                                              \
    "{\"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"}, {\"rule_name\": \"LossSpike\"}, "   \
    "{\"rule_name\": \"GradNormSpike\"}, {\"rule_name\": \"VarianceBounds\"}, "                    \
    "{\"rule_name\": \"WeightUpdateRatio\"}, {\"rule_name\": \"UnchangedTensor\"}, "               \
    "{\"rule_name\": \"DeadUnits\"}, {\"rule_name\": \"StalledStep\"}, "                           \
    "{\"rule_name\": \"ReplicaDrift\"}]}}"

static void test_watch_defaults(void **state)
{
    static const uint32_t ops[] = {TP_OP_NORM, TP_OP_MIN,   TP_OP_MAX,
                                   TP_OP_MEAN, TP_OP_ZEROS, TP_OP_NANS};
    (void)state;
    tp_config c;
    tp_config_defaults(&c, true); /* usable without any text */
    assert_int_equal(c.target_count, 1);
    assert_true(c.xy_distribution && c.all_xy);
    assert_true(c.wg_distribution && c.param_distribution && c.mv_distribution);
    assert_int_equal(c.op_count, 6);
    assert_memory_equal(c.ops, ops, sizeof ops);
    assert_int_equal(c.formats, TP_FORMAT_CSV | TP_FORMAT_TENSORBOARD);
    assert_int_equal(c.step_count_per_record, 1000);
    assert_int_equal(c.rule_count, 9);
    assert_int_equal(c.rules[0].rule, TP_RULE_ANOMALY_NAN);
    assert_true(isnan(c.rules[0].threshold));
    assert_int_equal(c.rules[1].rule, TP_RULE_LOSS_SPIKE);
    assert_true(c.rules[1].threshold == 6 && c.rules[1].window == 32);
    assert_int_equal(c.rules[1].min_samples, 16);
    tp_config given = read_good(DEFAULT_RULES, true); /* as documented */
    assert_int_equal(given.rule_count, c.rule_count);
    for (uint32_t i = 0; i < c.rule_count; i++) {
        assert_int_equal(given.rules[i].rule, c.rules[i].rule);
        assert_true(i == 0 || given.rules[i].threshold == c.rules[i].threshold ||
                    isnan(c.rules[i].threshold));
        assert_int_equal(given.rules[i].min_samples, c.rules[i].min_samples);
        assert_int_equal(given.rules[i].window, c.rules[i].window);
    }
    tp_config_free(&given);
    tp_config_free(&c);
    c = read_good("{\"alert\": {\"rules\": []}, \"format\": \"csv\"}", true);
    assert_int_equal(c.rule_count, 0);
    assert_int_equal(c.formats, TP_FORMAT_CSV);
    assert_true(c.all_xy && c.wg_distribution);
    tp_config_free(&c);
}

static void check_side(const tp_side_spec *side, bool tuple, uint32_t length, uint32_t index)
{
    assert_true(side->given);
    assert_int_equal(side->tuple, tuple);
    assert_int_equal(side->length, length);
    assert_int_equal(side->index, index);
}

static void test_targets(void **state)
{
    (void)state;
    tp_config c = read_good("{\"targets\": {\"a.b\": {\"input\": \"tuple[2]:1\", \"output\": "
                            "\"tensor\", \"output_grad\": \"tuple[3]\"}, \"c\": {}}}",
                            false);
    assert_int_equal(c.target_count, 2);
    assert_string_equal(c.targets[0].name, "a.b");
    check_side(&c.targets[0].input, true, 2, 1);
    check_side(&c.targets[0].output, false, 0, 0);
    check_side(&c.targets[0].output_grad, true, 3, 0);
    assert_false(c.targets[0].input_grad.given);
    assert_string_equal(c.targets[1].name, "c");
    assert_false(c.targets[1].input.given);
    tp_config_free(&c);
}

static void test_who_names_no_module_wants_every_module(void **state)
{
    static const struct {
        const char *text;
        bool watch;
        bool all;
    } cases[] = {
        {"{\"xy_distribution\": true}", false, true},
        {"{\"xy_distribution\": true, \"targets\": {}}", false, true},
        {"{\"xy_distribution\": true, \"all_xy\": false}", false, false},
        {"{\"xy_distribution\": true, \"targets\": {\"a\": {}}}", false, false},
        {"{\"xy_distribution\": true, \"targets\": {\"a\": {}}, \"all_xy\": true}", false, true},
        {"{\"targets\": {\"a\": {}}}", true, false},
        {"{\"targets\": {\"a\": {}}, \"all_xy\": true}", true, true},
        {"{}", true, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp_config c = read_good(cases[i].text, cases[i].watch);
        assert_int_equal(c.all_xy, cases[i].all);
        tp_config_free(&c);
    }
}

static void test_plain_fields(void **state)
{
    (void)state;
    tp_config c = read_good(
        "{\"wg_distribution\": true, \"param_distribution\": true, \"mv_distribution\": true,"
        "\"forward_only\": true, \"strict\": true, \"input_grad\": \"tensor\", \"eps\": 0,"
        "\"device_path\": \"torch\", \"ndigits\": 20, \"step_count_per_record\": 7, \"format\": "
        "[\"csv\", \"tensorboard\"],"
        "\"ops\": [\"max\", \"dtype\", \"max\", \"id\"],"
        "\"journal\": {\"segment_bytes\": 4096, \"budget_bytes\": 1, \"wait_ms\": 0}}",
        false);
    assert_true(c.wg_distribution && c.param_distribution && c.mv_distribution);
    assert_true(c.forward_only && c.strict && c.input_grad_tensor);
    assert_true(c.eps == 0);
    assert_int_equal(c.device_path, TP_DEVICE_PATH_TORCH);
    assert_int_equal(c.ndigits, 20);
    assert_int_equal(c.step_count_per_record, 7);
    assert_int_equal(c.formats, TP_FORMAT_CSV | TP_FORMAT_TENSORBOARD);
    assert_int_equal(c.op_count, 3);
    assert_int_equal(c.ops[0], TP_OP_MAX);
    assert_int_equal(c.ops[1], TP_OP_DTYPE);
    assert_int_equal(c.ops[2], TP_OP_ID);
    assert_int_equal(c.segment_bytes, 4096);
    assert_int_equal(c.budget_bytes, 1);
    assert_int_equal(c.wait_ms, 0);
    tp_config_free(&c);
    c = read_good("{\"ops\": [], \"format\": \"api\", \"input_grad\": \"module\"}", true);
    assert_int_equal(c.op_count, 1);
    assert_int_equal(c.ops[0], TP_OP_NORM);
    assert_int_equal(c.formats, TP_FORMAT_API);
    assert_false(c.input_grad_tensor);
    tp_config_free(&c);
}

static void test_amounts(void **state)
{
    static const struct {
        const char *text;
        double share, ns;
        uint64_t bytes;
    } amounts[] = {
        {"{\"budget\": \"1%\", \"zoom\": {\"bytes\": \"64MiB\"}}", 0.01, 0, 67108864},
        {"{\"budget\": \"0.25 %\", \"zoom\": {\"bytes\": 12}}", 0.0025, 0, 12},
        {"{\"budget\": \"5ms\", \"zoom\": {\"bytes\": \"1.5 KB\"}}", 0, 5e6, 1500},
        {"{\"budget\": \"200 us\", \"zoom\": {\"bytes\": \"7B\"}}", 0, 2e5, 7},
        {"{\"budget\": \"1.5s\", \"zoom\": {\"bytes\": \"2GiB\"}}", 0, 1.5e9, UINT64_C(2) << 30},
        {"{\"zoom\": {}}", 0, 0, 67108864},
    };
    (void)state;
    for (size_t i = 0; i < sizeof amounts / sizeof amounts[0]; i++) {
        tp_config c = read_good(amounts[i].text, true);
        assert_true(fabs(c.budget.share - amounts[i].share) < 1e-12);
        assert_true(fabs(c.budget.ns - amounts[i].ns) < 1e-3);
        assert_int_equal(c.zoom.bytes, amounts[i].bytes);
        assert_int_equal(c.zoom.steps, 0);
        tp_config_free(&c);
    }
}

static void test_rules(void **state)
{
    (void)state;
    tp_config c =
        read_good("{\"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"},"
                  "{\"rule_name\": \"AnomalyNan\", \"args\": {\"threshold\": 1e10}},"
                  "{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": 1}},"
                  "{\"args\": {\"threshold\": 5.5, \"mode\": \"factor\"}, \"rule_name\": "
                  "\"AnomalyTurbulence\"},"
                  "{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": 0, \"mode\": "
                  "\"relative\", \"min_samples\": 3}}]}}",
                  true);
    assert_int_equal(c.rule_count, 5);
    assert_true(isnan(c.rules[0].threshold));
    assert_true(c.rules[1].threshold == 1e10);
    assert_int_equal(c.rules[2].rule, TP_RULE_ANOMALY_TURBULENCE);
    assert_true(c.rules[2].threshold == 1 && c.rules[2].mode == TP_MODE_RELATIVE);
    assert_int_equal(c.rules[2].min_samples, 1);
    assert_true(c.rules[3].threshold == 5.5 && c.rules[3].mode == TP_MODE_FACTOR);
    assert_int_equal(c.rules[3].min_samples, 20);
    assert_true(c.rules[4].threshold == 0 && c.rules[4].mode == TP_MODE_RELATIVE);
    assert_int_equal(c.rules[4].min_samples, 3);
    tp_config_free(&c);
}

static void test_formats_of_sides(void **state)
{
    static const char *const bad[] = {
        "",
        "tensors",
        "tuple",
        "tuple[]",
        "tuple[0]",
        "tuple[2]:",
        "tuple[2]:2",
        "tuple[2]:a",
        "tuple[2]:-1",
        "tuple[2]:1 ",
        "tuple[-1]",
        "tuple[ 1]",
        "tuple[1",
        "tuple[1]x",
        "list[0]",
        "list",
        "list1]",
        "tuple[2]1",
        "Tensor",
        " tensor",
        "tuple[2]:0x1",
        "tuple[4294967296]",
        "tuple[1]:0:",
        "tuple[99999999999999999999999]",
        "tuple[2]:18446744073709551616",
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{\"targets\": {\"m\": {\"input\": \"%s\"}}}", bad[i]);
        assert_ptr_equal(strstr(read_bad(text), "t.json:1:29: targets.m.input: must be"),
                         read_bad(text));
    }
    tp_config c =
        read_good("{\"targets\": {\"m\": {\"input\": \"tuple[4294967295]:4294967294\"}}}", false);
    check_side(&c.targets[0].input, true, 4294967295u, 4294967294u);
    tp_config_free(&c);
    c = read_good("{\"targets\": {\"m\": {\"input\": \"list[3]\", \"output\": \"list[2]:1\"}}}",
                  false);
    check_side(&c.targets[0].input, true, 3, 0);
    check_side(&c.targets[0].output, true, 2, 1);
    tp_config_free(&c);
}

static void test_warnings(void **state)
{
    (void)state;
    assert_string_equal(
        read_warnings("{\"print_struct\": false, \"module_ranks\": [], \"ur_distribution\": false,"
                      "\"cc_distribution\": {}, \"mg_direction\": false, \"mg_distribution\": "
                      "false, \"start_step\": 0,"
                      "\"step_interval\": 1, \"collect_times\": 100000000, \"dynamic_on\": false,"
                      "\"append_output\": [], \"squash_name\": false, \"stack_info\": false,"
                      "\"monitor_mbs_grad\": false, \"l2_targets\": {},"
                      "\"recording_l2_features\": false, \"params_effrank\": [],"
                      "\"alert\": {\"rules\": [], \"dump\": false, \"inform\": {}},"
                      "\"wg_distribution\": true}"),
        "");
    assert_string_equal(read_warnings("{\"cc_distribution\": {\"enable\": false, \"cc_codeline\": "
                                      "[\"a\"]}, \"wg_distribution\": true}"),
                        "");
    assert_string_equal(
        read_warnings(
            "{\"ur_distribution\": true,\n\"monitor_mbs_grad\": true,\n"
            "\"append_output\": [\"Dec03_21-34-40\", \"Dec03_21-34-41\"],\n"
            "\"cc_distribution\": {\"enable\": true},\n\"l2_targets\": {\"x\": []},\n"
            "\"recording_l2_features\": true, \"sa_order\": \"b,s,h,d\",\n"
            "\"stack_info\": true, \"params_effrank\": [\"a\"],\n"
            "\"alert\": {\"dump\": true,\n\"inform\": {\"connection_str\": \"sqlite:///a\"}},\n"
            "\"format\": \"database\", \"wg_distribution\": true}"),
        "tensorprobe: warning: t.json:5:1: l2_targets: this version does not act on it: nothing "
        "but the statistics is recorded\n"
        "tensorprobe: warning: t.json:6:1: recording_l2_features: this version does not act on it: "
        "nothing but the statistics is recorded\n"
        "tensorprobe: warning: t.json:6:32: sa_order: this version does not act on it: nothing but "
        "the statistics is recorded\n"
        "tensorprobe: warning: t.json:7:1: stack_info: this version does not act on it: no call "
        "stack is recorded\n"
        "tensorprobe: warning: t.json:7:21: params_effrank: this version does not act on it: no "
        "rank is computed\n");
    assert_string_equal(
        read_warnings(
            "{\"xy_distribution\": true, \"forward_only\": true, \"backward_only\": true}"),
        "tensorprobe: warning: t.json: forward_only and backward_only exclude each other: no "
        "activations are recorded\n");
    tp_config c =
        read_good("{\"xy_distribution\": true, \"forward_only\": true, \"backward_only\": "
                  "true}",
                  false);
    assert_false(c.xy_distribution);
    tp_config_free(&c);
}

static void test_who_switches_nothing_on_is_told(void **state)
{
    static const char *const on[] = {"xy_distribution", "wg_distribution", "param_distribution",
                                     "mv_distribution"};
    char text[64];
    (void)state;
    for (size_t i = 0; i < sizeof on / sizeof on[0]; i++) {
        assert_non_null(strstr(read_warnings("{\"all_xy\": true}"), on[i]));
        snprintf(text, sizeof text, "{\"%s\": true}", on[i]);
        assert_string_equal(read_warnings(text), "");
    }
    assert_ptr_equal(strstr(read_warnings("{\"all_xy\": true}"),
                            "tensorprobe: warning: t.json: nothing is switched on, so that nothing "
                            "will be recorded; set one of these to true: "),
                     read_warnings("{\"all_xy\": true}"));
}

static void test_collectives_and_alerts(void **state)
{
    (void)state;
    tp_config c = read_good(
        "{\"cc_distribution\": {\"enable\": true, \"cc_codeline\": [\"train.py\\\\[23\\\\]\", "
        "\"b\"], "
        "\"cc_pre_hook\": true, \"cc_log_only\": true}, \"append_output\": [\"Dec03_21-34-40\", "
        "\"Jan31_00-00-59\"], \"alert\": {\"dump\": true, \"inform\": {\"recipient\": \"email\", "
        "\"send_email_address\": \"a@b\", \"receive_email_address\": \"c@d\", "
        "\"send_email_username\": \"u\", \"send_email_password\": \"p\", \"smtp_server\": \"s\", "
        "\"smtp_port\": \"25\"}}}",
        false);
    assert_true(c.cc_enable && c.cc_pre_hook && c.cc_log_only && c.alert_dump);
    assert_int_equal(c.cc_codeline.count, 2);
    assert_string_equal(c.cc_codeline.items[0], "train.py\\[23\\]");
    assert_string_equal(c.cc_codeline.items[1], "b");
    assert_string_equal(c.append_output[0], "Dec03_21-34-40");
    assert_string_equal(c.append_output[1], "Jan31_00-00-59");
    assert_int_equal(c.inform.recipient, TP_INFORM_EMAIL);
    assert_string_equal(c.inform.send_email_address, "a@b");
    assert_string_equal(c.inform.receive_email_address, "c@d");
    assert_string_equal(c.inform.send_email_username, "u");
    assert_string_equal(c.inform.send_email_password, "p");
    assert_string_equal(c.inform.smtp_server, "s");
    assert_int_equal(c.inform.smtp_port, 25);
    tp_config_free(&c);
    c = read_good("{\"alert\": {\"inform\": {\"connection_str\": \"sqlite:///a.db\"}}}", false);
    assert_int_equal(c.inform.recipient, TP_INFORM_DATABASE);
    assert_string_equal(c.inform.connection_str, "sqlite:///a.db");
    assert_int_equal(c.inform.smtp_port, 587);
    assert_false(c.cc_enable || c.alert_dump);
    assert_string_equal(c.append_output[0], "");
    tp_config_free(&c);
    c = read_good("{\"alert\": {\"inform\": {}}}", false);
    assert_int_equal(c.inform.recipient, TP_INFORM_NOBODY);
    tp_config_free(&c);
}

/* Both documents show addresses that nobody has. */
static void test_placeholders_inform_nobody(void **state)
{
    static const char *const texts[] = {
        "{\"wg_distribution\": true, \"alert\": {\"inform\": {\"recipient\": \"database\", "
        "\"connection_str\": \"mysql+pymysql://username:password@host:port/database\"}}}",
        "{\"wg_distribution\": true, \"alert\": {\"inform\": {\"recipient\":\"email\", "
        "\"send_email_address\": \"sender@huawei.com\", \"receive_email_address\": "
        "\"receiver@huawei.com\", \"send_email_username\": \"username\", "
        "\"send_email_password\": \"******\", \"smtp_server\": \"smtpscn.huawei.com\", "
        "\"smtp_port\": \"587\"}}}",
    };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        tp_config c = read_good(texts[i], false);
        assert_int_equal(c.inform.recipient, TP_INFORM_NOBODY);
        tp_config_free(&c);
        assert_string_equal(
            read_warnings(texts[i]),
            "tensorprobe: warning: t.json:1:37: alert.inform: is the documentation's placeholder: "
            "nobody is informed; write your own address, or remove it\n");
    }
}

/* The table says of each field what tp_config_defaults says. */
static void test_the_table_has_the_defaults(void **state)
{
    (void)state;
    for (int watch = 0; watch < 2; watch++) {
        for (size_t i = 0; i < tp_config_root_members.count; i++) {
            const tp_config_field *field = &tp_config_root_members.fields[i];
            const char *value = watch && field->for_watch ? field->for_watch : field->fallback;
            char text[512];
            tp_config plain;
            if (value == NULL) {
                continue;
            }
            snprintf(text, sizeof text, "{\"all_xy\": %s, \"%s\": %s}", watch ? "true" : "false",
                     field->name, value);
            tp_config read = read_good(text, watch != 0);
            tp_config_defaults(&plain, watch != 0);
            plain.integers = watch != 0; /* because all_xy is written */
            assert_memory_equal(&read, &plain, sizeof plain);
            tp_config_free(&read);
        }
    }
}

static void test_every_request_for_memory_may_fail(void **state)
{
    static const char text[] =
        "{\"targets\": {\"language_model.encoder.layers.0\": {\"input\": \"tuple[2]:0\"}, "
        "\"language_model.encoder.layers.1\": {}}, \"ops\": [\"norm\", \"min\"], "
        "\"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"}], \"inform\": "
        "{\"connection_str\": \"mysql://a:b@c/d?e=f\", \"smtp_server\": \"b\", \"command\": "
        "[\"a\"]}}, \"module_ranks\": [1], \"database\": {\"url\": \"http://a/b?c\", "
        "\"targets\": [\"a\", \"b*\"]}, "
        "\"cc_distribution\": {\"cc_codeline\": [\"a\", \"b\"]}} // none";
    unsigned long n = 0;
    tp_status status = TP_ERR_NOMEM;
    (void)state;
    while (status != TP_OK) {
        tp_config c;
        tp_error error = {0};
        tp_config_defaults(&c, false);
        tp_mem_fail_after(++n);
        status = tp_config_parse(&c, text, sizeof text - 1, "t.json", &error);
        tp_mem_fail_after(0);
        if (status != TP_OK) {
            assert_int_equal(status, TP_ERR_NOMEM);
            assert_int_equal(error.code, TP_ERR_NOMEM);
        } else {
            assert_int_equal(c.target_count, 2);
            tp_config_free(&c);
        }
    }
    assert_true(n > 11); /* the text, Jansson's memory, targets and names, texts and ranks */
}

/* What Jansson needs most memory for. */
static void test_costly_texts(void **state)
{
    static const char *const parts[] = {"{},", "[],", "[", "\"\",", "{\"\":", "1,"};
    static char text[30000];
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t length = strlen(parts[i]);
        size_t used = 0;
        memcpy(text, "{\"l2_targets\" :  [", 18);
        for (used = 18; used + length < sizeof text - 4; used += length) {
            memcpy(text + used, parts[i], length);
        }
        strcpy(text + used, "0]}");
        if (parts[i][length - 1] == ',') {
            tp_config c = read_good(text, false);
            tp_config_free(&c);
        } else {
            assert_non_null(strstr(read_bad(text), "maximum parsing depth"));
        }
    }
}

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/tp_config_XXXXXX";
    int fd = mkstemp(path);
    tp_config c;
    tp_error error;
    assert_true(fd >= 0);
    tp_config_defaults(&c, false);
    assert_int_equal(tp_config_read(&c, path, &error), TP_ERR_CONFIG); /* empty */
    assert_int_equal(error.line, 1);
    assert_string_equal(error.file, path);
    assert_int_equal(write(fd, "{\"eps\": 1}", 10), 10);
    close(fd);
    tp_config_defaults(&c, false);
    assert_int_equal(tp_config_read(&c, path, &error), TP_OK);
    assert_true(c.eps == 1);
    tp_config_free(&c);
    unlink(path);
    tp_config_defaults(&c, false);
    assert_int_equal(tp_config_read(&c, path, &error), TP_ERR_NOTFOUND);
    assert_non_null(strstr(error.message, path));
    tp_config_defaults(&c, false);
    assert_int_equal(tp_config_read(&c, "/tmp", NULL), TP_ERR_IO);
    tp_config_defaults(&c, false);
    assert_int_equal(tp_config_read(&c, "/dev/zero", &error), TP_ERR_CONFIG);
    assert_string_equal(error.message, "/dev/zero is too large for a configuration");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainer_mon_defaults),
        cmocka_unit_test(test_watch_defaults),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_who_names_no_module_wants_every_module),
        cmocka_unit_test(test_plain_fields),
        cmocka_unit_test(test_amounts),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_steps_and_switches),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_formats_of_sides),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_who_switches_nothing_on_is_told),
        cmocka_unit_test(test_collectives_and_alerts),
        cmocka_unit_test(test_placeholders_inform_nobody),
        cmocka_unit_test(test_the_table_has_the_defaults),
        cmocka_unit_test(test_every_request_for_memory_may_fail),
        cmocka_unit_test(test_costly_texts),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
