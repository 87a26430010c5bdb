/* Causal attention that reads keys and values where they lie, block by block.
 *
 * A query goes through its context in chunks that begin at fixed positions, and keeps a largest
 * score, a total of weights and a sum of values as it goes. Queries that share keys go together,
 * each with its own three. So the result of a query is the same bits alone, beside others, and in
 * a step that computes any number of positions.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FLOATS = 16, VECTORS = 4, CHUNK = FLOATS * VECTORS, TILE = 4, WIDE = 4 * FLOATS };
#define VECTOR_OF(type, count) type __attribute__((vector_size(4 * (count)), aligned(4)))
typedef VECTOR_OF(float, FLOATS) floats;
typedef VECTOR_OF(int32_t, FLOATS) ints;
typedef VECTOR_OF(float, 8) eight;
typedef VECTOR_OF(float, 4) four;

/* What the layers of a step share. */
struct step {
    const int64_t *tiles;     /* [tile_count, 3]: row, first position in the batch, positions */
    const int64_t *position;  /* [positions]; place in its sequence */
    const int64_t *table;     /* [rows, table_width]; block of each run of block_size positions */
    const float *content;     /* [blocks, layers, block_size, 2 * kv_heads, head_dim] */
    int64_t tile_count, table_width, layers, block_size, kv_heads, head_dim;
};

struct query {
    const float *at; /* [head_dim] */
    float *out;      /* [head_dim]; sum of values so far */
    int64_t first, end; /* positions it sees */
    float top;
    floats total; /* to be added up at the end */
};

int attention_tile(void) { return TILE; }

static inline floats chosen(ints where, floats yes, floats no) {
    return (floats)(((ints)yes & where) | ((ints)no & ~where));
}

static inline float largest(floats x) {
    float part[FLOATS];
    memcpy(part, &x, sizeof part);
    for (int half = FLOATS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] = part[i] > part[i + half] ? part[i] : part[i + half];
    return part[0];
}

static inline four folded(floats x) {
    eight half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
        + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3)
        + __builtin_shufflevector(half, half, 4, 5, 6, 7);
}

/* Products of one vector with four: together, their sums across a vector are cheap. */
static inline four dots(const float *q, const float *const k[4], int64_t n) {
    floats sum[4] = {{0}};
    int64_t d = 0;
    for (; d + FLOATS <= n; d += FLOATS)
        for (int i = 0; i < 4; i++) sum[i] += *(const floats *)(q + d) * *(const floats *)(k[i] + d);
    four a = folded(sum[0]), b = folded(sum[1]), c = folded(sum[2]), e = folded(sum[3]);
    four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    four ce = __builtin_shufflevector(c, e, 0, 4, 1, 5) + __builtin_shufflevector(c, e, 2, 6, 3, 7);
    four all = __builtin_shufflevector(ab, ce, 0, 1, 4, 5) + __builtin_shufflevector(ab, ce, 2, 3, 6, 7);
#pragma GCC unroll 1
    for (; d < n; d++) all += q[d] * (four){k[0][d], k[1][d], k[2][d], k[3][d]};
    return all;
}

/* exp of numbers up to zero: 2^whole * 2^part, the second by its series. */
static inline floats exp_of(floats x) {
    const float rounding = 3 << 22; /* a float this large has no digits after the point */
    floats turns = x * 1.44269504f, least = (floats){0} - 126.0f;
    turns = chosen(turns < least, least, turns);
    floats whole = (turns + rounding) - rounding, part = (turns - whole) * 0.693147181f;
    floats power = part * (1.0f / 720) + 1.0f / 120;
    power = power * part + 1.0f / 24;
    power = power * part + 1.0f / 6;
    power = power * part + 0.5f;
    power = power * part + 1.0f;
    power = power * part + 1.0f;
    return power * (floats)((__builtin_convertvector(whole, ints) + 127) << 23);
}

