/* What attention reads in a step, and attention by the threads that call it together. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "vectors.h"

/* What the layers of a step share. */
struct step {
    const int64_t *tiles;    /* [tile_count, 3]: row, first position in the batch, positions */
    const int64_t *position; /* [positions]; place in its sequence */
    const int64_t *cell;     /* [positions]; block * block_size + offset, where it is written */
    const int64_t *table;    /* [rows, table_width]; block of each run of block_size positions */
    float *content;          /* [blocks, layers, block_size, 2 * kv_heads, head_dim] */
    int64_t positions, tile_count, table_width, layers, block_size, kv_heads, head_dim;
};

/* How scores are made: of which positions, times what, and below which soft cap; 0: none. */
struct scores {
    int64_t window;
    float scale, cap;
};

/* `out` is [positions, heads, head_dim]. */
void attend_together(
    const struct step *step, int64_t layer, struct scores scores, const float *query,
    int64_t query_stride, int64_t heads, float *out);

#endif
