/* OpenSHMEM's rules, one by one: the arguments name what is tested. A PE that finds a fault prints it
 * and ends with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int me, n, next, last;

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "PE %d: line %d: %s is false\n", me, __LINE__, #condition); \
      shmem_global_exit(1);                                                      \
    }                                                                            \
  } while (0)

static void start(void) {
  int provided;
  shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  last = (me + n - 1) % n;
}

static unsigned long long state = 88172645463325252ull;
static unsigned below(unsigned limit) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned)(state >> 33) % limit;
}

/* Global and static variables: zeroed, with values, in functions, large, and after fork. */
static int zeroed[5000];
static int with_value[3] = {1, 2, 3};
static char large[64 << 20];
static int *in_function(void) {
  static int variable = 9;
  return &variable;
}
static void statics(void) {
  EXPECT(with_value[2] == 3 && *in_function() == 9 && zeroed[4999] == 0);
  shmem_barrier_all();
  shmem_int_p(&zeroed[4999], me + 1, next);
  shmem_int_p(&with_value[1], me + 1, next);
  shmem_int_p(in_function(), me + 1, next);
  shmem_char_p(&large[sizeof large - 1], (char)(me + 1), next);
  shmem_barrier_all();
  EXPECT(zeroed[4999] == last + 1 && with_value[1] == last + 1 && *in_function() == last + 1);
  EXPECT(large[sizeof large - 1] == last + 1 && with_value[0] == 1);
  /* A child has variables of its own. */
  for (int round = 0; round < 20; round++) {
    with_value[0] = round;
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
      char byte;
      int is_right = with_value[0] == round && zeroed[4999] == last + 1;
      with_value[0] = -1;
      zeroed[0] = -1;
      close(ends[1]);
      is_right &= read(ends[0], &byte, 1) == 0 && with_value[0] == -1;
      _exit(is_right ? 0 : 1);
    }
    with_value[0] = round + 100;
    close(ends[1]);
    int status = 1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    EXPECT(with_value[0] == round + 100 && zeroed[0] == 0);
  }
  EXPECT(system("exit 3") >> 8 == 3);
  shmem_barrier_all();
}

/* Atomics of all PEs on one word: no ticket is given twice. */
static int EACH;
static void race(void) {
  static int ticket32;
  static long ticket64, sum;
  static unsigned bits;
  static double bag;
  char *seen = shmem_calloc((size_t)n * EACH * 2, 1);
  for (int i = 0; i < EACH; i++) {
    int one = shmem_int_atomic_fetch_inc(&ticket32, 0);
    shmem_char_p(&seen[one], 1, 0);
    long other;
    do
      other = shmem_long_atomic_fetch(&ticket64, 0);
    while (shmem_long_atomic_compare_swap(&ticket64, other, other + 1, 0) != other);
    shmem_char_p(&seen[n * EACH + other], 1, 0);
    shmem_long_atomic_add(&sum, i, 0);
    shmem_uint_atomic_xor(&bits, 1u << (i % 32), 0);
    shmem_double_atomic_swap(&bag, i, 0);
  }
  shmem_barrier_all();
  if (me == 0) {
    EXPECT(ticket32 == n * EACH && ticket64 == (long)n * EACH);
    EXPECT(sum == (long)n * EACH * (EACH - 1) / 2 && bag == EACH - 1);
    for (int i = 0; i < 2 * n * EACH; i++) EXPECT(seen[i] == 1);
  }
  shmem_free(seen);
}
static void races(void) {
  EACH = 10000;
  race();
}
static void few_races(void) {
  EACH = 300;
  race();
}

