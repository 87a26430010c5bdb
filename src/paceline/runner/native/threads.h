/* Threads that share the units of a task. */
#ifndef THREADS_H
#define THREADS_H

#include <stdint.h>

/* Compute the units of a task from `begin` to `end`. */
typedef void part(const void *task, int64_t begin, int64_t end);

/* Compute units 0 … count - 1 on at most `threads` threads, one of which is the caller. */
void share(part *run, const void *task, int64_t count, int threads);

#endif
