/* Weights of 4 bits: in every GROUP of inputs an output has a step and a least weight.
 *
 * A weight is step * (0 … 15) + least. An input is scale * (-127 … 127), with a scale for every
 * group too. So a group adds step * scale * (their whole product) + least * (sum of its inputs).
 *
 *     packed weights   | panel 0                        | panel 1 …    PANEL outputs each
 *                      | group 0             | group 1… |              GROUP inputs each
 *                      | inputs 0 … 3 | 4 … 7 | …       |
 *                      | pair 0 | pair 1 | …  |                        two vectors of outputs
 *                      a byte is a weight of the first vector, and above it one of the second
 *     scales           | panel | group | steps of PANEL outputs, then leasts |       as halves
 *
 * A vector of weights meets four inputs that are repeated for every output of it, and the sums
 * of a vector belong to its outputs: nothing is ever summed across a vector.
 */
#include <float.h>

#include "linear.h"
#include "vectors.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
enum { LANES = 16, PAIRS = 1, ROWS = 8 };
typedef __m512i bytes;
#define LOAD(at) _mm512_loadu_si512(at)
#define LOW(x) _mm512_and_si512(x, _mm512_set1_epi8(15))
#define HIGH(x) LOW(_mm512_srli_epi16(x, 4))
#define FOUR(at) _mm512_set1_epi32(four_bytes(at))
#define HALVES(at) (lanes) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(at)))
#if defined(__AVX512VNNI__)
#define ADD(sum, w, x) _mm512_dpbusd_epi32(sum, w, x)
#define WHOLE(sum) (sum)
#else /* In 16 bits the sums of a group are at most 16 * 15 * 127. */
#define ADD(sum, w, x) _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x))
#define WHOLE(sum) _mm512_madd_epi16(sum, _mm512_set1_epi16(1))
#endif
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
enum { LANES = 8, PAIRS = 1, ROWS = 4 };
typedef __m256i bytes;
#define LOAD(at) _mm256_loadu_si256((const void *)(at))
#define LOW(x) _mm256_and_si256(x, _mm256_set1_epi8(15))
#define HIGH(x) LOW(_mm256_srli_epi16(x, 4))
#define FOUR(at) _mm256_set1_epi32(four_bytes(at))
#define HALVES(at) (lanes) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(at)))
#define ADD(sum, w, x) _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x))
#define WHOLE(sum) _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { LANES = 4, PAIRS = 2, ROWS = 4 };
typedef int8x16_t bytes;
#define LOAD(at) vld1q_s8(at)
#define LOW(x) vandq_s8(x, vdupq_n_s8(15))
#define HIGH(x) vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4))
#define FOUR(at) vreinterpretq_s8_s32(vdupq_n_s32(four_bytes(at)))
#define HALVES(at) (lanes) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)))
#define ADD(sum, w, x) (bytes) vdotq_s32((int32x4_t)(sum), w, x)
#define WHOLE(sum) (sum)
#else
#error "no instructions for products of whole numbers are known for this processor"
#endif

enum { GROUP = 32, VECS = 2 * PAIRS, PANEL = LANES * VECS };
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

int nibbles_lanes(void) { return LANES; }
int nibbles_pairs(void) { return PAIRS; }
int nibbles_group(void) { return GROUP; }

static int64_t bytes_of(const struct matrix *m, int64_t rows) {
    return rows * (m->width / GROUP * (int64_t)sizeof(struct scaled) + m->width);
}

static struct scaled rounded(floats first, floats second, float by, int8_t *to) {
    float top = largest(larger(size_of(first), size_of(second)));
    float factor = top > FLT_MIN ? 127.0f / top : 0.0f, scale = top / 127.0f * by;
    ints a = __builtin_convertvector(whole_of(first * factor), ints);
    ints b = __builtin_convertvector(whole_of(second * factor), ints);
    some_bytes low = __builtin_convertvector(a, some_bytes);
    some_bytes high = __builtin_convertvector(b, some_bytes);
    memcpy(to, &low, sizeof low);
    memcpy(to + FLOATS, &high, sizeof high);
    return (struct scaled){scale, scale * sum_of(__builtin_convertvector(a + b, floats))};
}

static void round_row(
    const struct matrix *m, const float *x, float by, void *scratch, int64_t row, int64_t rows) {
    int64_t groups = m->width / GROUP;
    struct scaled *scaled = (struct scaled *)scratch + row * groups;
    int8_t *to = (int8_t *)((struct scaled *)scratch + rows * groups) + row * m->width;
    for (int64_t g = 0; g < groups; g++) {
        int64_t at = g * GROUP, left = m->inputs - at, more = left > FLOATS ? left - FLOATS : 0;
        floats first = some_of(x + at, left), second = some_of(x + at + FLOATS, more);
        if (m->factor) {
            first *= some_of(m->factor + at, left);
            second *= some_of(m->factor + at + FLOATS, more);
        }
        scaled[g] = rounded(first, second, by, to + at);
    }
}

/* One panel of outputs for `count` rows, a constant wherever this is called. */
static inline __attribute__((always_inline)) void tile(
    const int count, int64_t width, const int8_t *w, const uint16_t *steps, const int8_t *x,
    const struct scaled *scaled, lanes found[][VECS]) {
    int64_t groups = width / GROUP;
    memset(found, 0, sizeof found[0] * (size_t)count);
    for (int64_t g = 0; g < groups; g++, x += GROUP, steps += 2 * PANEL) {
        bytes sum[ROWS][VECS];
        memset(sum, 0, sizeof sum[0] * (size_t)count);
#pragma GCC unroll 8
        for (int k = 0; k < GROUP; k += 4, w += PAIRS * (int64_t)sizeof(bytes)) {
            bytes part[VECS];
            for (int p = 0; p < PAIRS; p++) {
                bytes both = LOAD(w + p * (int64_t)sizeof(bytes));
                part[2 * p] = LOW(both), part[2 * p + 1] = HIGH(both);
            }
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                bytes row = FOUR(x + r * width + k);
                for (int v = 0; v < VECS; v++) sum[r][v] = ADD(sum[r][v], part[v], row);
            }
        }
        lanes step[VECS], least[VECS];
        for (int v = 0; v < VECS; v++) {
            step[v] = HALVES(steps + v * LANES);
            least[v] = HALVES(steps + PANEL + v * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            struct scaled by = scaled[r * groups + g];
            for (int v = 0; v < VECS; v++) {
                lanes whole = __builtin_convertvector((whole_lanes)WHOLE(sum[r][v]), lanes);
                found[r][v] = found[r][v] + by.sum * least[v];
                found[r][v] = found[r][v] + whole * by.scale * step[v];
            }
        }
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

static void panel(
    const struct matrix *m, const void *scratch, int64_t rows, int64_t panel, float *out,
    int64_t out_stride, int is_added) {
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
        if (count >= ROWS) tile(count = ROWS, width, w, steps, part, by, found);
        else if (count >= 4) tile(count = 4, width, w, steps, part, by, found);
        else if (count >= 2) tile(count = 2, width, w, steps, part, by, found);
        else tile(1, width, w, steps, part, by, found);
        settle(m, panel * PANEL, count, found, out + r * out_stride, out_stride, is_added);
    }
}

const struct way nibbles_way = {bytes_of, round_row, panel, PANEL};
