/* All layers of a decoder, in one call. layers/decoder_layer.py does the same in torch.
 *
 * Threads share each phase of a layer, by rows or by panels of outputs.
 */
#include "attention.h"
#include "linear.h"

/* An MLP, or one of the experts of an MoE. */
struct expert {
    const struct matrix *gate_up, *down;
};

struct moe {
    const float *router; /* [count, width]; it reads normed rows */
    const struct expert *experts;
    int64_t count, chosen;
    int64_t shares_sum_to_one; /* of the chosen experts; else of all */
};

struct layer {
    const struct matrix *qkv, *out;
    struct expert mlp;     /* NULLs in an MoE */
    const struct moe *moe; /* or NULL */
    const float *heads; /* [heads + kv_heads, head_dim]; weights of the norms of q and k, or NULL */
    const float *after_attention, *after_mlp; /* [width]; weights of the norms there, or NULL */
    const float *rope; /* [2, head_dim / 2]; frequencies, then amplitudes */
    int64_t mlp_width; /* or of an expert */
    int64_t window;    /* 0: none */
};

struct decoder {
    const struct layer *layers;
    int64_t first; /* first layer to compute; an earlier call computed those before it */
    int64_t count, width, heads, kv_heads, head_dim;
    int64_t is_gelu; /* by tanh; else SiLU */
    float norm_eps, query_scale, score_cap; /* a cap of 0: none */
};

/* Memory of a step, for any layer. */
struct room {
    int64_t *chosen, *pairs; /* [positions * chosen]; experts, and pairs of a position and an expert */
    int64_t *starts;         /* [experts + 1]; first pair of each expert: pairs are sorted by it */
    float *shares;           /* [positions * chosen] */
    float *total;            /* [positions, width]; of all experts */
    float *cos_sin; /* [positions, head_dim]; cosines, then sines */
    float *wide;   /* [positions, most of qkv and of gate and up] */
    float *found;  /* [positions, most of heads and of width] */
    void *rounded; /* inputs of a GEMM */
};

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t wide_of(const struct decoder *d) {
    int64_t found = (d->heads + 2 * d->kv_heads) * d->head_dim;
    for (int64_t l = 0; l < d->count; l++) found = most(found, 2 * d->layers[l].mlp_width);
    return found;
}

static int64_t found_of(const struct decoder *d) { return most(d->heads * d->head_dim, d->width); }

static int64_t rounded_bytes(const struct matrix *m, int64_t rows) {
    return way_of(m)->bytes(m, rows);
}

static int64_t expert_bytes(const struct expert *e, int64_t rows) {
    return most(rounded_bytes(e->gate_up, rows), rounded_bytes(e->down, rows));
}

/* Lay out the memory of a step with so many rows; returns its bytes without those of `rounded`,
 * which come last. */
static int64_t lay_out(const struct decoder *d, int64_t rows, void *scratch, struct room *room) {
    int64_t chosen = 0, experts = 0;
    for (const struct layer *l = d->layers; l < d->layers + d->count; l++) {
        if (!l->moe) continue;
        chosen = most(chosen, l->moe->chosen);
        experts = most(experts, l->moe->count + 1);
    }
    room->chosen = scratch;
    room->pairs = room->chosen + rows * chosen;
    room->starts = room->pairs + rows * chosen;
    room->shares = (float *)(room->starts + experts);
    room->total = room->shares + rows * chosen;
    room->cos_sin = room->total + (chosen ? rows * d->width : 0);
    room->wide = room->cos_sin + rows * d->head_dim;
    room->found = room->wide + rows * wide_of(d);
    room->rounded = room->found + rows * found_of(d);
    return (char *)room->rounded - (char *)scratch;
}

int64_t decoder_scratch_bytes(const struct decoder *d, int64_t rows) {
    struct room room;
    int64_t rounded = 0;
    for (const struct layer *l = d->layers; l < d->layers + d->count; l++) {
        const struct moe *m = l->moe;
        rounded = most(rounded, most(rounded_bytes(l->qkv, rows), rounded_bytes(l->out, rows)));
        if (!m) rounded = most(rounded, expert_bytes(&l->mlp, rows));
        for (int64_t e = 0; m && e < m->count; e++)
            rounded = most(rounded, expert_bytes(&m->experts[e], rows));
    }
    return lay_out(d, rows, 0, &room) + rounded;
}

