/* Products with weights of any width, by all threads. */
#include "linear.h"

int64_t linear_scratch_bytes(const struct matrix *m, int64_t rows) {
    return way_of(m)->bytes(m, rows);
}

void multiply(
    const struct matrix *m, const void *rounded, int64_t rows, float *out, int64_t out_stride,
    int is_added) {
    const struct way *way = way_of(m);
    int64_t panels = (m->outputs + way->outputs - 1) / way->outputs;
    /* A thread that starts late, because its core was busy, finds less work left. */
#pragma omp for schedule(guided)
    for (int64_t p = 0; p < panels; p++)
        way->panel(m, rounded, rows, p, out, out_stride, is_added);
}

/* out (+)= x * weights + bias. The scratch is of `linear_scratch_bytes`. */
void linear(
    const struct matrix *m, const float *x, int64_t x_stride, int64_t rows,
    float *out, int64_t out_stride, int is_added, void *scratch, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            way_of(m)->round(m, x + r * x_stride, 1.0f, scratch, r, rows);
        multiply(m, scratch, rows, out, out_stride, is_added);
    }
}
