/* Linears of float rows with weights of 32, 8 or 4 bits.
 *
 * With 8 and 4 bits, each row is rounded to integers with its own scales. Integer dot products are
 * exact, and floats are added in the same order for every row. So the result of a row has the same
 * bits alone, beside others, and in any order.
 */
#ifndef LINEAR_H
#define LINEAR_H

#include "threads.h"

struct matrix {
    const int8_t *packed;
    const void *scale;   /* of the integers: see bytes.c and int4.c; or NULL */
    const float *bias;   /* [outputs], or NULL */
    const float *factor; /* [inputs] inputs are multiplied by it first; or NULL */
    const uint8_t *table; /* [16] values of codes of 4 bits; NULL: the codes */
    const int32_t *order; /* [inputs] order of the inputs of weights of 4 bits, or NULL */
    int64_t inputs, width, outputs; /* width: inputs, padded with zeros */
    int64_t bits;
};

/* The functions for one width of weights. Rounded rows take `bytes(m, rows)` of memory. */
struct way {
    int64_t (*bytes)(const struct matrix *m, int64_t rows);
    /* Round a row, times `by`, or copy it. */
    void (*round)(
        const struct matrix *m, const float *x, float by, void *rounded, int64_t row, int64_t rows);
    /* Compute one panel of outputs of all rows; add it to `out` or overwrite it. */
    void (*panel)(
        const struct matrix *m, const void *rounded, int64_t rows, int64_t panel, float *out,
        int64_t out_stride, int is_added);
    int64_t outputs; /* of a panel */
};

extern const struct way bytes_way, int4_way, float_way;

static inline const struct way *way_of(const struct matrix *m) {
    return m->bits == 4 ? &int4_way : m->bits == 8 ? &bytes_way : &float_way;
}

/* out (+)= rounded * weights + bias */
struct gemm {
    const struct matrix *m;
    const void *rounded;
    int64_t rows;
    float *out;
    int64_t out_stride;
    int is_added;
};

void multiply(const struct gemm *gemm, int threads);

/* Where inputs can be named by their lane in a vector (ADD_AT), the weights of a group, `part`,
 * stay in registers, and rows of 32 inputs come to them, one by one. A sum that follows itself is
 * faster there than one of many. */
#define MEET(k, x, lane) \
    for (int v = 0; v < VECS; v++) sum[v] = ADD_AT(sum[v], part[k][v], x, lane);
#define MEET_FOUR(k, x) MEET(k, x, 0) MEET(k + 1, x, 1) MEET(k + 2, x, 2) MEET(k + 3, x, 3)
#define MEET_ALL(low, high) MEET_FOUR(0, low) MEET_FOUR(4, high)

#endif
