/* Fast weights on a CPU: the recurrence step by step, and its gradient in two passes that store no states.
 *
 * For one life and head, S is the state [value_dim, key_dim], k the key written, p the key erased with, q the query:
 *
 *     S^-  = S diag(a)                    e = v - S^- p   (or v - S p: error_before_decay)
 *     u    = b psi(e)                     (psi(v) where the head does not erase)
 *     S    = S^- + u k^T                  o = S q
 *
 * Forward. The write of step t and the reads of step t+1 share one sweep over S, because S_t q = S^- q + (k.q) u: each
 * element is loaded once, updated, multiplied by p and q of the next step, and stored. S is held transposed, rows over
 * key_dim and lanes over value_dim, so that no sweep needs a horizontal sum.
 *
 * Backward, from the errors e that the forward pass kept (u follows from them, also where b = 0):
 * pass 1 walks t downwards with D = dL/dS alone and gives dv, db and the write half of dk; pass 2 walks t upwards with
 * S rebuilt from e, held as rows over value_dim and lanes over key_dim, and gives dq and the erase half of dk. The decay
 * needs S and D together, but <S_t, D_t> telescopes:
 *     d log a_t = <S^-_t, D^-_t> = <S_T, D_T> + sum over s >= t of (q.dq - k.dk_write + p.dk_erase),
 * up to the next reset. It holds per key channel too.
 *
 * Every (life, head) is computed alone and in the same order whatever the batch and the number of threads, so its
 * numbers are the same to the last bit. A one-step call does the same arithmetic as one step of a sequence.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "native_call.h"
#include "native_sweep.h"

#define MAX_THREADS 256
#define CACHE_LINE 64
#define PREFETCH_STEPS 4


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

/* With momentum the backward pass rebuilds the momentum of so many steps at a time, from as many checkpoints. */
static int64_t segment_length(const struct call *call) {
    int64_t length = 1;
    while (length * length < call->steps) length++;
    return length;
}

/* Memory of one thread, reused from item to item; each of the rows holds one padded key or value. */
struct workspace {
    vec *state, *running, *d_start, *products, *overlaps, *checkpoints, *segment;
    vec *first, *second, *third, *bent, *update, *error, *right, *d_read, *decay[2], *scaled[2];
};

/* Lays the workspace out in `memory`, or only counts its vectors where that is NULL. */
static int64_t lay_out(struct workspace *w, const struct call *call, vec *memory) {
    const int64_t key_vectors = vectors_for(call->key_dim), value_vectors = vectors_for(call->value_dim);
    const int64_t by_key = key_vectors * LANES * value_vectors, by_value = call->value_dim * key_vectors;
    const int64_t state = by_key > by_value ? by_key : by_value;
    const int64_t row = key_vectors > value_vectors ? key_vectors : value_vectors;
    const int64_t segment = call->d_momentum ? segment_length(call) * by_key : 0;
    const struct {
        vec **place;
        int64_t size;
    } parts[] = {
        {&w->state, state},
        {&w->running, call->momentum.data ? state : 0},
        {&w->d_start, call->d_start ? by_key : 0},
        {&w->products, key_vectors * LANES},
        {&w->overlaps, call->d_momentum ? key_vectors * LANES : 0},
        {&w->checkpoints, segment},
        {&w->segment, segment},
        {&w->first, row},
        {&w->second, row},
        {&w->third, row},
        {&w->bent, row},
        {&w->update, row},
        {&w->error, row},
        {&w->right, row},
        {&w->d_read, row},
        {&w->decay[0], row},
        {&w->decay[1], row},
        {&w->scaled[0], row},
        {&w->scaled[1], row},
    };
    int64_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (memory) *parts[i].place = memory + used;
        used += parts[i].size;
    }
    return used;
}

/* One life and head of a call, and where its numbers are. */
struct item {
    const struct call *call;
    int64_t life, head, key_dim, value_dim, key_vectors, value_vectors;
    int64_t offset; /* of the item in tensors like the initial state */
    int erases;
    struct view erase_key;
    const real *initial, *initial_running, *start;
};