/* The divisor of a norm, times the square root of the width: see layers/norm.py. */
static float length(const float *x, int64_t width, float eps) {
    floats sum = {0};
    for (int64_t i = 0; i < width; i += FLOATS) {
        floats part = some_of(x + i, width - i);
        sum += part * part;
    }
    return sqrtf(sum_of(sum) + (float)width * eps);
}

/* Inputs and outputs of the phases of a layer. A phase computes rows `begin` to `end`. */
struct pass {
    const struct decoder *d;
    const struct layer *l;
    const struct step *s;
    const struct room *room;
    const float *hidden; /* of all positions */
    float *rest;         /* hidden rows that are computed further: all, or those of positions `at` */
    const int64_t *at;
    int64_t rows; /* of `rest` */
    int threads;
};

static void find_rotations(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    const struct step *s = p->s;
    int64_t half = s->head_dim / 2;
    const float *rope = p->l->rope;
    float *cos_sin = p->room->cos_sin;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)s->position[r] * rope[i];
            cos_sin[r * s->head_dim + i] = cosf(angle) * rope[half + i];
            cos_sin[r * s->head_dim + half + i] = sinf(angle) * rope[half + i];
        }
}

/* Norm a head of queries or keys, if there is a norm, and rotate it. */
static void rotate(float *x, const float *factor, const float *cos_sin, int64_t head_dim, float eps) {
    int64_t half = head_dim / 2;
    float by = factor ? 1.0f / length(x, head_dim, eps) : 1.0f;
    for (int64_t i = 0; factor && i < head_dim; i++) x[i] = x[i] * by * factor[i];
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], cosine = cos_sin[i], sine = cos_sin[i + half];
        x[i] = a * cosine - b * sine;
        x[i + half] = b * cosine + a * sine;
    }
}

static void turn_and_write(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    const struct decoder *d = p->d;
    const struct layer *l = p->l;
    const struct step *s = p->s;
    int64_t head_dim = d->head_dim, rotated = d->heads + d->kv_heads, kv = 2 * d->kv_heads * head_dim;
    int64_t stride = (rotated + d->kv_heads) * head_dim, size = s->block_size, layer = l - d->layers;
    const int64_t *cell = s->cell + s->group[layer] * s->positions;
    for (int64_t r = begin; r < end; r++) {
        float *qkv = p->room->wide + r * stride;
        for (int64_t h = 0; h < rotated; h++)
            rotate(qkv + h * head_dim, l->heads ? l->heads + h * head_dim : 0,
                   p->room->cos_sin + r * head_dim, head_dim, d->norm_eps);
        int64_t run = (cell[r] / size * s->layers_per_block + s->layer_index[layer]) * size + cell[r] % size;
        memcpy(s->content + run * kv, qkv + d->heads * head_dim, (size_t)kv * sizeof(float));
    }
}

/* SiLU(gate) * up, or GELU(gate) * up by tanh, which is SiLU of a polynomial. */
static void gate(const struct decoder *d, float *row, int64_t width) {
    for (int64_t i = 0; i < width; i += FLOATS) {
        floats x = some_of(row + i, width - i), up = some_of(row + width + i, width - i);
        floats inner = d->is_gelu ? 1.59576912f * (x + 0.044715f * x * x * x) : x;
        floats power = exp_of((floats){0} - size_of(inner));
        floats above = chosen(inner > 0.0f, (floats){0} + 1.0f, power);
        put_some(row + i, x * up * above / (power + 1.0f), width - i);
    }
}

/* Norm a hidden row and round it to an input of a GEMM. */
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

/* Rows that an MLP or an expert computes together. */
struct group {
    const struct pass *p;
    const struct expert *expert;
    const int64_t *pairs; /* of rows and this expert; NULL: all rows */
    int64_t rows;
};

/* The hidden row of row r of a group. */
static int64_t row_of(const struct group *g, int64_t r) {
    return g->pairs ? g->pairs[r] / g->p->l->moe->chosen : r;
}

