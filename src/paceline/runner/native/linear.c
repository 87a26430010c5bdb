/* Linears with weights of any width, by all threads. */
#include "linear.h"

int64_t linear_scratch_bytes(const struct matrix *m, int64_t rows) {
    return way_of(m)->bytes(m, rows);
}

static void multiply_panels(const void *task, int64_t begin, int64_t end) {
    const struct gemm *p = task;
    for (int64_t i = begin; i < end; i++)
        way_of(p->m)->panel(p->m, p->rounded, p->rows, i, p->out, p->out_stride, p->is_added);
}

void multiply(const struct gemm *gemm, int threads) {
    int64_t each = way_of(gemm->m)->outputs;
    share(multiply_panels, gemm, (gemm->m->outputs + each - 1) / each, threads);
}

struct rounding {
    const struct matrix *m;
    const float *x;
    int64_t x_stride, rows;
    void *scratch;
};

static void round_rows(const void *task, int64_t begin, int64_t end) {
    const struct rounding *r = task;
    for (int64_t i = begin; i < end; i++)
        way_of(r->m)->round(r->m, r->x + i * r->x_stride, 1.0f, r->scratch, i, r->rows);
}

/* out (+)= x * weights + bias. The scratch has `linear_scratch_bytes`. */
void linear(
    const struct matrix *m, const float *x, int64_t x_stride, int64_t rows,
    float *out, int64_t out_stride, int is_added, void *scratch, int threads) {
    share(round_rows, &(struct rounding){m, x, x_stride, rows, scratch}, rows, threads);
    multiply(&(struct gemm){m, scratch, rows, out, out_stride, is_added}, threads);
}