INLINE const real *input(const struct view view, int64_t life, int64_t step, int64_t head) {
    return (const real *)view.data + life * view.life + step * view.step + head * view.head;
}

static struct item item_of(const struct call *call, int64_t index) {
    const int64_t head = index % call->heads, size = call->key_dim * call->value_dim;
    return (struct item){
        .call = call,
        .life = index / call->heads,
        .head = head,
        .key_dim = call->key_dim,
        .value_dim = call->value_dim,
        .key_vectors = vectors_for(call->key_dim),
        .value_vectors = vectors_for(call->value_dim),
        .erases = call->erase && (!call->erase_heads || call->erase_heads[head]),
        .offset = index * size,
        .erase_key = call->erase_key.data ? call->erase_key : call->key,
        .initial = (const real *)call->initial + index * size,
        .initial_running = call->momentum.data ? (const real *)call->initial_running + index * size : NULL,
        .start = call->start.data ? input(call->start, index / call->heads, 0, head) : NULL,
    };
}

static const real *at_step(const struct item *item, const struct view view, int64_t step) {
    return input(view, item->life, step, item->head);
}

/* What the kernels themselves make, as a view. */
static struct view made(const struct item *item, void *data, int64_t dim) {
    const int64_t heads = item->call->heads;
    return (struct view){data, item->call->steps * heads * dim, heads * dim, dim};
}

/* Rows of one head lie far apart, which the processor does not foresee: without this, half the forward pass was waiting
 * for memory. */
INLINE void prefetch(const struct item *item, const struct view view, int64_t step, int64_t dim) {
    if (!view.data || step < 0 || step >= item->call->steps) return;
    const char *row = (const char *)at_step(item, view, step);
    for (int64_t byte = 0; byte < dim * (int64_t)sizeof(real); byte += CACHE_LINE) __builtin_prefetch(row + byte);
}

INLINE void prefetch_inputs(const struct item *item, int64_t step) {
    prefetch(item, item->call->query, step, item->key_dim);
    prefetch(item, item->call->key, step, item->key_dim);
    prefetch(item, item->call->value, step, item->value_dim);
}

static int is_reset(const struct item *item, int64_t step) {
    const struct view view = item->call->reset;
    return view.data && ((const uint8_t *)view.data)[item->life * view.life + step * view.step];
}

/* Index of (life, step, head) in what the kernels themselves make. */
static int64_t place(const struct item *item, int64_t step) {
    return (item->life * item->call->steps + step) * item->call->heads + item->head;
}

/* The state with lanes over value_dim and rows over key_dim, and the other way round. */
static struct sweep sweep_by_key(const struct item *item, const struct workspace *w) {
    vec *running = item->call->momentum.data ? w->running : NULL;
    return (struct sweep){w->state, running, item->key_dim, item->key_vectors * LANES, item->value_vectors};
}

static struct sweep sweep_by_value(const struct item *item, const struct workspace *w) {
    vec *running = item->call->momentum.data ? w->running : NULL;
    return (struct sweep){w->state, running, item->value_dim, item->value_dim, item->key_vectors};
}

static real momentum_at(const struct item *item, int64_t step) {
    return item->call->momentum.data ? *at_step(item, item->call->momentum, step) : 0;
}

/* The decay of a step; `channels` is where the factors go if there is one per channel, ones beyond the key. */
static struct decay decay_at(const struct item *item, int64_t step, enum decay_kind channel_kind, real *channels) {
    const struct call *call = item->call;
    if (!call->log_decay.data) return NO_DECAY;
    const real *log_decay = at_step(item, call->log_decay, step);
    if (!call->channel_decay) return (struct decay){SCALAR_DECAY, natural_exponential(*log_decay), NULL};
    for (int64_t i = 0; i < item->key_vectors * LANES; i++)
        channels[i] = i < item->key_dim ? natural_exponential(log_decay[i]) : 1;
    return (struct decay){channel_kind, 1, channels};
}

