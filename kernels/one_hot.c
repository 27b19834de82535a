/* Products with one-hot vectors: rows of a table, added up; and the gradient, rows added to a table.
 *
 * Row n of `values` [count, entries] holds integers, entry j of them below sizes[j]. Each is read `readings` times, from
 * another part of the table each: y[n] = sum over r, j of table[columns[r, j] + values[n, j]].
 */
#include "native_vector.h"

#define BLOCK 4 /* vectors of a row that are summed in registers */

struct rows {
    const int64_t *values, *sizes, *columns;
    int64_t count, entries, readings, width, table_rows;
};

/* The position of the first value that is negative or not below its size; -1 if there is none, -2 if a plane does not
 * lie in the table. Nothing is read or written through values that were not looked at here. */
int64_t one_hot_misfit(const struct rows *rows) {
    for (int64_t r = 0; r < rows->readings; r++)
        for (int64_t j = 0; j < rows->entries; j++) {
            const int64_t column = rows->columns[r * rows->entries + j], size = rows->sizes[j];
            if (column < 0 || size < 0 || size > rows->table_rows || column > rows->table_rows - size) return -2;
        }
    for (int64_t n = 0; n < rows->count; n++)
        for (int64_t j = 0; j < rows->entries; j++) {
            const int64_t value = rows->values[n * rows->entries + j];
            if (value < 0 || value >= rows->sizes[j]) return n * rows->entries + j;
        }
    return -1;
}

INLINE void add_lanes(const struct rows *rows, const int64_t *value, const real *table, real *sums, int64_t vectors) {
    vec sum[BLOCK];
    UNROLL for (int64_t i = 0; i < vectors; i++) sum[i] = (vec){0};
    for (int64_t r = 0; r < rows->readings; r++)
        for (int64_t j = 0; j < rows->entries; j++) {
            const real *row = table + (rows->columns[r * rows->entries + j] + value[j]) * rows->width;
            UNROLL for (int64_t i = 0; i < vectors; i++) sum[i] += *(const unaligned_vec *)(row + i * LANES);
        }
    UNROLL for (int64_t i = 0; i < vectors; i++) *(unaligned_vec *)(sums + i * LANES) = sum[i];
}

/* sums [count, width] = the rows of table [.., width] */
void one_hot_forward(const struct rows *rows, const real *table, real *sums) {
    for (int64_t n = 0; n < rows->count; n++) {
        const int64_t *value = rows->values + n * rows->entries;
        real *sum = sums + n * rows->width;
        int64_t d = 0;
        for (; d + BLOCK * LANES <= rows->width; d += BLOCK * LANES) add_lanes(rows, value, table + d, sum + d, BLOCK);
        for (; d + LANES <= rows->width; d += LANES) add_lanes(rows, value, table + d, sum + d, 1);
        for (; d < rows->width; d++) {
            real total = 0;
            for (int64_t r = 0; r < rows->readings; r++)
                for (int64_t j = 0; j < rows->entries; j++)
                    total += table[(rows->columns[r * rows->entries + j] + value[j]) * rows->width + d];
            sum[d] = total;
        }
    }
}

INLINE void spread_lanes(const struct rows *rows, const int64_t *value, const real *d_sum, real *d_table, int64_t vectors) {
    vec part[BLOCK];
    UNROLL for (int64_t i = 0; i < vectors; i++) part[i] = *(const unaligned_vec *)(d_sum + i * LANES);
    for (int64_t j = 0; j < rows->entries; j++) {
        real *row = d_table + (rows->columns[j] + value[j]) * rows->width;
        UNROLL for (int64_t i = 0; i < vectors; i++) *(unaligned_vec *)(row + i * LANES) += part[i];
    }
}

/* d_table [.., width] += d_sums [count, width], at the rows that each was the sum of. The planes of the first reading
 * do not overlap with each other or with those of later readings, whose gradients are sums of its own: of 49 cells that
 * are counted in one row, that row is touched 49 times in all and not for each n. */
void one_hot_backward(const struct rows *rows, const real *d_sums, real *d_table) {
    const int64_t width = rows->width;
    for (int64_t n = 0; n < rows->count; n++) {
        const int64_t *value = rows->values + n * rows->entries;
        const real *d_sum = d_sums + n * width;
        int64_t d = 0;
        for (; d + BLOCK * LANES <= width; d += BLOCK * LANES) spread_lanes(rows, value, d_sum + d, d_table + d, BLOCK);
        for (; d + LANES <= width; d += LANES) spread_lanes(rows, value, d_sum + d, d_table + d, 1);
        for (; d < width; d++)
            for (int64_t j = 0; j < rows->entries; j++) d_table[(rows->columns[j] + value[j]) * width + d] += d_sum[d];
    }
    for (int64_t r = 1; r < rows->readings; r++)
        for (int64_t j = 0; j < rows->entries; j++) {
            const real *first = d_table + rows->columns[j] * width;
            real *later = d_table + rows->columns[r * rows->entries + j] * width;
            for (int64_t d = 0; d < rows->sizes[j] * width; d++) later[d] += first[d];
        }
}
