/* `tensorprobe export`: hands over to `python -m tensorprobe.export`, which has the other formats'
 * libraries. */
#include "tools/python.h"
#include "tools/tool.h"

int tp_tool_export(int argc, char **argv)
{
    return tp_tool_python(argv[0], "tensorprobe.export", argc - 1, argv + 1);
}