/* A flag behind a fence or with a signal is never seen before its data. */
static void order(void) {
  enum { WORDS = 700, ROUNDS = 400 };
  static long data[WORDS], flag, back;
  static uint64_t signal;
  for (long round = 1; round <= ROUNDS; round++) {
    long values[WORDS];
    for (int i = 0; i < WORDS; i++) values[i] = round;
    size_t count = 1 + below(WORDS);
    if (round % 2) {
      shmem_long_put_nbi(data, values, count, next);
      shmem_fence();
      shmem_long_p(&flag, round, next);
      shmem_long_wait_until(&flag, SHMEM_CMP_GE, round);
    } else {
      shmem_long_put_signal(data, values, count, &signal, 1, SHMEM_SIGNAL_ADD, next);
      EXPECT(shmem_signal_wait_until(&signal, SHMEM_CMP_GE, (uint64_t)round / 2) >= (uint64_t)round / 2);
    }
    /* All PEs draw the same numbers. */
    for (size_t i = 0; i < count; i++) EXPECT(data[i] == round);
    shmem_long_atomic_inc(&back, last);
    shmem_long_wait_until(&back, SHMEM_CMP_GE, round);
  }
}

/* Sizes from nothing to 4 MiB at any byte, with guards. */
static void sizes(void) {
  /* Between hosts gets go in other ways from here on. */
  static const size_t edges[] = {112, 113, 1008, 1009};
  size_t most = 4 << 20;
  unsigned char *there = shmem_malloc(most + 256), *here = malloc(most + 256);
  for (int round = 0; round < 60; round++) {
    size_t bytes = round < 20 ? (size_t)round : below(1u << (round % 23)), at = below(100);
    if (round >= 55) bytes = round == 59 ? most : edges[round - 55];
    memset(there, 0, most + 256);
    for (size_t i = 0; i < bytes; i++) here[at + i] = (unsigned char)(i * 7 + (size_t)me + 1);
    shmem_barrier_all();
    shmem_putmem(there + at, here + at, bytes, next);
    shmem_barrier_all();
    for (size_t i = 0; i < bytes; i++)
      EXPECT(there[at + i] == (unsigned char)(i * 7 + (size_t)last + 1));
    EXPECT((at == 0 || there[at - 1] == 0) && there[at + bytes] == 0);
    memset(here, 0, most + 256);
    shmem_getmem(here + at, there + at, bytes, next);
    for (size_t i = 0; i < bytes; i++)
      EXPECT(here[at + i] == (unsigned char)(i * 7 + (size_t)me + 1));
    EXPECT((at == 0 || here[at - 1] == 0) && here[at + bytes] == 0);
    shmem_barrier_all();
  }
  shmem_putmem(NULL, NULL, 0, next);
  /* Several that need not wait, to a variable, the heap and memory that is not symmetric. */
  for (size_t bytes = 100; bytes <= most / 4; bytes = bytes * 7 + 1) {
    unsigned char *heap = there + most / 2, *variable = (unsigned char *)large;
    for (size_t i = 0; i < 2 * bytes; i++) there[i] = (unsigned char)(i * 5 + (size_t)me + 1);
    shmem_barrier_all();
    shmem_getmem_nbi(here, there, bytes, next);
    shmem_getmem_nbi(heap, there, bytes, next);
    shmem_getmem_nbi(heap + bytes, there + bytes, bytes, next);
    shmem_getmem_nbi(variable, there, 2 * bytes, next);
    shmem_quiet();
    for (size_t i = 0; i < 2 * bytes; i++) {
      unsigned char expected = (unsigned char)(i * 5 + (size_t)next + 1);
      EXPECT((i >= bytes || here[i] == expected) && heap[i] == expected);
      EXPECT(variable[i] == expected);
    }
    shmem_barrier_all();
  }
  free(here);
  shmem_free(there);
}

