/* `tensorprobe selftest`: hands over to `python -m tensorprobe.selftest`, which has torch. */
#include "tools/tool.h"

#include <stdio.h>
#include <string.h>

#include "tools/python.h"

static const char help[] =
    "usage: tensorprobe selftest\n"
    "\n"
    "Proves on this machine, with the PyTorch that is installed, that watching a training changes\n"
    "no bit of it, that the kernels of this CPU give the bits of scalar code, and that what is\n"
    "recorded is read back from the journal, the csv tables and the event files. Prints a table;\n"
    "ends with 0 when everything holds, else with 1.\n"
    "\n"
    "It is run by the Python that this command was installed beside, else by python3; the "
    "variable\n"
    "TENSORPROBE_PYTHON names another one.\n";

int tp_tool_selftest(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return TP_EXIT_OK;
    }
    if (argc > 1) {
        fprintf(stderr, "tensorprobe selftest: it takes no arguments\n");
        return tp_tool_usage(argv[0]);
    }
    return tp_tool_python(argv[0], "tensorprobe.selftest", 0, NULL);
}
