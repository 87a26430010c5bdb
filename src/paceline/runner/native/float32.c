/* Weights of 32 bits.
 *
 * An output adds its products in the order of the inputs: those of GROUP inputs in a register, and
 * the sums of groups in turn. Rows and outputs have sums of their own, in lanes of their own, so the
 * result of a row has the same bits alone and beside others.
 *
 *     packed weights   | panel 0                          | panel 1 …      PANEL outputs each
 *                      | input 0          | input 1 | …   |
 *                      | output 0 | 1 | … |
 */
#include "linear.h"
#include "vectors.h"

#if FLOATS == 8
enum { VECS = 2, ROWS = 6 }; /* 16 registers: sums, weights and an input */
#else
enum { VECS = 4, ROWS = 6 }; /* 32 registers */
#endif
enum { PANEL = FLOATS * VECS, GROUP = 256, HELD = 8 * ROWS }; /* rows that read a panel together */

int float_panel(void) { return PANEL; }

static int64_t bytes_of(const struct matrix *m, int64_t rows) {
    return rows * m->inputs * (int64_t)sizeof(float);
}

static void copy_row(
    const struct matrix *m, const float *x, float by, void *scratch, int64_t row, int64_t rows) {
    (void)rows;
    float *to = (float *)scratch + row * m->inputs;
    for (int64_t i = 0; i < m->inputs; i += FLOATS) {
        int64_t left = m->inputs - i;
        floats part = some_of(x + i, left) * by;
        if (m->factor) part *= some_of(m->factor + i, left);
        put_some(to + i, part, left);
    }
}

/* Add a group of inputs to the sums of `count` rows. All callers pass a constant. */
static inline __attribute__((always_inline)) void add_group(
    const int count, const float *w, const float *x, int64_t stride, int64_t inputs,
    floats found[][VECS]) {
    floats sum[ROWS][VECS] = {{{0}}};
    for (int64_t k = 0; k < inputs; k++) {
        const floats *weights = (const floats *)(w + k * PANEL);
#pragma GCC unroll 6
        for (int r = 0; r < count; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) sum[r][v] += x[r * stride + k] * weights[v];
    }
#pragma GCC unroll 6
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) found[r][v] += sum[r][v];
}

static void settle(
    const struct matrix *m, int64_t first, int64_t rows, floats found[][VECS], float *out,
    int64_t out_stride, int is_added) {
    int64_t some = m->outputs - first < PANEL ? m->outputs - first : PANEL;
    for (int64_t r = 0; r < rows; r++) {
        float part[PANEL], *to = out + r * out_stride + first;
        memcpy(part, found[r], sizeof part);
        for (int64_t o = 0; m->bias && o < some; o++) part[o] += m->bias[first + o];
        for (int64_t o = 0; is_added && o < some; o++) part[o] += to[o];
        memcpy(to, part, (size_t)some * sizeof(float));
    }
}

static void panel(
    const struct matrix *m, const void *scratch, int64_t rows, int64_t panel, float *out,
    int64_t out_stride, int is_added) {
    int64_t inputs = m->inputs;
    const float *w = (const float *)m->packed + panel * PANEL * inputs;
    for (int64_t first = 0; first < rows; first += HELD) {
        int64_t held = rows - first < HELD ? rows - first : HELD;
        const float *all = (const float *)scratch + first * inputs;
        floats found[HELD][VECS];
        memset(found, 0, sizeof found[0] * (size_t)held);
        for (int64_t k = 0; k < inputs; k += GROUP) {
            int64_t some = inputs - k < GROUP ? inputs - k : GROUP, r = 0;
            const float *part = w + k * PANEL, *x = all + k;
            for (; r + ROWS <= held; r += ROWS)
                add_group(ROWS, part, x + r * inputs, inputs, some, found + r);
            for (; r + 3 <= held; r += 3)
                add_group(3, part, x + r * inputs, inputs, some, found + r);
            for (; r < held; r++) add_group(1, part, x + r * inputs, inputs, some, found + r);
        }
        settle(m, panel * PANEL, held, found, out + first * out_stride, out_stride, is_added);
    }
}

const struct way float_way = {bytes_of, copy_row, panel, PANEL};