/* Reductions of any length, in place and not, with the same bits each time; then scans. */
static void reductions(void) {
  static const size_t lengths[] = {1, 2, 511, 512, 513, 1000, 8192, 30001};
  size_t most = 30001;
  double *source = shmem_malloc(most * 8), *dest = shmem_malloc(most * 8);
  double *expected = malloc(most * 8);
  static char equal, other;
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    size_t length = lengths[k];
    for (size_t i = 0; i < length; i++) {
      expected[i] = 0.1 * (double)(i + 1);
      for (int p = 1; p < n; p++) expected[i] += 0.1 * (double)(i + 1) * (1 + p * p);
    }
    for (int in_place = 0; in_place < 2; in_place++) {
      double *to = in_place ? source : dest;
      for (size_t i = 0; i < length; i++) source[i] = 0.1 * (double)(i + 1) * (1 + me * me);
      EXPECT(shmem_double_sum_reduce(SHMEM_TEAM_WORLD, to, source, length) == 0);
      EXPECT(memcmp(to, expected, length * 8) == 0);
    }
    for (size_t i = 0; i < length; i++) source[i] = (double)((i + (size_t)me) % 7);
    EXPECT(shmem_double_sum_exscan(SHMEM_TEAM_WORLD, dest, source, length) == 0);
    for (size_t i = 0; i < length; i++) {
      double sum = 0;
      for (int p = 0; p < me; p++) sum += (double)((i + (size_t)p) % 7);
      EXPECT(dest[i] == sum);
    }
    EXPECT(shmem_double_sum_inscan(SHMEM_TEAM_WORLD, source, source, length) == 0);
    for (size_t i = 0; i < length; i++) EXPECT(source[i] == dest[i] + (double)((i + (size_t)me) % 7));
    /* One after the other without a barrier between them. */
    equal = 1;
    for (int root = 0; root < n; root++) {
      other = (char)(me == root ? root + 10 : 0);
      EXPECT(shmem_char_broadcast(SHMEM_TEAM_WORLD, &equal, &other, 1, root) == 0);
      EXPECT(equal == root + 10);
      if (me == root) source[0] = root + 0.5;
      EXPECT(shmem_double_broadcast(SHMEM_TEAM_WORLD, dest, source, length, root) == 0);
      EXPECT(dest[0] == root + 0.5);
    }
  }
  free(expected);
  shmem_free(dest);
  shmem_free(source);
}

/* Long collectives of a team, one behind the other, each of which gets new data at once. */
#define LONG_ELEMENTS 20000
static long *long_source, *long_dest;
static long long_value(long turn, int member, size_t i) {
  return turn * 7919 + member * 104729 + (long)i;
}
static void fill(long turn, int member, size_t length) {
  for (size_t i = 0; i < length; i++) long_source[i] = long_value(turn, member, i);
}
static void collectives_of(shmem_team_t team, size_t length) {
  int number = shmem_team_my_pe(team), size = shmem_team_n_pes(team);
  size_t count = (size_t)size;
  for (long turn = 0; turn < 6; turn++) {
    int root = (int)turn % size;
    fill(turn, number, length);
    EXPECT(shmem_long_broadcast(team, long_dest, long_source, length, root) == 0);
    for (size_t i = 0; i < length; i++) EXPECT(long_dest[i] == long_value(turn, root, i));
    long *to = turn % 2 ? long_source : long_dest;
    fill(turn, number, length);
    EXPECT(shmem_long_sum_reduce(team, to, long_source, length) == 0);
    for (size_t i = 0; i < length; i++) {
      long sum = 0;
      for (int p = 0; p < size; p++) sum += long_value(turn, p, i);
      EXPECT(to[i] == sum);
    }
    fill(turn, -number, length);
    EXPECT(shmem_long_max_reduce(team, to, long_source, length) == 0);
    for (size_t i = 0; i < length; i++) EXPECT(to[i] == long_value(turn, 0, i));
    fill(turn, number, length);
    EXPECT(shmem_long_fcollect(team, long_dest, long_source, length) == 0);
    for (size_t i = 0; i < count * length; i++)
      EXPECT(long_dest[i] == long_value(turn, (int)(i / length), i % length));
    fill(turn + 1, number, length);
    size_t own = number % 3 ? length / (size_t)number : 0, first = 0;
    EXPECT(shmem_long_collect(team, long_dest, long_source, own) == 0);
    for (int p = 0; p < size; p++) {
      size_t theirs = p % 3 ? length / (size_t)p : 0;
      for (size_t i = 0; i < theirs; i++)
        EXPECT(long_dest[first + i] == long_value(turn + 1, p, i));
      first += theirs;
    }
    fill(turn, number, count * length);
    EXPECT(shmem_long_alltoall(team, long_dest, long_source, length) == 0);
    for (size_t i = 0; i < count * length; i++) {
      size_t sent = (size_t)number * length + i % length;
      EXPECT(long_dest[i] == long_value(turn, (int)(i / length), sent));
    }
    if (length > 300) continue;
    fill(turn, number, 3 * count * length);
    EXPECT(shmem_long_alltoalls(team, long_dest, long_source, 2, 3, length) == 0);
    for (size_t i = 0; i < count * length; i++) {
      size_t sent = 3 * ((size_t)number * length + i % length);
      EXPECT(long_dest[2 * i] == long_value(turn, (int)(i / length), sent));
    }
  }
}

