/* Checks of every function of OpenSHMEM, one macro for each function with any type.
 *
 * F, C and S name a function of a type, one with a context, and one without a type. Each PE works
 * on memory of the next one, and checks what the one before did to its own. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weft_pair {
  uint64_t one, two;
};

#define BYTES 1024
#define OLD(name) WEFT_OLD(name)
#ifndef WEFT_OLD
#define WEFT_OLD(name) name
#endif

union weft_memory {
  long double alignment;
  struct weft_pair pair;
  unsigned char bytes[BYTES];
};

/* Variables of the program are symmetric. */
static union weft_memory dest_memory, source_memory, word_memory;
/* The work array of deprecated reductions. */
extern union weft_memory work_memory;
union weft_memory work_memory;
static uint64_t signal_word;
static long flags[SHMEM_SYNC_SIZE];
static int me, n, next_pe, last_pe, failures;
static long checks;

static void expect(int holds, const char *what) {
  checks++;
  if (!holds) {
    failures++;
    fprintf(stderr, "PE %d: %s is wrong\n", me, what);
  }
}

static void sync_all(void) { S(barrier_all)(); }

static unsigned char pattern(int pe, size_t at) { return (unsigned char)(pe * 37 + at * 3 + 1); }

static void fill(void) {
  for (size_t at = 0; at < BYTES; at++) source_memory.bytes[at] = pattern(me, at);
  memset(dest_memory.bytes, 0, BYTES);
  signal_word = 5;
}

/* Whether the destination has bytes of the source of a PE. */
static int is(size_t to, int pe, size_t from, size_t bytes) {
  for (size_t at = 0; at < bytes; at++)
    if (dest_memory.bytes[to + at] != pattern(pe, from + at)) return 0;
  return 1;
}

static int is_zero(size_t to, size_t bytes) {
  for (size_t at = 0; at < bytes; at++)
    if (dest_memory.bytes[to + at] != 0) return 0;
  return 1;
}

#define MEMORY(T)                         \
  T *dest = (T *)dest_memory.bytes;       \
  T *source = (T *)source_memory.bytes;   \
  T *word = (T *)word_memory.bytes;       \
  size_t s = sizeof(T);                   \
  (void)dest, (void)source, (void)word, (void)s

#define ONCE(prepare, call, holds, what) \
  prepare;                               \
  sync_all();                            \
  call;                                  \
  sync_all();                            \
  expect(holds, what)

#define TWICE(T, prepare, call, call_with_context, holds, what)                \
  {                                                                            \
    MEMORY(T);                                                                 \
    ONCE(prepare, call, holds, what);                                          \
    ONCE(prepare, call_with_context, holds, what " with a context");           \
  }

/* Copies. */

#define IS_COPIED(pe) (is(0, pe, 0, 3 * s) && is_zero(3 * s, s))
#define IS_STRIDED(pe)                                                                    \
  (is(0, pe, 0, s) && is_zero(s, s) && is(2 * s, pe, 3 * s, s) && is(4 * s, pe, 6 * s, s))
#define IS_BLOCKED(pe) (is(0, pe, 0, 2 * s) && is_zero(2 * s, s) && is(3 * s, pe, 4 * s, 2 * s))
#define COPY_ARGUMENTS dest, source, 3, next_pe
#define STRIDED_ARGUMENTS dest, source, 2, 3, 3, next_pe
#define BLOCK_ARGUMENTS dest, source, 3, 4, 2, 2, next_pe
#define X SHMEM_CTX_DEFAULT

#define BOTH(T, plain, context, arguments, holds, what) \
  TWICE(T, fill(), plain(arguments), context(X, arguments), holds, what)