static void round_for_gate_up(const void *task, int64_t begin, int64_t end) {
    const struct group *g = task;
    const struct pass *p = g->p;
    for (int64_t r = begin; r < end; r++)
        round_direction(p->d, g->expert->gate_up, p->rest + row_of(g, r) * p->d->width,
                        p->room->rounded, r, g->rows);
}

static void gate_and_round_for_down(const void *task, int64_t begin, int64_t end) {
    const struct group *g = task;
    const struct matrix *down = g->expert->down;
    for (int64_t r = begin; r < end; r++) {
        float *row = g->p->room->wide + r * 2 * down->inputs;
        gate(g->p->d, row, down->inputs);
        way_of(down)->round(down, row, 1.0f, g->p->room->rounded, r, g->rows);
    }
}

static void pick(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    int64_t width = p->d->width;
    for (int64_t r = begin; r < end; r++)
        memcpy(p->rest + r * width, p->hidden + p->at[r] * width, (size_t)width * sizeof(float));
}

/* Outputs of a GEMM that are normed and added to hidden rows. */
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

/* Add a linear of the rounded rows to the hidden rows, after a norm if there is one. */
static void add_product(const struct pass *p, const struct matrix *m, const float *factor) {
    float *to = factor ? p->room->found : p->rest;
    multiply(&(struct gemm){m, p->room->rounded, p->rows, to, p->d->width, !factor}, p->threads);
    if (factor) share(add_normed, &(struct addition){p, factor}, p->rows, p->threads);
}

/* Attention of all positions, whose keys and values are in the store afterwards. */
static void attention(const struct pass *p) {
    const struct decoder *d = p->d;
    const struct layer *l = p->l;
    const struct room *room = p->room;
    int64_t rows = p->s->positions, stride = (d->heads + 2 * d->kv_heads) * d->head_dim;
    share(round_for_qkv, p, rows, p->threads);
    multiply(&(struct gemm){l->qkv, room->rounded, rows, room->wide, stride, 0}, p->threads);
    share(turn_and_write, p, rows, p->threads);
    attend(p->s, l - d->layers, l->window, d->query_scale, d->score_cap, 0, room->wide, stride,
           d->heads, room->found, p->threads);
}

static void add_attention(const struct pass *p) {
    share(round_for_out, p, p->rows, p->threads);
    add_product(p, p->l->out, p->l->after_attention);
}

/* From hidden rows to rounded inputs of the last linear of an MLP. */
static void gate_rows(const struct group *g) {
    const struct room *room = g->p->room;
    const struct matrix *m = g->expert->gate_up;
    share(round_for_gate_up, g, g->rows, g->p->threads);
    multiply(&(struct gemm){m, room->rounded, g->rows, room->wide, m->outputs, 0}, g->p->threads);
    share(gate_and_round_for_down, g, g->rows, g->p->threads);
}

static void add_mlp(const struct pass *p) {
    gate_rows(&(struct group){p, &p->l->mlp, 0, p->rows});
    add_product(p, p->l->mlp.down, p->l->after_mlp);
}

/* Write the experts with the largest scores of a row, and their shares. */
static void route(
    const struct decoder *d, const struct moe *m, const float *x, int64_t *chosen,
    float *shares) {
    float scores[m->count], all = 0.0f, some = 0.0f, by = 1.0f / length(x, d->width, d->norm_eps);
    for (int64_t e = 0; e < m->count; e++) {
        const float *router = m->router + e * d->width;
        floats sum = {0};
        for (int64_t i = 0; i < d->width; i += FLOATS)
            sum += some_of(x + i, d->width - i) * some_of(router + i, d->width - i);
        scores[e] = sum_of(sum) * by;
    }
    for (int64_t c = 0; c < m->chosen; c++) {
        chosen[c] = -1;
        for (int64_t e = 0; e < m->count; e++) {
            int is_taken = 0;
            for (int64_t before = 0; before < c; before++) is_taken |= chosen[before] == e;
            if (!is_taken && (chosen[c] < 0 || scores[e] > scores[chosen[c]])) chosen[c] = e;
        }
    }
    float top = scores[chosen[0]];
    for (int64_t e = 0; e < m->count; e++) all += expf(scores[e] - top);
    for (int64_t c = 0; c < m->chosen; c++) some += shares[c] = expf(scores[chosen[c]] - top);
    for (int64_t c = 0; c < m->chosen; c++) shares[c] /= m->shares_sum_to_one ? some : all;
}