static void long_collectives(void) {
  static const size_t lengths[] = {64, 65, 126, 127, 300, 5000, LONG_ELEMENTS};
  size_t bytes = (size_t)n * LONG_ELEMENTS * sizeof(long);
  long_source = shmem_malloc(bytes), long_dest = shmem_malloc(bytes);
  shmem_team_t odd, back;
  shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &odd);
  shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back);
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    collectives_of(SHMEM_TEAM_WORLD, lengths[k]);
    if (odd != SHMEM_TEAM_INVALID) collectives_of(odd, lengths[k]);
    collectives_of(back, lengths[k]);
  }
  shmem_team_destroy(odd);
  shmem_team_destroy(back);
  shmem_free(long_dest);
  shmem_free(long_source);
}

/* Collectives of active sets (deprecated): all PEs, and every second one, one call behind the other
 * with the same flags. */
#define SET_ELEMENTS 2000
#define SET_PES 64
static long set_flags[SHMEM_SYNC_SIZE], set_source[SET_ELEMENTS], set_dest[SET_ELEMENTS * SET_PES];
static long set_work[SET_ELEMENTS / 2 + SHMEM_REDUCE_MIN_WRKDATA_SIZE + 1];
static void collectives_of_a_set(int log_stride, size_t length) {
  int size = (n - 1) / (1 << log_stride) + 1, number = me >> log_stride;
  for (long turn = 0; turn < 21; turn++) {
    int root = (int)turn % size;
    for (size_t i = 0; i < length; i++) set_source[i] = turn * 1000 + number, set_dest[i] = -1;
    shmem_broadcast64(set_dest, set_source, length, root, 0, log_stride, size, set_flags);
    /* The root keeps what it has. */
    long expected = number == root ? -1 : turn * 1000 + root;
    EXPECT(set_dest[0] == expected && set_dest[length - 1] == expected);
    shmem_long_sum_to_all(set_source, set_source, (int)length, 0,
                          log_stride, size, set_work, set_flags);
    expected = turn * 1000 * size + (long)size * (size - 1) / 2;
    EXPECT(set_source[0] == expected && set_source[length - 1] == expected);
    if (turn % 10) continue;
    for (size_t i = 0; i < length; i++) set_source[i] = turn + number;
    shmem_fcollect64(set_dest, set_source, length, 0, log_stride, size, set_flags);
    for (int p = 0; p < size; p++) {
      long *part = set_dest + (size_t)p * length;
      EXPECT(part[0] == turn + p && part[length - 1] == turn + p);
    }
    shmem_sync(0, log_stride, size, set_flags);
    shmem_collect64(set_dest, set_source, number ? length : 0, 0, log_stride, size, set_flags);
    for (int p = 1; p < size; p++) EXPECT(set_dest[(size_t)(p - 1) * length] == turn + p);
    shmem_barrier(0, log_stride, size, set_flags);
  }
  /* More from one root than may wait at the others. */
  for (long turn = 0; turn < 150; turn++) {
    set_source[0] = turn;
    shmem_broadcast64(set_dest, set_source, 1, 0, 0, log_stride, size, set_flags);
    EXPECT(number == 0 || set_dest[0] == turn);
  }
  for (int i = 0; i < SHMEM_SYNC_SIZE; i++) EXPECT(set_flags[i] == SHMEM_SYNC_VALUE);
}

