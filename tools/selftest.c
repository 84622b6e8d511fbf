/* `tensorprobe selftest`: hands over to `python -m tensorprobe.selftest`, which has torch. */
#include "tools/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

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

/* The interpreter in the folder of this command. False: there is none. */
static bool find_beside(char path[TP_PATH_MAX])
{
    static const char name[] = "python3";
    ssize_t length = readlink("/proc/self/exe", path, TP_PATH_MAX - sizeof name);
    if (length <= 0) {
        return false;
    }
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return false;
    }
    strcpy(slash + 1, name);
    return access(path, X_OK) == 0;
}

int tp_tool_selftest(int argc, char **argv)
{
    char beside[TP_PATH_MAX];
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return TP_EXIT_OK;
    }
    if (argc > 1) {
        fprintf(stderr, "tensorprobe selftest: it takes no arguments\n");
        return tp_tool_usage(argv[0]);
    }
    const char *named = getenv("TENSORPROBE_PYTHON");
    const char *python = named != NULL && named[0] != '\0' ? named
                         : find_beside(beside)             ? beside
                                                           : "python3";
    execlp(python, python, "-m", "tensorprobe.selftest", (char *)NULL);
    fprintf(stderr,
            "tensorprobe selftest: %s can't be started: %s; TENSORPROBE_PYTHON may name a Python "
            "that has tensorprobe and torch\n",
            python, strerror(errno));
    return TP_EXIT_FAILED;
}
