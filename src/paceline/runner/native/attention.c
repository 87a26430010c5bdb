/* Causal attention that reads keys and values in place, block by block.
 *
 * A query reads its context in chunks that begin at fixed positions, and keeps a running maximum
 * of the scores, a sum of weights and a sum of values (online softmax). Queries that share keys
 * read a chunk together, each with its own sums. So the result of a query has the same bits alone,
 * beside others, and in a step of any number of positions.
 */
#include "attention.h"
#include "threads.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CHUNK = 64, VECTORS = CHUNK / FLOATS, TILE = 16, TOGETHER = 4 };
enum { LINE = 16 }; /* floats of a cache line */
enum { HELD = FLOATS == 8 ? 2 : 4 }; /* vectors of each query that are kept in registers */
enum { MOST_HELD = FLOATS == 4 ? 8 : HELD }; /* with fewer queries than TOGETHER */
/* With short vectors, summing across them is cheaper than transposing keys for GEMMs of many
 * queries. Keys are prefetched so many positions ahead. */
enum { IS_TRANSPOSED = FLOATS > 4, AHEAD = 8 };

/* How scores are computed: the window, the scale, the soft cap (0: none), and the sink of each
 * head, or NULL. */
struct scores {
    int64_t window;
    float scale, cap;
    const float *sinks;
};

struct query {
    const float *at; /* [head_dim] */
    float *out;      /* [head_dim]; sum of values so far */
    int64_t first, end; /* positions that it reads */
    float top;
    floats total; /* its lanes are summed at the end */
};

/* Keys and values of CHUNK positions. Behind the end, the last one is repeated with weight 0. */
struct chunk {
    const float *keys[CHUNK];
    const float *transposed; /* [head_dim, CHUNK]; the keys, for GEMMs of many queries */
    const struct query *first; /* the query that prefetches for all that read this chunk */
    int64_t from, to_values, head_dim;
    float scale, cap;
};

int attention_tile(void) { return TILE; }

#if defined(__AVX512F__)
/* Swap, for all pairs of rows that are `by` apart, the parts that lie on each other's side. */
#define SIDE(i, by, a, b) ((i) & (by) ? (b) : (a))
#define UPPER(i, by) SIDE(i, by, i, FLOATS + (i) - (by))
#define LOWER(i, by) SIDE(i, by, (i) + (by), FLOATS + (i))
#define SIXTEEN(f, by) \
    f(0, by), f(1, by), f(2, by), f(3, by), f(4, by), f(5, by), f(6, by), f(7, by), \
    f(8, by), f(9, by), f(10, by), f(11, by), f(12, by), f(13, by), f(14, by), f(15, by)
#define SWAP(rows, by) \
    for (int i = 0; i < FLOATS; i++) \
        if (!(i & (by))) { \
            floats a = rows[i], b = rows[i + (by)]; \
            rows[i] = __builtin_shufflevector(a, b, SIXTEEN(UPPER, by)); \
            rows[i + (by)] = __builtin_shufflevector(a, b, SIXTEEN(LOWER, by)); \
        }

/* Keys [FLOATS][FLOATS of head_dim] to [FLOATS of head_dim][FLOATS]. */
static inline void turn_square(const float *const keys[FLOATS], int64_t d, float *to) {
    floats rows[FLOATS];
    for (int i = 0; i < FLOATS; i++) rows[i] = *(const floats *)(keys[i] + d);
    SWAP(rows, 1)
    SWAP(rows, 2)
    SWAP(rows, 4)
    SWAP(rows, 8)
    for (int i = 0; i < FLOATS; i++) *(floats *)(to + (d + i) * CHUNK) = rows[i];
}
#else
static inline void turn_square(const float *const keys[FLOATS], int64_t d, float *to) {
    for (int i = 0; i < FLOATS; i++)
        for (int c = 0; c < FLOATS; c++) to[(d + i) * CHUNK + c] = keys[c][d + i];
}
#endif

static void transpose_keys(const float *const keys[CHUNK], int64_t head_dim, int64_t count, float *to) {
    for (int v = 0; v * FLOATS < count; v++) {
        int64_t d = 0;
        for (; d + FLOATS <= head_dim; d += FLOATS)
            turn_square(keys + v * FLOATS, d, to + v * FLOATS);
        for (; d < head_dim; d++)
            for (int c = v * FLOATS; c < (v + 1) * FLOATS; c++) to[d * CHUNK + c] = keys[c][d];
    }
}

