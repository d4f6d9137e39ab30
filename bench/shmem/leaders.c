/* Prices of collectives of long data, for bench/shmem/leaders.py.
 *
 *   leaders TEST BYTES OPERATIONS TRIALS
 *
 * prints the nanoseconds of one operation from PE 0: the median and the least of the trials. There
 * is one operation before the first trial. Each PE binds itself to a processor.
 */
#define _GNU_SOURCE
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pinned.h"

#define TRIALS_MAX 1000

static char *source, *target;
static int me, n;

static void fcollect(size_t bytes) {
  shmem_long_fcollect(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8);
}

/* The bytes are those of a PE for each other one. */
static void alltoall(size_t bytes) {
  shmem_long_alltoall(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8);
}

static void broadcast(size_t bytes) {
  shmem_long_broadcast(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8, 0);
}

static void sum(size_t bytes) {
  shmem_long_sum_reduce(SHMEM_TEAM_WORLD, (long *)target, (long *)source, bytes / 8);
}

static void sum_double(size_t bytes) {
  shmem_double_sum_reduce(SHMEM_TEAM_WORLD, (double *)target, (double *)source, bytes / 8);
}

static const struct {
  const char *name;
  void (*run)(size_t);
} tests[] = {
    {"fcollect", fcollect}, {"alltoall", alltoall}, {"broadcast", broadcast},
    {"sum", sum},           {"sum_double", sum_double},
};

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  static double trials[TRIALS_MAX];
  if (argc != 5) return 2;
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  size_t bytes = strtoul(argv[2], NULL, 10);
  long operations = strtol(argv[3], NULL, 10);
  int count = atoi(argv[4]);
  if (count > TRIALS_MAX) shmem_global_exit(2);
  bind_to_processor(me);
  source = shmem_align(4096, bytes * (size_t)n);
  target = shmem_align(4096, bytes * (size_t)n);
  if (!source || !target) shmem_global_exit(3);
  memset(source, 0, bytes * (size_t)n);
  memset(target, 2, bytes * (size_t)n);
  for (size_t test = 0; test < sizeof tests / sizeof *tests; test++) {
    if (strcmp(tests[test].name, argv[1]) != 0) continue;
    tests[test].run(bytes);
    for (int trial = 0; trial < count; trial++) {
      shmem_barrier_all();
      double begin = now();
      for (long i = 0; i < operations; i++) tests[test].run(bytes);
      trials[trial] = (now() - begin) / (double)operations;
    }
    if (me == 0 && count > 0) {
      qsort(trials, (size_t)count, sizeof *trials, by_value);
      printf("%.1f %.1f\n", trials[count / 2], trials[0]);
    }
  }
  shmem_finalize();
  return 0;
}
