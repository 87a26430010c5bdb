/* Vectors of floats in the compiler's own types, which every processor has, and functions of them. */
#ifndef VECTORS_H
#define VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* As many as fit in a register: compilers compare longer vectors element by element. */
#if defined(__AVX512F__)
#define FLOATS 16
#elif defined(__AVX2__)
#define FLOATS 8
#else
#define FLOATS 4
#endif
#define VECTOR_OF(type, count) type __attribute__((vector_size(4 * (count)), aligned(4)))
typedef VECTOR_OF(float, FLOATS) floats;
typedef VECTOR_OF(int32_t, FLOATS) ints;
typedef VECTOR_OF(float, 8) eight;
typedef VECTOR_OF(float, 4) four;

static inline floats chosen(ints where, floats yes, floats no) {
    return (floats)(((ints)yes & where) | ((ints)no & ~where));
}

static inline floats larger(floats a, floats b) { return chosen(a > b, a, b); }

static inline floats size_of(floats x) { return (floats)((ints)x & 0x7fffffff); }

static inline float largest(floats x) {
#if FLOATS == 16
    eight a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
    eight b = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    float top = a[0] > b[0] ? a[0] : b[0];
    for (int i = 1; i < 8; i++) {
        float one = a[i] > b[i] ? a[i] : b[i];
        top = one > top ? one : top;
    }
#else
    float top = x[0];
    for (int i = 1; i < FLOATS; i++) top = x[i] > top ? x[i] : top;
#endif
    return top;
}

static inline four folded(floats x) {
#if FLOATS == 16
    eight half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
        + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3)
        + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif FLOATS == 8
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    return x;
#endif
}

static inline float sum_of(floats x) {
    four part = folded(x);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* Numbers below 2^22 in magnitude, rounded to integers. */
static inline floats whole_of(floats x) {
    const float rounding = 3 << 22; /* a float this large has no fraction */
    return (x + rounding) - rounding;
}

/* exp of numbers up to zero: 2^whole * 2^part, where 2^part is a polynomial. */
static inline floats exp_of(floats x) {
    floats exponent = x * 1.44269504f, least = (floats){0} - 126.0f;
    exponent = chosen(exponent < least, least, exponent);
    floats whole = whole_of(exponent), part = (exponent - whole) * 0.693147181f;
    floats power = part * (1.0f / 720) + 1.0f / 120;
    power = power * part + 1.0f / 24;
    power = power * part + 1.0f / 6;
    power = power * part + 0.5f;
    power = power * part + 1.0f;
    power = power * part + 1.0f;
    return power * (floats)((__builtin_convertvector(whole, ints) + 127) << 23);
}

/* The first `count` floats, and zeros. */
static inline floats some_of(const float *at, int64_t count) {
    float part[FLOATS] = {0};
    if (count >= FLOATS) return *(const floats *)at;
    memcpy(part, at, (size_t)count * sizeof(float));
    return *(const floats *)part;
}

static inline void put_some(float *to, floats x, int64_t count) {
    memcpy(to, &x, (size_t)(count < FLOATS ? count : FLOATS) * sizeof(float));
}

#endif
