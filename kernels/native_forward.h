/* The forward pass over a sequence, and the single step. */
#ifndef LIFELONG_NATIVE_FORWARD_H
#define LIFELONG_NATIVE_FORWARD_H

#include "native_memory.h"

#define CACHE_LINE 64

/* What a step reads: the erase key and the query, as far as they need it times the channels' decay. */
static void prepare_reads(struct memory *m, int64_t step, const struct decay *decay) {
    const real *query = at(m->query, step), *erased = at(m->erase_key, step);
    m->reads.first = m->call->error_before_decay ? erased : decayed(m, decay, erased, m->scaled[0]);
    m->reads.second = decayed(m, decay, query, m->scaled[1]);
    m->reads.third = query;
}

/* From the sums over the state and the momentum (S p, S q and M q) to the step's results and its write. */
static void answer(const struct memory *m, int64_t step, const struct decay *decay) {
    const real *value = at(m->value, step);
    const real write_rate = *at(m->write_rate, step), momentum = momentum_at(m, step);
    const real key_query = dot(at(m->key, step), at(m->query, step), m->key_dim);
    const vec erase_decay = broadcast(m->call->error_before_decay ? -1 : -decay->scalar);
    real *output = at(m->output, step), *errors = m->errors.base ? at(m->errors, step) : NULL;
    vec squares = zero_vector();
    for (int64_t c = 0; c < m->value_vectors; c++) {
        const int64_t left = m->value_dim - c * LANES;
        const vec target = load_lanes(value + c * LANES, left), error = fused(erase_decay, m->first[c], target);
        squares = fused(error, error, squares);
        if (errors) store_lanes(errors + c * LANES, error, left);
        m->update[c] = m->erases ? error : target;
    }
    if (m->call->error_function != SQUARED) bend_error(m->call, m->update, m->value_vectors);
    for (int64_t c = 0; c < m->value_vectors; c++) {
        m->update[c] *= write_rate;
        vec read = fused(broadcast(decay->scalar), m->second[c], key_query * m->update[c]);
        if (m->momentum.base) read = fused(broadcast(momentum), m->third[c], read);
        store_lanes(output + c * LANES, read, m->value_dim - c * LANES);
    }
    *at(m->surprise, step) = square_root(sum_lanes(squares));
}

static void forward_begin(struct memory *m) {
    m->sweep = sweep_by_key(m);
    m->pending = (struct write){.absent = 1, .right = m->update};
    m->reads = (struct reads){.first_sum = m->first, .second_sum = m->second, .running_sum = m->third};
    load_columns(&m->sweep, m->state, m->initial, m->value_dim);
    if (m->sweep.running) load_columns(&m->sweep, m->running, m->initial_running, m->value_dim);
}

static void forward_step(struct memory *m, int64_t step) {
    if (is_reset(m, step)) {
        if (m->start)
            load_columns(&m->sweep, m->state, m->start, m->value_dim);
        else
            clear(m->state, sweep_size(&m->sweep));
        if (m->sweep.running) clear(m->running, sweep_size(&m->sweep));
        m->pending.absent = 1;
    }
    const struct decay *decay = decay_at(m, step, ROW_DECAY);
    prepare_reads(m, step, decay);
    write_and_read(&m->sweep, &m->pending, &m->reads);
    answer(m, step, decay);
    m->pending.absent = 0;
    m->pending.decay = decay;
    m->pending.momentum = momentum_at(m, step);
    m->pending.left = at(m->key, step);
}

static void forward_end(struct memory *m) {
    write_and_read(&m->sweep, &m->pending, &m->reads);
    store_columns(&m->sweep, m->state, (real *)m->call->final + m->offset, m->value_dim);
    if (m->sweep.running)
        store_columns(&m->sweep, m->running, (real *)m->call->final_running + m->offset, m->value_dim);
}

static void forward(struct memory *memories, int64_t count, const struct call *call, int64_t index) {
    for (int64_t i = 0; i < count; i++) {
        open_memory(&memories[i], call, index + i);
        forward_begin(&memories[i]);
    }
    for (int64_t step = 0; step < call->steps; step++)
        for (int64_t i = 0; i < count; i++) forward_step(&memories[i], step);
    for (int64_t i = 0; i < count; i++) forward_end(&memories[i]);
}

/* One step on the state as it lies, [value_dim, key_dim]: its columns are turned into lanes on the way to the sums, so
 * that these, and with them every result, are those of the sequence to the last bit. */
static void single_step(struct memory *m) {
    const int64_t keys = m->key_dim, values = m->value_dim;
    const struct call *call = m->call;
    const int reset = is_reset(m, 0);
    const struct decay *decay = decay_at(m, 0, ROW_DECAY);
    const real *key = at(m->key, 0), *update = (const real *)m->update;
    const real *old = reset ? m->start : m->initial, *old_running = reset ? NULL : m->initial_running;
    real *new = (real *)call->final + m->offset;

    prepare_reads(m, 0, decay);
    clear(m->first, m->value_vectors);
    clear(m->second, m->value_vectors);
    clear(m->third, m->value_vectors);
    if (old) read_columns(old, keys, values, m->reads.first, m->reads.second, m->first, m->second);
    if (old_running) read_columns(old_running, keys, values, m->reads.third, m->reads.third, m->third, m->bent);
    answer(m, 0, decay);
    if (m->momentum.base)
        write_rows_with_momentum(new, old, (real *)call->final_running + m->offset, old_running, keys, values, decay,
                                 momentum_at(m, 0), update, key);
    else
        write_rows(new, old, keys, values, decay, update, key);
}

static void steps(struct memory *memories, int64_t count, const struct call *call, int64_t index) {
    const int64_t size = call->key_dim * call->value_dim, items = call->lives * call->heads;
    for (int64_t i = 0; i < count; i++) {
        /* With thousands of lives the states come from memory: the next one is on its way meanwhile. */
        if (index + i + 1 < items)
            for (int64_t j = 0; j < size; j += CACHE_LINE / (int64_t)sizeof(real))
                __builtin_prefetch((const real *)call->initial + (index + i + 1) * size + j, 1);
        open_memory(&memories[i], call, index + i);
        single_step(&memories[i]);
    }
}

#endif
