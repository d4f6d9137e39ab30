/* Prices of collectives by size, for bench/shmem/thresholds.py.
 *
 *   collectives TEST...     prints "TEST BYTES NANOSECONDS" for each size, from PE 0
 *
 * A figure is that of one operation, the least of many short trials: on a machine with other work
 * most trials are disturbed. Each PE binds itself to a processor.
 */
#define _GNU_SOURCE
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pinned.h"

#define TRIALS 500
#define OPERATIONS 20
#define BYTES_MAX 32768

static char *source, *target;
static int me, n;

/* The root waits for nobody in a short broadcast, so each PE is the root in turn. */
static void broadcast(size_t bytes, int turn) {
  shmem_long_broadcast(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8, turn % n);
}

static void fcollect(size_t bytes, int turn) {
  (void)turn;
  shmem_long_fcollect(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8);
}

static void sum(size_t bytes, int turn) {
  (void)turn;
  shmem_long_sum_reduce(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8);
}

/* The bytes are those of a PE for all others: as many go through a staging buffer. */
static void alltoall(size_t bytes, int turn) {
  (void)turn;
  size_t each = bytes / 8 / (size_t)n;
  shmem_long_alltoall(SHMEM_TEAM_WORLD, (long *)target, (long *)source, each ? each : 1);
}

static void barrier(size_t bytes, int turn) {
  (void)bytes, (void)turn;
  shmem_barrier_all();
}

static const struct {
  const char *name;
  void (*run)(size_t, int);
  int has_sizes;
} tests[] = {
    {"broadcast", broadcast, 1}, {"fcollect", fcollect, 1}, {"sum", sum, 1},
    {"alltoall", alltoall, 1},   {"barrier", barrier, 0},
};

static void measure(const char *name, void (*run)(size_t, int), size_t bytes) {
  double least = 1e18;
  for (int trial = -1; trial < TRIALS; trial++) {
    shmem_barrier_all();
    double begin = now();
    for (int turn = 0; turn < OPERATIONS; turn++) run(bytes, turn);
    double one = (now() - begin) / OPERATIONS;
    if (trial >= 0 && one < least) least = one;
  }
  if (me != 0) return;
  printf("%s %zu %.1f\n", name, bytes, least);
  fflush(stdout);
}

int main(int argc, char **argv) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  bind_to_processor(me);
  source = shmem_align(4096, BYTES_MAX);
  target = shmem_align(4096, (size_t)BYTES_MAX * (size_t)n);
  if (!source || !target) shmem_global_exit(3);
  memset(source, 1, BYTES_MAX);
  memset(target, 2, (size_t)BYTES_MAX * (size_t)n);
  for (int i = 1; i < argc; i++) {
    for (size_t test = 0; test < sizeof tests / sizeof *tests; test++) {
      if (strcmp(tests[test].name, argv[i]) != 0) continue;
      size_t last = tests[test].has_sizes ? BYTES_MAX : 64;
      for (size_t bytes = 64; bytes <= last; bytes *= 2)
        measure(tests[test].name, tests[test].run, bytes);
    }
  }
  shmem_finalize();
  return 0;
}
