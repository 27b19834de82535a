/* The backward pass, in two walks that store no states. */
#ifndef LIFELONG_NATIVE_BACKWARD_H
#define LIFELONG_NATIVE_BACKWARD_H

#include "native_memory.h"

/* What was written at a step before the write rate, psi(e) or psi(v), into `bent`; the unbent error into `error`. */
static void write_of_step(const struct memory *m, int64_t step) {
    const real *source = at(m->erases ? m->errors : m->value, step);
    for (int64_t c = 0; c < m->value_vectors; c++)
        m->bent[c] = m->error[c] = load_lanes(source + c * LANES, m->value_dim - c * LANES);
    if (m->call->error_function != SQUARED) bend_error(m->call, m->bent, m->value_vectors);
}

/* d surprise / |e|: times e, the gradient that reaches the error through the surprise; 0 where the error is 0. */
static real surprise_factor(const struct memory *m, int64_t step) {
    if (!m->d_surprise.base) return 0;
    const real surprise = *at(m->surprise, step);
    return surprise > 0 ? *at(m->d_surprise, step) / surprise : 0;
}

/* The lane sums of `products`, one per row, into a row of `dim`. */
static void sum_products(real *target, const vec *products, int64_t dim) {
    for (int64_t row = 0; row < dim; row += LANES) {
        vec rows[LANES];
        UNROLL for (int i = 0; i < LANES; i++) rows[i] = products[row + i];
        store_lanes(target + row, sum_rows(rows), dim - row);
    }
}

/* target <- the momentum after the step, from `source` before it, in sweep order. */
static void replay_momentum(struct memory *m, int64_t step, vec *target, const vec *source) {
    const real write_rate = *at(m->write_rate, step);
    write_of_step(m, step);
    for (int64_t c = 0; c < m->value_vectors; c++) m->bent[c] *= write_rate;
    accumulate(&m->sweep, target, source, momentum_at(m, step), at(m->key, step), m->bent);
}

/* The momentum before the first step of every segment. */
static void fill_checkpoints(struct memory *m) {
    const int64_t length = segment_length(m->call), size = sweep_size(&m->sweep);
    load_columns(&m->sweep, m->checkpoints, m->initial_running, m->value_dim);
    for (int64_t step = 0, next = length; next < m->call->steps; next += length) {
        const vec *source = m->checkpoints + (next / length - 1) * size;
        vec *target = m->checkpoints + next / length * size;
        for (; step < next; step++, source = target) {
            if (is_reset(m, step)) {
                clear(target, size);
                source = target;
            }
            replay_momentum(m, step, target, source);
        }
    }
}

/* The momentum before each step of the segment that begins at `begin`; zero before a step that resets. */
static void fill_segment(struct memory *m, int64_t begin) {
    const int64_t length = segment_length(m->call), size = sweep_size(&m->sweep), steps = m->call->steps;
    const int64_t end = begin + length < steps ? begin + length : steps;
    memcpy(m->segment, m->checkpoints + begin / length * size, (size_t)size * sizeof(vec));
    for (int64_t step = begin; step < end; step++) {
        vec *before = m->segment + (step - begin) * size;
        if (is_reset(m, step)) clear(before, size);
        if (step + 1 < end) replay_momentum(m, step, before + size, before);
    }
}

/* Pass 1: downwards with the gradient of the state, and of the momentum, alone. */
static void descend_begin(struct memory *m) {
    const struct call *call = m->call;
    m->sweep = sweep_by_key(m);
    const int64_t size = sweep_size(&m->sweep);
    m->undo = (struct undo){
        .decay = &NO_DECAY,
        .momentum = 1,
        .left = at(m->key, 0),
        .right = m->right,
        .d_output = m->d_read,
        .update = m->update,
        .d_update = m->first,
        .products = m->products,
        .overlaps = m->overlaps,
    };
    clear(m->state, size);
    if (call->d_final) load_columns(&m->sweep, m->state, (const real *)call->d_final + m->offset, m->value_dim);
    if (m->sweep.running) {
        fill_checkpoints(m);
        clear(m->running, size);
        if (call->d_final_running)
            load_columns(&m->sweep, m->running, (const real *)call->d_final_running + m->offset, m->value_dim);
    }
    if (call->d_start) clear(m->d_start, size);
    clear(m->third, m->key_vectors);
    clear(m->right, m->value_vectors);
    clear(m->d_read, m->value_vectors);
}