/* The row times the channel factors, in `scaled`; a scalar decay is applied to the sums instead. */
static const real *decayed(const struct item *item, const struct decay decay, const real *row, real *scaled) {
    if (decay.kind == SCALAR_DECAY) return row;
    for (int64_t i = 0; i < item->key_dim; i++) scaled[i] = decay.channels[i] * row[i];
    return scaled;
}

static void load_row(vec *row, const real *source, int64_t dim) {
    for (int64_t c = 0; c < vectors_for(dim); c++) row[c] = load_lanes(source + c * LANES, dim - c * LANES);
}

/* From the sums over the state and the momentum (S p, S q and M q) to the step's results and its write. */
static void answer(const struct item *item, int64_t step, const struct decay *decay, const struct workspace *w) {
    const struct call *call = item->call;
    const real *value = at_step(item, call->value, step), *key = at_step(item, call->key, step);
    const real write_rate = *at_step(item, call->write_rate, step), momentum = momentum_at(item, step);
    const real key_query = dot(key, at_step(item, call->query, step), item->key_dim);
    const real erase_decay = call->error_before_decay ? 1 : decay->scalar;
    const int64_t at = place(item, step);
    real *output = (real *)call->output + at * item->value_dim;
    real *errors = call->errors ? (real *)call->errors + at * item->value_dim : NULL;
    vec squares = zero_vector();
    for (int64_t c = 0; c < item->value_vectors; c++) {
        const int64_t left = item->value_dim - c * LANES;
        const vec target = load_lanes(value + c * LANES, left);
        const vec error = fused(broadcast(-erase_decay), w->first[c], target);
        squares = fused(error, error, squares);
        if (errors) store_lanes(errors + c * LANES, error, left);
        w->update[c] = item->erases ? error : target;
    }
    bend_error(call, w->update, item->value_vectors);
    for (int64_t c = 0; c < item->value_vectors; c++) {
        w->update[c] *= write_rate;
        vec read = fused(broadcast(decay->scalar), w->second[c], key_query * w->update[c]);
        if (call->momentum.data) read = fused(broadcast(momentum), w->third[c], read);
        store_lanes(output + c * LANES, read, item->value_dim - c * LANES);
    }
    ((real *)call->surprise)[at] = square_root(sum_lanes(squares));
}

/* What a step reads: the erase key and the query, as far as they need it times the channels' decay. */
static struct reads reads_of(const struct item *item, int64_t step, const struct decay decay,
                             const struct workspace *w) {
    const struct call *call = item->call;
    const real *query = at_step(item, call->query, step), *erased = at_step(item, item->erase_key, step);
    return (struct reads){
        .first = call->error_before_decay ? erased : decayed(item, decay, erased, (real *)w->scaled[0]),
        .second = decayed(item, decay, query, (real *)w->scaled[1]),
        .third = query,
        .first_sum = w->first,
        .second_sum = w->second,
        .running_sum = w->third,
    };
}

static void forward_item(const struct call *call, int64_t index, const struct workspace *w) {
    const struct item item = item_of(call, index);
    const struct sweep s = sweep_by_key(&item, w);
    struct write pending = {.absent = 1};
    struct reads reads = {0};

    load_columns(&s, s.state, item.initial, item.value_dim);
    if (s.running) load_columns(&s, s.running, item.initial_running, item.value_dim);
    for (int64_t step = 0; step < call->steps; step++) {
        if (is_reset(&item, step)) {
            if (item.start)
                load_columns(&s, s.state, item.start, item.value_dim);
            else
                clear(s.state, sweep_size(&s));
            if (s.running) clear(s.running, sweep_size(&s));
            pending.absent = 1;
        }
        prefetch_inputs(&item, step + PREFETCH_STEPS);
        const struct decay decay = decay_at(&item, step, ROW_DECAY, (real *)w->decay[step & 1]);
        reads = reads_of(&item, step, decay, w);
        write_and_read(&s, &pending, &reads);
        answer(&item, step, &decay, w);
        pending = (struct write){0, decay, momentum_at(&item, step), at_step(&item, call->key, step), w->update};
    }
    write_and_read(&s, &pending, &reads);
    store_columns(&s, s.state, (real *)call->final + item.offset, item.value_dim);
    if (s.running) store_columns(&s, s.running, (real *)call->final_running + item.offset, item.value_dim);
}

