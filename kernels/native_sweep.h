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

/* A state in sweep order: columns of lanes in tiles of 4, 2 and 1, each tile [capacity][width]; `rows` are in use.
 * `running` is the momentum beside it, in the same order; NULL without. */
struct sweep {
    vec *state, *running;
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

/* What a sweep writes: state <- decay state + left right^T; with momentum running <- momentum running + left right^T
 * and state <- decay state + running. */
struct write {
    int absent;
    const struct decay *decay;
    real momentum;
    const real *left;
    const vec *right;
};

/* What it then reads: first_sum = first^T state, second_sum = second^T state, running_sum = third^T running. */
struct reads {
    const real *first, *second, *third;
    vec *first_sum, *second_sum, *running_sum;
};

INLINE void write_and_read_tile(const struct sweep *s, const struct write *write, const struct reads *reads,
                                const int64_t column, const int width, const enum decay_kind kind, const int absent,
                                const int with_running) {
    vec *restrict state = s->state + column * s->capacity;
    vec *restrict running = with_running ? s->running + column * s->capacity : NULL;
    const real *restrict left = write->left, *restrict channels = absent ? NULL : write->decay->channels;
    const real *restrict first = reads->first, *restrict second = reads->second, *restrict third = reads->third;
    const int64_t rows = s->rows;
    const vec momentum = broadcast(absent ? 0 : write->momentum), scalar = broadcast(absent ? 1 : write->decay->scalar);
    vec first_total[4], second_total[4], third_total[4], right[4], keep[4];
    UNROLL for (int c = 0; c < width; c++) {
        first_total[c] = second_total[c] = third_total[c] = zero_vector();
        right[c] = absent ? zero_vector() : write->right[column + c];
        keep[c] = kind == LANE_DECAY ? load_vector(channels + (column + c) * LANES) : scalar;
    }
    for (int64_t row = 0; row < rows; row++) {
        const vec row_keep = kind == ROW_DECAY ? broadcast(channels[row]) : zero_vector();
        UNROLL for (int c = 0; c < width; c++) {
            const int64_t at = row * width + c;
            vec x = state[at];
            if (with_running) {
                vec m = running[at];
                if (!absent) {
                    m = fused(momentum, m, left[row] * right[c]);
                    x = fused(kind == ROW_DECAY ? row_keep : keep[c], x, m);
                    running[at] = m;
                }
                third_total[c] = fused(broadcast(third[row]), m, third_total[c]);
            } else if (!absent) {
                x = fused(kind == ROW_DECAY ? row_keep : keep[c], x, left[row] * right[c]);
            }
            if (!absent) state[at] = x;
            first_total[c] = fused(broadcast(first[row]), x, first_total[c]);
            second_total[c] = fused(broadcast(second[row]), x, second_total[c]);
        }
    }
    UNROLL for (int c = 0; c < width; c++) {
        reads->first_sum[column + c] = first_total[c];
        reads->second_sum[column + c] = second_total[c];
        if (with_running) reads->running_sum[column + c] = third_total[c];
    }
}

INLINE void write_and_read_tiles(const struct sweep *s, const struct write *write, const struct reads *reads,
                                 const enum decay_kind kind, const int absent, const int with_running) {
#define BODY(width) write_and_read_tile(s, write, reads, column, width, kind, absent, with_running)
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

static void write_and_read(const struct sweep *s, const struct write *write, const struct reads *reads) {
    if (!s->running) {
        if (write->absent)
            write_and_read_tiles(s, write, reads, SCALAR_DECAY, 1, 0);
        else if (write->decay->kind == SCALAR_DECAY)
            write_and_read_tiles(s, write, reads, SCALAR_DECAY, 0, 0);
        else if (write->decay->kind == ROW_DECAY)
            write_and_read_tiles(s, write, reads, ROW_DECAY, 0, 0);
        else
            write_and_read_tiles(s, write, reads, LANE_DECAY, 0, 0);
    } else {
        if (write->absent)
            write_and_read_tiles(s, write, reads, SCALAR_DECAY, 1, 1);
        else if (write->decay->kind == SCALAR_DECAY)
            write_and_read_tiles(s, write, reads, SCALAR_DECAY, 0, 1);
        else if (write->decay->kind == ROW_DECAY)
            write_and_read_tiles(s, write, reads, ROW_DECAY, 0, 1);
        else
            write_and_read_tiles(s, write, reads, LANE_DECAY, 0, 1);
    }
}

/* A sweep backwards over gradients: state <- decay state + left right^T + query d_output^T, with momentum also
 * running <- momentum running + state. Then, of the running gradient with momentum and of the state's without:
 * d_update = key^T gradient, products[row] = the lanes of gradient[row] * update, not yet summed, and with momentum
 * overlaps[row] likewise with the momentum `earlier` than the step, which lies in sweep order. */
struct undo {
    const struct decay *decay;
    real momentum;
    const real *left, *query, *key;
    const vec *right, *d_output, *update, *earlier;
    vec *d_update, *products, *overlaps;
};

INLINE void undo_and_read_tile(const struct sweep *s, const struct undo *undo, const int64_t column, const int width,
                               const enum decay_kind kind, const int with_running) {
    vec *restrict state = s->state + column * s->capacity;
    vec *restrict running = with_running ? s->running + column * s->capacity : NULL;
    const vec *restrict earlier = with_running ? undo->earlier + column * s->capacity : NULL;
    const real *restrict left = undo->left, *restrict query = undo->query, *restrict key = undo->key;
    const real *restrict channels = undo->decay->channels;
    vec *restrict products = undo->products, *restrict overlaps = undo->overlaps;
    const int64_t rows = s->rows;
    const vec keep = broadcast(undo->decay->scalar), momentum = broadcast(undo->momentum);
    vec total[4], right[4], d_output[4], update[4];
    UNROLL for (int c = 0; c < width; c++) {
        total[c] = zero_vector();
        right[c] = undo->right[column + c];
        d_output[c] = undo->d_output[column + c];
        update[c] = undo->update[column + c];
    }
    for (int64_t row = 0; row < rows; row++) {
        const vec row_keep = kind == ROW_DECAY ? broadcast(channels[row]) : keep;
        vec product = column ? products[row] : zero_vector(), overlap = zero_vector();
        if (with_running && column) overlap = overlaps[row];
        UNROLL for (int c = 0; c < width; c++) {
            const int64_t at = row * width + c;
            vec x = fused(broadcast(left[row]), right[c], query[row] * d_output[c]);
            x = fused(row_keep, state[at], x);
            state[at] = x;
            if (with_running) {
                x = fused(momentum, running[at], x);
                running[at] = x;
                overlap = fused(earlier[at], x, overlap);
            }
            total[c] = fused(broadcast(key[row]), x, total[c]);
            product = fused(update[c], x, product);
        }
        products[row] = product;
        if (with_running) overlaps[row] = overlap;
    }
    UNROLL for (int c = 0; c < width; c++) undo->d_update[column + c] = total[c];
}

INLINE void undo_and_read_tiles(const struct sweep *s, const struct undo *undo, const enum decay_kind kind,
                                const int with_running) {
#define BODY(width) undo_and_read_tile(s, undo, column, width, kind, with_running)
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

static void undo_and_read(const struct sweep *s, const struct undo *undo) {
    if (!s->running) {
        if (undo->decay->kind == SCALAR_DECAY)
            undo_and_read_tiles(s, undo, SCALAR_DECAY, 0);
        else
            undo_and_read_tiles(s, undo, ROW_DECAY, 0);
    } else {
        if (undo->decay->kind == SCALAR_DECAY)
            undo_and_read_tiles(s, undo, SCALAR_DECAY, 1);
        else
            undo_and_read_tiles(s, undo, ROW_DECAY, 1);
    }
}

static int64_t vectors_for(int64_t dim) { return (dim + LANES - 1) / LANES; }

static int64_t sweep_size(const struct sweep *s) { return s->capacity * s->vectors; }

static void clear(vec *target, int64_t vectors) { memset(target, 0, (size_t)vectors * sizeof(vec)); }

/* target <- factor source + left right^T, in sweep order. */
static void accumulate(const struct sweep *s, vec *target, const vec *source, real factor, const real *left,
                       const vec *right) {
#define BODY(width)                                                                                                   \
    for (int64_t row = 0; row < s->rows; row++)                                                                       \
        for (int64_t c = 0; c < width; c++) {                                                                         \
            const int64_t at = column * s->capacity + row * width + c;                                                \
            target[at] = fused(broadcast(factor), source[at], left[row] * right[column + c]);                                         \
        }
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

/* Rows of the matrix [rows, dim] become rows of the sweep, dim its lanes. */
static void load_rows(const struct sweep *s, vec *target, const real *matrix, int64_t dim) {
#define BODY(width)                                                                                                   \
    for (int64_t row = 0; row < s->rows; row++)                                                                        \
        for (int64_t c = 0; c < width; c++)                                                                           \
            target[column * s->capacity + row * width + c] =                                                          \
                load_lanes(matrix + row * dim + (column + c) * LANES, dim - (column + c) * LANES)
    FOR_EACH_TILE(s->vectors, column, BODY)
#undef BODY
}

/* Where row `row` of column `column` lies: the first `tiled` columns are in tiles of 4, then come one of 2 and of 1. */
INLINE vec *element(const struct sweep *s, vec *target, int64_t column, int64_t row) {
    const int64_t in_fours = s->vectors / 4 * 4, in_twos = s->vectors / 2 * 2;
    const int64_t width = column < in_fours ? 4 : column < in_twos ? 2 : 1;
    const int64_t tile = column < in_fours ? column / 4 * 4 : column < in_twos ? in_fours : in_twos;
    return target + tile * s->capacity + row * width + (column - tile);
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
static void load_columns(const struct sweep *s, vec *target, const real *matrix, int64_t dim) {
    for (int64_t column = 0; column < s->vectors; column++)
        for (int64_t block = 0; block < s->capacity; block += LANES) {
            vec rows[LANES];
            load_block(rows, matrix, s->rows, dim, column * LANES, block);
            UNROLL for (int i = 0; i < LANES; i++) *element(s, target, column, block + i) = rows[i];
        }
}

static void store_columns(const struct sweep *s, vec *target, real *matrix, int64_t dim) {
    for (int64_t column = 0; column < s->vectors; column++)
        for (int64_t block = 0; block < s->capacity; block += LANES) {
            vec rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = *element(s, target, column, block + i);
            transpose_block(rows);
            UNROLL for (int i = 0; i < LANES; i++) {
                const int64_t line = column * LANES + i;
                if (line < dim) store_lanes(matrix + line * s->rows + block, rows[i], s->rows - block);
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
                    first_total = fused(broadcast(first[block + i]), lines[i], first_total);
                    second_total = fused(broadcast(second[block + i]), lines[i], second_total);
                }
            } else {
                for (int i = 0; i < left; i++) {
                    first_total = fused(broadcast(first[block + i]), lines[i], first_total);
                    second_total = fused(broadcast(second[block + i]), lines[i], second_total);
                }
            }
        }
        first_sum[column] = first_total;
        second_sum[column] = second_total;
    }
}

/* A row of a matrix as it lies, or zero where there is none. */
INLINE vec lanes_of(const real *matrix, int64_t offset, int64_t count) {
    return matrix ? load_lanes(matrix + offset, count) : zero_vector();
}

/* The write of write_and_read on the matrix [dim, rows] as it lies; `old` NULL: zero. May be in place. */
static void write_rows(real *new, const real *old, int64_t rows, int64_t dim, const struct decay *decay,
                       const real *update, const real *key) {
    for (int64_t c = 0; c < rows; c += LANES) {
        const int64_t left = rows - c;
        const vec keep = decay->kind == SCALAR_DECAY ? broadcast(decay->scalar) : load_vector(decay->channels + c);
        const vec right = load_lanes(key + c, left);
        for (int64_t line = 0; line < dim; line++) {
            const int64_t at = line * rows + c;
            store_lanes(new + at, fused(keep, lanes_of(old, at, left), update[line] * right), left);
        }
    }
}

/* The same with momentum: new_running <- momentum old_running + update key^T; new <- decay old + new_running. */
static void write_rows_with_momentum(real *new, const real *old, real *new_running, const real *old_running,
                                     int64_t rows, int64_t dim, const struct decay *decay, real momentum,
                                     const real *update, const real *key) {
    write_rows(new_running, old_running, rows, dim, &(struct decay){SCALAR_DECAY, momentum, NULL}, update, key);
    for (int64_t c = 0; c < rows; c += LANES) {
        const int64_t left = rows - c;
        const vec keep = decay->kind == SCALAR_DECAY ? broadcast(decay->scalar) : load_vector(decay->channels + c);
        for (int64_t line = 0; line < dim; line++) {
            const int64_t at = line * rows + c;
            store_lanes(new + at, fused(keep, lanes_of(old, at, left), load_lanes(new_running + at, left)), left);
        }
    }
}

static real dot(const real *a, const real *b, int64_t dim) {
    vec total = zero_vector();
    for (int64_t i = 0; i < dim; i += LANES) total = fused(load_lanes(a + i, dim - i), load_lanes(b + i, dim - i), total);
    return sum_lanes(total);
}

#endif
