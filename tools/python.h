#ifndef TP_TOOLS_PYTHON_H
#define TP_TOOLS_PYTHON_H

/* Becomes `python -m module argv…`: that of the variable TENSORPROBE_PYTHON, or beside this
 * command, or python3. Returns an exit code, after a message, only when it can't be started. name
 * is the subcommand's. */
int tp_tool_python(const char *name, const char *module, int argc, char **argv);

#endif
