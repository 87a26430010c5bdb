/* Logits of tokens that a mask does not allow become -inf. */
#include "threads.h"
#include "vectors.h"

enum { BITS = 32 };

struct masking {
    float *logits;
    int64_t vocab;
    const int64_t *line; /* [rows]: which line of logits each mask is for */
    const uint32_t *bits; /* [rows, words] */
    int64_t words;
};

/* The tokens of one word. Most words allow all of them or none. */
static void mask_word(float *logits, uint32_t word) {
    const floats never = (floats){0} - INFINITY;
    ints bit;
    if (word == UINT32_MAX) return;
    for (int i = 0; i < FLOATS; i++) bit[i] = (int32_t)(1u << i);
    for (int i = 0; i < BITS / FLOATS; i++) {
        floats *at = (floats *)(logits + i * FLOATS);
        *at = word ? chosen(((ints){0} + (int32_t)(word >> i * FLOATS) & bit) != 0, *at, never)
                   : never;
    }
}

static void mask_row(const struct masking *m, int64_t row) {
    float *logits = m->logits + m->line[row] * m->vocab;
    const uint32_t *bits = m->bits + row * m->words;
    int64_t whole = m->vocab / BITS;
    for (int64_t i = 0; i < whole; i++) mask_word(logits + i * BITS, bits[i]);
    for (int64_t i = whole * BITS; i < m->vocab; i++)
        if (!(bits[whole] >> i % BITS & 1)) logits[i] = -INFINITY;
}

static void mask_rows(const void *task, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) mask_row(task, row);
}

/* Line `line[i]` of logits [lines, vocab] gets mask i. */
void mask_logits(
    float *logits, int64_t vocab, const int64_t *line, const uint32_t *bits, int64_t words,
    int64_t rows, int threads) {
    share(mask_rows, &(struct masking){logits, vocab, line, bits, words}, rows, threads);
}
