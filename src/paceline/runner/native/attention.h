/* What attention reads in a step. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "vectors.h"

/* What the layers of a step share. */
struct step {
    const int64_t *tiles;    /* [tile_count, 3]: row, first position in the batch, positions */
    const int64_t *position; /* [positions]; index in its sequence */
    const int64_t *end;      /* [positions]; behind the last position of the sequence that it reads */
    const int64_t *cell;     /* [groups, positions]; block * block_size + offset, where it is written */
    const int64_t *table;    /* [groups, rows, table_width]; block of each run of block_size positions */
    const int64_t *group;       /* [layers]; whose table a layer reads */
    const int64_t *layer_index; /* [layers]; of a layer in its block */
    float *content;             /* [blocks, layers_per_block, block_size, vectors, head_dim]; the
                                 * first kv_heads of a cell are keys, and the last are values */
    int64_t positions, tile_count, rows, table_width, layers_per_block, block_size;
    int64_t vectors, kv_heads, head_dim;
};

/* Attention of a layer, by all threads. A window or a cap of 0 means none. `sinks` has an extra
 * softmax score of each head that has no value, or is NULL. `out` is [positions, heads, head_dim]. */
void attend(
    const struct step *step, int64_t layer, int64_t window, float scale, float cap,
    const float *sinks, const float *query, int64_t query_stride, int64_t heads, float *out, int threads);

#endif