static void sets(void) {
  static const size_t lengths[] = {1, 14, 15, 64, 65, SET_ELEMENTS};
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    collectives_of_a_set(0, lengths[k]);
    shmem_barrier_all();
    if (me % 2 == 0) collectives_of_a_set(1, lengths[k]);
    shmem_barrier_all();
  }
}

/* Teams that overlap, at strides in both directions, many after each other, and too many. */
static void teams(void) {
  static long one, sum;
  shmem_team_t odd, back, held[80], grid_x, grid_y;
  for (int round = 0; round < 100; round++) {
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &odd) == 0);
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
    EXPECT(shmem_team_my_pe(back) == n - 1 - me);
    one = me + 1;
    shmem_barrier_all();
    if (odd != SHMEM_TEAM_INVALID) {
      EXPECT(shmem_long_sum_reduce(odd, &sum, &one, 1) == 0);
      long expected = 0;
      for (int p = 0; p < n; p += 2) expected += p + 1;
      EXPECT(sum == expected);
    }
    EXPECT(shmem_long_sum_reduce(back, &sum, &one, 1) == 0 && sum == (long)n * (n + 1) / 2);
    EXPECT(shmem_long_broadcast(back, &sum, &one, 1, 0) == 0 && sum == n);
    shmem_team_destroy(odd);
    EXPECT(shmem_team_translate_pe(back, 0, SHMEM_TEAM_WORLD) == n - 1);
    shmem_team_destroy(back);
  }
  int made = 0;
  while (made < 80 &&
         shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &held[made]) == 0)
    made++;
  EXPECT(made == 62 && held[made] == SHMEM_TEAM_INVALID);
  EXPECT(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &grid_x, NULL, 0, &grid_y) != 0);
  while (made > 0) shmem_team_destroy(held[--made]);
  EXPECT(shmem_team_split_2d(SHMEM_TEAM_WORLD, 3, NULL, 0, &grid_x, NULL, 0, &grid_y) == 0);
  EXPECT(shmem_team_my_pe(grid_x) == me % 3 && shmem_team_my_pe(grid_y) == me / 3);
  shmem_ctx_t context;
  EXPECT(shmem_team_create_ctx(grid_x, 0, &context) == 0);
  sum = -1;
  shmem_team_sync(grid_x);
  int right = (me % 3 + 1) % shmem_team_n_pes(grid_x);
  shmem_ctx_long_p(context, &sum, me, right);
  shmem_ctx_quiet(context);
  shmem_barrier_all();
  EXPECT(sum / 3 == me / 3 && sum >= 0);
  EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 0, 2, NULL, 0, &odd) != 0);
  EXPECT(odd == SHMEM_TEAM_INVALID && shmem_team_sync(SHMEM_TEAM_INVALID) != 0);
}

/* Three threads of each PE, each with a context of its own. */
static long thread_words[3], thread_counts[3];
static void *thread(void *argument) {
  long number = (long)argument;
  shmem_ctx_t context;
  EXPECT(shmem_ctx_create(SHMEM_CTX_PRIVATE, &context) == 0);
  for (long round = 1; round <= 300; round++) {
    shmem_ctx_long_p(context, &thread_words[number], round, next);
    shmem_ctx_long_atomic_add(context, &thread_counts[(number + round) % 3], 1, 0);
    shmem_ctx_quiet(context);
    shmem_long_wait_until(&thread_words[number], SHMEM_CMP_GE, round);
  }
  shmem_ctx_destroy(context);
  return NULL;
}
static void threads(void) {
  pthread_t all[3];
  for (long i = 0; i < 3; i++) EXPECT(pthread_create(&all[i], NULL, thread, (void *)i) == 0);
  for (int i = 0; i < 3; i++) pthread_join(all[i], NULL);
  shmem_barrier_all();
  EXPECT(me != 0 || thread_counts[0] + thread_counts[1] + thread_counts[2] == 900l * n);
}