/* The last undo of a state, which no read follows; the momentum stays. */
static void finish_undo(struct memory *m) {
    const struct sweep state = {m->state, NULL, m->sweep.rows, m->sweep.capacity, m->sweep.vectors};
    clear(m->d_read, m->value_vectors);
    undo_and_read(&state, &m->undo);
}

/* The gradient of the momentum factor, <M_{t-1}, dM_t>, and what the telescoping sum of the decay must give back of it,
 * see finish_log_decay. `third` keeps the share of the step after. */
static void momentum_gradient(struct memory *m, int64_t step) {
    real *overlap = (real *)m->second, *later = (real *)m->third, total = 0;
    sum_products(overlap, m->overlaps, m->key_dim);
    for (int64_t i = 0; i < m->key_dim; i++) total += overlap[i];
    *at(m->d_momentum, step) = total;
    if (!m->d_log_decay.base) return;
    real *share = at(m->d_log_decay, step);
    for (int64_t i = 0; i < m->decay_width; i++) {
        const real part = momentum_at(m, step) * (m->call->channel_decay ? overlap[i] : total);
        share[i] = later[i] - part;
        later[i] = part;
    }
}

static void descend_step(struct memory *m, int64_t step) {
    const struct call *call = m->call;
    const real write_rate = *at(m->write_rate, step), *erased = at(m->erase_key, step);
    const struct decay *decay = decay_at(m, step, ROW_DECAY);
    struct undo *undo = &m->undo;
    if (m->sweep.running) {
        const int64_t length = segment_length(call);
        if (step == call->steps - 1 || (step + 1) % length == 0) fill_segment(m, step / length * length);
        undo->earlier = m->segment + step % length * sweep_size(&m->sweep);
    }
    undo->query = at(m->query, step);
    undo->key = at(m->key, step);
    if (m->d_output.base) load_row(m->d_read, at(m->d_output, step), m->value_dim);
    write_of_step(m, step);
    for (int64_t c = 0; c < m->value_vectors; c++) m->update[c] = write_rate * m->bent[c];
    undo_and_read(&m->sweep, undo);

    sum_products(at(m->d_key, step), m->products, m->key_dim);
    if (m->sweep.running) momentum_gradient(m, step);
    vec d_write_rate = zero_vector();
    for (int64_t c = 0; c < m->value_vectors; c++) {
        d_write_rate = fused(m->first[c], m->bent[c], d_write_rate);
        m->first[c] *= write_rate;
    }
    *at(m->d_write_rate, step) = sum_lanes(d_write_rate);
    if (call->error_function != SQUARED) bend_error_backward(call, m->error, m->first, m->value_vectors);

    const real factor = surprise_factor(m, step), *error = at(m->errors, step);
    const real erase_decay = call->error_before_decay ? -1 : -decay->scalar;
    real *d_value = at(m->d_value, step);
    for (int64_t c = 0; c < m->value_vectors; c++) {
        const int64_t left = m->value_dim - c * LANES;
        const vec by_surprise = factor != 0 ? factor * load_lanes(error + c * LANES, left) : zero_vector();
        store_lanes(d_value + c * LANES, m->first[c] + by_surprise, left);
        m->right[c] = erase_decay * ((m->erases ? m->first[c] : zero_vector()) + by_surprise);
    }
    undo->decay = decay;
    undo->momentum = momentum_at(m, step);
    undo->left = call->error_before_decay ? erased : decayed(m, decay, erased, m->scaled[step & 1]);
    if (!is_reset(m, step)) return;
    if (call->d_start) {
        finish_undo(m);
        for (int64_t i = 0; i < sweep_size(&m->sweep); i++) m->d_start[i] += m->state[i];
    }
    clear(m->state, sweep_size(&m->sweep));
    if (m->sweep.running) clear(m->running, sweep_size(&m->sweep));
    clear(m->right, m->value_vectors);
    undo->decay = &NO_DECAY;
}