/* One step on the state as it lies, [value_dim, key_dim]: its columns are turned into lanes on the way to the sums, so
 * that these, and with them every result, are those of forward_item to the last bit. */
static void step_item(const struct call *call, int64_t index, const struct workspace *w) {
    const struct item item = item_of(call, index);
    const int64_t keys = item.key_dim, values = item.value_dim;
    const int reset = is_reset(&item, 0);
    const struct decay decay = decay_at(&item, 0, ROW_DECAY, (real *)w->decay[0]);
    const struct reads reads = reads_of(&item, 0, decay, w);
    const real *key = at_step(&item, call->key, 0), *update = (const real *)w->update;
    const real *old = reset ? item.start : item.initial, *old_running = reset ? NULL : item.initial_running;
    real *new = (real *)call->final + item.offset;

    if (index + 1 < call->lives * call->heads)
        for (int64_t i = 0; i < keys * values; i += CACHE_LINE / (int64_t)sizeof(real))
            __builtin_prefetch(item.initial + keys * values + i, 1);
    clear(w->first, item.value_vectors);
    clear(w->second, item.value_vectors);
    clear(w->third, item.value_vectors);
    if (old) read_columns(old, keys, values, reads.first, reads.second, w->first, w->second);
    if (old_running) read_columns(old_running, keys, values, reads.third, reads.third, w->third, w->bent);
    answer(&item, 0, &decay, w);
    if (call->momentum.data)
        write_rows_with_momentum(new, old, (real *)call->final_running + item.offset, old_running, keys, values,
                                 &decay, momentum_at(&item, 0), update, key);
    else
        write_rows(new, old, keys, values, &decay, update, key);
}

/* What was written at a step before the write rate, psi(e) or psi(v), into `bent`; the unbent error into `error`. */
static void write_of_step(const struct item *item, int64_t step, vec *error, vec *bent) {
    const struct call *call = item->call;
    const real *errors = (const real *)call->errors + place(item, step) * item->value_dim;
    load_row(error, item->erases ? errors : at_step(item, call->value, step), item->value_dim);
    memcpy(bent, error, (size_t)item->value_vectors * sizeof(vec));
    bend_error(call, bent, item->value_vectors);
}

/* d surprise / |e|: times e, the gradient that reaches the error through the surprise; 0 where the error is 0. */
static real surprise_factor(const struct item *item, int64_t step) {
    const struct call *call = item->call;
    if (!call->d_surprise.data) return 0;
    const real surprise = ((const real *)call->surprise)[place(item, step)];
    return surprise > 0 ? *at_step(item, call->d_surprise, step) / surprise : 0;
}

/* The lane sums of `products`, one per row, into a row of `dim`. */
static void sum_products(real *target, const vec *products, int64_t dim) {
    for (int64_t row = 0; row < dim; row += LANES) {
        vec rows[LANES];
        UNROLL for (int i = 0; i < LANES; i++) rows[i] = products[row + i];
        store_lanes(target + row, sum_rows(rows), dim - row);
    }
}

/* momentum <- what it is after the step, in sweep order. */
static void replay_momentum(const struct item *item, const struct sweep *s, int64_t step, vec *target,
                            const vec *source, const struct workspace *w) {
    const struct call *call = item->call;
    const real write_rate = *at_step(item, call->write_rate, step);
    write_of_step(item, step, w->error, w->bent);
    for (int64_t c = 0; c < item->value_vectors; c++) w->bent[c] *= write_rate;
    accumulate(s, target, source, momentum_at(item, step), at_step(item, call->key, step), w->bent);
}

/* The momentum before the first step of every segment. */
static void fill_checkpoints(const struct item *item, const struct sweep *s, const struct workspace *w) {
    const int64_t length = segment_length(item->call), size = sweep_size(s);
    load_columns(s, w->checkpoints, item->initial_running, item->value_dim);
    for (int64_t step = 0, next = length; next < item->call->steps; next += length) {
        const vec *source = w->checkpoints + (next / length - 1) * size;
        vec *target = w->checkpoints + next / length * size;
        for (; step < next; step++, source = target) {
            if (is_reset(item, step)) clear(target, size), source = target;
            replay_momentum(item, s, step, target, source, w);
        }
    }
}