#define FROM(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
static const int32_t ORDER[CHUNK] = {
    FROM(0), FROM(8), FROM(16), FROM(24), FROM(32), FROM(40), FROM(48), FROM(56)};

/* cap * tanh(x / cap), of which tanh is (1 - e) / (1 + e) for e = exp(-2x). */
static inline floats capped(floats x, float cap) {
    floats power = exp_of(size_of(x) * (-2.0f / cap)), found = (1.0f - power) / (1.0f + power) * cap;
    return chosen(x < 0.0f, (floats){0} - found, found);
}

/* Turn the scores of a chunk into weights, in place, and rescale the sums so far. */
static inline void weigh(struct query *query, const struct chunk *chunk, floats weight[VECTORS]) {
    const floats least = (floats){0} - INFINITY;
    int64_t first = query->first - chunk->from, last = query->end - chunk->from;
    int begin = first > 0 ? (int)(first < CHUNK ? first : CHUNK) : 0;
    int end = last < CHUNK ? (int)last : CHUNK;
    if (begin >= end) { /* It reads nothing in this chunk. */
        for (int v = 0; v < VECTORS; v++) weight[v] = (floats){0};
        return;
    }
    floats tops = least;
    for (int v = 0; v < VECTORS; v++) {
        ints at = *(const ints *)(ORDER + v * FLOATS);
        floats scores = weight[v] * chunk->scale;
        if (chunk->cap > 0.0f) scores = capped(scores, chunk->cap);
        weight[v] = chosen((at >= begin) & (at < end), scores, least);
        tops = larger(weight[v], tops);
    }
    float top = largest(tops);
    if (top > query->top) {
        float shrunk = query->top == -INFINITY ? 0.0f : exp_of((floats){query->top - top})[0];
        query->total *= shrunk;
        for (int64_t d = 0; d < chunk->head_dim; d++) query->out[d] *= shrunk;
        query->top = top;
    }
    for (int v = 0; v < VECTORS; v++) {
        ints at = *(const ints *)(ORDER + v * FLOATS);
        floats power = exp_of(weight[v] - query->top);
        weight[v] = chosen((at >= begin) & (at < end), power, (floats){0});
        query->total += weight[v];
    }
}

/* Cells are too far apart for the prefetcher of the processor. */
static inline void announce(const float *key, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += LINE) __builtin_prefetch(key + d);
}

#if FLOATS == 4
/* The sums of four vectors, each in the order of `sum_of`. */
static inline floats sums_of(const floats x[4]) {
#if defined(__aarch64__)
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
#else
    return (floats){sum_of(x[0]), sum_of(x[1]), sum_of(x[2]), sum_of(x[3])};
#endif
}

/* Scores of `count` queries with four keys that are not transposed. All callers pass constants. */
static inline __attribute__((always_inline)) void score(
    const int count, const struct query *queries, const struct chunk *chunk, int at,
    floats found[][VECTORS]) {
    const float *const *keys = chunk->keys + at;
    int64_t head_dim = chunk->head_dim, whole = head_dim / FLOATS * FLOATS, rest = head_dim - whole;
    floats sum[TOGETHER][FLOATS] = {{{0}}};
    for (int c = 0; queries == chunk->first && c < FLOATS; c++) {
        if (at + AHEAD < CHUNK) announce(keys[c + AHEAD], head_dim);
        announce(keys[c] + chunk->to_values, head_dim);
    }
#pragma GCC unroll 4
    for (int64_t d = 0; d < whole; d += FLOATS)
#pragma GCC unroll 4
        for (int q = 0; q < count; q++)
#pragma GCC unroll 4
            for (int c = 0; c < FLOATS; c++)
                sum[q][c] += *(const floats *)(queries[q].at + d) * *(const floats *)(keys[c] + d);
    for (int q = 0; rest && q < count; q++)
        for (int c = 0; c < FLOATS; c++)
            sum[q][c] += some_of(queries[q].at + whole, rest) * some_of(keys[c] + whole, rest);
#pragma GCC unroll 4
    for (int q = 0; q < count; q++) found[q][at / FLOATS] = sums_of(sum[q]);
}

