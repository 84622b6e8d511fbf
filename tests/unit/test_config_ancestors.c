/* The configurations in the documents of both ancestors, as their users have them. */
#include <stdio.h>

#include "config_fixture.h"

static const char kj600_03[] =
    "{\n"
    "    \"targets\": {\n"
    "        \"language_model.encoder.layers.0\": {\"input\": \"tuple[2]:0\", \"output\": "
    "\"tensor\", \"input_grad\":\"tuple[2]:0\", \"output_grad\":\"tuple[1]:0\"}\n"
    "    },\n"
    "    \"print_struct\": false,\n"
    "    \"module_ranks\": [1,2,3,4],\n"
    "    \"ur_distribution\": true,\n"
    "    \"xy_distribution\": true,\n"
    "    \"mv_distribution\": true,\n"
    "    \"wg_distribution\": true,\n"
    "    \"cc_distribution\": {\"enable\":true, \"cc_codeline\":[]},\n"
    "    \"alert\": {\n"
    "        \"rules\": [{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": 0.5}}],\n"
    "        \"inform\": {\"recipient\": \"database\", \"connection_str\": "
    "\"mysql+pymysql://username:password@host:port/database\"}\n"
    "    },\n"
    "    \"ops\": [\"min\", \"max\", \"norm\", \"zeros\", \"id\"],\n"
    "    \"eps\": 1e-8\n"
    "}\n";

static const char kj600_04[] = "{\n"
                               "    \"targets\": {\n"
                               "        \"language_model.embedding.word_embeddings\": {\"output\": "
                               "\"tensor\",\"output_grad\":\"tuple[1]:0\"}\n"
                               "    }\n"
                               "}\n";

static const char msprobe_1_1_1_04[] = "{\n"
                                       "    \"print_struct\": true\n"
                                       "}\n";

static const char msprobe_1_1_1_06[] =
    "// 示例：对一个名为\"module.encoder.layers.0.mlp\"的module，监控其前向输入第0元素和输出。\n"
    "{\n"
    "    \"targets\": {\n"
    "        \"module.encoder.layers.0.mlp\": {\n"
    "            \"input\": \"tuple[2]:0\",\n"
    "            \"output\": \"tensor\"\n"
    "        }\n"
    "    }\n"
    "}\n";

static const char msprobe_1_1_1_07[] = "{\n"
                                       "    \"targets\": {},\n"
                                       "    \"all_xy\": true\n"
                                       "}\n";

static const char msprobe_1_1_1_08[] =
    "// "
    "示例：监控\"module.encoder.layers.0.mlp\"的所有参数和\"module.embedding.word_embedding."
    "weight\"这一参数\n"
    "{\n"
    "    \"targets\": {\n"
    "        \"module.encoder.layers.0.mlp\": {},\n"
    "        \"module.embedding.word_embedding.weight\": {}\n"
    "    }\n"
    "}\n";

static const char msprobe_1_1_1_09[] = "{\n"
                                       "    \"targets\": {\"\":{}}\n"
                                       "}\n";

static const char msprobe_1_1_1_10[] =
    "{\n"
    "    \"format\": \"csv\",\n"
    "    \"ops\": [\"norm\", \"min\", \"max\", \"mean\", \"nans\", \"zeros\"],\n"
    "    \"ndigits\": 12\n"
    "}\n";

static const char msprobe_1_1_1_14[] = "{\n"
                                       "    \"targets\": {\n"
                                       "        \"\": {}\n"
                                       "    },\n"
                                       "    \"param_distribution\": true,\n"
                                       "    \"format\": \"csv\",\n"
                                       "    \"ops\": [\"norm\", \"min\", \"max\", \"nans\"]\n"
                                       "}\n";

static const char msprobe_1_1_1_16[] = "{\n"
                                       "    \"targets\": {\n"
                                       "        \"\": {}\n"
                                       "    },\n"
                                       "    \"wg_distribution\": true,\n"
                                       "    \"format\": \"csv\",\n"
                                       "    \"ops\": [\"norm\", \"min\", \"max\", \"nans\"]\n"
                                       "}\n";