/* The heap: what is allocated is kept until it is freed, and an overrun gives NULL. */
static void heap(void) {
  enum { PLACES = 40 };
  char *places[PLACES] = {0};
  size_t lengths[PLACES];
  for (int round = 0; round < 400; round++) {
    unsigned at = below(PLACES);
    if (places[at]) {
      for (size_t i = 0; i < lengths[at]; i += 97) EXPECT(places[at][i] == (char)(at + 1));
      if (below(3) == 0) {
        size_t grown = 1 + below(60000), kept = grown < lengths[at] ? grown : lengths[at];
        places[at] = shmem_realloc(places[at], grown);
        for (size_t i = 0; i < kept; i += 97) EXPECT(places[at][i] == (char)(at + 1));
        lengths[at] = grown;
        memset(places[at], (int)at + 1, grown);
        continue;
      }
      shmem_free(places[at]);
      places[at] = NULL;
    } else {
      lengths[at] = 1 + below(50000);
      places[at] = shmem_malloc(lengths[at]);
      EXPECT(places[at] != NULL);
      memset(places[at], (int)at + 1, lengths[at]);
    }
  }
  EXPECT(shmem_malloc((size_t)1 << 40) == NULL);
  EXPECT(shmem_align(3, 8) == NULL);
}

/* Locks: one at a time has it, all get it, and nobody waits for ever. */
static void locks(void) {
  static long lock, count, holder, coming;
  /* All others stand behind PE 0, each behind another one. */
  if (me == 0) shmem_set_lock(&lock);
  shmem_barrier_all();
  if (me != 0) {
    EXPECT(shmem_test_lock(&lock) == 1);
    shmem_long_atomic_inc(&coming, 0);
    shmem_set_lock(&lock);
  } else {
    shmem_long_wait_until(&coming, SHMEM_CMP_EQ, n - 1);
    usleep(30000);
  }
  shmem_clear_lock(&lock);
  shmem_barrier_all();
  EXPECT(lock == 0);
  shmem_barrier_all();
  for (int i = 0; i < 300; i++) {
    if (below(2))
      shmem_set_lock(&lock);
    else
      while (shmem_test_lock(&lock)) continue;
    EXPECT(shmem_long_atomic_swap(&holder, me + 1, 0) == 0);
    long seen = shmem_long_g(&count, 0);
    shmem_long_p(&count, seen + 1, 0);
    EXPECT(shmem_long_atomic_swap(&holder, 0, 0) == me + 1);
    shmem_clear_lock(&lock);
  }
  shmem_barrier_all();
  EXPECT(lock == 0 && (me != 0 || count == 300l * n));
}

/* Starts and ends nest, and the library starts again after its end. */
static void again(void) {
  static long word;
  for (int round = 0; round < 3; round++) {
    if (round > 0) shmem_init();
    shmem_init();
    shmem_finalize();
    long *memory = shmem_calloc(10, sizeof(long));
    shmem_long_p(&memory[5], me + round, next);
    shmem_long_p(&word, me + round, next);
    shmem_barrier_all();
    EXPECT(memory[5] == last + round && word == last + round);
    shmem_finalize();
    int initialized = 1;
    shmem_query_initialized(&initialized);
    EXPECT(!initialized && word == last + round);
    shmem_finalize();
  }
}