static inline __attribute__((always_inline)) void score_all(
    const int count, const struct query *queries, const struct chunk *chunk, int end,
    floats found[][VECTORS]) {
    for (int c = 0; c < end; c += FLOATS) score(count, queries, chunk, c, found);
}
#else
/* Scores of `count` queries with `vectors` of keys. All callers pass constants. */
static inline __attribute__((always_inline)) void score(
    const int count, const int vectors, const struct query *queries, const struct chunk *chunk,
    int first, floats found[][VECTORS]) {
    floats sum[TOGETHER][HELD] = {{{0}}};
    for (int64_t d = 0; d < chunk->head_dim; d++) {
        const floats *keys = (const floats *)(chunk->transposed + d * CHUNK) + first;
#pragma GCC unroll 4
        for (int q = 0; q < count; q++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[q][v] += queries[q].at[d] * keys[v];
    }
#pragma GCC unroll 4
    for (int q = 0; q < count; q++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) found[q][first + v] = sum[q][v];
}

static inline __attribute__((always_inline)) void score_all(
    const int count, const struct query *queries, const struct chunk *chunk, int end,
    floats found[][VECTORS]) {
    for (int v = 0; v * FLOATS < end; v += HELD) {
        int left = end - v * FLOATS;
        if (HELD > 2 && left > 2 * FLOATS) score(count, HELD, queries, chunk, v, found);
        else if (left > FLOATS) score(count, 2, queries, chunk, v, found);
        else score(count, 1, queries, chunk, v, found);
    }
}
#endif

/* Add the weighted values of `count` queries, `vectors` of head_dim from d on: both constants. */
static inline __attribute__((always_inline)) void add_values(
    const int count, const int vectors, const struct query *queries, const struct chunk *chunk,
    const float each[][CHUNK], int64_t d, int begin, int end) {
    floats sum[TOGETHER][MOST_HELD];
#pragma GCC unroll 4
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) sum[q][v] = ((const floats *)(queries[q].out + d))[v];
    for (int c = begin; c < end; c++) {
        const floats *value = (const floats *)(chunk->keys[c] + chunk->to_values + d);
#pragma GCC unroll 4
        for (int q = 0; q < count; q++)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[q][v] += each[q][c] * value[v];
    }
#pragma GCC unroll 4
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) ((floats *)(queries[q].out + d))[v] = sum[q][v];
}

/* Add a chunk to the sums of `count` queries. All callers pass a constant. */
static inline __attribute__((always_inline)) void take(
    const int count, struct query *queries, const struct chunk *chunk) {
    int64_t head_dim = chunk->head_dim, first = INT64_MAX, last = 0, d = 0;
    for (int q = 0; q < count; q++) {
        first = queries[q].first < first ? queries[q].first : first;
        last = queries[q].end > last ? queries[q].end : last;
    }
    int begin = first > chunk->from ? (int)(first - chunk->from) : 0;
    int end = last - chunk->from < CHUNK ? (int)(last - chunk->from) : CHUNK;
    if (begin >= end) return;
    floats weight[TOGETHER][VECTORS] = {{{0}}};
    score_all(count, queries, chunk, end, weight);
    for (int q = 0; q < count; q++) weigh(&queries[q], chunk, weight[q]);
    float each[TOGETHER][CHUNK];
    memcpy(each, weight, sizeof each);
    const int held = count < TOGETHER ? MOST_HELD : HELD;
    for (; d + held * FLOATS <= head_dim; d += held * FLOATS)
        add_values(count, held, queries, chunk, each, d, begin, end);
    for (; d + FLOATS <= head_dim; d += FLOATS)
        add_values(count, 1, queries, chunk, each, d, begin, end);
    for (int q = 0; q < count; q++)
        for (int64_t rest = d; rest < head_dim; rest++)
            for (int c = begin; c < end; c++)
                queries[q].out[rest] += each[q][c] * chunk->keys[c][chunk->to_values + rest];
}

static void take_all(struct query *queries, int64_t count, const struct chunk *chunk) {
    int64_t q = 0;
    for (; q + TOGETHER <= count; q += TOGETHER) take(TOGETHER, queries + q, chunk);
    if (count - q == 3) take(3, queries + q, chunk);
    else if (count - q == 2) take(2, queries + q, chunk);
    else if (count - q == 1) take(1, queries + q, chunk);
}

