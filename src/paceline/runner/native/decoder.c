/* All layers of a decoder, in one call. layers/decoder_layer.py does the same in torch.
 *
 * Threads share each phase of a layer, by rows or by panels of outputs.
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

/* What the phases of a layer read and write. A phase computes rows `begin` to `end`. */
struct pass {
    const struct decoder *d;
    const struct layer *l;
    const struct step *s;
    const struct room *room;
    const float *hidden; /* of all positions */
    float *rest;         /* hidden rows that are kept, all of them or those of positions `at` */
    const int64_t *at;
    int64_t rows; /* that are kept */
    int threads;
};

static void find_turns(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    const struct step *s = p->s;
    int64_t half = s->head_dim / 2;
    const float *rope = p->l->rope;
    float *turns = p->room->turns;
    for (int64_t r = begin; r < end; r++)
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

static void turn_and_write(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    const struct decoder *d = p->d;
    const struct layer *l = p->l;
    const struct step *s = p->s;
    int64_t head_dim = d->head_dim, turning = d->heads + d->kv_heads, kv = 2 * d->kv_heads * head_dim;
    int64_t stride = (turning + d->kv_heads) * head_dim, size = s->block_size, layer = l - d->layers;
    for (int64_t r = begin; r < end; r++) {
        float *qkv = p->room->wide + r * stride;
        for (int64_t h = 0; h < turning; h++)
            turn(qkv + h * head_dim, l->heads ? l->heads + h * head_dim : 0,
                 p->room->turns + r * head_dim, head_dim, d->norm_eps);
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

/* A hidden row divided by its length, rounded to an input of a product. */
static void round_direction(
    const struct decoder *d, const struct matrix *m, const float *x, void *to, int64_t r,
    int64_t rows) {
    way_of(m)->round(m, x, 1.0f / length(x, d->width, d->norm_eps), to, r, rows);
}

static void round_for_qkv(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    for (int64_t r = begin; r < end; r++)
        round_direction(p->d, p->l->qkv, p->hidden + r * p->d->width, p->room->rounded, r,
                        p->s->positions);
}

static void round_for_out(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    for (int64_t r = begin; r < end; r++) {
        const float *x = p->room->found + (p->at ? p->at[r] : r) * p->d->heads * p->d->head_dim;
        way_of(p->l->out)->round(p->l->out, x, 1.0f, p->room->rounded, r, p->rows);
    }
}

static void round_for_gate_up(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    for (int64_t r = begin; r < end; r++)
        round_direction(p->d, p->l->gate_up, p->rest + r * p->d->width, p->room->rounded, r,
                        p->rows);
}

static void gate_and_round_for_down(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    for (int64_t r = begin; r < end; r++) {
        float *row = p->room->wide + r * 2 * p->d->mlp_width;
        gate(p->d, row);
        way_of(p->l->down)->round(p->l->down, row, 1.0f, p->room->rounded, r, p->rows);
    }
}

static void pick(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    int64_t width = p->d->width;
    for (int64_t r = begin; r < end; r++)
        memcpy(p->rest + r * width, p->hidden + p->at[r] * width, (size_t)width * sizeof(float));
}

/* Rows of a product, to be normed and added to hidden rows. */
struct addition {
    const struct pass *p;
    const float *factor;
};

static void add_normed(const void *task, int64_t begin, int64_t end) {
    const struct addition *a = task;
    const struct decoder *d = a->p->d;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->p->room->found + r * d->width;
        float by = 1.0f / length(x, d->width, d->norm_eps), *to = a->p->rest + r * d->width;
        for (int64_t i = 0; i < d->width; i++) to[i] += x[i] * by * a->factor[i];
    }
}

/* Add a product of the rounded rows to the hidden rows, by way of a norm if it has factors. */
static void add_product(const struct pass *p, const struct matrix *m, const float *factor) {
    float *to = factor ? p->room->found : p->rest;
    multiply(&(struct product){m, p->room->rounded, p->rows, to, p->d->width, !factor}, p->threads);
    if (factor) share(add_normed, &(struct addition){p, factor}, p->rows, p->threads);
}

/* Attention of all positions, which are in the store afterwards. */
static void attention(const struct pass *p) {
    const struct decoder *d = p->d;
    const struct layer *l = p->l;
    const struct room *room = p->room;
    int64_t rows = p->s->positions, stride = (d->heads + 2 * d->kv_heads) * d->head_dim;
    share(round_for_qkv, p, rows, p->threads);
    multiply(&(struct product){l->qkv, room->rounded, rows, room->wide, stride, 0}, p->threads);
    share(turn_and_write, p, rows, p->threads);
    attend(p->s, l - d->layers, l->window, d->query_scale, d->score_cap, room->wide, stride,
           d->heads, room->found, p->threads);
}

static void add_attention(const struct pass *p) {
    share(round_for_out, p, p->rows, p->threads);
    add_product(p, p->l->out, p->l->after_attention);
}

static void add_mlp(const struct pass *p) {
    const struct room *room = p->room;
    int64_t stride = 2 * p->d->mlp_width;
    share(round_for_gate_up, p, p->rows, p->threads);
    multiply(&(struct product){p->l->gate_up, room->rounded, p->rows, room->wide, stride, 0},
             p->threads);
    share(gate_and_round_for_down, p, p->rows, p->threads);
    add_product(p, p->l->down, p->l->after_mlp);
}

/* Take hidden rows [positions, width] through all layers, in place; or, unless `wanted` is negative,
 * those of the positions `at` to `out` [wanted, width]: after the last attention, the others are not
 * needed. The scratch is of `decoder_scratch_bytes` for the larger number. */
void decode(
    const struct decoder *d, const struct step *s, float *hidden, const int64_t *at, int64_t wanted,
    float *out, float *scratch, int threads) {
    struct room room = {.turns = scratch};
    int64_t most_rows = most(s->positions, wanted);
    room.wide = room.turns + most_rows * d->head_dim;
    room.found = room.wide + most_rows * wide_of(d);
    room.rounded = room.found + most_rows * found_of(d);
    struct pass p = {d, d->layers, s, &room, hidden, hidden, 0, s->positions, threads};
    for (const struct layer *l = d->layers; l < d->layers + d->count; p.l = ++l) {
        if (l == d->layers || l->rope != l[-1].rope) share(find_turns, &p, s->positions, threads);
        attention(&p);
        if (wanted >= 0 && l == d->layers + d->count - 1) {
            p.rest = out, p.at = at, p.rows = wanted;
            share(pick, &p, wanted, threads);
        }
        if (p.rows) {
            add_attention(&p);
            add_mlp(&p);
        }
    }
}