/* The momentum before each step of the segment that begins at `begin`; zero before a step that resets. */
static void fill_segment(const struct item *item, const struct sweep *s, int64_t begin, const struct workspace *w) {
    const int64_t length = segment_length(item->call), size = sweep_size(s), steps = item->call->steps;
    const int64_t end = begin + length < steps ? begin + length : steps;
    memcpy(w->segment, w->checkpoints + begin / length * size, (size_t)size * sizeof(vec));
    for (int64_t step = begin; step < end; step++) {
        vec *before = w->segment + (step - begin) * size;
        if (is_reset(item, step)) clear(before, size);
        if (step + 1 < end) replay_momentum(item, s, step, before + size, before, w);
    }
}

/* The last undo, which no read follows: of the state alone. */
static void finish_undo(const struct sweep *s, const struct undo *undo, const struct workspace *w) {
    const struct sweep state = {s->state, NULL, s->rows, s->capacity, s->vectors};
    clear(w->d_read, s->vectors);
    undo_and_read(&state, undo);
}

/* Pass 1: downwards with the gradient of the state, and of the momentum, alone. */
static void backward_through_state(const struct item *item, const struct workspace *w) {
    const struct call *call = item->call;
    const struct sweep s = sweep_by_key(item, w);
    const struct view errors = made(item, call->errors, item->value_dim);
    const int64_t length = segment_length(call), decay_width = call->channel_decay ? item->key_dim : 1;
    struct undo undo = {
        .decay = NO_DECAY,
        .momentum = 1,
        .left = at_step(item, call->key, 0),
        .right = w->right,
        .d_output = w->d_read,
        .update = w->update,
        .d_update = w->first,
        .products = w->products,
        .overlaps = w->overlaps,
    };
    real *later = (real *)w->third;

    clear(w->third, item->key_vectors);
    clear(s.state, sweep_size(&s));
    if (call->d_final) load_columns(&s, s.state, (const real *)call->d_final + item->offset, item->value_dim);
    if (s.running) {
        fill_checkpoints(item, &s, w);
        clear(s.running, sweep_size(&s));
        if (call->d_final_running)
            load_columns(&s, s.running, (const real *)call->d_final_running + item->offset, item->value_dim);
    }
    if (call->d_start) clear(w->d_start, sweep_size(&s));
    clear(w->right, item->value_vectors);
    clear(w->d_read, item->value_vectors);
    for (int64_t step = call->steps - 1; step >= 0; step--) {
        const int64_t at = place(item, step);
        prefetch_inputs(item, step - PREFETCH_STEPS);
        prefetch(item, errors, step - PREFETCH_STEPS, item->value_dim);
        prefetch(item, call->d_output, step - PREFETCH_STEPS, item->value_dim);
        const real *erased = at_step(item, item->erase_key, step);
        const real write_rate = *at_step(item, call->write_rate, step), momentum = momentum_at(item, step);
        const struct decay decay = decay_at(item, step, ROW_DECAY, (real *)w->decay[step & 1]);
        if (s.running) {
            if (step == call->steps - 1 || (step + 1) % length == 0) fill_segment(item, &s, step / length * length, w);
            undo.earlier = w->segment + step % length * sweep_size(&s);
        }
        undo.query = at_step(item, call->query, step);
        undo.key = at_step(item, call->key, step);
        if (call->d_output.data) load_row(w->d_read, at_step(item, call->d_output, step), item->value_dim);
        write_of_step(item, step, w->error, w->bent);
        for (int64_t c = 0; c < item->value_vectors; c++) w->update[c] = write_rate * w->bent[c];
        undo_and_read(&s, &undo);

        sum_products((real *)call->d_key + at * item->key_dim, w->products, item->key_dim);
        if (s.running) {
            /* The share of <M, dM> that the telescoping sum of the decay must give back, see finish_log_decay. */
            real *overlap = (real *)w->second, total = 0;
            sum_products(overlap, w->overlaps, item->key_dim);
            for (int64_t i = 0; i < item->key_dim; i++) total += overlap[i];
            ((real *)call->d_momentum)[at] = total;
            if (call->d_log_decay) {
                real *share = (real *)call->d_log_decay + at * decay_width;
                for (int64_t i = 0; i < decay_width; i++) {
                    const real part = momentum * (call->channel_decay ? overlap[i] : total);
                    share[i] = later[i] - part;
                    later[i] = part;
                }
            }
        }
        vec d_write_rate = zero_vector();
        for (int64_t c = 0; c < item->value_vectors; c++) {
            d_write_rate += w->first[c] * w->bent[c];
            w->first[c] *= write_rate;
        }
        ((real *)call->d_write_rate)[at] = sum_lanes(d_write_rate);
        bend_error_backward(call, w->error, w->first, item->value_vectors);

        const real factor = surprise_factor(item, step);
        const real *error = at_step(item, errors, step);
        real *d_value = (real *)call->d_value + at * item->value_dim;
        const real erase_decay = call->error_before_decay ? 1 : decay.scalar;
        for (int64_t c = 0; c < item->value_vectors; c++) {
            const int64_t left = item->value_dim - c * LANES;
            const vec by_surprise = factor * load_lanes(error + c * LANES, left);
            store_lanes(d_value + c * LANES, w->first[c] + by_surprise, left);
            w->right[c] = -erase_decay * ((item->erases ? w->first[c] : zero_vector()) + by_surprise);
        }
        undo.decay = decay;
        undo.momentum = momentum;
        undo.left = call->error_before_decay ? erased : decayed(item, decay, erased, (real *)w->scaled[step & 1]);
        if (is_reset(item, step)) {
            if (call->d_start) {
                finish_undo(&s, &undo, w);
                for (int64_t i = 0; i < sweep_size(&s); i++) w->d_start[i] += s.state[i];
            }
            clear(s.state, sweep_size(&s));
            if (s.running) clear(s.running, sweep_size(&s));
            clear(w->right, item->value_vectors);
            undo.decay = NO_DECAY;
        }
    }
    if (s.running) {
        for (int64_t i = 0; i < sweep_size(&s); i++) s.running[i] *= undo.momentum;
        store_columns(&s, s.running, (real *)call->d_initial_running + item->offset, item->value_dim);
    }
    finish_undo(&s, &undo, w);
    store_columns(&s, s.state, (real *)call->d_initial + item->offset, item->value_dim);
    if (call->d_start) store_columns(&s, w->d_start, (real *)call->d_start + item->offset, item->value_dim);
}