static const char msprobe_1_1_1_21[] =
    "{\n"
    "    \"targets\": {\n"
    "        \"module.module.language_model.encoder.layers.0\": {\n"
    "            \"input\": \"tuple[2]\",\n"
    "            \"output\": \"tensor\"\n"
    "        }\n"
    "    },\n"
    "    \"print_struct\": false,\n"
    "    \"xy_distribution\": true,\n"
    "    \"forward_only\": true,\n"
    "    \"backward_only\": false,\n"
    "    \"all_xy\": true,\n"
    "    \"format\": \"csv\",\n"
    "    \"ops\": [\"norm\", \"min\", \"max\", \"nans\"]\n"
    "}\n";

static const char msprobe_1_1_1_25[] = "{\n"
                                       "    \"targets\": {\n"
                                       "        \"module.encoder.layers.0\": {},\n"
                                       "        \"module.embedding.word_embedding.weight\": {}\n"
                                       "    },\n"
                                       "    \"mv_distribution\": true,\n"
                                       "    \"format\": \"csv\",\n"
                                       "    \"ops\": [\"norm\", \"min\", \"max\", \"nans\"]\n"
                                       "}\n";

static const char msprobe_1_1_1_32[] =
    "{\n"
    "    \"targets\": {\n"
    "        \"language_model.encoder.layers.0\": {\"input\": \"tuple[2]:0\", \"output\": "
    "\"tensor\", \"input_grad\":\"tuple[2]:0\", \"output_grad\":\"tuple[1]:0\"}\n"
    "    },\n"
    "    \"print_struct\": false,\n"
    "    \"module_ranks\": [0,1,2,3],\n"
    "    \"ur_distribution\": true,\n"
    "    \"xy_distribution\": true,\n"
    "    \"all_xy\": true,\n"
    "    \"forward_only\": false,\n"
    "    \"backward_only\": false,\n"
    "    \"mv_distribution\": true,\n"
    "    \"param_distribution\": true,\n"
    "    \"wg_distribution\": true,\n"
    "    \"cc_distribution\": {\"enable\":true, \"cc_codeline\":[]},\n"
    "    \"alert\": {\n"
    "        \"rules\": [{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": 0.5}}],\n"
    "        \"dump\": false\n"
    "    },\n"
    "    \"format\": \"tensorboard\",\n"
    "    \"ops\": [\"min\", \"max\", \"norm\", \"zeros\", \"nans\", \"mean\"],\n"
    "    \"eps\": 1e-8,\n"
    "    \"ndigits\": 12,\n"
    "    \"step_count_per_record\": 1\n"
    "}\n";

static const char msprobe_1_1_1_33[] =
    "{\n"
    "    \"targets\": {\n"
    "        \"language_model.encoder.layers.0\": {\"input\": \"tuple[2]:0\", \"output\": "
    "\"tensor\", \"input_grad\":\"tuple[2]:0\", \"output_grad\":\"tuple[1]:0\"}，\n"
    "        \"language_model.encoder.layers.1\": {\"input\": \"tuple[2]:0\", \"output\": "
    "\"tensor\", \"input_grad\":\"tuple[2]:0\", \"output_grad\":\"tuple[1]:0\"}，\n"
    "        \"language_model.encoder.layers.9\": {\"input\": \"tuple[2]:0\", \"output\": "
    "\"tensor\", \"input_grad\":\"tuple[2]:0\", \"output_grad\":\"tuple[1]:0\"}\n"
    "    },\n"
    "    \"module_ranks\": \"0\"\n"
    "}\n";

static void check_layer_0(const tp_config *config)
{
    assert_string_equal(config->targets[0].name, "language_model.encoder.layers.0");
    assert_true(config->targets[0].input.tuple);
    assert_int_equal(config->targets[0].input.length, 2);
    assert_true(config->targets[0].output.given && !config->targets[0].output.tuple);
    assert_int_equal(config->targets[0].output_grad.length, 1);
}

