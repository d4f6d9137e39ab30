/* Instructions of OpenSHMEM's calls on a PE of the same host, each counted by single steps. A loaded
 * machine does not change them, so two builds can be compared there. x86-64.
 *
 *   weft oshcc -O2 -mno-red-zone -o instructions bench/shmem/instructions.c
 *   weft oshrun -np 2 ./instructions
 *
 * A count holds the loading of the arguments and the call.
 */
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile long steps;

static void trap(int signal) {
  (void)signal;
  steps++;
}

/* Sets and clears the trap flag of the processor: a signal comes behind each instruction. */
#define STEP __asm__ volatile("pushfq; orq $0x100,(%%rsp); popfq" ::: "memory", "cc")
#define RUN __asm__ volatile("pushfq; andq $~0x100,(%%rsp); popfq" ::: "memory", "cc")

#define STEPS(call) \
  ({                \
    steps = 0;      \
    STEP;           \
    call;           \
    RUN;            \
    steps;          \
  })

/* The first call is not counted: the dynamic linker looks for the function there. */
#define COUNT(name, call)                   \
  do {                                      \
    call;                                   \
    long around = STEPS((void)0);           \
    printf("%-22s %ld\n", name, STEPS(call) - around); \
  } while (0)

int main(void) {
  static long variable;
  shmem_init();
  signal(SIGTRAP, trap);
  char *to = shmem_malloc(4096), *from = shmem_malloc(4096);
  long *word = shmem_malloc(64);
  long result;
  memset(from, 1, 4096);
  shmem_barrier_all();
  if (shmem_my_pe() == 0) {
    COUNT("putmem_nbi 8", shmem_putmem_nbi(to, from, 8, 1));
    COUNT("putmem 8", shmem_putmem(to, from, 8, 1));
    COUNT("putmem 64", shmem_putmem(to, from, 64, 1));
    COUNT("getmem 8", shmem_getmem(to, from, 8, 1));
    COUNT("getmem_nbi 8", shmem_getmem_nbi(to, from, 8, 1));
    COUNT("long_p", shmem_long_p(word, 3, 1));
    COUNT("int_p", shmem_int_p((int *)word, 3, 1));
    COUNT("short_p", shmem_short_p((short *)word, 3, 1));
    COUNT("long_p static", shmem_long_p(&variable, 3, 1));
    COUNT("long_g", result = shmem_long_g(word, 1));
    COUNT("long_get 1", shmem_long_get(&result, word, 1, 1));
    COUNT("long_put_nbi 1", shmem_long_put_nbi(word, &result, 1, 1));
    COUNT("long_fetch_add", result = shmem_long_atomic_fetch_add(word, 1, 1));
    COUNT("long_add", shmem_long_atomic_add(word, 1, 1));
    COUNT("long_cswap", result = shmem_long_atomic_compare_swap(word, 1, 1, 1));
    COUNT("long_swap", result = shmem_long_atomic_swap(word, 1, 1));
    COUNT("long_fetch", result = shmem_long_atomic_fetch(word, 1));
    COUNT("long_set", shmem_long_atomic_set(word, 1, 1));
    COUNT("double_swap", shmem_double_atomic_swap((double *)word, 1, 1));
    COUNT("long_fetch_add_nbi", shmem_long_atomic_fetch_add_nbi(&result, word, 1, 1));
    COUNT("ctx_putmem_nbi 8", shmem_ctx_putmem_nbi(SHMEM_CTX_DEFAULT, to, from, 8, 1));
    COUNT("ctx_long_p", shmem_ctx_long_p(SHMEM_CTX_DEFAULT, word, 3, 1));
    COUNT("long_iput 4", shmem_long_iput(word, (long *)from, 2, 1, 4, 1));
    COUNT("putmem_signal",
          shmem_putmem_signal(to, from, 8, (uint64_t *)word, 3, SHMEM_SIGNAL_SET, 1));
    COUNT("fence", shmem_fence());
    COUNT("quiet", shmem_quiet());
  }
  shmem_barrier_all();
  shmem_finalize();
  return 0;
}