/* Pass 2: upwards with the state alone. Leaves in d_log_decay what each step adds to the telescoping sum. */
static void backward_through_reads(const struct item *item, const struct workspace *w) {
    const struct call *call = item->call;
    const struct sweep s = sweep_by_value(item, w);
    const int64_t decay_width = call->channel_decay ? item->key_dim : 1;
    const struct view errors = made(item, call->errors, item->value_dim);
    const struct view d_keys = made(item, call->d_key, item->key_dim);
    const struct view d_values = made(item, call->d_value, item->value_dim);
    struct write pending = {.absent = 1};
    vec *update = w->update, *key_row = w->right;

    load_rows(&s, s.state, item->initial, item->key_dim);
    if (s.running) load_rows(&s, s.running, item->initial_running, item->key_dim);
    clear(w->d_read, item->value_vectors);
    for (int64_t step = 0; step < call->steps; step++) {
        const int reset = is_reset(item, step);
        if (reset) {
            if (item->start)
                load_rows(&s, s.state, item->start, item->key_dim);
            else
                clear(s.state, sweep_size(&s));
            if (s.running) clear(s.running, sweep_size(&s));
            pending.absent = 1;
        }
        const int64_t at = place(item, step);
        const struct decay decay = decay_at(item, step, LANE_DECAY, (real *)w->decay[step & 1]);
        prefetch_inputs(item, step + PREFETCH_STEPS);
        prefetch(item, errors, step + PREFETCH_STEPS, item->value_dim);
        prefetch(item, call->d_output, step + PREFETCH_STEPS, item->value_dim);
        prefetch(item, d_keys, step + PREFETCH_STEPS, item->key_dim);
        prefetch(item, d_values, step + PREFETCH_STEPS, item->value_dim);
        const real *query = at_step(item, call->query, step), *key = at_step(item, call->key, step);
        const real *erased = at_step(item, item->erase_key, step);
        const real *d_error = at_step(item, d_values, step);
        const real *d_output = (const real *)w->d_read;
        if (call->d_output.data) d_output = at_step(item, call->d_output, step);
        if (!item->erases) {
            const real factor = surprise_factor(item, step);
            load_row(w->error, at_step(item, errors, step), item->value_dim);
            for (int64_t c = 0; c < item->value_vectors; c++) w->error[c] *= factor;
            d_error = (const real *)w->error;
        }
        write_and_read(&s, &pending, &(struct reads){d_error, d_output, d_output, w->first, w->second, w->third});

        write_of_step(item, step, w->error, update);
        const real write_rate = *at_step(item, call->write_rate, step), momentum = momentum_at(item, step);
        for (int64_t c = 0; c < item->value_vectors; c++) update[c] *= write_rate;
        load_row(key_row, key, item->key_dim);
        const real update_read = dot((const real *)update, d_output, item->value_dim);
        real *d_query = (real *)call->d_query + at * item->key_dim, *d_key = (real *)call->d_key + at * item->key_dim;
        real *d_erase_key = call->d_erase_key ? (real *)call->d_erase_key + at * item->key_dim : NULL;
        real *d_log_decay = call->d_log_decay ? (real *)call->d_log_decay + at * decay_width : NULL;
        /* An error taken before the decay reaches S_{t-1} past it, and so counts for the steps before this one only. */
        real *erase_share = d_log_decay;
        if (d_log_decay && call->error_before_decay)
            erase_share = step == 0 || reset ? NULL : d_log_decay - call->heads * decay_width;
        vec write_total = zero_vector(), erase_total = zero_vector();
        for (int64_t c = 0; c < item->key_vectors; c++) {
            const int64_t left = item->key_dim - c * LANES, lane = c * LANES;
            const vec factors = decay.kind == LANE_DECAY ? load_vector(decay.channels + lane) : broadcast(decay.scalar);
            vec by_query = fused(factors, w->second[c], update_read * key_row[c]);
            if (s.running) by_query = fused(broadcast(momentum), w->third[c], by_query);
            const vec by_erase = -(call->error_before_decay ? broadcast(1) : factors) * w->first[c];
            const vec by_write = load_lanes(d_key + lane, left);
            store_lanes(d_query + lane, by_query, left);
            if (d_erase_key)
                store_lanes(d_erase_key + lane, by_erase, left);
            else
                store_lanes(d_key + lane, by_write + by_erase, left);
            if (!d_log_decay) continue;
            vec write_part = load_lanes(query + lane, left) * by_query - key_row[c] * by_write;
            const vec erase_part = load_lanes(erased + lane, left) * by_erase;
            if (!call->channel_decay) {
                write_total += write_part;
                erase_total += erase_part;
                continue;
            }
            if (s.running) write_part += load_lanes(d_log_decay + lane, left);
            store_lanes(d_log_decay + lane, write_part, left);
            if (erase_share)
                store_lanes(erase_share + lane, load_lanes(erase_share + lane, left) + erase_part, left);
        }
        if (d_log_decay && !call->channel_decay) {
            *d_log_decay = sum_lanes(write_total) + (s.running ? *d_log_decay : 0);
            if (erase_share) *erase_share += sum_lanes(erase_total);
        }
        pending = (struct write){0, decay, momentum, (const real *)update, key_row};
    }
}