#define CHECK_PUT(W, T) BOTH(T, F(W, put), C(W, put), COPY_ARGUMENTS, IS_COPIED(last_pe), #W " put")
#define CHECK_GET(W, T) BOTH(T, F(W, get), C(W, get), COPY_ARGUMENTS, IS_COPIED(next_pe), #W " get")
#define CHECK_PUT_NBI(W, T)                                                                     \
  BOTH(T, F(W, put_nbi), C(W, put_nbi), COPY_ARGUMENTS, IS_COPIED(last_pe), #W " put_nbi")
#define CHECK_GET_NBI(W, T)                                                                        \
  BOTH(T, F(W, get_nbi), C(W, get_nbi), COPY_ARGUMENTS, (S(quiet)(), IS_COPIED(next_pe)), \
       #W " get_nbi")
#define CHECK_IPUT(W, T) \
  BOTH(T, F(W, iput), C(W, iput), STRIDED_ARGUMENTS, IS_STRIDED(last_pe), #W " iput")
#define CHECK_IGET(W, T) \
  BOTH(T, F(W, iget), C(W, iget), STRIDED_ARGUMENTS, IS_STRIDED(next_pe), #W " iget")
#define CHECK_IBPUT(W, T) \
  BOTH(T, F(W, ibput), C(W, ibput), BLOCK_ARGUMENTS, IS_BLOCKED(last_pe), #W " ibput")
#define CHECK_IBGET(W, T) \
  BOTH(T, F(W, ibget), C(W, ibget), BLOCK_ARGUMENTS, IS_BLOCKED(next_pe), #W " ibget")

#define CHECK_SIZE_PUT(W, T) \
  BOTH(T, S(put##W), S(ctx_put##W), COPY_ARGUMENTS, IS_COPIED(last_pe), "put" #W)
#define CHECK_SIZE_GET(W, T) \
  BOTH(T, S(get##W), S(ctx_get##W), COPY_ARGUMENTS, IS_COPIED(next_pe), "get" #W)
#define CHECK_SIZE_PUT_NBI(W, T) \
  BOTH(T, S(put##W##_nbi), S(ctx_put##W##_nbi), COPY_ARGUMENTS, IS_COPIED(last_pe), "put_nbi" #W)
#define CHECK_SIZE_GET_NBI(W, T)                                                                \
  BOTH(T, S(get##W##_nbi), S(ctx_get##W##_nbi), COPY_ARGUMENTS, (S(quiet)(), IS_COPIED(next_pe)), \
       "get_nbi" #W)
#define CHECK_SIZE_IPUT(W, T) \
  BOTH(T, S(iput##W), S(ctx_iput##W), STRIDED_ARGUMENTS, IS_STRIDED(last_pe), "iput" #W)
#define CHECK_SIZE_IGET(W, T) \
  BOTH(T, S(iget##W), S(ctx_iget##W), STRIDED_ARGUMENTS, IS_STRIDED(next_pe), "iget" #W)
#define CHECK_SIZE_IBPUT(W, T) \
  BOTH(T, S(ibput##W), S(ctx_ibput##W), BLOCK_ARGUMENTS, IS_BLOCKED(last_pe), "ibput" #W)
#define CHECK_SIZE_IBGET(W, T) \
  BOTH(T, S(ibget##W), S(ctx_ibget##W), BLOCK_ARGUMENTS, IS_BLOCKED(next_pe), "ibget" #W)

#define SIGNALLED(T, plain, context, what)                                        \
  TWICE(T, fill(), plain(dest, source, 3, &signal_word, 9, SHMEM_SIGNAL_SET, next_pe), \
        context(X, dest, source, 3, &signal_word, 4, SHMEM_SIGNAL_ADD, next_pe),  \
        IS_COPIED(last_pe) && S(signal_fetch)(&signal_word) == 9, what)
#define CHECK_PUT_SIGNAL(W, T) \
  SIGNALLED(T, F(W, put_signal), C(W, put_signal), #W " put_signal")
#define CHECK_PUT_SIGNAL_NBI(W, T) \
  SIGNALLED(T, F(W, put_signal_nbi), C(W, put_signal_nbi), #W " put_signal_nbi")
#define CHECK_SIZE_PUT_SIGNAL(W, T) \
  SIGNALLED(T, S(put##W##_signal), S(ctx_put##W##_signal), "put_signal" #W)
#define CHECK_SIZE_PUT_SIGNAL_NBI(W, T) \
  SIGNALLED(T, S(put##W##_signal_nbi), S(ctx_put##W##_signal_nbi), "put_signal_nbi" #W)

#define CHECK_P(W, T)                                                                    \
  TWICE(T, *word = (T)0, F(W, p)(word, (T)(me + 1), next_pe),                            \
        C(W, p)(X, word, (T)(me + 1), next_pe), *word == (T)(last_pe + 1), #W " p")
#define CHECK_G(W, T)                                                                     \
  TWICE(T, (*word = (T)(me + 1), *dest = (T)0), *dest = F(W, g)(word, next_pe),           \
        *dest = C(W, g)(X, word, next_pe), *dest == (T)(next_pe + 1), #W " g")

/* Atomics: the word of the next PE is 12 before; `got` gets what the function gives. */

#define ATOMIC(T, call, call_with_context, gives, after, what)                                 \
  {                                                                                            \
    T got;                                                                                     \
    TWICE(T, (*word = (T)12, got = (T)gives), call, call_with_context,                         \
          (S(quiet)(), got == (T)gives && *word == (T)after), what)                            \
  }
#define GIVING(T, W, name, arguments, after)                                             \
  ATOMIC(T, got = (T)0; got = F(W, name)(arguments), got = (T)0; got = C(W, name)(X, arguments), \
         12, after, #W " " #name)
#define QUIETLY(T, W, name, arguments, after) \
  ATOMIC(T, F(W, name)(arguments), C(W, name)(X, arguments), 12, after, #W " " #name)
#define LATER(T, W, name, arguments, after)                                             \
  ATOMIC(T, got = (T)0; F(W, name)(&got, arguments), got = (T)0; C(W, name)(X, &got, arguments), \
         12, after, #W " " #name)
#define WITH(value) word, value, next_pe
#define WITH_BOTH(one, two) word, one, two, next_pe
#define ALONE word, next_pe

#define CHECK_ATOMIC_FETCH(W, T) GIVING(T, W, atomic_fetch, ALONE, 12)
#define CHECK_ATOMIC_SET(W, T) QUIETLY(T, W, atomic_set, WITH((T)10), 10)
#define CHECK_ATOMIC_COMPARE_SWAP(W, T) \
  GIVING(T, W, atomic_compare_swap, WITH_BOTH((T)12, (T)7), 7)
#define CHECK_ATOMIC_SWAP(W, T) GIVING(T, W, atomic_swap, WITH((T)10), 10)
#define CHECK_ATOMIC_FETCH_INC(W, T) GIVING(T, W, atomic_fetch_inc, ALONE, 13)
#define CHECK_ATOMIC_INC(W, T) QUIETLY(T, W, atomic_inc, ALONE, 13)
#define CHECK_ATOMIC_FETCH_ADD(W, T) GIVING(T, W, atomic_fetch_add, WITH((T)10), 22)
#define CHECK_ATOMIC_ADD(W, T) QUIETLY(T, W, atomic_add, WITH((T)10), 22)
#define CHECK_ATOMIC_FETCH_AND(W, T) GIVING(T, W, atomic_fetch_and, WITH((T)10), 8)
#define CHECK_ATOMIC_AND(W, T) QUIETLY(T, W, atomic_and, WITH((T)10), 8)
#define CHECK_ATOMIC_FETCH_OR(W, T) GIVING(T, W, atomic_fetch_or, WITH((T)10), 14)
#define CHECK_ATOMIC_OR(W, T) QUIETLY(T, W, atomic_or, WITH((T)10), 14)
#define CHECK_ATOMIC_FETCH_XOR(W, T) GIVING(T, W, atomic_fetch_xor, WITH((T)10), 6)
#define CHECK_ATOMIC_XOR(W, T) QUIETLY(T, W, atomic_xor, WITH((T)10), 6)
#define CHECK_ATOMIC_FETCH_NBI(W, T) LATER(T, W, atomic_fetch_nbi, ALONE, 12)
#define CHECK_ATOMIC_COMPARE_SWAP_NBI(W, T) \
  LATER(T, W, atomic_compare_swap_nbi, WITH_BOTH((T)12, (T)7), 7)
#define CHECK_ATOMIC_SWAP_NBI(W, T) LATER(T, W, atomic_swap_nbi, WITH((T)10), 10)
#define CHECK_ATOMIC_FETCH_INC_NBI(W, T) LATER(T, W, atomic_fetch_inc_nbi, ALONE, 13)
#define CHECK_ATOMIC_FETCH_ADD_NBI(W, T) LATER(T, W, atomic_fetch_add_nbi, WITH((T)10), 22)
#define CHECK_ATOMIC_FETCH_AND_NBI(W, T) LATER(T, W, atomic_fetch_and_nbi, WITH((T)10), 8)
#define CHECK_ATOMIC_FETCH_OR_NBI(W, T) LATER(T, W, atomic_fetch_or_nbi, WITH((T)10), 14)
#define CHECK_ATOMIC_FETCH_XOR_NBI(W, T) LATER(T, W, atomic_fetch_xor_nbi, WITH((T)10), 6)

#define PLAINLY(T, call, after, what)                                       \
  {                                                                         \
    MEMORY(T);                                                              \
    T got = (T)12;                                                          \
    ONCE(*word = (T)12, call, got == (T)12 && *word == (T)after, what);     \
  }
#define CHECK_PLAIN_SWAP(W, T) PLAINLY(T, got = F(W, swap)(word, (T)10, next_pe), 10, #W " swap")
#define CHECK_PLAIN_CSWAP(W, T) \
  PLAINLY(T, got = F(W, cswap)(word, (T)12, (T)7, next_pe), 7, #W " cswap")
#define CHECK_PLAIN_FADD(W, T) PLAINLY(T, got = F(W, fadd)(word, (T)10, next_pe), 22, #W " fadd")
#define CHECK_PLAIN_FINC(W, T) PLAINLY(T, got = F(W, finc)(word, next_pe), 13, #W " finc")
#define CHECK_PLAIN_ADD(W, T) PLAINLY(T, F(W, add)(word, (T)10, next_pe), 22, #W " add")
#define CHECK_PLAIN_INC(W, T) PLAINLY(T, F(W, inc)(word, next_pe), 13, #W " inc")
#define CHECK_PLAIN_FETCH(W, T) PLAINLY(T, got = F(W, fetch)(word, next_pe), 12, #W " fetch")
#define CHECK_PLAIN_SET(W, T) PLAINLY(T, F(W, set)(word, (T)10, next_pe), 10, #W " set")

/* Collectives. */

#define WORLD SHMEM_TEAM_WORLD
#define EVERY(condition)                        \
  {                                             \
    all = 1;                                    \
    for (int p = 0; p < n; p++) all &= (condition); \
  }
#define COLLECTIVE(T, call, condition, what)                    \
  {                                                             \
    MEMORY(T);                                                  \
    int all, result = 0;                                        \
    fill();                                                     \
    sync_all();                                                 \
    call;                                                       \
    sync_all();                                                 \
    EVERY(condition);                                           \
    expect(all && result == 0, what);                           \
  }
static size_t count_of(int pe) { return (size_t)(pe % 3 + 1); }
static size_t before(int pe) {
  size_t sum = 0;
  for (int p = 0; p < pe; p++) sum += count_of(p);
  return sum;
}
#define P (size_t)p
#define ME (size_t)me
#define IS_EXCHANGED is(P * 2 * s, p, ME * 2 * s, 2 * s)
#define IS_SCATTERED (is(P * 2 * s, p, ME * 2 * s, s) && is_zero((P * 2 + 1) * s, s))
#define IS_BROADCAST is(0, n - 1, 0, 3 * s)
#define IS_JOINED is(P * 2 * s, p, 0, 2 * s)
#define IS_COLLECTED is(before(p) * s, p, 0, count_of(p) * s)
#define SET_OF_ALL 0, 0, n, flags

#define CHECK_PLAIN_ALLTOALL(W, T)                                                      \
  COLLECTIVE(T, result = F(W, alltoall)(WORLD, dest, source, 2), IS_EXCHANGED, #W " alltoall")
#define CHECK_PLAIN_ALLTOALLS(W, T)                                                           \
  COLLECTIVE(T, result = F(W, alltoalls)(WORLD, dest, source, 2, 2, 1), IS_SCATTERED, #W " alltoalls")
#define CHECK_PLAIN_BROADCAST(W, T)                                                             \
  COLLECTIVE(T, result = F(W, broadcast)(WORLD, dest, source, 3, n - 1), IS_BROADCAST, #W " broadcast")
#define CHECK_PLAIN_COLLECT(W, T)                                                              \
  COLLECTIVE(T, result = F(W, collect)(WORLD, dest, source, count_of(me)), IS_COLLECTED, #W " collect")
#define CHECK_PLAIN_FCOLLECT(W, T) \
  COLLECTIVE(T, result = F(W, fcollect)(WORLD, dest, source, 2), IS_JOINED, #W " fcollect")
#define CHECK_PLAIN_SIZE_ALLTOALL(W, T) \
  COLLECTIVE(T, result = S(alltoall##W)(WORLD, dest, source, 2), IS_EXCHANGED, "alltoall" #W)
#define CHECK_PLAIN_SIZE_ALLTOALLS(W, T) \
  COLLECTIVE(T, result = S(alltoalls##W)(WORLD, dest, source, 2, 2, 1), IS_SCATTERED, "alltoalls" #W)
#define CHECK_PLAIN_SIZE_BROADCAST(W, T) \
  COLLECTIVE(T, result = S(broadcast##W)(WORLD, dest, source, 3, n - 1), IS_BROADCAST, "broadcast" #W)
#define CHECK_PLAIN_SIZE_COLLECT(W, T) \
  COLLECTIVE(T, result = S(collect##W)(WORLD, dest, source, count_of(me)), IS_COLLECTED, "collect" #W)
#define CHECK_PLAIN_SIZE_FCOLLECT(W, T) \
  COLLECTIVE(T, result = S(fcollect##W)(WORLD, dest, source, 2), IS_JOINED, "fcollect" #W)
#define CHECK_SET_ALLTOALL(W, T) \
  COLLECTIVE(T, S(alltoall##W)(dest, source, 2, SET_OF_ALL), IS_EXCHANGED, "old alltoall" #W)
#define CHECK_SET_ALLTOALLS(W, T) \
  COLLECTIVE(T, S(alltoalls##W)(dest, source, 2, 2, 1, SET_OF_ALL), IS_SCATTERED, "old alltoalls" #W)
/* The destination of the root is left as it is. */
#define CHECK_SET_BROADCAST(W, T)                                      \
  COLLECTIVE(T, S(broadcast##W)(dest, source, 3, n - 1, SET_OF_ALL),   \
             me == n - 1 ? is_zero(0, 3 * s) : IS_BROADCAST, "old broadcast" #W)
#define CHECK_SET_COLLECT(W, T) \
  COLLECTIVE(T, S(collect##W)(dest, source, count_of(me), SET_OF_ALL), IS_COLLECTED, "old collect" #W)
#define CHECK_SET_FCOLLECT(W, T) \
  COLLECTIVE(T, S(fcollect##W)(dest, source, 2, SET_OF_ALL), IS_JOINED, "old fcollect" #W)

/* Element i of a PE is one of 1, 2, 3. */
#define VALUE(T, pe, i) ((T)(((pe) + (i)) % 3 + 1))
#define REDUCTION(T, first, last, start, call, combined, target, what)    \
  {                                                                       \
    MEMORY(T);                                                            \
    int result = 0;                                                       \
    for (int i = 0; i < 3; i++) source[i] = VALUE(T, me, i), dest[i] = (T)0; \
    sync_all();                                                           \
    call;                                                                 \
    sync_all();                                                           \
    for (int i = 0; i < 3; i++) {                                         \
      T left = (T)start;                                                  \
      for (int p = first; p <= last; p++) {                               \
        T right = VALUE(T, p, i);                                         \
        left = (T)(combined);                                             \
      }                                                                   \
      expect(result == 0 && target[i] == left, what);                     \
    }                                                                     \
  }
#define REDUCE(W, T, name, start, combined)                                                     \
  REDUCTION(T, 0, n - 1, start, result = F(W, name)(WORLD, dest, source, 3), combined, dest,    \
            #W " " #name)                                                                       \
  REDUCTION(T, 0, n - 1, start, result = F(W, name)(WORLD, source, source, 3), combined, source, \
            #W " " #name " in place")
#define TO_ALL(W, T, name, start, combined)                                                 \
  REDUCTION(T, 0, n - 1, start,                                                             \
            F(W, name)(dest, source, 3, 0, 0, n, (T *)work_memory.bytes, flags), combined,  \
            dest, #W " " #name)
#define LARGER (left < right ? right : left)
#define SMALLER (right < left ? right : left)
#define CHECK_PLAIN_AND_REDUCE(W, T) REDUCE(W, T, and_reduce, -1, left &right)
#define CHECK_PLAIN_OR_REDUCE(W, T) REDUCE(W, T, or_reduce, 0, left | right)
#define CHECK_PLAIN_XOR_REDUCE(W, T) REDUCE(W, T, xor_reduce, 0, left ^ right)
#define CHECK_PLAIN_MAX_REDUCE(W, T) REDUCE(W, T, max_reduce, 0, LARGER)
#define CHECK_PLAIN_MIN_REDUCE(W, T) REDUCE(W, T, min_reduce, 100, SMALLER)
#define CHECK_PLAIN_SUM_REDUCE(W, T) REDUCE(W, T, sum_reduce, 0, left + right)
#define CHECK_PLAIN_PROD_REDUCE(W, T) REDUCE(W, T, prod_reduce, 1, left *right)
#define CHECK_PLAIN_AND_TO_ALL(W, T) TO_ALL(W, T, and_to_all, -1, left &right)
#define CHECK_PLAIN_OR_TO_ALL(W, T) TO_ALL(W, T, or_to_all, 0, left | right)
#define CHECK_PLAIN_XOR_TO_ALL(W, T) TO_ALL(W, T, xor_to_all, 0, left ^ right)
#define CHECK_PLAIN_MAX_TO_ALL(W, T) TO_ALL(W, T, max_to_all, 0, LARGER)
#define CHECK_PLAIN_MIN_TO_ALL(W, T) TO_ALL(W, T, min_to_all, 100, SMALLER)
#define CHECK_PLAIN_SUM_TO_ALL(W, T) TO_ALL(W, T, sum_to_all, 0, left + right)
#define CHECK_PLAIN_PROD_TO_ALL(W, T) TO_ALL(W, T, prod_to_all, 1, left *right)
#define CHECK_PLAIN_SUM_INSCAN(W, T)                                                      \
  REDUCTION(T, 0, me, 0, result = F(W, sum_inscan)(WORLD, dest, source, 3), left + right, \
            dest, #W " sum_inscan")
#define CHECK_PLAIN_SUM_EXSCAN(W, T)                                                          \
  REDUCTION(T, 0, me - 1, 0, result = F(W, sum_exscan)(WORLD, source, source, 3), left + right, \
            source, #W " sum_exscan in place")

/* Waiting: three words are 0, then the PE before stores others. */

#define WAITING(T, one, two, three, call, holds, what)                \
  {                                                                   \
    MEMORY(T);                                                        \
    T stored[3] = {(T)one, (T)two, (T)three};                         \
    T wanted[3] = {(T)5, (T)6, (T)7};                                 \
    int excluded[3] = {1, 0, 0};                                      \
    size_t found = 77, places[3] = {77, 77, 77};                      \
    (void)wanted, (void)excluded, (void)found, (void)places;          \
    word[0] = word[1] = word[2] = (T)0;                               \
    sync_all();                                                       \
    S(putmem)(word, stored, sizeof stored, next_pe);                  \
    call;                                                             \
    expect(holds, what);                                              \
    sync_all();                                                       \
  }
#define EQ SHMEM_CMP_EQ
#define CHECK_PLAIN_WAIT_UNTIL(W, T) \
  WAITING(T, 7, 0, 0, F(W, wait_until)(word, EQ, (T)7), word[0] == (T)7, #W " wait_until")
#define CHECK_PLAIN_WAIT(W, T) \
  WAITING(T, 7, 0, 0, F(W, wait)(word, (T)0), word[0] == (T)7, #W " wait")
#define CHECK_PLAIN_WAIT_UNTIL_ALL(W, T)                                        \
  WAITING(T, 3, 7, 7, F(W, wait_until_all)(word, 3, excluded, EQ, (T)7),        \
          word[1] == (T)7 && word[2] == (T)7, #W " wait_until_all")
#define CHECK_PLAIN_WAIT_UNTIL_ANY(W, T)                                        \
  WAITING(T, 7, 0, 7, found = F(W, wait_until_any)(word, 3, excluded, EQ, (T)7), found == 2, \
          #W " wait_until_any")
#define CHECK_PLAIN_WAIT_UNTIL_SOME(W, T)                                       \
  WAITING(T, 7, 0, 7, found = F(W, wait_until_some)(word, 3, places, excluded, EQ, (T)7), \
          found == 1 && places[0] == 2, #W " wait_until_some")
#define CHECK_PLAIN_WAIT_UNTIL_ALL_VECTOR(W, T)                                 \
  WAITING(T, 5, 6, 7, F(W, wait_until_all_vector)(word, 3, NULL, EQ, wanted),   \
          word[0] == (T)5 && word[2] == (T)7, #W " wait_until_all_vector")
#define CHECK_PLAIN_WAIT_UNTIL_ANY_VECTOR(W, T)                                 \
  WAITING(T, 5, 6, 5, found = F(W, wait_until_any_vector)(word, 3, excluded, EQ, wanted), \
          found == 1, #W " wait_until_any_vector")
#define CHECK_PLAIN_WAIT_UNTIL_SOME_VECTOR(W, T)                                \
  WAITING(T, 5, 7, 7, found = F(W, wait_until_some_vector)(word, 3, places, excluded, EQ, wanted), \
          found == 1 && places[0] == 2, #W " wait_until_some_vector")
#define TESTING(T, one, two, three, condition, what) \
  WAITING(T, one, two, three, sync_all(), condition, what)
#define CHECK_PLAIN_TEST(W, T)                                                            \
  TESTING(T, 7, 0, 0, F(W, test)(word, EQ, (T)7) == 1 && F(W, test)(word, SHMEM_CMP_LT, (T)7) == 0, \
          #W " test")
#define CHECK_PLAIN_TEST_ALL(W, T)                                                        \
  TESTING(T, 3, 7, 7,                                                                     \
          F(W, test_all)(word, 3, excluded, EQ, (T)7) == 1 &&                             \
              F(W, test_all)(word, 3, NULL, EQ, (T)7) == 0 &&                             \
              F(W, test_all)(word, 0, NULL, EQ, (T)7) == 1,                               \
          #W " test_all")
#define CHECK_PLAIN_TEST_ANY(W, T)                                                        \
  TESTING(T, 7, 0, 7,                                                                     \
          F(W, test_any)(word, 3, excluded, EQ, (T)7) == 2 &&                             \
              F(W, test_any)(word, 3, NULL, EQ, (T)9) == SIZE_MAX,                        \
          #W " test_any")
#define CHECK_PLAIN_TEST_SOME(W, T)                                                       \
  TESTING(T, 7, 0, 7,                                                                     \
          F(W, test_some)(word, 3, places, NULL, SHMEM_CMP_NE, (T)0) == 2 &&              \
              places[0] == 0 && places[1] == 2,                                           \
          #W " test_some")
#define CHECK_PLAIN_TEST_ALL_VECTOR(W, T)                                                 \
  TESTING(T, 5, 6, 7, F(W, test_all_vector)(word, 3, NULL, EQ, wanted) == 1,              \
          #W " test_all_vector")
#define CHECK_PLAIN_TEST_ANY_VECTOR(W, T)                                                 \
  TESTING(T, 5, 6, 5, F(W, test_any_vector)(word, 3, excluded, SHMEM_CMP_GE, wanted) == 1, \
          #W " test_any_vector")
#define CHECK_PLAIN_TEST_SOME_VECTOR(W, T)                                                \
  TESTING(T, 5, 7, 7,                                                                     \
          F(W, test_some_vector)(word, 3, places, NULL, SHMEM_CMP_LE, wanted) == 2 &&     \
              places[0] == 0 && places[1] == 2,                                           \
          #W " test_some_vector")

static void begin(void) {
  int provided = -1, initialized = -1;
  S(query_initialized)(&initialized);
  expect(initialized == 0, "query_initialized before the start");
  expect(S(init_thread)(SHMEM_THREAD_MULTIPLE, &provided) == 0, "init_thread");
  expect(provided == SHMEM_THREAD_MULTIPLE, "the level of threads");
  S(init)();
  OLD(start_pes)(0);
  S(query_initialized)(&initialized);
  expect(initialized != 0, "query_initialized");
  provided = -1;
  S(query_thread)(&provided);
  expect(provided == SHMEM_THREAD_MULTIPLE, "query_thread");
  me = S(my_pe)();
  n = S(n_pes)();
  expect(OLD(_my_pe)() == me && OLD(_num_pes)() == n, "_my_pe and _num_pes");
  next_pe = (me + 1) % n;
  last_pe = (me + n - 1) % n;
}

static void heap(void) {
  char *one = (char *)S(malloc)(100), *two = (char *)S(align)(4096, 10);
  expect(one && two && (uintptr_t)two % 4096 == 0, "malloc and align");
  memset(one, 1, 100);
  one = (char *)S(realloc)(one, 100000);
  expect(one && one[0] == 1 && one[99] == 1, "realloc");
  long *zero = (long *)S(calloc)(10, sizeof(long));
  expect(zero && zero[0] == 0 && zero[9] == 0, "calloc");
  void *hinted = S(malloc_with_hints)(8, SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE);
  expect(hinted != NULL && S(malloc)(0) == NULL, "malloc_with_hints, and malloc of nothing");
  S(free)(hinted);
  S(free)(zero);
  S(free)(two);
  S(free)(one);
  S(free)(NULL);
  void *old = OLD(shmalloc)(10), *aligned = OLD(shmemalign)(256, 10);
  old = OLD(shrealloc)(old, 20);
  expect(old && (uintptr_t)aligned % 256 == 0, "shmalloc, shmemalign and shrealloc");
  OLD(shfree)(aligned);
  OLD(shfree)(old);
}

static void teams(void) {
  shmem_team_t evens, x, y, of;
  shmem_ctx_t context;
  shmem_team_config_t config = {3};
  int result = S(team_split_strided)(WORLD, 0, 2, (n + 1) / 2, &config, SHMEM_TEAM_NUM_CONTEXTS,
                                     &evens);
  expect(result == 0 && (evens != SHMEM_TEAM_INVALID) == (me % 2 == 0), "team_split_strided");
  expect(S(team_my_pe)(evens) == (me % 2 ? -1 : me / 2), "team_my_pe");
  expect(S(team_n_pes)(evens) == (me % 2 ? -1 : (n + 1) / 2), "team_n_pes");
  if (evens != SHMEM_TEAM_INVALID) {
    config.num_contexts = 0;
    expect(S(team_get_config)(evens, SHMEM_TEAM_NUM_CONTEXTS, &config) == 0, "team_get_config");
    expect(config.num_contexts == 3, "the number of contexts");
    expect(S(team_translate_pe)(evens, me / 2, WORLD) == me, "team_translate_pe");
    expect(S(team_sync)(evens) == 0, "team_sync");
    expect(S(team_create_ctx)(evens, SHMEM_CTX_SERIALIZED, &context) == 0, "team_create_ctx");
    expect(S(ctx_get_team)(context, &of) == 0 && of == evens, "ctx_get_team");
    expect(S(team_ptr)(evens, &signal_word, me / 2) == &signal_word, "team_ptr");
    S(ctx_destroy)(context);
    S(team_destroy)(evens);
  }
  result = S(team_split_2d)(WORLD, 2, NULL, 0, &x, NULL, 0, &y);
  expect(result == 0 && S(team_my_pe)(x) == me % 2 && S(team_my_pe)(y) == me / 2, "team_split_2d");
  S(team_destroy)(x);
  S(team_destroy)(y);
  expect(S(ctx_create)(SHMEM_CTX_PRIVATE, &context) == 0, "ctx_create");
  shmem_ctx_session_config_t session = {10};
  S(ctx_session_start)(context, SHMEM_CTX_SESSION_BATCH, &session, SHMEM_CTX_SESSION_TOTAL_OPS);
  S(ctx_session_stop)(context);
  S(ctx_fence)(context);
  S(ctx_quiet)(context);
  S(ctx_pe_quiet)(context, &next_pe, 1);
  S(ctx_destroy)(context);
}

static void signals(void) {
  fill();
  sync_all();
  S(signal_set)(&signal_word, 30, next_pe);
  S(ctx_signal_add)(X, &signal_word, 2, next_pe);
  expect(S(signal_wait_until)(&signal_word, EQ, 32) == 32, "signal_wait_until");
  sync_all();
  S(ctx_signal_set)(X, &signal_word, 1, next_pe);
  S(signal_add)(&signal_word, 5, next_pe);
  sync_all();
  expect(S(signal_fetch)(&signal_word) == 6, "signal_fetch");
}

static void singles(void) {
  static long lock, turn, word;
  int major = 0, minor = 0, target = next_pe;
  char name[SHMEM_MAX_NAME_LEN] = "";
  S(info_get_version)(&major, &minor);
  S(info_get_name)(name);
  expect(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION, "info_get_version");
  expect(strcmp(name, SHMEM_VENDOR_STRING) == 0, "info_get_name");
  S(pcontrol)(1);
  expect(S(pe_accessible)(next_pe) && !S(pe_accessible)(n), "pe_accessible");
  expect(S(addr_accessible)(&lock, next_pe) && !S(addr_accessible)(&major, 0), "addr_accessible");
  /* PEs of other hosts have no address here. */
  int shares = S(team_translate_pe)(WORLD, next_pe, SHMEM_TEAM_SHARED) >= 0;
  int is_shared = S(team_translate_pe)(WORLD, (me + n - 1) % n, SHMEM_TEAM_SHARED) >= 0;
  long *there = (long *)S(ptr)(&word, next_pe);
  expect((there != NULL) == shares, "ptr of another PE");
  expect(S(ptr)(&word, me) == &word && S(ptr)(&major, me) == NULL, "ptr");
  if (there != NULL) *there = 77;
  S(fence)();
  S(quiet)();
  S(pe_quiet)(&target, 1);
  S(sync_all)();
  expect(word == (is_shared ? 77 : 0), "a store by an address of ptr");
  for (int i = 0; i < 20; i++) {
    if (i % 2)
      S(set_lock)(&lock);
    else
      while (S(test_lock)(&lock) != 0) continue;
    long seen = shmem_long_g(&turn, 0);
    shmem_long_p(&turn, seen + 1, 0);
    S(clear_lock)(&lock);
  }
  sync_all();
  expect(me != 0 || turn == 20 * n, "locks");
  heap();
  teams();
  signals();
  S(barrier)(0, 0, n, flags);
  S(sync)(0, 0, n, flags);
  word = 0;
  sync_all();
  shmem_long_p(&word, 5, next_pe);
  S(wait)(&word, 0L);
  S(wait_until)(&word, EQ, 5L);
}

static int end(void) {
  int initialized = -1;
  sync_all();
  if (failures) S(global_exit)(1);
  if (me == 0) printf("%ld checks on each of %d PEs\n", checks, n);
  S(finalize)();
  S(query_initialized)(&initialized);
  if (!initialized) return 2;
  S(finalize)();
  S(query_initialized)(&initialized);
  return initialized ? 3 : 0;
}
