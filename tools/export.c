/* `tensorprobe export`: hands over to `python -m tensorprobe.export`, which has the other formats'
 * libraries; for a database server to `tensorprobe ship`. */
#include <stdio.h>
#include <string.h>

#include "config/url.h"
#include "tools/python.h"
#include "tools/tool.h"

/* What stands behind --to; NULL: nothing. */
static const char *find_target(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--to=", 5) == 0) {
            return argv[i] + 5;
        }
        if (strcmp(argv[i], "--to") == 0) {
            return argv[i + 1];
        }
    }
    return NULL;
}

int tp_tool_export(int argc, char **argv)
{
    static const char *const servers[] = {"postgres", "postgresql", "mysql", "mariadb"};
    const char *to = find_target(argc, argv);
    if (to != NULL && (strstr(to, "://") != NULL || tp_secret_is_elsewhere(to))) {
        return tp_tool_ship(argc, argv);
    }
    for (size_t i = 0; to != NULL && i < sizeof servers / sizeof servers[0]; i++) {
        if (strcmp(to, servers[i]) == 0) {
            fprintf(stderr,
                    "tensorprobe export: where is that server? --to "
                    "%s://USER:PASSWORD@HOST/DATABASE says so\n",
                    to);
            return TP_EXIT_USAGE;
        }
    }
    return tp_tool_python(argv[0], "tensorprobe.export", argc - 1, argv + 1);
}