/* sums += state * grad, column by column, of two matrices [value_dim, key_dim]. */
static void add_products(const struct item *item, vec *sums, const void *state, const void *grad) {
    const real *states = (const real *)state + item->offset, *grads = (const real *)grad + item->offset;
    for (int64_t row = 0; row < item->value_dim; row++)
        for (int64_t c = 0; c < item->key_vectors; c++) {
            const int64_t left = item->key_dim - c * LANES, at = row * item->key_dim + c * LANES;
            sums[c] = fused(load_lanes(states + at, left), load_lanes(grads + at, left), sums[c]);
        }
}

/* The telescoping sum itself, from <S_T, D_T> downwards and anew at each reset. With momentum M and its gradient N it
 * runs over <S, D> + <M, N>, and momentum_t <M_{t-1}, N_t> is taken off again: pass 1 left that. */
static void finish_log_decay(const struct item *item, const struct workspace *w) {
    const struct call *call = item->call;
    const int64_t width = call->channel_decay ? item->key_dim : 1;
    vec *total = w->first;
    clear(total, item->key_vectors);
    if (call->d_final) add_products(item, total, call->final, call->d_final);
    if (call->d_final_running) add_products(item, total, call->final_running, call->d_final_running);
    if (!call->channel_decay) {
        for (int64_t c = 1; c < item->key_vectors; c++) total[0] += total[c];
        total[0] = broadcast(sum_lanes(total[0]));
    }
    for (int64_t step = call->steps - 1; step >= 0; step--) {
        real *d_log_decay = (real *)call->d_log_decay + place(item, step) * width;
        const int reset = is_reset(item, step), dropped = reset && !item->start;
        for (int64_t c = 0; c < vectors_for(width); c++) {
            total[c] += load_lanes(d_log_decay + c * LANES, width - c * LANES);
            store_lanes(d_log_decay + c * LANES, dropped ? zero_vector() : total[c], width - c * LANES);
            if (reset) total[c] = zero_vector();
        }
    }
}

