/* Weights of 4 bits, with a step and a least weight for each output and GROUP of inputs.
 *
 * A weight is step * (0 … 15) + least. An input is scale * (-127 … 127), with one scale for each
 * group too. So a group adds step * scale * (integer dot product) + least * (sum of its inputs).
 * With a table, a weight is step * (one of 16 numbers from 0 to TABLE_MOST) + least. With an order,
 * inputs are permuted while they are rounded.
 *
 *     packed weights   | panel 0                        | panel 1 …    PANEL outputs each
 *                      | group 0             | group 1… |              GROUP inputs each
 *                      | inputs 0 … 3 | 4 … 7 | …       |              of two vectors of outputs:
 *                      a byte is a weight of the first vector, and above it one of the second
 *     scales           | panel | group | steps of PANEL outputs, then leasts |       as halves
 *
 * A vector of weights is multiplied with four inputs that are repeated for each of its outputs.
 * Each lane sums its own output, so nothing is summed across a vector.
 */
#include <float.h>

#include "linear.h"
#include "vectors.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
enum { LANES = 16, ROWS = 8 };
typedef __m512i bytes;
#define LOAD(at) _mm512_loadu_si512(at)
#define LOW(x) _mm512_and_si512(x, _mm512_set1_epi8(15))
#define HIGH(x) LOW(_mm512_srli_epi16(x, 4))
#define FOUR(at) _mm512_set1_epi32(four_bytes(at))
#define TABLE(at) _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(at)))
#define LOOK_UP(table, x) _mm512_shuffle_epi8(table, x)
#define HALVES(at) (lanes) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(at)))
#if defined(__AVX512VNNI__)
#define ADD(sum, w, x) _mm512_dpbusd_epi32(sum, w, x)
#define WHOLE(sum) (sum)
#else
#define SUMS_OF_16_BITS
#define ADD(sum, w, x) _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x))
#define WHOLE(sum) _mm512_madd_epi16(sum, _mm512_set1_epi16(1))
#endif
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
enum { LANES = 8, ROWS = 4 };
typedef __m256i bytes;
#define LOAD(at) _mm256_loadu_si256((const void *)(at))
#define LOW(x) _mm256_and_si256(x, _mm256_set1_epi8(15))
#define HIGH(x) LOW(_mm256_srli_epi16(x, 4))
#define SUMS_OF_16_BITS
#define FOUR(at) _mm256_set1_epi32(four_bytes(at))
#define TABLE(at) _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(at)))
#define LOOK_UP(table, x) _mm256_shuffle_epi8(table, x)
#define HALVES(at) (lanes) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(at)))
#define ADD(sum, w, x) _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x))
#define WHOLE(sum) _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { LANES = 4, ROWS = 16 };
typedef int8x16_t bytes;
#define LOAD(at) vld1q_s8(at)
#define LOW(x) vandq_s8(x, vdupq_n_s8(15))
#define HIGH(x) vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4))
#define TABLE(at) vreinterpretq_s8_u8(vld1q_u8(at))
#define LOOK_UP(table, x) vqtbl1q_s8(table, vreinterpretq_u8_s8(x))
#define HALVES(at) (lanes) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)))
#define ADD_AT(sum, w, x, lane) (bytes) vdotq_laneq_s32((int32x4_t)(sum), w, x, lane)
#define WHOLE(sum) (sum)
#else
#error "no instructions for products of whole numbers are known for this processor"
#endif

enum { GROUP = 32, VECS = 2, PANEL = LANES * VECS, TABLE_MOST = 24 };
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES)));
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int8_t some_bytes __attribute__((vector_size(FLOATS)));
struct scaled {
    float scale, sum; /* of a group of inputs; the sum is that of their rounded values */
};

