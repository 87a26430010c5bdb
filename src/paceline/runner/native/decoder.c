/* All layers of a decoder, in one call. layers/decoder_layer.py does the same in torch.
 *
 * The threads go through the layers together: each phase is shared among them, by rows or by
 * panels of outputs, and all wait for each other at its end.
 */
#include "attention.h"
#include "linear.h"

struct layer {
    const struct matrix *qkv, *out, *gate_up, *down;
    const float *heads; /* [heads + kv_heads, head_dim]; factors of the norms of q and k, or NULL */
    const float *after_attention, *after_mlp; /* [width]; factors of norms there, or NULL */
    const float *rope; /* [2, head_dim / 2]; frequencies, then amplitudes */
    int64_t window;                           /* 0: none */
};

struct decoder {
    const struct layer *layers;
    int64_t count, width, mlp_width, heads, kv_heads, head_dim;
    int64_t is_gelu; /* by tanh; else SiLU */
    float norm_eps, query_scale, score_cap; /* a cap of 0: none */
};

/* Memory of a step, for any layer. */
struct room {
    float *turns;  /* [positions, head_dim]; cosines, then sines */
    float *wide;   /* [positions, most of qkv and of gate and up] */
    float *found;  /* [positions, most of heads and of width] */
    void *rounded; /* inputs of a product */
};

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t wide_of(const struct decoder *d) {
    return most((d->heads + 2 * d->kv_heads) * d->head_dim, 2 * d->mlp_width);
}

static int64_t found_of(const struct decoder *d) { return most(d->heads * d->head_dim, d->width); }

static int64_t rounded_bytes(const struct matrix *m, int64_t rows) {
    return way_of(m)->bytes(m, rows);
}

int64_t decoder_scratch_bytes(const struct decoder *d, int64_t rows) {
    int64_t rounded = 0, floats_of_row = d->head_dim + wide_of(d) + found_of(d);
    for (const struct layer *l = d->layers; l < d->layers + d->count; l++) {
        rounded = most(rounded, most(rounded_bytes(l->qkv, rows), rounded_bytes(l->out, rows)));
        rounded = most(rounded, most(rounded_bytes(l->gate_up, rows), rounded_bytes(l->down, rows)));
    }
    return rows * floats_of_row * (int64_t)sizeof(float) + rounded;
}

/* What a norm divides by, times the square root of the width: see layers/norm.py. */
static float length(const float *x, int64_t width, float eps) {
    floats sum = {0};
    for (int64_t i = 0; i < width; i += FLOATS) {
        floats part = some_of(x + i, width - i);
        sum += part * part;
    }
    return sqrtf(sum_of(sum) + (float)width * eps);
}

static void find_turns(const struct step *s, const float *rope, float *turns) {
    int64_t half = s->head_dim / 2;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < s->positions; r++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)s->position[r] * rope[i];
            turns[r * s->head_dim + i] = cosf(angle) * rope[half + i];
            turns[r * s->head_dim + half + i] = sinf(angle) * rope[half + i];
        }
}

/* Norm a head of queries or keys, if it has factors, and turn its pairs. */
static void turn(float *x, const float *factor, const float *turns, int64_t head_dim, float eps) {
    int64_t half = head_dim / 2;
    float by = factor ? 1.0f / length(x, head_dim, eps) : 1.0f;
    for (int64_t i = 0; factor && i < head_dim; i++) x[i] = x[i] * by * factor[i];
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], cosine = turns[i], sine = turns[i + half];
        x[i] = a * cosine - b * sine;
        x[i + half] = b * cosine + a * sine;
    }
}

static void turn_and_write(
    const struct decoder *d, const struct layer *l, const struct step *s, const struct room *room) {
    int64_t head_dim = d->head_dim, turning = d->heads + d->kv_heads, kv = 2 * d->kv_heads * head_dim;
    int64_t stride = (turning + d->kv_heads) * head_dim, size = s->block_size, layer = l - d->layers;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < s->positions; r++) {
        float *qkv = room->wide + r * stride;
        for (int64_t h = 0; h < turning; h++)
            turn(qkv + h * head_dim, l->heads ? l->heads + h * head_dim : 0,
                 room->turns + r * head_dim, head_dim, d->norm_eps);
        int64_t run = (s->cell[r] / size * s->layers + layer) * size + s->cell[r] % size;
        memcpy(s->content + run * kv, qkv + d->heads * head_dim, (size_t)kv * sizeof(float));
    }
}