/* The queries of some positions of a row that share one head of keys. */
static void attend_tile(
    const struct step *step, const int64_t *tile, int64_t kv_head, int64_t layer,
    struct scores scores, const float *query, int64_t query_stride, int64_t heads, float *out) {
    int64_t head_dim = step->head_dim, size = step->block_size, cell = step->vectors * head_dim;
    int64_t group = heads / step->kv_heads, count = tile[2], at = tile[1];
    int64_t first = step->position[at], end = 0, window = scores.window;
    for (int64_t i = at; i < at + count; i++) end = step->end[i] > end ? step->end[i] : end;
    int64_t seen = window && first + 1 > window ? first + 1 - window : 0;
    const int64_t *table =
        step->table + (step->group[layer] * step->rows + tile[0]) * step->table_width;
    int64_t block = step->layers_per_block * size * cell; /* floats */
    const float *keys = step->content + step->layer_index[layer] * size * cell + kv_head * head_dim;
    struct query queries[count * group];
    float transposed[IS_TRANSPOSED ? head_dim * CHUNK : 1];
    struct chunk chunk = {
        .transposed = transposed,
        .first = queries,
        .to_values = (step->vectors - step->kv_heads) * head_dim,
        .head_dim = head_dim,
        .scale = scores.scale,
        .cap = scores.cap};
    for (int64_t q = 0; q < count * group; q++) {
        int64_t index = q / group, head = kv_head * group + q % group, next = first + index + 1;
        queries[q] = (struct query){
            .at = query + (at + index) * query_stride + head * head_dim,
            .out = out + ((at + index) * heads + head) * head_dim,
            .first = window && next > window ? next - window : 0,
            .end = step->end[at + index],
            .top = scores.sinks ? scores.sinks[head] : -INFINITY,
            .total = {scores.sinks ? 1.0f : 0.0f}};
        memset(queries[q].out, 0, (size_t)head_dim * sizeof(float));
    }
    for (int64_t from = seen / CHUNK * CHUNK; from < end; from += CHUNK) {
        /* The row has released the blocks before the window: read its first position instead. */
        int64_t begin = from > seen ? from : seen, skipped = begin - from;
        int64_t entry = begin / size, offset = begin % size;
        const float *key = keys + table[entry] * block + offset * cell;
        chunk.from = from;
        for (int64_t c = 0; c < CHUNK; c++) {
            chunk.keys[c] = key;
            if (IS_TRANSPOSED || c < AHEAD) announce(key, head_dim);
            if (IS_TRANSPOSED) announce(key + chunk.to_values, head_dim);
            if (c < skipped || from + c + 1 >= end) continue;
            key += cell;
            if (++offset == size) offset = 0, key = keys + table[++entry] * block;
        }
        if (IS_TRANSPOSED)
            transpose_keys(chunk.keys, head_dim, end - from < CHUNK ? end - from : CHUNK, transposed);
        take_all(queries, count * group, &chunk);
    }
    for (int64_t q = 0; q < count * group; q++) {
        float share = 1.0f / sum_of(queries[q].total);
        for (int64_t d = 0; d < head_dim; d++) queries[q].out[d] *= share;
    }
}

struct attending {
    const struct step *step;
    int64_t layer;
    struct scores scores;
    const float *query;
    int64_t query_stride, heads;
    float *out;
};

/* A unit of work is a tile and a KV head. */
static void attend_tiles(const void *task, int64_t begin, int64_t end) {
    const struct attending *a = task;
    int64_t kv_heads = a->step->kv_heads;
    for (int64_t i = begin; i < end; i++)
        attend_tile(a->step, a->step->tiles + 3 * (i / kv_heads), i % kv_heads, a->layer, a->scores,
                    a->query, a->query_stride, a->heads, a->out);
}

void attend(
    const struct step *step, int64_t layer, int64_t window, float scale, float cap,
    const float *sinks, const float *query, int64_t query_stride, int64_t heads, float *out, int threads) {
    struct scores scores = {window, scale, cap, sinks};
    struct attending all = {step, layer, scores, query, query_stride, heads, out};
    share(attend_tiles, &all, step->tile_count * step->kv_heads, threads);
}