static void route_rows(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    const struct moe *m = p->l->moe;
    const struct room *room = p->room;
    int64_t width = p->d->width;
    for (int64_t r = begin; r < end; r++) {
        int64_t first = r * m->chosen;
        route(p->d, m, p->rest + r * width, room->chosen + first, room->shares + first);
        memset(room->total + r * width, 0, (size_t)width * sizeof(float));
    }
}

/* Sort pairs of a row and one of its experts by expert; those of an expert stay in order. */
static void sort_pairs(const struct moe *m, int64_t rows, const struct room *room) {
    int64_t *starts = room->starts, count = rows * m->chosen;
    memset(starts, 0, (size_t)(m->count + 1) * sizeof *starts);
    for (int64_t i = 0; i < count; i++) starts[room->chosen[i] + 1]++;
    for (int64_t e = 0; e < m->count; e++) starts[e + 1] += starts[e];
    for (int64_t i = 0; i < count; i++) room->pairs[starts[room->chosen[i]]++] = i;
    for (int64_t e = m->count; e > 0; e--) starts[e] = starts[e - 1];
    starts[0] = 0;
}

static void add_shares(const void *task, int64_t begin, int64_t end) {
    const struct group *g = task;
    const struct room *room = g->p->room;
    int64_t width = g->p->d->width;
    for (int64_t r = begin; r < end; r++) {
        float *to = room->total + row_of(g, r) * width, by = room->shares[g->pairs[r]];
        for (int64_t i = 0; i < width; i++) to[i] += by * room->found[r * width + i];
    }
}

static void add_total(const void *task, int64_t begin, int64_t end) {
    const struct pass *p = task;
    for (int64_t i = begin * p->d->width; i < end * p->d->width; i++) p->rest[i] += p->room->total[i];
}

/* Every chosen expert computes all of its rows at once. A row adds up its experts in order, so its
 * result does not depend on other rows. */
static void add_moe(const struct pass *p) {
    const struct moe *m = p->l->moe;
    const struct room *room = p->room;
    share(route_rows, p, p->rows, p->threads);
    sort_pairs(m, p->rows, room);
    for (int64_t e = 0; e < m->count; e++) {
        int64_t first = room->starts[e], rows = room->starts[e + 1] - first;
        struct group g = {p, &m->experts[e], room->pairs + first, rows};
        if (!rows) continue;
        gate_rows(&g);
        multiply(&(struct gemm){g.expert->down, room->rounded, rows, room->found, p->d->width, 0},
                 p->threads);
        share(add_shares, &g, rows, p->threads);
    }
    share(add_total, p, p->rows, p->threads);
}

/* Compute the layers for hidden rows [positions, width], in place. Unless `wanted` is negative, write
 * only those of the positions `at` to `out` [wanted, width]: the others end with the last attention.
 * The scratch has `decoder_scratch_bytes` for the larger number of rows. */
void decode(
    const struct decoder *d, const struct step *s, float *hidden, const int64_t *at, int64_t wanted,
    float *out, void *scratch, int threads) {
    struct room room;
    lay_out(d, most(s->positions, wanted), scratch, &room);
    const struct layer *first = d->layers + d->first;
    struct pass p = {d, first, s, &room, hidden, hidden, 0, s->positions, threads};
    for (const struct layer *l = first; l < d->layers + d->count; p.l = ++l) {
        if (l == first || l->rope != l[-1].rope) share(find_rotations, &p, s->positions, threads);
        attention(&p);
        if (wanted >= 0 && l == d->layers + d->count - 1) {
            p.rest = out, p.at = at, p.rows = wanted;
            share(pick, &p, wanted, threads);
        }
        if (p.rows) {
            add_attention(&p);
            if (l->moe) add_moe(&p);
            else add_mlp(&p);
        }
    }
}