static void descend_end(struct memory *m) {
    const struct call *call = m->call;
    const int64_t size = sweep_size(&m->sweep);
    if (m->sweep.running) {
        for (int64_t i = 0; i < size; i++) m->running[i] *= m->undo.momentum;
        store_columns(&m->sweep, m->running, (real *)call->d_initial_running + m->offset, m->value_dim);
    }
    finish_undo(m);
    store_columns(&m->sweep, m->state, (real *)call->d_initial + m->offset, m->value_dim);
    if (call->d_start) store_columns(&m->sweep, m->d_start, (real *)call->d_start + m->offset, m->value_dim);
}

/* Pass 2: upwards with the state alone. Leaves in d_log_decay what each step adds to the telescoping sum. */
static void ascend_begin(struct memory *m) {
    m->sweep = sweep_by_value(m);
    m->pending = (struct write){.absent = 1, .left = (const real *)m->update, .right = m->right};
    m->reads = (struct reads){.first_sum = m->first, .second_sum = m->second, .running_sum = m->third};
    load_rows(&m->sweep, m->state, m->initial, m->key_dim);
    if (m->sweep.running) load_rows(&m->sweep, m->running, m->initial_running, m->key_dim);
    clear(m->d_read, m->value_vectors);
}

/* Gradients of the keys from the sums over the state and the momentum, S^T de, S^T do and M^T do. */
static void key_gradients(struct memory *m, int64_t step, const struct decay *decay, real update_read, int reset) {
    const struct call *call = m->call;
    const real *query = at(m->query, step), *erased = at(m->erase_key, step);
    const real momentum = momentum_at(m, step);
    real *d_query = at(m->d_query, step), *d_key = at(m->d_key, step);
    real *d_erase_key = m->d_erase_key.base ? at(m->d_erase_key, step) : NULL;
    real *d_log_decay = m->d_log_decay.base ? at(m->d_log_decay, step) : NULL;
    /* An error taken before the decay reaches S_{t-1} past it, and so counts for the steps before this one only. */
    real *erase_share = d_log_decay;
    if (d_log_decay && call->error_before_decay) erase_share = step == 0 || reset ? NULL : at(m->d_log_decay, step - 1);
    vec write_total = zero_vector(), erase_total = zero_vector();
    for (int64_t c = 0; c < m->key_vectors; c++) {
        const int64_t left = m->key_dim - c * LANES, lane = c * LANES;
        const vec factors = decay->kind == LANE_DECAY ? load_vector(decay->channels + lane) : broadcast(decay->scalar);
        vec by_query = fused(factors, m->second[c], update_read * m->right[c]);
        if (m->sweep.running) by_query = fused(broadcast(momentum), m->third[c], by_query);
        const vec by_erase = -(call->error_before_decay ? broadcast(1) : factors) * m->first[c];
        const vec by_write = load_lanes(d_key + lane, left);
        store_lanes(d_query + lane, by_query, left);
        if (d_erase_key)
            store_lanes(d_erase_key + lane, by_erase, left);
        else
            store_lanes(d_key + lane, by_write + by_erase, left);
        if (!d_log_decay) continue;
        vec write_part = load_lanes(query + lane, left) * by_query - m->right[c] * by_write;
        const vec erase_part = load_lanes(erased + lane, left) * by_erase;
        if (!call->channel_decay) {
            write_total += write_part;
            erase_total += erase_part;
            continue;
        }
        if (m->sweep.running) write_part += load_lanes(d_log_decay + lane, left);
        store_lanes(d_log_decay + lane, write_part, left);
        if (erase_share) store_lanes(erase_share + lane, load_lanes(erase_share + lane, left) + erase_part, left);
    }
    if (d_log_decay && !call->channel_decay) {
        *d_log_decay = sum_lanes(write_total) + (m->sweep.running ? *d_log_decay : 0);
        if (erase_share) *erase_share += sum_lanes(erase_total);
    }
}

