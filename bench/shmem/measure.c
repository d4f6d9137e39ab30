/* Prices of OpenSHMEM's calls between two PEs, for bench/shmem/run.py.
 *
 *   measure TEST SIZE                  prints the nanoseconds of one operation, the median of seven
 *                                      trials
 *   measure TEST SIZE TIMES TRIALS     the same for so many trials of so many operations, behind
 *                                      the fifth percentile
 *
 * Written for the interface of 1.4, so that each implementation can be measured; put_signal is left
 * out where there is none. PE 0 measures; PE 1 waits at a barrier, inside the library, unless the
 * test needs it. Each PE binds itself to a processor of its own, so that launchers do not matter.
 */
#define _GNU_SOURCE
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pinned.h"

#define TRIALS 7
#define TRIALS_MAX 10000
#define WINDOW 64
#define SIZE_MAX_BYTES (1 << 20)
#define LONGS_MAX 8192

static long sync_a[SHMEM_REDUCE_SYNC_SIZE], sync_b[SHMEM_REDUCE_SYNC_SIZE];
static long cast_a[SHMEM_BCAST_SYNC_SIZE], cast_b[SHMEM_BCAST_SYNC_SIZE];
static long work[LONGS_MAX / 2 + SHMEM_REDUCE_MIN_WRKDATA_SIZE + 1];

static char *source, *target;
static long *word, *flag;
static int me;
static long count = 1;

/* One trial of a test on PE 0: `times` operations. */
typedef void body(size_t size, long times);

static void put(size_t size, long times) {
  for (long i = 0; i < times; i++) {
    shmem_putmem(target, source, size, 1);
    shmem_quiet();
  }
}

static void get(size_t size, long times) {
  for (long i = 0; i < times; i++) shmem_getmem(target, source, size, 1);
}

static void put_nbi(size_t size, long times) {
  for (long i = 0; i < times; i += WINDOW) {
    for (int j = 0; j < WINDOW; j++) shmem_putmem_nbi(target, source, size, 1);
    shmem_quiet();
  }
}

static void get_nbi(size_t size, long times) {
  for (long i = 0; i < times; i += WINDOW) {
    for (int j = 0; j < WINDOW; j++) shmem_getmem_nbi(target, source, size, 1);
    shmem_quiet();
  }
}

static void add_at(int pe, long times) {
  for (long i = 0; i < times; i++) shmem_long_atomic_add(word, 1, pe);
  shmem_quiet();
}

static void fetch_add_at(int pe, long times) {
  for (long i = 0; i < times; i++) (void)shmem_long_atomic_fetch_add(word, 1, pe);
}

static void swap_if_at(int pe, long times) {
  for (long i = 0; i < times; i++) (void)shmem_long_atomic_compare_swap(word, i, i + 1, pe);
}

static void add(size_t size, long times) { (void)size, add_at(1, times); }
static void add_self(size_t size, long times) { (void)size, add_at(0, times); }
static void fetch_add(size_t size, long times) { (void)size, fetch_add_at(1, times); }
static void fetch_add_self(size_t size, long times) { (void)size, fetch_add_at(0, times); }
static void cas(size_t size, long times) { (void)size, swap_if_at(1, times); }
static void cas_self(size_t size, long times) { (void)size, swap_if_at(0, times); }

static void swap(size_t size, long times) {
  (void)size;
  for (long i = 0; i < times; i++) (void)shmem_long_atomic_swap(word, i, 1);
}

/* The tests below run on both PEs. */

static void wait_half(size_t size, long times) {
  (void)size;
  for (long i = 0; i < times / 2; i++, count++) {
    if (me == 0) shmem_long_p(flag, count, 1);
    shmem_long_wait_until(flag, SHMEM_CMP_GE, count);
    if (me == 1) shmem_long_p(flag, count, 0);
  }
}

#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
static void put_signal(size_t size, long times) {
  for (long i = 0; i < times / 2; i++, count++) {
    for (int turn = 0; turn < 2; turn++) {
      if (me == turn)
        shmem_putmem_signal(target, source, size, (uint64_t *)flag, (uint64_t)count,
                            SHMEM_SIGNAL_SET, 1 - me);
      else
        shmem_signal_wait_until((uint64_t *)flag, SHMEM_CMP_GE, (uint64_t)count);
    }
  }
}
#endif