static void backward_item(const struct call *call, int64_t index, const struct workspace *w) {
    const struct item item = item_of(call, index);
    backward_through_state(&item, w);
    backward_through_reads(&item, w);
    if (call->d_log_decay) finish_log_decay(&item, w);
}

typedef void (*item_function)(const struct call *, int64_t, const struct workspace *);

struct job {
    const struct call *call;
    item_function function;
    int64_t next, failed;
};

/* Takes items until none is left. Threads that start late or not at all leave their share to the others. */
static void *work(void *argument) {
    struct job *job = argument;
    const int64_t items = job->call->lives * job->call->heads;
    int64_t grab = items / (8 * job->call->threads);
    if (grab < 1) grab = 1;
    struct workspace workspace;
    void *memory;
    if (posix_memalign(&memory, VECTOR_BYTES, (size_t)lay_out(&workspace, job->call, NULL) * sizeof(vec))) {
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    lay_out(&workspace, job->call, memory);
    for (;;) {
        const int64_t begin = __atomic_fetch_add(&job->next, grab, __ATOMIC_RELAXED);
        if (begin >= items) break;
        const int64_t end = begin + grab < items ? begin + grab : items;
        for (int64_t index = begin; index < end; index++) job->function(job->call, index, &workspace);
    }
    free(memory);
    return NULL;
}

/* Threads live for one call: no pool that spins beside torch's own, and nothing that a fork could break. */
static int run(const struct call *call, item_function function) {
    struct job job = {call, function, 0, 0};
    pthread_t threads[MAX_THREADS];
    int64_t wanted = call->threads < MAX_THREADS ? call->threads : MAX_THREADS, started = 0;
    while (started < wanted - 1 && pthread_create(&threads[started], NULL, work, &job) == 0) started++;
    work(&job);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return job.failed != 0;
}

int64_t fast_weight_call_bytes(void) { return (int64_t)sizeof(struct call); }

/* 0, or 1 if memory ran out. */
int fast_weight_forward(const struct call *call) { return run(call, forward_item); }

int fast_weight_step(const struct call *call) { return run(call, step_item); }

int fast_weight_backward(const struct call *call) { return run(call, backward_item); }
