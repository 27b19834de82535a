/* One call, as Python hands it over. `native_library.py` mirrors this struct field for field and checks its size. */
#ifndef LIFELONG_NATIVE_CALL_H
#define LIFELONG_NATIVE_CALL_H

#include <stdint.h>

/* A tensor [life, step, head, dim] or [life, step, head] whose last dim is contiguous; strides in elements.
 * data is NULL where the tensor is absent. */
struct view {
    void *data;
    int64_t life, step, head;
};

enum error_function { SQUARED = 0, HUBER = 1, POWER = 2 };

struct call {
    int64_t lives, steps, heads, key_dim, value_dim, threads;
    int64_t erase;              /* 0: no head erases; 1: the heads that erase_heads marks, or all if it is absent */
    int64_t channel_decay;      /* 1: log_decay is [life, step, head, key_dim] */
    int64_t error_before_decay; /* 1: the error is taken at the previous state, before it decays */
    int64_t error_function;
    double error_parameter;

    struct view query, key, value, write_rate, log_decay, momentum, erase_key, reset;
    struct view start;          /* [life, head, value_dim, key_dim], the state after a reset; absent: zero */
    const uint8_t *erase_heads; /* [heads] */
    const void *initial;        /* [lives, heads, value_dim, key_dim] */
    const void *initial_running; /* like initial; given exactly when momentum is */

    /* Made by the forward pass, read by the backward pass. All contiguous. */
    void *output, *errors; /* [lives, steps, heads, value_dim]; errors may be absent where no backward pass follows */
    void *surprise;        /* [lives, steps, heads] */
    void *final, *final_running; /* like the initial ones, and may be the same memory */

    /* Read by the backward pass; each may be absent. */
    struct view d_output, d_surprise;
    const void *d_final, *d_final_running;

    /* Made by the backward pass: contiguous, shaped like what they are gradients of (d_start has every life). The last
     * five may be absent. */
    void *d_query, *d_key, *d_value, *d_write_rate, *d_initial;
    void *d_log_decay, *d_momentum, *d_initial_running, *d_erase_key, *d_start;
};

#endif
