/* Adding up the blocks of a tensor in a fixed tree. */
#ifndef TP_STATS_MERGE_H
#define TP_STATS_MERGE_H

#include <stdint.h>

/* Sums over some finite elements: sum and sum_abs divided by 2^exp, the other two by 4^exp. */
typedef struct tp_part {
    uint64_t n;
    double sum;
    double sum_abs;
    double sum_sq;
    double m2;
    int64_t exp;
} tp_part;

tp_part tp_part_merge(tp_part a, tp_part b);

/* Levels of the tree: a tensor has less than 2^63 elements, 2^51 blocks. */
#define TP_TREE_LEVELS 52

/* A binary counter: level k holds the sum of 2^k blocks where bit k of blocks is set. */
typedef struct tp_tree {
    uint64_t blocks;
    tp_part level[TP_TREE_LEVELS];
} tp_tree;

/* Appends to the tree (start with blocks = 0) the sum of 2^level blocks, made by another tree; 0 is
 * a block. tree->blocks must be a multiple of 2^level. */
void tp_tree_add(tp_tree *tree, const tp_part *part, int level);

/* Appends what another tree holds, which is less than every level that this one has. */
void tp_tree_append(tp_tree *tree, const tp_tree *last);

/* Sum of all blocks; all 0 when there is none. */
tp_part tp_tree_total(const tp_tree *tree);

#endif