static void test_first_document(void **state)
{
    static const uint32_t ops[] = {TP_OP_MIN, TP_OP_MAX, TP_OP_NORM, TP_OP_ZEROS, TP_OP_ID};
    (void)state;
    tp_config c = read_good(kj600_03, false);
    assert_int_equal(c.target_count, 1);
    check_layer_0(&c);
    assert_true(c.xy_distribution && c.mv_distribution && c.wg_distribution);
    assert_false(c.param_distribution || c.all_xy);
    assert_int_equal(c.op_count, 5);
    assert_memory_equal(c.ops, ops, sizeof ops);
    assert_int_equal(c.rule_count, 1);
    assert_int_equal(c.rules[0].rule, TP_RULE_ANOMALY_TURBULENCE);
    assert_true(c.rules[0].threshold == 0.5 && c.rules[0].mode == TP_MODE_RELATIVE);
    assert_true(c.eps == 1e-8);
    tp_config_free(&c);
    assert_string_equal(
        read_warnings(kj600_03),
        "tensorprobe: warning: t.json:14:9: alert.inform: is the documentation's placeholder: "
        "nobody is informed; write your own address, or remove it\n");
    c = read_good(kj600_04, false);
    assert_string_equal(c.targets[0].name, "language_model.embedding.word_embeddings");
    assert_false(c.xy_distribution || c.targets[0].input.given);
    tp_config_free(&c);
}

static void test_second_document(void **state)
{
    static const struct {
        const char *text;
        uint32_t targets;
        const char *first_target;
        uint32_t ops;
        uint32_t formats;
    } cases[] = {
        {msprobe_1_1_1_04, 1, "", 1, TP_FORMAT_TENSORBOARD},
        {msprobe_1_1_1_07, 1, "", 1, TP_FORMAT_TENSORBOARD},
        {msprobe_1_1_1_09, 1, "", 1, TP_FORMAT_TENSORBOARD},
        {msprobe_1_1_1_10, 1, "", 6, TP_FORMAT_CSV},
        {msprobe_1_1_1_14, 1, "", 4, TP_FORMAT_CSV},
        {msprobe_1_1_1_16, 1, "", 4, TP_FORMAT_CSV},
        {msprobe_1_1_1_21, 1, "module.module.language_model.encoder.layers.0", 4, TP_FORMAT_CSV},
        {msprobe_1_1_1_25, 2, "module.encoder.layers.0", 4, TP_FORMAT_CSV},
        {msprobe_1_1_1_32, 1, "language_model.encoder.layers.0", 6, TP_FORMAT_TENSORBOARD},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp_config c = read_good(cases[i].text, false);
        assert_int_equal(c.target_count, cases[i].targets);
        assert_string_equal(c.targets[0].name, cases[i].first_target);
        assert_int_equal(c.op_count, cases[i].ops);
        assert_int_equal(c.formats, cases[i].formats);
        tp_config_free(&c);
    }
    tp_config c = read_good(msprobe_1_1_1_32, false);
    check_layer_0(&c);
    assert_true(c.xy_distribution && c.all_xy && c.mv_distribution && c.param_distribution);
    assert_int_equal(c.ndigits, 12);
    assert_int_equal(c.rule_count, 1);
    tp_config_free(&c);
}

/* Slips that mean one thing only are read as meant. */
static void test_documents_with_slips(void **state)
{
    (void)state;
    assert_string_equal(
        read_warnings(msprobe_1_1_1_33),
        "tensorprobe: warning: t.json: nothing is switched on, so that nothing will be recorded; "
        "set one of these to true: xy_distribution, wg_distribution, param_distribution, "
        "mv_distribution, mg_direction, ur_distribution, print_struct\n"
        "tensorprobe: warning: t.json:3:142: read the full-width ， as , (and 1 more slip)\n");
    tp_config c = read_good(msprobe_1_1_1_33, false);
    assert_int_equal(c.target_count, 3);
    check_layer_0(&c);
    assert_string_equal(c.targets[2].name, "language_model.encoder.layers.9");
    assert_int_equal(c.module_rank_count, 1);
    assert_int_equal(c.module_ranks[0], 0);
    tp_config_free(&c);
    assert_non_null(
        strstr(read_warnings(msprobe_1_1_1_06),
               "tensorprobe: warning: t.json:1:1: skipped a comment, which JSON has not\n"));
    c = read_good(msprobe_1_1_1_06, false);
    assert_int_equal(c.target_count, 1);
    assert_string_equal(c.targets[0].name, "module.encoder.layers.0.mlp");
    tp_config_free(&c);
    c = read_good(msprobe_1_1_1_08, false);
    assert_int_equal(c.target_count, 2);
    assert_string_equal(c.targets[1].name, "module.embedding.word_embedding.weight");
    tp_config_free(&c);
}

