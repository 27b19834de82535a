/* The state in the order in which it is swept, and the two sweeps that all the arithmetic on states consists of. */
#ifndef LIFELONG_NATIVE_SWEEP_H
#define LIFELONG_NATIVE_SWEEP_H

#include "native_vector.h"

enum decay_kind { SCALAR_DECAY, ROW_DECAY, LANE_DECAY };

/* The decay of one sweep: one factor, or one per key channel (over the rows or the lanes of the state). */
struct decay {
    enum decay_kind kind;
    real scalar;
    const real *channels;
};

static const struct decay NO_DECAY = {SCALAR_DECAY, 1, NULL};

/* A state in sweep order: columns of lanes in tiles of 4, 2 and 1, each tile [capacity][width]; `rows` are in use. */
struct sweep {
    vec *state;
    int64_t rows, capacity, vectors;
};

#define FOR_EACH_TILE(count, column, BODY)                                                                            \
    {                                                                                                                 \
        int64_t column = 0;                                                                                           \
        for (; column + 4 <= (count); column += 4) BODY(4);                                                           \
        if ((count) - column >= 2) {                                                                                  \
            BODY(2);                                                                                                  \
            column += 2;                                                                                              \
        }                                                                                                             \
        if ((count) > column) BODY(1);                                                                                \
    }

/* state <- decay state + left right^T;  first_sum = first^T state;  second_sum = second^T state */
INLINE void write_and_read_tile(vec *restrict state, const int64_t rows, const int width, const enum decay_kind kind,
                                const struct decay *decay, const int64_t column, const real *restrict left,
                                const vec *restrict right, const real *restrict first, const real *restrict second,
                                vec *restrict first_sum, vec *restrict second_sum) {
    vec first_total[4], second_total[4], write[4], keep[4];
    UNROLL for (int c = 0; c < width; c++) {
        first_total[c] = second_total[c] = zero_vector();
        write[c] = right[c];
        keep[c] = kind == LANE_DECAY ? load_vector(decay->channels + (column + c) * LANES) : broadcast(decay->scalar);
    }
    for (int64_t row = 0; row < rows; row++) {
        const vec row_keep = kind == ROW_DECAY ? broadcast(decay->channels[row]) : zero_vector();
        UNROLL for (int c = 0; c < width; c++) {
            vec x = (kind == ROW_DECAY ? row_keep : keep[c]) * state[row * width + c] + left[row] * write[c];
            state[row * width + c] = x;
            first_total[c] += first[row] * x;
            second_total[c] += second[row] * x;
        }
    }
    UNROLL for (int c = 0; c < width; c++) {
        first_sum[c] = first_total[c];
        second_sum[c] = second_total[c];
    }
}