/* gate * sigmoid(gate) * up, or with a polynomial of the gate inside, which is GELU by tanh. */
static void gate(const struct decoder *d, float *row) {
    int64_t width = d->mlp_width;
    for (int64_t i = 0; i < width; i += FLOATS) {
        floats x = some_of(row + i, width - i), up = some_of(row + width + i, width - i);
        floats inner = d->is_gelu ? 1.59576912f * (x + 0.044715f * x * x * x) : x;
        floats power = exp_of((floats){0} - size_of(inner));
        floats above = chosen(inner > 0.0f, (floats){0} + 1.0f, power);
        put_some(row + i, x * up * above / (power + 1.0f), width - i);
    }
}

/* Each hidden row divided by its length, rounded to the inputs of a product. */
static void round_directions(
    const struct decoder *d, const struct matrix *m, const float *hidden, int64_t rows, void *to) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = hidden + r * d->width;
        way_of(m)->round(m, x, 1.0f / length(x, d->width, d->norm_eps), to, r, rows);
    }
}

/* Add a product to the hidden rows, by way of a norm if it has factors. */
static void add_product(
    const struct decoder *d, const struct matrix *m, const float *factor, int64_t rows,
    const struct room *room, float *hidden) {
    if (!factor) {
        multiply(m, room->rounded, rows, hidden, d->width, 1);
        return;
    }
    multiply(m, room->rounded, rows, room->found, d->width, 0);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = room->found + r * d->width;
        float by = 1.0f / length(x, d->width, d->norm_eps);
        for (int64_t i = 0; i < d->width; i++) hidden[r * d->width + i] += x[i] * by * factor[i];
    }
}

/* Attention of all positions, which are in the store afterwards. */
static void attention(
    const struct decoder *d, const struct layer *l, const struct step *s, const struct room *room,
    const float *hidden) {
    int64_t rows = s->positions, stride = (d->heads + 2 * d->kv_heads) * d->head_dim;
    round_directions(d, l->qkv, hidden, rows, room->rounded);
    multiply(l->qkv, room->rounded, rows, room->wide, stride, 0);
    turn_and_write(d, l, s, room);
    struct scores scores = {l->window, d->query_scale, d->score_cap};
    attend_together(s, l - d->layers, scores, room->wide, stride, d->heads, room->found);
}

/* Add it to the hidden rows, of which there may be fewer: row r is of position at[r] then. */
static void add_attention(
    const struct decoder *d, const struct layer *l, const int64_t *at, int64_t rows,
    const struct room *room, float *hidden) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = room->found + (at ? at[r] : r) * d->heads * d->head_dim;
        way_of(l->out)->round(l->out, x, 1.0f, room->rounded, r, rows);
    }
    add_product(d, l->out, l->after_attention, rows, room, hidden);
}

static void mlp(
    const struct decoder *d, const struct layer *l, int64_t rows, const struct room *room,
    float *hidden) {
    round_directions(d, l->gate_up, hidden, rows, room->rounded);
    multiply(l->gate_up, room->rounded, rows, room->wide, 2 * d->mlp_width, 0);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *row = room->wide + r * 2 * d->mlp_width;
        gate(d, row);
        way_of(l->down)->round(l->down, row, 1.0f, room->rounded, r, rows);
    }
    add_product(d, l->down, l->after_mlp, rows, room, hidden);
}

static void pick(const float *from, const int64_t *at, int64_t rows, int64_t width, float *to) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * width, from + at[r] * width, (size_t)width * sizeof(float));
}

/* Take hidden rows [positions, width] through all layers, in place; or, unless `wanted` is negative,
 * those of the positions `at` to `out` [wanted, width]: after the last attention, the others are not
 * needed. The scratch is of `decoder_scratch_bytes` for the larger number. */
void decode(
    const struct decoder *d, const struct step *s, float *hidden, const int64_t *at, int64_t wanted,
    float *out, float *scratch, int threads) {
    struct room room = {.turns = scratch};
    int64_t all = s->positions, most_rows = most(all, wanted);
    room.wide = room.turns + most_rows * d->head_dim;
    room.found = room.wide + most_rows * wide_of(d);
    room.rounded = room.found + most_rows * found_of(d);
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (const struct layer *l = d->layers; l < d->layers + d->count; l++) {
        int is_cut = wanted >= 0 && l == d->layers + d->count - 1;
        int64_t rows = is_cut ? wanted : all;
        float *rest = is_cut ? out : hidden;
        if (l == d->layers || l->rope != l[-1].rope) find_turns(s, l->rope, room.turns);
        attention(d, l, s, &room, hidden);
        if (is_cut) pick(hidden, at, rows, d->width, rest);
        if (rows) {
            add_attention(d, l, is_cut ? at : 0, rows, &room, rest);
            mlp(d, l, rows, &room, rest);
        }
    }
}