static inline int32_t four_bytes(const void *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

int int4_lanes(void) { return LANES; }
int int4_group(void) { return GROUP; }
int int4_table_most(void) { return TABLE_MOST; }

/* The largest rounded input. Sums of 16 bits hold 16 products of weights up to 15 and
 * inputs up to 127, or of TABLE_MOST and 85. */
static inline float limit_of(const struct matrix *m) {
#ifdef SUMS_OF_16_BITS
    return m->table ? 85.0f : 127.0f;
#else
    (void)m;
    return 127.0f;
#endif
}

static int64_t bytes_of(const struct matrix *m, int64_t rows) {
    return rows * (m->width / GROUP * (int64_t)sizeof(struct scaled) + m->width);
}

static struct scaled rounded(
    const floats part[GROUP / FLOATS], float limit, float by, int8_t *to) {
    floats tops = size_of(part[0]), none = part[0] - part[0];
    for (int i = 1; i < GROUP / FLOATS; i++) {
        tops = larger(tops, size_of(part[i]));
        none += part[i] - part[i]; /* zero, unless one is infinite or NaN */
    }
    float top = largest(tops);
    float factor = top > FLT_MIN ? limit / top : 0.0f, scale = top / limit * by + sum_of(none);
    ints sum = {0};
    for (int i = 0; i < GROUP / FLOATS; i++) {
        ints whole = __builtin_convertvector(whole_of(part[i] * factor), ints);
        some_bytes found = __builtin_convertvector(whole, some_bytes);
        memcpy(to + i * FLOATS, &found, sizeof found);
        sum += whole;
    }
    return (struct scaled){scale, scale * sum_of(__builtin_convertvector(sum, floats))};
}

/* A vector of inputs from `at` on, times their factors; zeros behind the last `left` of them. */
static inline floats inputs_at(const struct matrix *m, const float *x, int64_t at, int64_t left) {
    if (!m->order) {
        floats part = some_of(x + at, left);
        return m->factor ? part * some_of(m->factor + at, left) : part;
    }
    float found[FLOATS] = {0};
    for (int64_t i = 0; i < FLOATS && i < left; i++) {
        int64_t from = m->order[at + i];
        found[i] = m->factor ? x[from] * m->factor[from] : x[from];
    }
    return some_of(found, FLOATS);
}

static void round_row(
    const struct matrix *m, const float *x, float by, void *scratch, int64_t row, int64_t rows) {
    int64_t groups = m->width / GROUP;
    struct scaled *scaled = (struct scaled *)scratch + row * groups;
    int8_t *to = (int8_t *)((struct scaled *)scratch + rows * groups) + row * m->width;
    for (int64_t g = 0; g < groups; g++) {
        floats part[GROUP / FLOATS];
        for (int i = 0; i < GROUP / FLOATS; i++) {
            int64_t at = g * GROUP + i * FLOATS, left = m->inputs - at;
            part[i] = inputs_at(m, x, at, left > 0 ? left : 0);
        }
        scaled[g] = rounded(part, limit_of(m), by, to + g * GROUP);
    }
}

/* The scales of one group and one panel. */
struct scales {
    lanes step[VECS], least[VECS];
};

static inline struct scales scales_at(const uint16_t *steps) {
    struct scales found;
    for (int v = 0; v < VECS; v++) {
        found.step[v] = HALVES(steps + v * LANES);
        found.least[v] = HALVES(steps + PANEL + v * LANES);
    }
    return found;
}

/* The sums of a group, added to the outputs of a row. */
static inline __attribute__((always_inline)) void add_group(
    lanes found[VECS], const bytes sum[VECS], struct scaled by, const struct scales *scales) {
    for (int v = 0; v < VECS; v++) {
        lanes whole = __builtin_convertvector((whole_lanes)WHOLE(sum[v]), lanes);
        found[v] = found[v] + by.sum * scales->least[v];
        found[v] = found[v] + whole * by.scale * scales->step[v];
    }
}

/* One panel of outputs for `count` rows, which is a constant in the fast paths. */
static inline __attribute__((always_inline)) void tile(
    const int count, const uint8_t *const codes, int64_t width, const int8_t *w,
    const uint16_t *steps, const int8_t *x, const struct scaled *scaled, lanes found[][VECS]) {
    int64_t groups = width / GROUP;
    const bytes table = codes ? TABLE(codes) : (bytes){0};
    memset(found, 0, sizeof found[0] * (size_t)count);
    for (int64_t g = 0; g < groups; g++, x += GROUP, steps += 2 * PANEL) {
#ifdef ADD_AT
        _Static_assert(GROUP == 32, "steps are written out");
        struct scales scales = scales_at(steps);
        bytes part[GROUP / 4][VECS];
        for (int k = 0; k < GROUP / 4; k++, w += sizeof(bytes)) {
            bytes both = LOAD(w);
            part[k][0] = LOW(both), part[k][1] = HIGH(both);
            for (int v = 0; codes && v < VECS; v++) part[k][v] = LOOK_UP(table, part[k][v]);
        }
#pragma GCC unroll 1
        for (int r = 0; r < count; r++) {
            bytes sum[VECS] = {{0}}, low = LOAD(x + r * width), high = LOAD(x + r * width + 16);
            MEET_ALL(low, high)
            add_group(found[r], sum, scaled[r * groups + g], &scales);
        }
#else
        bytes sum[ROWS][VECS];
        memset(sum, 0, sizeof sum[0] * (size_t)count);
#pragma GCC unroll 8
        for (int k = 0; k < GROUP; k += 4, w += sizeof(bytes)) {
            bytes both = LOAD(w), part[VECS] = {LOW(both), HIGH(both)};
            for (int v = 0; codes && v < VECS; v++) part[v] = LOOK_UP(table, part[v]);
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                bytes row = FOUR(x + r * width + k);
                for (int v = 0; v < VECS; v++) sum[r][v] = ADD(sum[r][v], part[v], row);
            }
        }
        struct scales scales = scales_at(steps);
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
            add_group(found[r], sum[r], scaled[r * groups + g], &scales);
#endif
    }
}