/* Let a query take in the positions from `from` on whose keys are given. */
static inline void take(
    struct query *query, int64_t from, const float *const keys[CHUNK], int64_t to_values,
    int64_t head_dim, float scale) {
    const ints order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const floats least = (floats){0} - INFINITY;
    int begin = query->first > from ? (int)(query->first - from) : 0;
    int end = query->end - from < CHUNK ? (int)(query->end - from) : CHUNK;
    if (begin >= end) return;
    floats weight[VECTORS], tops = least;
    for (int v = 0; v < VECTORS; v++) {
        four score[FLOATS / 4] = {{0}};
        for (int c = 0; c < FLOATS / 4 && v * FLOATS + c * 4 < end; c++)
            score[c] = dots(query->at, keys + v * FLOATS + c * 4, head_dim) * scale;
        ints at = order + v * FLOATS;
        memcpy(&weight[v], score, sizeof score);
        weight[v] = chosen((at >= begin) & (at < end), weight[v], least);
        tops = chosen(weight[v] > tops, weight[v], tops);
    }
    float top = largest(tops);
    if (top > query->top) {
        float shrunk = query->top == -INFINITY ? 0.0f : exp_of((floats){query->top - top})[0];
        query->total *= shrunk;
        for (int64_t d = 0; d < head_dim; d++) query->out[d] *= shrunk;
        query->top = top;
    }
    for (int v = 0; v < VECTORS; v++) {
        ints at = order + v * FLOATS;
        weight[v] = exp_of(weight[v] - query->top);
        weight[v] = chosen((at >= begin) & (at < end), weight[v], (floats){0});
        query->total += weight[v];
    }
    float each[CHUNK];
    memcpy(each, weight, sizeof each);
    int64_t d = 0;
    for (; d + WIDE <= head_dim; d += WIDE) {
        floats *to = (floats *)(query->out + d), sum[4] = {to[0], to[1], to[2], to[3]};
        for (int c = begin; c < end; c++) {
            const floats *value = (const floats *)(keys[c] + to_values + d);
            for (int i = 0; i < 4; i++) sum[i] += each[c] * value[i];
        }
        for (int i = 0; i < 4; i++) to[i] = sum[i];
    }
#pragma GCC unroll 1
    for (; d < head_dim; d++)
        for (int c = begin; c < end; c++) query->out[d] += each[c] * keys[c][to_values + d];
}

/* The queries of some positions of a row that share one head of keys. */
static void attend_tile(
    const struct step *step, const int64_t *tile, int64_t kv_head, int64_t layer, int64_t window,
    float scale, const float *query, int64_t query_stride, int64_t heads, float *out) {
    int64_t head_dim = step->head_dim, size = step->block_size, cell = 2 * step->kv_heads * head_dim;
    int64_t group = heads / step->kv_heads, count = tile[2], at = tile[1];
    int64_t first = step->position[at], end = first + count;
    int64_t seen = window && first + 1 > window ? first + 1 - window : 0;
    const int64_t *table = step->table + tile[0] * step->table_width;
    struct query queries[TILE * group];
    for (int64_t q = 0; q < count * group; q++) {
        int64_t place = q / group, head = kv_head * group + q % group, until = first + place + 1;
        queries[q] = (struct query){
            .at = query + (at + place) * query_stride + head * head_dim,
            .out = out + ((at + place) * heads + head) * head_dim,
            .first = window && until > window ? until - window : 0,
            .end = until,
            .top = -INFINITY};
        memset(queries[q].out, 0, (size_t)head_dim * sizeof(float));
    }
    for (int64_t from = seen / CHUNK * CHUNK; from < end; from += CHUNK) {
        const float *keys[CHUNK]; /* past the end, the last one again: read, and not weighed */
        int64_t entry = from / size, place = from % size;
        for (int64_t c = 0; c < CHUNK; c++) {
            int64_t run = (table[entry] * step->layers + layer) * size;
            keys[c] = step->content + (run + place) * cell + kv_head * head_dim;
            if (from + c + 1 < end && ++place == size) entry++, place = 0;
        }
        for (int64_t q = 0; q < count * group; q++)
            take(&queries[q], from, keys, cell / 2, head_dim, scale);
    }
    for (int64_t q = 0; q < count * group; q++) {
        four total = folded(queries[q].total);
        float share = 1.0f / ((total[0] + total[1]) + (total[2] + total[3]));
        for (int64_t d = 0; d < head_dim; d++) queries[q].out[d] *= share;
    }
}

/* A window of 0 is none. `out` is [positions, heads, head_dim]. */
void attend(
    const struct step *step, int64_t layer, int64_t window, float scale, const float *query,
    int64_t query_stride, int64_t heads, float *out, int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < step->tile_count; t++)
        for (int64_t h = 0; h < step->kv_heads; h++)
            attend_tile(step, step->tiles + 3 * t, h, layer, window, scale, query, query_stride,
                        heads, out);
}
