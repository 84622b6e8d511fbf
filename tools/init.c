/* `tensorprobe init`: a configuration to begin with. */
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: tensorprobe init PURPOSE > monitor.json\n"
    "\n"
    "Prints a configuration for TrainerMon or watch() that fits the purpose:\n"
    "\n"
    "  gradients  gradients of all parameters, cheap enough to stay on for months\n"
    "  nan        everything there is, to find where a NaN or an explosion begins\n"
    "  compare    everything there is with exact numbers and without alerts, for two runs that\n"
    "             should be the same. Of inputs it takes the whole gradient, which is the only\n"
    "             one that a compiled model has, so that it may be compared with an eager one.\n"
    "\n"
    "It does the same under both, for it names each switch whose default differs between them.\n"
    "`tensorprobe check monitor.json` says what it will do.\n"
    "\n"
    "  --help     this text\n";

#define NAMES "gradients, nan or compare"

#define RULES                                                                                      \
    "    \"alert\": {\n"                                                                           \
    "        \"rules\": [\n"                                                                       \
    "            {\"rule_name\": \"AnomalyNan\"},\n"                                               \
    "            {\"rule_name\": \"LossSpike\"},\n"                                                \
    "            {\"rule_name\": \"GradNormSpike\"},\n"                                            \
    "            {\"rule_name\": \"VarianceBounds\"},\n"                                           \
    "            {\"rule_name\": \"WeightUpdateRatio\"},\n"                                        \
    "            {\"rule_name\": \"UnchangedTensor\"},\n"                                          \
    "            {\"rule_name\": \"DeadUnits\"},\n"                                                \
    "            {\"rule_name\": \"StalledStep\"},\n"                                              \
    "            {\"rule_name\": \"ReplicaDrift\"}\n"                                              \
    "        ]\n"                                                                                  \
    "    },\n"

#define EVERYTHING                                                                                 \
    "    \"targets\": {},\n"                                                                       \
    "    \"xy_distribution\": true,\n"                                                             \
    "    \"wg_distribution\": true,\n"                                                             \
    "    \"param_distribution\": true,\n"                                                          \
    "    \"mv_distribution\": true,\n"

/* Every field whose default differs between TrainerMon and watch() stands in each of these. */
static const struct purpose {
    const char *name;
    const char *text;
} purposes[] = {
    {"gradients",
     "{\n"
     "    \"targets\": {},\n"
     "    \"xy_distribution\": false,\n"
     "    \"wg_distribution\": true,\n"
     "    \"param_distribution\": false,\n"
     "    \"mv_distribution\": false,\n"
     "    \"ops\": [\"norm\", \"min\", \"max\", \"nans\"],\n" RULES "    \"format\": \"csv\",\n"
     "    \"step_count_per_record\": 1000\n"
     "}\n"},
    {"nan",
     "{\n" EVERYTHING "    \"ops\": [\"norm\", \"min\", \"max\", \"mean\", \"nans\"],\n" RULES
     "    \"format\": [\"csv\", \"tensorboard\"],\n"
     "    \"step_count_per_record\": 100\n"
     "}\n"},
    {"compare", "{\n" EVERYTHING "    \"ops\": [\"norm\", \"min\", \"max\", \"mean\", \"zeros\", "
                "\"nans\", \"shape\", \"dtype\"],\n"
                "    \"input_grad\": \"tensor\",\n"
                "    \"alert\": {\"rules\": []},\n"
                "    \"format\": \"csv\",\n"
                "    \"ndigits\": 0,\n"
                "    \"step_count_per_record\": 100\n"
                "}\n"},
};

int tp_tool_init(int argc, char **argv)
{
    static const struct option options[] = {TP_TOOL_HELP, {NULL, 0, NULL, 0}};
    int result = TP_EXIT_OK;
    if (tp_tool_option(argc, argv, options, help, &result) != 0) {
        return result;
    }
    if (optind == argc) {
        fputs("tensorprobe init: for which purpose? " NAMES "\n", stderr);
        return tp_tool_usage(argv[0]);
    }
    if (optind != argc - 1) {
        return tp_tool_usage(argv[0]);
    }
    for (size_t i = 0; i < sizeof purposes / sizeof purposes[0]; i++) {
        if (strcmp(argv[optind], purposes[i].name) == 0) {
            fputs(purposes[i].text, stdout);
            return TP_EXIT_OK;
        }
    }
    fprintf(stderr, "tensorprobe init: there is no purpose %s; write " NAMES "\n", argv[optind]);
    return tp_tool_usage(argv[0]);
}