static void barrier(size_t size, long times) {
  (void)size;
  for (long i = 0; i < times; i++) shmem_barrier_all();
}

static void broadcast(size_t size, long times) {
  for (long i = 0; i < times; i++) {
    shmem_broadcast64(target, source, size / 8, 0, 0, 0, 2, i % 2 ? cast_a : cast_b);
    shmem_barrier_all();
  }
}

static void sum(size_t size, long times) {
  for (long i = 0; i < times; i++) {
    shmem_long_sum_to_all((long *)(void *)target, (long *)(void *)source, (int)(size / 8), 0, 0, 2,
                          work, i % 2 ? sync_a : sync_b);
    shmem_barrier_all();
  }
}

static const struct {
  const char *name;
  body *run;
  int both;
} tests[] = {
    {"put", put, 0},
    {"get", get, 0},
    {"put_nbi", put_nbi, 0},
    {"get_nbi", get_nbi, 0},
    {"add", add, 0},
    {"add_self", add_self, 0},
    {"fetch_add", fetch_add, 0},
    {"fetch_add_self", fetch_add_self, 0},
    {"cas", cas, 0},
    {"cas_self", cas_self, 0},
    {"swap", swap, 0},
    {"wait", wait_half, 1},
#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
    {"put_signal", put_signal, 1},
#endif
    {"barrier", barrier, 1},
    {"broadcast", broadcast, 1},
    {"sum", sum, 1},
};

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Longer operations are repeated less often; a trial takes about 10 ms. */
static long times_of(size_t size, int both) {
  long bytes = (long)size + (both ? 2000 : 400);
  long times = 100000000 / bytes;
  return times / WINDOW * WINDOW + WINDOW;
}

static void measure(body *run, int both, size_t size, long times, int count) {
  static double trials[TRIALS_MAX];
  for (int trial = -1; trial < count; trial++) {
    shmem_barrier_all();
    if (me == 0 || both) {
      double begin = now();
      run(size, times);
      if (trial >= 0) trials[trial] = (now() - begin) / (double)times;
    }
    shmem_barrier_all();
  }
  if (me != 0) return;
  qsort(trials, (size_t)count, sizeof *trials, by_value);
  if (count != TRIALS) printf("%.2f ", trials[count / 20]);
  printf("%.2f\n", trials[count / 2]);
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 5) {
    fprintf(stderr, "usage: measure TEST SIZE [TIMES TRIALS]\n");
    return 2;
  }
  shmem_init();
  me = shmem_my_pe();
  size_t size = (size_t)strtoul(argv[2], NULL, 10);
  long times = argc == 5 ? strtol(argv[3], NULL, 10) / WINDOW * WINDOW + WINDOW : 0;
  int count = argc == 5 ? (int)strtol(argv[4], NULL, 10) : TRIALS;
  if (shmem_n_pes() != 2 || size > SIZE_MAX_BYTES || count < 1 || count > TRIALS_MAX) {
    if (me == 0) fprintf(stderr, "measure: it takes 2 PEs, at most 1 MiB and 10,000 trials\n");
    shmem_global_exit(2);
  }
  bind_to_processor(me);
  for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) sync_a[i] = sync_b[i] = SHMEM_SYNC_VALUE;
  for (int i = 0; i < SHMEM_BCAST_SYNC_SIZE; i++) cast_a[i] = cast_b[i] = SHMEM_SYNC_VALUE;
  source = shmem_align(4096, SIZE_MAX_BYTES);
  target = shmem_align(4096, SIZE_MAX_BYTES);
  word = shmem_align(128, 128);
  flag = shmem_align(128, 128);
  if (!source || !target || !word || !flag) shmem_global_exit(3);
  memset(source, 1, SIZE_MAX_BYTES);
  memset(target, 2, SIZE_MAX_BYTES);
  *word = *flag = 0;
  int status = 4;
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (strcmp(tests[i].name, argv[1]) == 0) {
      if (times == 0) times = times_of(size, tests[i].both);
      measure(tests[i].run, tests[i].both, size, times, count);
      status = 0;
    }
  }
  shmem_finalize();
  return status;
}
