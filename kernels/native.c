/* Fast weights on a CPU: the recurrence step by step, and its gradient in two passes that store no states.
 *
 * native_vector.h  short vectors        native_forward.h   the forward pass and the single step
 * native_sweep.h   states in order      native_backward.h  the two passes of the gradient
 * native_memory.h  one life and head    native_call.h      what Python hands over
 *
 * For one life and head, S is the state [value_dim, key_dim], k the key written, p the key erased with, q the query:
 *
 *     S^-  = S diag(a)                    e = v - S^- p   (or v - S p: error_before_decay)
 *     u    = b psi(e)                     (psi(v) where the head does not erase)
 *     S    = S^- + u k^T                  o = S q
 *
 * and with momentum M = c M + u k^T, S = S^- + M.
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
 * up to the next reset. It holds per key channel too. With momentum it gives the gradients of the decay and of c only
 * together; that of c, <M_{t-1}, N_t> with N = dL/dM, is taken from M itself, rebuilt segment by segment in pass 1.
 *
 * Every (life, head) is computed alone and in the same order whatever the batch and the number of threads, so its
 * numbers are the same to the last bit. The single step does the same arithmetic as one step of a sequence.
 */
#include <pthread.h>
#include <stdlib.h>

#include "native_backward.h"
#include "native_forward.h"

#define MAX_THREADS 256

/* Memories walk together, step by step: while one waits for its sums, another computes, and the heads of a life lie
 * side by side in memory. So many at most, and only while their states fit the first cache. */
#define MAX_TOGETHER 4
#define TOGETHER_BYTES (16 << 10)

typedef void (*walk)(struct memory *, int64_t count, const struct call *, int64_t index);

struct job {
    const struct call *call;
    walk walk;
    int64_t together, next, failed;
};

/* Takes groups of memories until none is left. A thread that starts late or not at all leaves its share to the rest. */
static void *work(void *argument) {
    struct job *job = argument;
    const int64_t items = job->call->lives * job->call->heads, together = job->together;
    struct memory memories[MAX_TOGETHER];
    const int64_t size = lay_out(memories, job->call, NULL);
    void *workspace;
    if (posix_memalign(&workspace, VECTOR_BYTES, (size_t)(together * size) * sizeof(vec))) {
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    for (int64_t i = 0; i < together; i++) lay_out(&memories[i], job->call, (vec *)workspace + i * size);
    for (;;) {
        const int64_t index = __atomic_fetch_add(&job->next, together, __ATOMIC_RELAXED);
        if (index >= items) break;
        job->walk(memories, index + together < items ? together : items - index, job->call, index);
    }
    free(workspace);
    return NULL;
}

/* Threads live for one call: no pool that spins beside torch's own, and nothing that a fork could break. */
static int run(const struct call *call, walk walk) {
    const int64_t wanted = call->threads < MAX_THREADS ? call->threads : MAX_THREADS;
    const int64_t states = state_vectors(call) * (int64_t)sizeof(vec) * (call->momentum.data ? 2 : 1);
    int64_t together = TOGETHER_BYTES / states, share = call->lives * call->heads / wanted, started = 0;
    if (together > MAX_TOGETHER) together = MAX_TOGETHER;
    if (together > share) together = share;
    struct job job = {call, walk, together < 1 ? 1 : together, 0, 0};
    pthread_t threads[MAX_THREADS];
    while (started < wanted - 1 && pthread_create(&threads[started], NULL, work, &job) == 0) started++;
    work(&job);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return job.failed != 0;
}

int64_t fast_weight_call_bytes(void) { return (int64_t)sizeof(struct call); }

/* 0, or 1 if memory ran out. */
int fast_weight_forward(const struct call *call) { return run(call, forward); }

int fast_weight_step(const struct call *call) { return run(call, steps); }

int fast_weight_backward(const struct call *call) { return run(call, backward); }
