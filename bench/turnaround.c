/* How long a program takes between a message and its answer: from the return of a call that received
 * over a socket to the next call that sends. What is left of a round trip is the kernel's.
 *
 *     cc -O2 -shared -fPIC -o turnaround.so bench/turnaround.c
 *     export LD_PRELOAD=$PWD/turnaround.so TURNAROUND_LOG=$PWD/turnaround.log
 *     bench/shmem/run.py --hosts --only fetch_add
 *
 * Each program that had a thousand turns adds a line to the file at its end: its name, and
 * nanoseconds that 5, 50 and 90 of 100 turns took at most. For programs of one thread that sends.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define TURNS_MAX 1000000
#define TURNS_MIN 1000

static long turns[TURNS_MAX];
static long count;
static long received_at;

static long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static ssize_t received(ssize_t bytes) {
  if (bytes > 0) received_at = now();
  return bytes;
}

static void sends(void) {
  if (received_at && count < TURNS_MAX) turns[count++] = now() - received_at;
  received_at = 0;
}

#define REAL(name)                                             \
  static __typeof__(name) *real;                               \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t recv(int file, void *bytes, size_t length, int flags) {
  REAL(recv);
  return received(real(file, bytes, length, flags));
}

ssize_t recvmsg(int file, struct msghdr *message, int flags) {
  REAL(recvmsg);
  return received(real(file, message, flags));
}

ssize_t send(int file, const void *bytes, size_t length, int flags) {
  REAL(send);
  sends();
  return real(file, bytes, length, flags);
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
  REAL(sendmsg);
  sends();
  return real(file, message, flags);
}

static int by_time(const void *one, const void *other) {
  long first = *(const long *)one, second = *(const long *)other;
  return (first > second) - (first < second);
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("TURNAROUND_LOG");
  FILE *log = count < TURNS_MIN || !path ? NULL : fopen(path, "a");
  if (!log) return;
  qsort(turns, count, sizeof *turns, by_time);
  fprintf(log, "%s: %ld turns, %ld %ld %ld ns\n", program_invocation_short_name, count,
          turns[count / 20], turns[count / 2], turns[count * 9 / 10]);
  fclose(log);
}