INLINE void write_and_read_kind(const struct sweep *s, const enum decay_kind kind, const struct decay *decay,
                                const real *left, const vec *right, const real *first, const real *second,
                                vec *first_sum, vec *second_sum) {
#define BODY(width)                                                                                                   \
    write_and_read_tile(s->state + column * s->capacity, s->rows, width, kind, decay, column, left, right + column,      \
                        first, second, first_sum + column, second_sum + column)
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

static void write_and_read(const struct sweep *s, const struct decay *decay, const real *left, const vec *right,
                           const real *first, const real *second, vec *first_sum, vec *second_sum) {
    if (decay->kind == SCALAR_DECAY)
        write_and_read_kind(s, SCALAR_DECAY, decay, left, right, first, second, first_sum, second_sum);
    else if (decay->kind == ROW_DECAY)
        write_and_read_kind(s, ROW_DECAY, decay, left, right, first, second, first_sum, second_sum);
    else
        write_and_read_kind(s, LANE_DECAY, decay, left, right, first, second, first_sum, second_sum);
}

/* grad <- decay grad + undo right^T + read d_read^T;  sum = factor^T grad;  products[row] (+)= grad[row] * update */
INLINE void undo_and_read_tile(vec *restrict grad, const int64_t rows, const int width, const enum decay_kind kind,
                               const struct decay *decay, const int is_first_tile, const real *restrict undo,
                               const vec *restrict right, const real *restrict read, const vec *restrict d_read,
                               const real *restrict factor, const vec *restrict update, vec *restrict sum,
                               vec *restrict products) {
    vec total[4], erased[4], back[4], times[4];
    const vec keep = broadcast(decay->scalar);
    UNROLL for (int c = 0; c < width; c++) {
        total[c] = zero_vector();
        erased[c] = right[c];
        back[c] = d_read[c];
        times[c] = update[c];
    }
    for (int64_t row = 0; row < rows; row++) {
        vec product = is_first_tile ? zero_vector() : products[row];
        const vec row_keep = kind == ROW_DECAY ? broadcast(decay->channels[row]) : keep;
        UNROLL for (int c = 0; c < width; c++) {
            vec x = row_keep * grad[row * width + c] + undo[row] * erased[c] + read[row] * back[c];
            grad[row * width + c] = x;
            total[c] += factor[row] * x;
            product += times[c] * x;
        }
        products[row] = product;
    }
    UNROLL for (int c = 0; c < width; c++) sum[c] = total[c];
}

INLINE void undo_and_read_kind(const struct sweep *s, const enum decay_kind kind, const struct decay *decay,
                               const real *undo, const vec *right, const real *read, const vec *d_read,
                               const real *factor, const vec *update, vec *sum, vec *products) {
#define BODY(width)                                                                                                   \
    undo_and_read_tile(s->state + column * s->capacity, s->rows, width, kind, decay, column == 0, undo, right + column,  \
                       read, d_read + column, factor, update + column, sum + column, products)
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

static void undo_and_read(const struct sweep *s, const struct decay *decay, const real *undo, const vec *right,
                          const real *read, const vec *d_read, const real *factor, const vec *update, vec *sum,
                          vec *products) {
    if (decay->kind == SCALAR_DECAY)
        undo_and_read_kind(s, SCALAR_DECAY, decay, undo, right, read, d_read, factor, update, sum, products);
    else
        undo_and_read_kind(s, ROW_DECAY, decay, undo, right, read, d_read, factor, update, sum, products);
}

static int64_t vectors_for(int64_t dim) { return (dim + LANES - 1) / LANES; }

static void clear(const struct sweep s) { memset(s.state, 0, (size_t)(s.capacity * s.vectors) * sizeof(vec)); }

/* Rows of the matrix [rows, dim] become rows of the sweep, dim its lanes. */
static void load_rows(const struct sweep s, const real *matrix, int64_t dim) {
#define BODY(width)                                                                                                   \
    for (int64_t row = 0; row < s.rows; row++)                                                                        \
        for (int64_t c = 0; c < width; c++)                                                                           \
            s.state[column * s.capacity + row * width + c] =                                                          \
                load_lanes(matrix + row * dim + (column + c) * LANES, dim - (column + c) * LANES)
    FOR_EACH_TILE(s.vectors, column, BODY)
#undef BODY
}

/* Where row `row` of column `column` lies: the first `tiled` columns are in tiles of 4, then come one of 2 and of 1. */
INLINE vec *element(const struct sweep s, int64_t column, int64_t row) {
    const int64_t in_fours = s.vectors / 4 * 4, in_twos = s.vectors / 2 * 2;
    const int64_t width = column < in_fours ? 4 : column < in_twos ? 2 : 1;
    const int64_t tile = column < in_fours ? column / 4 * 4 : column < in_twos ? in_fours : in_twos;
    return s.state + tile * s.capacity + row * width + (column - tile);
}

/* The block of the matrix [dim, rows] that begins at (line, column), transposed; zero beyond the matrix. */
INLINE void load_block(vec block[LANES], const real *matrix, int64_t rows, int64_t dim, int64_t line, int64_t column) {
    const real *corner = matrix + line * rows + column;
    if (line + LANES <= dim && column + LANES <= rows) {
        UNROLL for (int i = 0; i < LANES; i++) block[i] = load_vector(corner + i * rows);
    } else {
        for (int i = 0; i < LANES; i++)
            block[i] = line + i < dim ? load_lanes(corner + i * rows, rows - column) : zero_vector();
    }
    transpose_block(block);
}

/* Columns of the matrix [dim, rows] become rows of the sweep, dim its lanes. */
static void load_columns(const struct sweep s, const real *matrix, int64_t dim) {
    for (int64_t column = 0; column < s.vectors; column++)
        for (int64_t block = 0; block < s.capacity; block += LANES) {
            vec rows[LANES];
            load_block(rows, matrix, s.rows, dim, column * LANES, block);
            UNROLL for (int i = 0; i < LANES; i++) *element(s, column, block + i) = rows[i];
        }
}

static void store_columns(const struct sweep s, real *matrix, int64_t dim) {
    for (int64_t column = 0; column < s.vectors; column++)
        for (int64_t block = 0; block < s.capacity; block += LANES) {
            vec rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = *element(s, column, block + i);
            transpose_block(rows);
            UNROLL for (int i = 0; i < LANES; i++) {
                const int64_t line = column * LANES + i;
                if (line < dim) store_lanes(matrix + line * s.rows + block, rows[i], s.rows - block);
            }
        }
}

/* The sums of write_and_read over the matrix [dim, rows], its columns as rows, in the same order of additions. */
static void read_columns(const real *matrix, int64_t rows, int64_t dim, const real *restrict first,
                         const real *restrict second, vec *restrict first_sum, vec *restrict second_sum) {
    for (int64_t column = 0; column * LANES < dim; column++) {
        vec first_total = zero_vector(), second_total = zero_vector();
        for (int64_t block = 0; block < rows; block += LANES) {
            vec lines[LANES];
            load_block(lines, matrix, rows, dim, column * LANES, block);
            const int64_t left = rows - block;
            if (left >= LANES) {
                UNROLL for (int i = 0; i < LANES; i++) {
                    first_total += first[block + i] * lines[i];
                    second_total += second[block + i] * lines[i];
                }
            } else {
                for (int i = 0; i < left; i++) {
                    first_total += first[block + i] * lines[i];
                    second_total += second[block + i] * lines[i];
                }
            }
        }
        first_sum[column] = first_total;
        second_sum[column] = second_total;
    }
}

/* new <- old decay + update key^T, on the matrix [dim, rows] as it lies; `old` NULL: zero. May be in place. */
static void write_rows(real *new, const real *old, int64_t rows, int64_t dim, const struct decay *decay,
                       const real *update, const real *key) {
    for (int64_t c = 0; c < rows; c += LANES) {
        const int64_t left = rows - c;
        const vec keep = decay->kind == SCALAR_DECAY ? broadcast(decay->scalar) : load_vector(decay->channels + c);
        const vec written = load_lanes(key + c, left);
        for (int64_t line = 0; line < dim; line++) {
            const vec state = old ? load_lanes(old + line * rows + c, left) : zero_vector();
            store_lanes(new + line * rows + c, keep * state + update[line] * written, left);
        }
    }
}

static real dot(const real *a, const real *b, int64_t dim) {
    vec total = zero_vector();
    for (int64_t i = 0; i < dim; i += LANES) total += load_lanes(a + i, dim - i) * load_lanes(b + i, dim - i);
    return sum_lanes(total);
}

#endif