static void ascend_step(struct memory *m, int64_t step) {
    const int reset = is_reset(m, step);
    if (reset) {
        if (m->start)
            load_rows(&m->sweep, m->state, m->start, m->key_dim);
        else
            clear(m->state, sweep_size(&m->sweep));
        if (m->sweep.running) clear(m->running, sweep_size(&m->sweep));
        m->pending.absent = 1;
    }
    const struct decay *decay = decay_at(m, step, LANE_DECAY);
    const real *d_output = m->d_output.base ? at(m->d_output, step) : (const real *)m->d_read;
    const real *d_error = at(m->d_value, step), write_rate = *at(m->write_rate, step);
    if (!m->erases) {
        const real factor = surprise_factor(m, step);
        load_row(m->error, at(m->errors, step), m->value_dim);
        for (int64_t c = 0; c < m->value_vectors; c++) m->error[c] *= factor;
        d_error = (const real *)m->error;
    }
    m->reads.first = d_error;
    m->reads.second = m->reads.third = d_output;
    write_and_read(&m->sweep, &m->pending, &m->reads);

    write_of_step(m, step);
    for (int64_t c = 0; c < m->value_vectors; c++) m->update[c] = write_rate * m->bent[c];
    load_row(m->right, at(m->key, step), m->key_dim);
    key_gradients(m, step, decay, dot((const real *)m->update, d_output, m->value_dim), reset);
    m->pending.absent = 0;
    m->pending.decay = decay;
    m->pending.momentum = momentum_at(m, step);
}

/* sums += state * grad, column by column, of two tensors like the initial state. */
static void add_products(const struct memory *m, vec *sums, const void *state, const void *grad) {
    const real *states = (const real *)state + m->offset, *grads = (const real *)grad + m->offset;
    for (int64_t row = 0; row < m->value_dim; row++)
        for (int64_t c = 0; c < m->key_vectors; c++) {
            const int64_t left = m->key_dim - c * LANES, place = row * m->key_dim + c * LANES;
            sums[c] = fused(load_lanes(states + place, left), load_lanes(grads + place, left), sums[c]);
        }
}

/* The telescoping sum itself, from <S_T, D_T> downwards and anew at each reset. With momentum M and its gradient N it
 * runs over <S, D> + <M, N>, and momentum_t <M_{t-1}, N_t> is taken off again: pass 1 left that. */
static void finish_log_decay(struct memory *m) {
    const struct call *call = m->call;
    const int64_t width = m->decay_width;
    vec *total = m->first;
    clear(total, m->key_vectors);
    if (call->d_final) add_products(m, total, call->final, call->d_final);
    if (call->d_final_running) add_products(m, total, call->final_running, call->d_final_running);
    if (!call->channel_decay) {
        for (int64_t c = 1; c < m->key_vectors; c++) total[0] += total[c];
        total[0] = broadcast(sum_lanes(total[0]));
    }
    for (int64_t step = call->steps - 1; step >= 0; step--) {
        real *d_log_decay = at(m->d_log_decay, step);
        const int reset = is_reset(m, step), dropped = reset && !m->start;
        for (int64_t c = 0; c * LANES < width; c++) {
            total[c] += load_lanes(d_log_decay + c * LANES, width - c * LANES);
            store_lanes(d_log_decay + c * LANES, dropped ? zero_vector() : total[c], width - c * LANES);
            if (reset) total[c] = zero_vector();
        }
    }
}

static void backward(struct memory *memories, int64_t count, const struct call *call, int64_t index) {
    for (int64_t i = 0; i < count; i++) {
        open_memory(&memories[i], call, index + i);
        open_gradients(&memories[i], call, index + i);
        descend_begin(&memories[i]);
    }
    for (int64_t step = call->steps - 1; step >= 0; step--)
        for (int64_t i = 0; i < count; i++) descend_step(&memories[i], step);
    for (int64_t i = 0; i < count; i++) {
        descend_end(&memories[i]);
        ascend_begin(&memories[i]);
    }
    for (int64_t step = 0; step < call->steps; step++)
        for (int64_t i = 0; i < count; i++) ascend_step(&memories[i], step);
    if (!call->d_log_decay) return;
    for (int64_t i = 0; i < count; i++) finish_log_decay(&memories[i]);
}

#endif
