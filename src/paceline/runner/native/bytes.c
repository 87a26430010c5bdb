/* Weights of 8 bits with one scale for each output.
 *
 * Inputs that are rounded to 16 bits have one scale for each row. Inputs that are rounded to 8 bits
 * have one for every GROUP inputs of a row, so that a large input costs precision in its group only.
 * The sums of groups are added in order.
 *
 *     packed weights   | panel 0                     | panel 1 …      LANES * VECS outputs each
 *                      | inputs 0 … DEPTH-1 | next … |                DEPTH inputs together
 *                      | output 0 | output 1 | …     |                DEPTH bytes each
 *
 * A vector of weights is multiplied with DEPTH inputs that are repeated for each of its outputs.
 * Each lane sums its own output, so nothing is summed across a vector.
 */
#include <float.h>

#include "linear.h"
#include "vectors.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
enum { LANES = 16, VECS = 2, ROWS = 8, DEPTH = 2, GROUP = 1 << 14 };
typedef int16_t whole;
typedef __m512i sums, weights, inputs;
#define ZERO() _mm512_setzero_si512()
#define WEIGHTS(at) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(at)))
#define INPUTS(at) _mm512_set1_epi32(four_bytes(at))
#if defined(__AVX512VNNI__)
#define ADD(sum, w, x) _mm512_dpwssd_epi32(sum, w, x)
#else
#define ADD(sum, w, x) _mm512_add_epi32(sum, _mm512_madd_epi16(w, x))
#endif
#elif defined(__AVX2__)
#include <immintrin.h>
enum { LANES = 8, VECS = 2, ROWS = 4, DEPTH = 2, GROUP = 1 << 14 };
typedef int16_t whole;
typedef __m256i sums, weights, inputs;
#define ZERO() _mm256_setzero_si256()
#define WEIGHTS(at) _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(at)))
#define INPUTS(at) _mm256_set1_epi32(four_bytes(at))
#define ADD(sum, w, x) _mm256_add_epi32(sum, _mm256_madd_epi16(w, x))
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { LANES = 4, VECS = 2, ROWS = 16, DEPTH = 4, GROUP = 32 };
typedef int8_t whole;
typedef int32x4_t sums;
typedef int8x16_t weights, inputs;
#define ZERO() vdupq_n_s32(0)
#define WEIGHTS(at) vld1q_s8(at)
#define INPUTS(at) vreinterpretq_s8_s32(vdupq_n_s32(four_bytes(at)))
#define ADD(sum, w, x) vdotq_s32(sum, w, x)
#define ADD_AT(sum, w, x, lane) vdotq_laneq_s32(sum, w, x, lane)
#else
#error "no instructions for products of whole numbers are known for this processor"
#endif

enum { PANEL = LANES * VECS };
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES)));
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef whole wholes __attribute__((vector_size(FLOATS * sizeof(whole))));

