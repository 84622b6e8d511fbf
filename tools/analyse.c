/* `tensorprobe analyse`: hands over to `python -m tensorprobe.anomaly_analyse`. */
#include "tools/python.h"
#include "tools/tool.h"

int tp_tool_analyse(int argc, char **argv)
{
    return tp_tool_python(argv[0], "tensorprobe.anomaly_analyse", argc - 1, argv + 1);
}
