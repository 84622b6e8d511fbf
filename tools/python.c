/* Handing over to the Python package, for what needs it. */
#include "tools/python.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "tools/tool.h"

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

int tp_tool_python(const char *name, const char *module, int argc, char **argv)
{
    char beside[TP_PATH_MAX];
    const char *named = getenv("TENSORPROBE_PYTHON");
    const char *python = named != NULL && named[0] != '\0' ? named
                         : find_beside(beside)             ? beside
                                                           : "python3";
    const char **words = tp_calloc((size_t)argc + 4, sizeof *words);
    if (words == NULL) {
        fprintf(stderr, "tensorprobe %s: no memory\n", name);
        return TP_EXIT_FAILED;
    }
    words[0] = python;
    words[1] = "-m";
    words[2] = module;
    memcpy(words + 3, argv, (size_t)argc * sizeof *argv);
    execvp(python, (char **)(void *)words);
    fprintf(
        stderr,
        "tensorprobe %s: %s can't be started: %s; TENSORPROBE_PYTHON may name a Python that has "
        "tensorprobe\n",
        name, python, strerror(errno));
    tp_free(words);
    return TP_EXIT_FAILED;
}