static inline int32_t four_bytes(const void *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

int bytes_panel(void) { return PANEL; }
int bytes_depth(void) { return DEPTH; }

static inline int64_t groups_of(int64_t width) { return (width + GROUP - 1) / GROUP; }

static int64_t bytes_of(const struct matrix *m, int64_t rows) {
    int64_t scales = groups_of(m->width) * (int64_t)sizeof(float);
    return rows * (scales + m->width * (int64_t)sizeof(whole));
}

/* The largest rounded input for which a sum of `count` products fits in 32 bits. */
static inline float limit_of(int64_t count) {
    int64_t fits = INT32_MAX / (128 * count), most = sizeof(whole) == 1 ? INT8_MAX : INT16_MAX;
    return (float)(fits < most ? fits : most);
}

/* Round inputs to integers, and return their scale. */
static float rounded(const float *x, const float *factor, int64_t count, whole *to) {
    float limit = limit_of(count);
    floats tops = {0}, none = {0}; /* zero, unless an input is infinite or NaN */
    for (int64_t i = 0; i < count; i += FLOATS) {
        floats part = some_of(x + i, count - i);
        if (factor) part *= some_of(factor + i, count - i);
        tops = larger(size_of(part), tops);
        none += part - part;
    }
    float top = largest(tops), by = top > FLT_MIN ? limit / top : 0.0f;
    for (int64_t i = 0; i < count; i += FLOATS) {
        floats part = some_of(x + i, count - i);
        if (factor) part *= some_of(factor + i, count - i);
        ints all = __builtin_convertvector(whole_of(part * by), ints);
        wholes found = __builtin_convertvector(all, wholes);
        int64_t some = count - i < FLOATS ? count - i : FLOATS;
        memcpy(to + i, &found, (size_t)some * sizeof *to);
    }
    return top / limit + sum_of(none);
}

static void round_row(
    const struct matrix *m, const float *x, float by, void *scratch, int64_t row, int64_t rows) {
    int64_t groups = groups_of(m->width);
    float *scale = (float *)scratch + row * groups;
    whole *to = (whole *)((float *)scratch + rows * groups) + row * m->width;
    for (int64_t first = 0; first < m->inputs; first += GROUP) {
        int64_t left = m->inputs - first, count = left < GROUP ? left : GROUP;
        const float *factor = m->factor ? m->factor + first : 0;
        *scale++ = rounded(x + first, factor, count, to + first) * by;
    }
    memset(to + m->inputs, 0, (size_t)(m->width - m->inputs) * sizeof *to);
}

/* The sums of a group, added to the outputs of a row. */
static inline __attribute__((always_inline)) void add_group(
    lanes found[VECS], const sums sum[VECS], float scale) {
    for (int v = 0; v < VECS; v++)
        found[v] += __builtin_convertvector((whole_lanes)sum[v], lanes) * scale;
}

/* One panel of outputs for `count` rows, which is a constant in the fast paths. */
static inline __attribute__((always_inline)) void tile(
    const int count, const struct matrix *m, const int8_t *w, const whole *x, const float *scale,
    lanes found[][VECS]) {
    int64_t width = m->width, groups = groups_of(width);
    memset(found, 0, sizeof found[0] * (size_t)count);
    for (int64_t g = 0, k = 0; g < groups; g++) {
        int64_t end = k + GROUP < width ? k + GROUP : width;
#ifdef ADD_AT
        _Static_assert(DEPTH == 4 && GROUP == 32, "steps are written out");
        if (end - k == GROUP) {
            weights part[GROUP / DEPTH][VECS];
            for (int i = 0; i < GROUP / DEPTH; i++)
                for (int v = 0; v < VECS; v++, w += LANES * DEPTH) part[i][v] = WEIGHTS(w);
#pragma GCC unroll 1
            for (int r = 0; r < count; r++) {
                sums sum[VECS] = {{0}};
                inputs low = vld1q_s8(x + r * width + k), high = vld1q_s8(x + r * width + k + 16);
                MEET_ALL(low, high)
                add_group(found[r], sum, scale[r * groups + g]);
            }
            k = end;
            continue;
        }
#endif
        sums sum[ROWS][VECS];
        for (int r = 0; r < count; r++)
            for (int v = 0; v < VECS; v++) sum[r][v] = ZERO();
        for (; k < end; k += DEPTH, w += PANEL * DEPTH) {
            weights part[VECS];
            for (int v = 0; v < VECS; v++) part[v] = WEIGHTS(w + v * LANES * DEPTH);
            for (int r = 0; r < count; r++) {
                inputs row = INPUTS(x + r * width + k);
                for (int v = 0; v < VECS; v++) sum[r][v] = ADD(sum[r][v], part[v], row);
            }
        }
        for (int r = 0; r < count; r++) add_group(found[r], sum[r], scale[r * groups + g]);
    }
}

static void settle(
    const struct matrix *m, int64_t first, int64_t rows, lanes found[][VECS], float *out,
    int64_t out_stride, int is_added) {
    int64_t some = m->outputs - first < PANEL ? m->outputs - first : PANEL;
    const float *scale = (const float *)m->scale + first;
    for (int64_t r = 0; r < rows; r++) {
        float part[PANEL], *to = out + r * out_stride + first;
        memcpy(part, found[r], sizeof part);
        for (int64_t o = 0; o < some; o++) part[o] *= scale[o];
        for (int64_t o = 0; m->bias && o < some; o++) part[o] += m->bias[first + o];
        for (int64_t o = 0; is_added && o < some; o++) part[o] += to[o];
        memcpy(to, part, (size_t)some * sizeof(float));
    }
}

static void panel(
    const struct matrix *m, const void *scratch, int64_t rows, int64_t panel, float *out,
    int64_t out_stride, int is_added) {
    int64_t width = m->width, groups = groups_of(width);
    const float *scale = scratch;                              /* [rows, groups] */
    const whole *all = (const whole *)(scale + rows * groups); /* [rows, width] */
    const int8_t *w = m->packed + panel * PANEL * width;
    for (int64_t r = 0, count; r < rows; r += count) {
        lanes found[ROWS][VECS];
        const whole *part = all + r * width;
        const float *by = scale + r * groups;
        count = rows - r;
#ifdef ADD_AT
        count = count < ROWS ? count : ROWS; /* callers take rows one by one, so any number works */
        if (count > 1) tile((int)count, m, w, part, by, found);
        else tile(1, m, w, part, by, found);
#else
        if (count >= ROWS) tile(count = ROWS, m, w, part, by, found);
        else if (count >= 4) tile(count = 4, m, w, part, by, found);
        else if (count >= 2) tile(count = 2, m, w, part, by, found);
        else tile(1, m, w, part, by, found);
#endif
        settle(m, panel * PANEL, count, found, out + r * out_stride, out_stride, is_added);
    }
}

const struct way bytes_way = {bytes_of, round_row, panel, PANEL};
