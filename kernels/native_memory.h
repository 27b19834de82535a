/* One memory, that is one head of one life: where its numbers are, and its part of a thread's workspace. */
#ifndef LIFELONG_NATIVE_MEMORY_H
#define LIFELONG_NATIVE_MEMORY_H

#include <math.h>

#include "native_call.h"
#include "native_sweep.h"

/* The row of step t begins at base + t stride. base is NULL where the tensor is absent. */
struct rows {
    real *base;
    int64_t stride;
};

struct memory {
    const struct call *call;
    int64_t key_dim, value_dim, key_vectors, value_vectors;
    int64_t decay_width; /* key_dim for a decay per channel, else 1 */
    int64_t offset;      /* in tensors like the initial state */
    int erases;
    const real *initial, *initial_running, *start;
    const uint8_t *reset;
    int64_t reset_stride;
    struct rows query, key, value, write_rate, log_decay, momentum, erase_key, output, errors, surprise;
    struct rows d_output, d_surprise, d_query, d_key, d_value, d_write_rate, d_log_decay, d_momentum, d_erase_key;

    /* Workspace: states in sweep order, a vector per row of them, and rows of one padded key or value. */
    vec *state, *running, *d_start, *checkpoints, *segment;
    vec *products, *overlaps;
    vec *first, *second, *third, *bent, *update, *error, *right, *d_read, *channels[2], *scaled[2];

    /* What a walk over the steps carries along. */
    struct sweep sweep;
    struct decay decays[2]; /* of this step and of the one before */
    struct write pending;
    struct reads reads;
    struct undo undo;
};

/* With momentum the backward pass rebuilds the momentum of so many steps at a time, from as many checkpoints. */
static int64_t segment_length(const struct call *call) {
    int64_t length = 1;
    while (length * length < call->steps) length++;
    return length;
}

static int64_t state_vectors(const struct call *call) {
    const int64_t key_vectors = vectors_for(call->key_dim), value_vectors = vectors_for(call->value_dim);
    const int64_t by_key = key_vectors * LANES * value_vectors, by_value = call->value_dim * key_vectors;
    return by_key > by_value ? by_key : by_value;
}

/* Gives the memory its workspace, beginning at `start`, or only counts the vectors that it takes where that is NULL. */
static int64_t lay_out(struct memory *m, const struct call *call, vec *start) {
    const int64_t key_vectors = vectors_for(call->key_dim), value_vectors = vectors_for(call->value_dim);
    const int64_t state = state_vectors(call), row = key_vectors > value_vectors ? key_vectors : value_vectors;
    const int64_t segment = call->d_momentum ? segment_length(call) * state : 0;
    const struct {
        vec **place;
        int64_t size;
    } parts[] = {
        {&m->state, state},
        {&m->running, call->momentum.data ? state : 0},
        {&m->d_start, call->d_start ? state : 0},
        {&m->checkpoints, segment},
        {&m->segment, segment},
        {&m->products, key_vectors * LANES},
        {&m->overlaps, call->d_momentum ? key_vectors * LANES : 0},
        {&m->first, row},
        {&m->second, row},
        {&m->third, row},
        {&m->bent, row},
        {&m->update, row},
        {&m->error, row},
        {&m->right, row},
        {&m->d_read, row},
        {&m->channels[0], row},
        {&m->channels[1], row},
        {&m->scaled[0], row},
        {&m->scaled[1], row},
    };
    int64_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (start) *parts[i].place = start + used;
        used += parts[i].size;
    }
    return used;
}

static struct rows rows_of(const struct view view, int64_t life, int64_t head) {
    if (!view.data) return (struct rows){NULL, 0};
    return (struct rows){(real *)view.data + life * view.life + head * view.head, view.step};
}

/* The same of what the kernels make: contiguous [life, step, head, dim]. */
static struct rows made_rows(const struct call *call, void *data, int64_t dim, int64_t life, int64_t head) {
    const int64_t step = call->heads * dim;
    return rows_of((struct view){data, call->steps * step, step, dim}, life, head);
}

/* Turns to memory `index` of the call; the workspace stays. */
static void open_memory(struct memory *m, const struct call *call, int64_t index) {
    const int64_t life = index / call->heads, head = index % call->heads;
    const int64_t key_dim = call->key_dim, value_dim = call->value_dim;
    m->call = call;
    m->key_dim = key_dim;
    m->value_dim = value_dim;
    m->key_vectors = vectors_for(key_dim);
    m->value_vectors = vectors_for(value_dim);
    m->decay_width = call->channel_decay ? key_dim : 1;
    m->offset = index * key_dim * value_dim;
    m->erases = call->erase && (!call->erase_heads || call->erase_heads[head]);
    m->initial = (const real *)call->initial + m->offset;
    m->initial_running = call->momentum.data ? (const real *)call->initial_running + m->offset : NULL;
    m->start = rows_of(call->start, life, head).base;
    m->reset = call->reset.data ? (const uint8_t *)call->reset.data + life * call->reset.life : NULL;
    m->reset_stride = call->reset.step;
    m->query = rows_of(call->query, life, head);
    m->key = rows_of(call->key, life, head);
    m->value = rows_of(call->value, life, head);
    m->write_rate = rows_of(call->write_rate, life, head);
    m->log_decay = rows_of(call->log_decay, life, head);
    m->momentum = rows_of(call->momentum, life, head);
    m->erase_key = call->erase_key.data ? rows_of(call->erase_key, life, head) : m->key;
    m->output = made_rows(call, call->output, value_dim, life, head);
    m->errors = made_rows(call, call->errors, value_dim, life, head);
    m->surprise = made_rows(call, call->surprise, 1, life, head);
}

