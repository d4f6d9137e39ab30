/* For the programs that measure: a clock, and each PE on a processor of its own. */

#ifndef WEFT_BENCH_PINNED_H
#define WEFT_BENCH_PINNED_H

#include <sched.h>
#include <time.h>

/* Nanoseconds. */
static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Binds PE `me` to one of the processors that it may use. */
static void bind_to_processor(int me) {
  cpu_set_t allowed, own;
  sched_getaffinity(0, sizeof allowed, &allowed);
  int wanted = me % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
      CPU_ZERO(&own);
      CPU_SET(cpu, &own);
      sched_setaffinity(0, sizeof own, &own);
      return;
    }
  }
}

#endif
