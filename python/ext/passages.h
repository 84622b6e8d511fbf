/* What the walks of inner modules leave for those of the modules around them: the edges at which
 * their part of the graph ends, so that nobody goes through it again, and the inputs that they
 * handed on, whose later uses only a walk around them can find. */
#ifndef TP_EXT_PASSAGES_H
#define TP_EXT_PASSAGES_H

#include "core.h"

struct module_hook;

/* A node, and one of its next edges. */
typedef struct graph_edge {
    PyObject *node; /* owned */
    uint32_t position;
    PyObject *to; /* owned */
    uint32_t output_nr;
} graph_edge;

typedef struct edge_list {
    graph_edge *edges;
    uint32_t count, capacity;
} edge_list;

/* False: an error is set. */
bool edge_list_add(edge_list *list, PyObject *node, uint32_t position, PyObject *to,
                   uint32_t output_nr);
void edge_list_free(edge_list *list);

/* The row of an input's gradient. */
typedef struct input_row {
    struct module_hook *hook; /* owned where it is kept */
    int32_t slot;
    uint32_t micro_step;
    uint32_t call;
} input_row;

/* An input that its module returned as it was. */
typedef struct handed_on {
    input_row row;
    PyObject *node; /* owned: the edge of the input */
    uint32_t output_nr;
    int64_t entry; /* the sequence numbers at the module's begin and end */
    int64_t exit;
    bool any;       /* however often it is used from now on, it was handed on here */
    edge_list uses; /* what is known to be behind the module, or inside */
} handed_on;

void handed_on_clear(handed_on *input);

/* The part of the graph that one module made: edges first to first + count - 1 leave it. */
typedef struct passage {
    uint32_t first, count;
    bool taken;
} passage;

/* All that a running forward has been left. */
typedef struct passages passages;

struct passages {
    PyObject *by_start; /* dict: the node of an output → the number of its passage */
    passage *items;
    uint32_t count, capacity;
    edge_list edges;
    handed_on *handed;
    uint32_t handed_count, handed_capacity;
};

/* Both take over what they are given, also when they fail: an error is set. starts: a list of
 * nodes. edges: of a node they follow one another. *left is made when it is NULL. */
bool passages_add(passages **left, PyObject *starts, edge_list *edges);
bool passages_hand_on(passages **left, handed_on *input);

/* Moves all of from to *left, which is made when it is NULL. from is NULL or taken over. */
bool passages_move(passages **left, passages *from);

/* The passage that starts at this node, or NULL. */
passage *passages_find(const passages *left, PyObject *node);

void passages_free(passages *left);

#endif