static long in_destructor;
static void communicate(void) {
  shmem_long_atomic_inc(&in_destructor, 0);
  shmem_barrier_all();
  if (me == 0 && in_destructor != n) _exit(9);
  if (me == 0) puts("communicated at exit");
}

/* Calls that are mistakes; the last word of the mode says which. */
static void mistake(const char *which) {
  static long word;
  long automatic;
  shmem_barrier_all();
  if (!strcmp(which, "pe")) shmem_long_p(&word, 1, n);
  if (!strcmp(which, "child")) {
    pid_t child = me == 0 ? fork() : 1;
    if (child == 0) shmem_long_p(&word, 1, 0);
    if (me == 0) waitpid(child, NULL, 0);
  }
  if (!strcmp(which, "negative")) shmem_long_p(&word, 1, -1);
  if (!strcmp(which, "address")) shmem_long_p(&automatic, 1, 0);
  if (!strcmp(which, "behind")) shmem_putmem(shmem_malloc(64), &word, (size_t)1 << 40, 0);
  if (!strcmp(which, "other")) shmem_long_p(shmem_ptr(shmem_malloc(8), next), 1, me);
  if (!strcmp(which, "aligned")) shmem_long_atomic_inc((long *)((char *)&word + 1), 0);
  if (!strcmp(which, "team")) {
    shmem_team_t team;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team);
    shmem_team_destroy(team);
    shmem_team_sync(team);
  }
  if (!strcmp(which, "context")) {
    shmem_ctx_t context;
    shmem_ctx_create(0, &context);
    shmem_ctx_destroy(context);
    shmem_ctx_long_p(context, &word, 1, 0);
  }
  if (!strcmp(which, "comparison")) shmem_long_wait_until(&word, 77, 1);
  if (!strcmp(which, "collective")) {
    if (me == 0)
      shmem_long_broadcast(SHMEM_TEAM_WORLD, &word, &word, 1, 0);
    else
      shmem_barrier_all();
  }
  if (!strcmp(which, "root")) shmem_long_broadcast(SHMEM_TEAM_WORLD, &word, &word, 1, me % 2);
  if (!strcmp(which, "length")) shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &word, &word, 1 + me);
  if (!strcmp(which, "operation")) {
    if (me == 0)
      shmem_long_max_reduce(SHMEM_TEAM_WORLD, &word, &word, 1);
    else
      shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &word, &word, 1);
  }
  if (!strcmp(which, "result")) {
    static long result;
    shmem_long_fcollect(SHMEM_TEAM_WORLD, me == 0 ? &word : &result, &word, 1);
  }
  if (!strcmp(which, "split")) {
    shmem_team_t team;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, me, 1, 1, NULL, 0, &team);
  }
  if (!strcmp(which, "automatic"))
    shmem_long_broadcast(SHMEM_TEAM_WORLD, &automatic, &word, 1, 0);
  if (!strcmp(which, "no root")) shmem_long_broadcast(SHMEM_TEAM_WORLD, &word, &word, 1, n);
  if (!strcmp(which, "foreign")) {
    /* A handle that another PE has, of a team that this one is not in. */
    static shmem_team_t handles[64];
    shmem_team_t own;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 1, 1, 1, NULL, 0, &own);
    shmem_putmem(&handles[me], &own, sizeof own, 0);
    shmem_barrier_all();
    if (me == 0) shmem_team_sync(handles[1]);
  }
  if (!strcmp(which, "set")) {
    static long flags[SHMEM_BARRIER_SYNC_SIZE];
    if (me == 0) shmem_barrier(1, 0, 1, flags);
  }
  if (!strcmp(which, "set length"))
    shmem_long_sum_to_all(set_dest, set_source, 1 + me, 0, 0, n, set_work, set_flags);
  if (!strcmp(which, "sizes")) shmem_malloc(me == 0 ? 64 : 128);
  if (!strcmp(which, "free")) {
    void *memory = shmem_malloc(64);
    shmem_free(memory);
    shmem_free(memory);
  }
  if (!strcmp(which, "lock")) {
    shmem_set_lock(&word);
    shmem_set_lock(&word);
  }
  if (!strcmp(which, "left")) {
    if (me == 1) exit(0);
    shmem_barrier_all();
  }
  if (!strcmp(which, "finalized")) {
    shmem_finalize();
    shmem_long_p(&word, 1, 0);
  }
  for (;;) sleep(1);
}

