/* Short vectors of `real`: loads, stores, transposition and horizontal sums.
 *
 * Written with the vector extensions that GCC and Clang share, so that one source serves AVX-512, AVX2, SSE2 and NEON,
 * the running sums of a sweep stay in registers, and the order of every addition is the source's.
 */
#ifndef LIFELONG_NATIVE_VECTOR_H
#define LIFELONG_NATIVE_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef LIFELONG_REAL_BYTES
#error "compile with -DLIFELONG_REAL_BYTES=4 (float32) or 8 (float64)"
#endif

#if LIFELONG_REAL_BYTES == 4
typedef float real;
typedef int32_t lane_index;
#define square_root sqrtf
#define natural_exponential expf
#define power powf
#define absolute fabsf
#define copy_sign copysignf
#else
typedef double real;
typedef int64_t lane_index;
#define square_root sqrt
#define natural_exponential exp
#define power pow
#define absolute fabs
#define copy_sign copysign
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES (VECTOR_BYTES / LIFELONG_REAL_BYTES)

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef real unaligned_vec __attribute__((vector_size(VECTOR_BYTES), aligned(LIFELONG_REAL_BYTES), may_alias));
typedef lane_index index_vec __attribute__((vector_size(VECTOR_BYTES)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Exchange stage of distance d between rows a and b: lane bit d changes places with row bit d. */
#define LOW_LANE(d, lane) (((lane) & (d)) ? (lane) - (d) + LANES : (lane))
#define HIGH_LANE(d, lane) (((lane) & (d)) ? (lane) + LANES : (lane) + (d))
#define OTHER_LANE(d, lane) ((lane) ^ (d))
#define LANES_2(F, d) F(d, 0), F(d, 1)
#define LANES_4(F, d) LANES_2(F, d), F(d, 2), F(d, 3)
#define LANES_8(F, d) LANES_4(F, d), F(d, 4), F(d, 5), F(d, 6), F(d, 7)
#define LANES_16(F, d) LANES_8(F, d), F(d, 8), F(d, 9), F(d, 10), F(d, 11), F(d, 12), F(d, 13), F(d, 14), F(d, 15)

#if VECTOR_BYTES / LIFELONG_REAL_BYTES == 16
#define ALL_LANES LANES_16
#elif VECTOR_BYTES / LIFELONG_REAL_BYTES == 8
#define ALL_LANES LANES_8
#elif VECTOR_BYTES / LIFELONG_REAL_BYTES == 4
#define ALL_LANES LANES_4
#else
#define ALL_LANES LANES_2
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (index_vec){__VA_ARGS__})
#endif
#define LOW(d, a, b) SHUFFLE(a, b, ALL_LANES(LOW_LANE, d))
#define HIGH(d, a, b) SHUFFLE(a, b, ALL_LANES(HIGH_LANE, d))

INLINE vec zero_vector(void) { return (vec){0}; }

INLINE vec broadcast(real value) { return zero_vector() + value; }

/* a b + c, rounded once where the processor can. Elsewhere the compiler must not fuse: which of two products it picks
 * would differ from place to place, and with it the last bit. */
INLINE vec fused(const vec a, const vec b, const vec c) {
#if LIFELONG_REAL_BYTES == 4
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
#else
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
#endif
}

INLINE vec load_vector(const real *source) { return *(const unaligned_vec *)source; }

INLINE void store_vector(real *target, vec value) { *(unaligned_vec *)target = value; }

/* The first `count` lanes from memory, zeros beyond: nothing is read past the end of a row. */
INLINE vec load_lanes(const real *source, int64_t count) {
    if (count >= LANES) return load_vector(source);
    vec value = zero_vector();
    if (count > 0) memcpy(&value, source, (size_t)count * sizeof(real));
    return value;
}

INLINE void store_lanes(real *target, vec value, int64_t count) {
    if (count >= LANES)
        store_vector(target, value);
    else if (count > 0)
        memcpy(target, &value, (size_t)count * sizeof(real));
}

#define EXCHANGE_STAGE(d)                                                                                             \
    UNROLL for (int row = 0; row < LANES; row++) if (!(row & (d))) {                                                  \
        vec low = LOW(d, rows[row], rows[row + (d)]);                                                                 \
        rows[row + (d)] = HIGH(d, rows[row], rows[row + (d)]);                                                        \
        rows[row] = low;                                                                                              \
    }

INLINE void transpose_block(vec rows[LANES]) {
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 16
    EXCHANGE_STAGE(8)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 8
    EXCHANGE_STAGE(4)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 4
    EXCHANGE_STAGE(2)
#endif
    EXCHANGE_STAGE(1)
}

#define SUM_STAGE(d)                                                                                                  \
    UNROLL for (int row = 0; row < (d); row++)                                                                        \
        rows[row] = LOW(d, rows[row], rows[row + (d)]) + HIGH(d, rows[row], rows[row + (d)]);

/* Lane i of the result is the sum over the lanes of rows[i]. */
INLINE vec sum_rows(vec rows[LANES]) {
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 16
    SUM_STAGE(8)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 8
    SUM_STAGE(4)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 4
    SUM_STAGE(2)
#endif
    SUM_STAGE(1)
    return rows[0];
}

#define FOLD_STAGE(d) value += SHUFFLE(value, value, ALL_LANES(OTHER_LANE, d));

INLINE real sum_lanes(vec value) {
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 16
    FOLD_STAGE(8)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 8
    FOLD_STAGE(4)
#endif
#if VECTOR_BYTES / LIFELONG_REAL_BYTES >= 4
    FOLD_STAGE(2)
#endif
    FOLD_STAGE(1)
    return value[0];
}

#endif