static void test_slips(void **state)
{
    static const struct {
        const char *text; /* gives eps 0.5 and targets "a" */
        const char *slip; /* NULL: none */
    } cases[] = {
        {"{\"eps\": 0.5, \"targets\": {\"a\": {}}}", NULL},
        {"{\"eps\": 0.5 # small\n, \"targets\": {\"a\": {}}}",
         "1:13: skipped a comment, which JSON has not"},
        {"{\"eps\": 0.5, // \"eps\": 1\n\"targets\": {\"a\": {}}}",
         "1:14: skipped a comment, which JSON has not"},
        {"{\"eps\": 0.5, /* \"eps\": 1\n */ \"targets\": {\"a\": {}}} // end",
         "1:14: skipped a comment, which JSON has not (and 1 more slip)"},
        {"/**/{\"eps\": 0.5, \"targets\": {\"a\": {}}}/*/ */",
         "1:1: skipped a comment, which JSON has not (and 1 more slip)"},
        {"{\"eps\": 0.5, \"targets\": {\"a\": {}},}",
         "1:34: skipped a comma in front of } or ], which JSON has not"},
        {"{\"eps\": 0.5, \"targets\": {\"a\": {},} , # one\n}",
         "1:33: skipped a comma in front of } or ], which JSON has not (and 2 more slips)"},
        {"{\"ops\": [\"norm\", ], \"eps\": 0.5, \"targets\": {\"a\": {}}}",
         "1:16: skipped a comma in front of } or ], which JSON has not"},
        {"{\"eps\"：0.5，\"targets\": {\"a\": {}}}",
         "1:7: read the full-width ： as : (and 1 more slip)"},
        {"{“eps”: 0.5, \"targets\": {\"a\": {}}}", "1:2: read the quotes “ and ” as \""},
        {"{”eps“: 0.5, “targets\": {“a”: {}}}",
         "1:2: read the quotes “ and ” as \" (and 2 more slips)"},
        {"｛\"eps\": 0.5, \"targets\": {\"a\": {}}, \"ops\": ［］｝",
         "1:1: read the full-width ｛ as { (and 3 more slips)"},
        {"{\"eps\": 0.5,\xe3\x80\x80\"targets\":\xc2\xa0{\"a\": {}}}",
         "1:13: read a full-width space as a space (and 1 more slip)"},
        {"{\"eps\": 0.5, \"targets\": {\"a\": {}}，}",
         "1:34: read the full-width ， as , (and 1 more slip)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp_config c = read_good(cases[i].text, false);
        assert_true(c.eps == 0.5);
        assert_int_equal(c.target_count, 1);
        assert_string_equal(c.targets[0].name, "a");
        tp_config_free(&c);
        const char *nothing = "tensorprobe: warning: t.json: nothing is switched on, so that "
                              "nothing will be recorded; set one of these to true: "
                              "xy_distribution, wg_distribution, param_distribution, "
                              "mv_distribution, mg_direction, ur_distribution, print_struct\n";
        char expected[512];
        snprintf(expected, sizeof expected, "%s%s%s%s", nothing,
                 cases[i].slip != NULL ? "tensorprobe: warning: t.json:" : "",
                 cases[i].slip != NULL ? cases[i].slip : "", cases[i].slip != NULL ? "\n" : "");
        assert_string_equal(read_warnings(cases[i].text), expected);
    }
}

static void test_strings_are_left_alone(void **state)
{
    (void)state;
    static const char text[] =
        "{\"targets\": {\"a//b#c/*d*/，：“”,}\\\"# e\": {}, “f\\\"#g”: {}}, \"eps\": 2}";
    tp_config c = read_good(text, false);
    assert_int_equal(c.target_count, 2);
    assert_string_equal(c.targets[0].name, "a//b#c/*d*/，：“”,}\"# e");
    assert_string_equal(c.targets[1].name, "f\"#g");
    assert_true(c.eps == 2);
    tp_config_free(&c);
}

static void test_a_byte_order_mark_is_no_error(void **state)
{
    (void)state;
    tp_config c = read_good("\xef\xbb\xbf{\"eps\": 0.5}", false);
    assert_true(c.eps == 0.5);
    tp_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_document),
        cmocka_unit_test(test_second_document),
        cmocka_unit_test(test_documents_with_slips),
        cmocka_unit_test(test_slips),
        cmocka_unit_test(test_strings_are_left_alone),
        cmocka_unit_test(test_a_byte_order_mark_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
