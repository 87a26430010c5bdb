/* A pool of threads that never holds a core for long without work.
 *
 * The caller of `share` posts a task and takes items of it, as the other threads do. It waits for
 * items that a thread has taken, never for a thread that has taken none: if other processes hold
 * the cores, the caller does everything itself. A thread without work looks for some in a loop for
 * SPIN_NS, which is longer than the pauses between the tasks of a step, and then sleeps.
 *
 *     post    | number of the task: 28 bits | count: 18 bits | next item: 18 bits |
 *
 * A thread takes items by raising the last part of `post`. It succeeds only if the post has not
 * changed since it was read, so the task has items left, and `run` and `task` belong to it.
 */
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { BITS = 18, MOST_ITEMS = (1 << BITS) - 1, MOST_THREADS = 256 };
enum { SPIN_NS = 50000, CHECKS = 32 }; /* CHECKS: loop rounds between two readings of the clock */

#define ALONE __attribute__((aligned(128))) /* in cache lines of its own */
static struct {
    uint64_t post ALONE;
    part *run;
    const void *task;
    int threads; /* that may work on the task */
    int64_t done ALONE; /* items */
    int is_waiting; /* the caller sleeps until `done` reaches the count */
    int asleep ALONE; /* threads */
} pool;

static struct {
    pthread_mutex_t caller; /* held by the one caller that has the threads */
    pthread_mutex_t sleep;
    pthread_cond_t posted, finished;
    int started; /* threads, without the caller */
} guard = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
           PTHREAD_COND_INITIALIZER, 0};

#define GET(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define SET(x, value) __atomic_store_n(&(x), value, __ATOMIC_SEQ_CST)
#define ADD(x, value) __atomic_add_fetch(&(x), value, __ATOMIC_SEQ_CST)

static inline int64_t next_of(uint64_t post) { return (int64_t)(post & MOST_ITEMS); }
static inline int64_t count_of(uint64_t post) { return (int64_t)(post >> BITS & MOST_ITEMS); }
static inline int has_items(uint64_t post) { return next_of(post) < count_of(post); }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A loop that waits, of `rounds` so far. */
struct spin {
    int64_t begin, rounds;
};

/* Whether the loop may go on. */
static inline int may_spin(struct spin *spin) {
    relax();
    if (++spin->rounds % CHECKS) return 1;
    if (!spin->begin) spin->begin = now_ns();
    return now_ns() - spin->begin < SPIN_NS;
}

/* Take items of the posted task until none is left. Parts become smaller towards the end, so that
 * a thread that starts late finds work, and all end together. */
static void work(int thread) {
    for (;;) {
        uint64_t post = GET(pool.post);
        part *run = GET(pool.run);
        const void *task = GET(pool.task);
        int threads = GET(pool.threads);
        if (!has_items(post) || thread >= threads) return;
        int64_t next = next_of(post), left = count_of(post) - next;
        int64_t some = (left + 2 * threads - 1) / (2 * threads);
        if (!__atomic_compare_exchange_n(
                &pool.post, &post, post + (uint64_t)some, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        run(task, next, next + some);
        ADD(pool.done, some);
        if (GET(pool.is_waiting)) {
            pthread_mutex_lock(&guard.sleep);
            pthread_cond_signal(&guard.finished);
            pthread_mutex_unlock(&guard.sleep);
        }
    }
}

static void sleep_until_posted(uint64_t seen) {
    pthread_mutex_lock(&guard.sleep);
    ADD(pool.asleep, 1);
    while (GET(pool.post) >> 2 * BITS == seen >> 2 * BITS)
        pthread_cond_wait(&guard.posted, &guard.sleep);
    ADD(pool.asleep, -1);
    pthread_mutex_unlock(&guard.sleep);
}

static void *stay(void *number) {
    for (;;) {
        uint64_t seen = GET(pool.post);
        work((int)(intptr_t)number);
        struct spin spin = {0};
        while (GET(pool.post) >> 2 * BITS == seen >> 2 * BITS)
            if (!may_spin(&spin)) {
                sleep_until_posted(seen);
                break;
            }
    }
    return 0;
}

/* A child process has no threads but the one that made it. */
static void forget(void) {
    guard.started = 0;
    pool.asleep = 0;
    pthread_mutex_init(&guard.caller, 0);
    pthread_mutex_init(&guard.sleep, 0);
    pthread_cond_init(&guard.posted, 0);
    pthread_cond_init(&guard.finished, 0);
}

static void listen_for_forks(void) { pthread_atfork(0, 0, forget); }

/* Start threads until there are so many, or the system has no more. Signals are for others. */
static void start(int wanted) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, listen_for_forks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; guard.started < wanted; guard.started++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, stay, (void *)(intptr_t)(guard.started + 1))) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* A thread may be taken off its core with items in hand: then sleep, which gives it another. */
static void wait_for(int64_t count) {
    struct spin spin = {0};
    while (GET(pool.done) < count)
        if (!may_spin(&spin)) {
            pthread_mutex_lock(&guard.sleep);
            SET(pool.is_waiting, 1);
            while (GET(pool.done) < count) pthread_cond_wait(&guard.finished, &guard.sleep);
            SET(pool.is_waiting, 0);
            pthread_mutex_unlock(&guard.sleep);
        }
}

static void share_some(part *run, const void *task, int64_t count, int threads) {
    uint64_t number = (GET(pool.post) >> 2 * BITS) + 1;
    SET(pool.done, 0);
    SET(pool.run, run);
    SET(pool.task, task);
    SET(pool.threads, threads);
    SET(pool.post, number << 2 * BITS | (uint64_t)count << BITS);
    if (GET(pool.asleep)) {
        pthread_mutex_lock(&guard.sleep);
        pthread_cond_broadcast(&guard.posted);
        pthread_mutex_unlock(&guard.sleep);
    }
    work(0);
    wait_for(count);
}

void share(part *run, const void *task, int64_t count, int threads) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads < 2 || count < 2 || count > MOST_ITEMS || pthread_mutex_trylock(&guard.caller)) {
        run(task, 0, count);
        return;
    }
    if (guard.started < threads - 1) start(threads - 1);
    share_some(run, task, count, threads);
    pthread_mutex_unlock(&guard.caller);
}