/* The same for what only the backward pass reads and makes. */
static void open_gradients(struct memory *m, const struct call *call, int64_t index) {
    const int64_t life = index / call->heads, head = index % call->heads;
    m->d_output = rows_of(call->d_output, life, head);
    m->d_surprise = rows_of(call->d_surprise, life, head);
    m->d_query = made_rows(call, call->d_query, m->key_dim, life, head);
    m->d_key = made_rows(call, call->d_key, m->key_dim, life, head);
    m->d_value = made_rows(call, call->d_value, m->value_dim, life, head);
    m->d_write_rate = made_rows(call, call->d_write_rate, 1, life, head);
    m->d_log_decay = made_rows(call, call->d_log_decay, m->decay_width, life, head);
    m->d_momentum = made_rows(call, call->d_momentum, 1, life, head);
    m->d_erase_key = made_rows(call, call->d_erase_key, m->key_dim, life, head);
}

INLINE real *at(const struct rows rows, int64_t step) { return rows.base + step * rows.stride; }

INLINE int is_reset(const struct memory *m, int64_t step) { return m->reset && m->reset[step * m->reset_stride]; }

INLINE real momentum_at(const struct memory *m, int64_t step) { return m->momentum.base ? *at(m->momentum, step) : 0; }

/* The state with rows over key_dim and lanes over value_dim, and the other way round. */
static struct sweep sweep_by_key(const struct memory *m) {
    vec *running = m->momentum.base ? m->running : NULL;
    return (struct sweep){m->state, running, m->key_dim, m->key_vectors * LANES, m->value_vectors};
}

static struct sweep sweep_by_value(const struct memory *m) {
    vec *running = m->momentum.base ? m->running : NULL;
    return (struct sweep){m->state, running, m->value_dim, m->value_dim, m->key_vectors};
}

/* The decay of a step. It stays where it is until the step after the next; the sweeps take it from there, because a
 * struct that is copied in pieces and read as a whole makes the processor wait. */
static const struct decay *decay_at(struct memory *m, int64_t step, enum decay_kind channel_kind) {
    if (!m->log_decay.base) return &NO_DECAY;
    struct decay *decay = &m->decays[step & 1];
    const real *log_decay = at(m->log_decay, step);
    if (!m->call->channel_decay) {
        decay->kind = SCALAR_DECAY;
        decay->scalar = natural_exponential(*log_decay);
        return decay;
    }
    real *channels = (real *)m->channels[step & 1];
    for (int64_t i = 0; i < m->key_vectors * LANES; i++)
        channels[i] = i < m->key_dim ? natural_exponential(log_decay[i]) : 1;
    decay->kind = channel_kind;
    decay->scalar = 1;
    decay->channels = channels;
    return decay;
}

/* The row times the channels' factors, in `scaled`; a scalar decay is applied to the sums instead. */
static const real *decayed(const struct memory *m, const struct decay *decay, const real *row, vec *scaled) {
    if (decay->kind == SCALAR_DECAY) return row;
    for (int64_t i = 0; i < m->key_dim; i++) ((real *)scaled)[i] = decay->channels[i] * row[i];
    return (const real *)scaled;
}

INLINE void load_row(vec *row, const real *source, int64_t dim) {
    for (int64_t c = 0; c * LANES < dim; c++) row[c] = load_lanes(source + c * LANES, dim - c * LANES);
}

/* psi, in place. `vectors` of padded zeros beyond the dim do not change the norm. */
static void bend_error(const struct call *call, vec *error, int64_t vectors) {
    const real parameter = (real)call->error_parameter;
    if (call->error_function == HUBER) {
        vec squares = zero_vector();
        for (int64_t c = 0; c < vectors; c++) squares += error[c] * error[c];
        const real norm = square_root(sum_lanes(squares));
        if (norm > parameter)
            for (int64_t c = 0; c < vectors; c++) error[c] *= parameter / norm;
    } else if (call->error_function == POWER) {
        real *values = (real *)error;
        for (int64_t i = 0; i < vectors * LANES; i++)
            if (values[i] != 0) values[i] = copy_sign(power(absolute(values[i]), parameter - 1), values[i]);
    }
}

/* d_error <- J^T d_error, J the Jacobian of psi at the unbent error. */
static void bend_error_backward(const struct call *call, const vec *error, vec *d_error, int64_t vectors) {
    const real parameter = (real)call->error_parameter;
    if (call->error_function == HUBER) {
        vec squares = zero_vector(), along = zero_vector();
        for (int64_t c = 0; c < vectors; c++) {
            squares += error[c] * error[c];
            along += error[c] * d_error[c];
        }
        const real square = sum_lanes(squares), norm = square_root(square);
        if (norm > parameter) {
            const real projection = sum_lanes(along) / square;
            for (int64_t c = 0; c < vectors; c++)
                d_error[c] = (parameter / norm) * (d_error[c] - projection * error[c]);
        }
    } else if (call->error_function == POWER) {
        const real *values = (const real *)error;
        real *grads = (real *)d_error;
        for (int64_t i = 0; i < vectors * LANES; i++)
            grads[i] *= values[i] != 0 ? (parameter - 1) * power(absolute(values[i]), parameter - 2) : 0;
    }
}

#endif