static void forever(void) {
  static long word;
  long *memory = shmem_malloc(1 << 20);
  for (long i = 0;; i++) {
    shmem_long_atomic_inc(&word, next);
    shmem_putmem(memory, memory + 65536, 4096, next);
    if (i % 16 == 0) shmem_barrier_all();
  }
}

static void die(int number) {
  (void)number;
  raise(SIGKILL);
}

/* Rounds of an atomic and a barrier until there is a file of this name. */
static void rounds_until(const char *file) {
  static long arrived;
  static int ends;
  int is_last = 0;
  for (long rounds = 1; !is_last; rounds++) {
    shmem_long_atomic_inc(&arrived, (me + 1) % n);
    for (int pe = 0; me == 0 && pe < n && access(file, F_OK) == 0; pe++) shmem_int_p(&ends, 1, pe);
    shmem_barrier_all();
    if (arrived != rounds) shmem_global_exit(3);
    is_last = ends;
    shmem_barrier_all();
  }
  if (me == 0) printf("rounds are right on %d PEs\n", n);
}

int main(int count, char **arguments) {
  const char *mode = count > 1 ? arguments[1] : "";
  static const struct {
    const char *name;
    void (*run)(void);
  } modes[] = {
      {"statics", statics}, {"races", races},     {"order", order},     {"sizes", sizes},
      {"reductions", reductions}, {"sets", sets}, {"teams", teams}, {"threads", threads}, {"heap", heap},
      {"locks", locks},     {"again", again},     {"few_races", few_races},
      {"long_collectives", long_collectives},
  };
  if (!strcmp(mode, "early")) shmem_long_p((long *)modes, 1, 0);
  if (!strcmp(mode, "exit")) {
    /* Without an end, and with communication in a handler that runs at exit. */
    start_pes(0);
    me = shmem_my_pe();
    n = shmem_n_pes();
    atexit(communicate);
    return 0;
  }
  start();
  if (!strcmp(mode, "mistake")) mistake(arguments[2]);
  if (!strcmp(mode, "status")) {
    shmem_barrier_all();
    if (me == n - 1) shmem_global_exit(7);
    for (;;) shmem_barrier_all();
  }
  if (!strcmp(mode, "fail")) {
    if (me == n - 1) return 5;
    for (;;) pause();
  }
  if (!strcmp(mode, "dies")) {
    /* A PE is killed at a moment that the second argument says, in us. */
    long us = atol(arguments[2]);
    struct sigaction action = {.sa_handler = die};
    struct itimerval at = {.it_value = {.tv_sec = us / 1000000, .tv_usec = us % 1000000 + 1}};
    sigaction(SIGALRM, &action, NULL);
    if (me == us % n) setitimer(ITIMER_REAL, &at, NULL);
    forever();
  }
  if (!strcmp(mode, "killed")) {
    if (me == n - 1) raise(SIGKILL);
    for (;;) shmem_barrier_all();
  }
  if (!strcmp(mode, "rounds")) {
    rounds_until(arguments[2]);
    shmem_finalize();
    return 0;
  }
  for (int argument = 1; argument < count; argument++) {
    size_t i = 0, all = sizeof modes / sizeof *modes;
    while (i < all && strcmp(arguments[argument], modes[i].name)) i++;
    if (i == all) {
      fprintf(stderr, "%s is none of the modes\n", arguments[argument]);
      return 2;
    }
    modes[i].run();
    if (me == 0) printf("%s is right on %d PEs\n", modes[i].name, n);
  }
  shmem_finalize();
  return 0;
}
