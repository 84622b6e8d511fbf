/* The configurations in the documents of both ancestors, as their users have them. */
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

static const char msprobe_1_1_1_05[] =
    "\"0:63.mlp.linear_fc2\": {\n"
    "    \"input\": {\n"
    "        \"config\": \"tuple[1]\",\n"
    "        \"0\": \"size=(4096, 4, 1024), dtype=torch.bfloat16\"\n"
    "    },\n"
    "    \"output\": {\n"
    "        \"config\": \"tuple[2]\",\n"
    "        \"0\": \"size=(2048, 4, 512), dtype=torch.bfloat16\",\n"
    "        \"1\": \"size=(512,), dtype=torch.bfloat16\"\n"
    "    },\n"
    "    \"input_grad\": {\n"
    "        \"config\": \"tuple[1]\",\n"
    "        \"0\": \"size=(4096, 4, 1024), dtype=torch.bfloat16\"\n"
    "    },\n"
    "    \"output_grad\": {\n"
    "        \"config\": \"tuple[2]\",\n"
    "        \"0\": \"size=(2048, 4, 512), dtype=torch.bfloat16\",\n"
    "        \"1\": \"size=(512,), dtype=torch.bfloat16\"\n"
    "    }\n"
    "},\n";

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

static const char msprobe_1_1_1_18[] =
    "\"alert\": {\n"
    "    \"rules\": [{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": 0.5}}],\n"
    "    \"dump\": true\n"
    "},\n";

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
    assert_true(c.rules[0].threshold == 0.5 && !c.rules[0].factor);
    assert_true(c.eps == 1e-8);
    tp_config_free(&c);
    assert_string_equal(
        read_warnings(kj600_03),
        "tensorprobe: warning: t.json:6: module_ranks: this version does not act on this field\n"
        "tensorprobe: warning: t.json:7: ur_distribution: this version does not act on this field\n"
        "tensorprobe: warning: t.json:11: cc_distribution: this version does not act on this "
        "field\n"
        "tensorprobe: warning: t.json:14: alert.inform: this version does not act on this field\n");
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

static void test_what_is_no_json(void **state)
{
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {msprobe_1_1_1_05, "t.json:1:1: '[' or '{' expected: the configuration is one object; "
                           "write { in front of everything and } behind it"},
        {msprobe_1_1_1_06,
         "t.json:1:1: '[' or '{' expected near '/': JSON has no comments; remove it"},
        {msprobe_1_1_1_08,
         "t.json:1:1: '[' or '{' expected near '/': JSON has no comments; remove it"},
        {msprobe_1_1_1_18, "t.json:1:1: '[' or '{' expected near '\"alert\"': the configuration is "
                           "one object; write { in front of everything and } behind it"},
        {msprobe_1_1_1_33,
         "t.json:3:142: '}' expected near '，': write , instead of the full-width ，"},
        {"{\"eps\": 1,\n  \"ndigits\": 3,\n}",
         "t.json:3:1: string or '}' expected near '}': remove "
         "the comma in front of it"},
        {"{\"ops\": [\"norm\",]}",
         "t.json:1:17: unexpected token near ']': remove the comma in front of it"},
        {"{\"eps\": 1 # small\n}",
         "t.json:1:11: '}' expected near '#': JSON has no comments; remove it"},
        {"{\"all_xy\": True}", "t.json:1:12: invalid token near 'True': write true"},
        {"{'eps': 1}", "t.json:1:2: string or '}' expected near ''': write \" instead of '"},
        {"{“eps”: 1}", "t.json:1:2: string or '}' expected near '“': write \" instead of “"},
        {"{\"eps\"：1}",
         "t.json:1:7: ':' expected near '：': write : instead of the full-width ："},
        {"{\"eps\": 1, \"eps\": 2}", "t.json:1:12: duplicate object key near '\"eps\"'"},
        {"{\"eps\": 1\n", "t.json:2:1: '}' expected near end of file"},
        {"", "t.json:1:1: '[' or '{' expected near end of file: the configuration is one object; "
             "write { in front of everything and } behind it"},
        {"{} {}", "t.json:1:4: end of file expected near '{'"},
        {"{\"eps\": 1e999}", "t.json:1:9: real number overflow near '1e999'"},
        {"{\"a_name_of_more_than_twenty_letters\" 1}", "t.json:1:39: ':' expected near '1'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(read_bad(cases[i].text), cases[i].message);
    }
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
        cmocka_unit_test(test_what_is_no_json),
        cmocka_unit_test(test_a_byte_order_mark_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