static void settle(
    const struct matrix *m, int64_t first, int64_t rows, lanes found[][VECS], float *out,
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

/* `codes` is the table of the matrix, or NULL. All callers pass a constant, so that each case is
 * compiled by itself. */
static inline __attribute__((always_inline)) void panel_of(
    const uint8_t *const codes, const struct matrix *m, const void *scratch, int64_t rows,
    int64_t panel, float *out, int64_t out_stride, int is_added) {
    int64_t width = m->width, groups = width / GROUP;
    const struct scaled *scaled = scratch;                            /* [rows, groups] */
    const int8_t *x = (const int8_t *)(scaled + rows * groups);       /* [rows, width] */
    const int8_t *w = m->packed + panel * PANEL * width / 2;
    const uint16_t *steps = (const uint16_t *)m->scale + panel * groups * 2 * PANEL;
    for (int64_t r = 0, count; r < rows; r += count) {
        lanes found[ROWS][VECS];
        const int8_t *part = x + r * width;
        const struct scaled *by = scaled + r * groups;
        count = rows - r;
#ifdef ADD_AT
        count = count < ROWS ? count : ROWS; /* callers take rows one by one, so any number works */
        if (count > 1) tile((int)count, codes, width, w, steps, part, by, found);
        else tile(1, codes, width, w, steps, part, by, found);
#else
        if (count >= ROWS) tile(count = ROWS, codes, width, w, steps, part, by, found);
        else if (count >= 4) tile(count = 4, codes, width, w, steps, part, by, found);
        else if (count >= 2) tile(count = 2, codes, width, w, steps, part, by, found);
        else tile(1, codes, width, w, steps, part, by, found);
#endif
        settle(m, panel * PANEL, count, found, out + r * out_stride, out_stride, is_added);
    }
}

static void panel(
    const struct matrix *m, const void *scratch, int64_t rows, int64_t panel, float *out,
    int64_t out_stride, int is_added) {
    if (m->table) panel_of(m->table, m, scratch, rows, panel, out, out_stride, is_added);
    else panel_of(NULL, m, scratch, rows, panel, out, out_stride, is_added);
}

const struct way int4_way = {bytes_of, round_row, panel, PANEL};
