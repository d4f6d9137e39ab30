/* A program whose variables a thread writes to while they move to shared memory. With LIBRARY
   defined this is the library that starts the thread, in its constructor. */
#include <pthread.h>
#include <stdio.h>

long hammer_ends(void);

#ifdef LIBRARY

/* A variable of the program. */
extern volatile long hammered __attribute__((weak));
static volatile int ends;
static pthread_t thread;
static long strokes;

static void *hammer(void *nothing) {
  while (!ends) {
    hammered++;
    strokes++;
  }
  return nothing;
}

__attribute__((constructor)) static void begin(void) {
  pthread_create(&thread, NULL, hammer, NULL);
  while (!hammered) continue;
}

long hammer_ends(void) {
  ends = 1;
  pthread_join(thread, NULL);
  return strokes;
}

#else

#include <shmem.h>

volatile long hammered;
static int word;
/* More than a part that moves at a time, with pages of zeros and others. */
static char zeros[4 << 20];
static char others[1 << 20] = {1};

int main(void) {
  shmem_init();
  int me = shmem_my_pe(), n = shmem_n_pes();
  shmem_int_p(&word, me + 1, (me + 1) % n);
  shmem_char_p(&zeros[me], 7, (me + 1) % n);
  shmem_barrier_all();
  int is_right = word == (me + n - 1) % n + 1 && zeros[(me + n - 1) % n] == 7 && others[0] == 1;
  long strokes = hammer_ends();
  printf("%s\n", is_right && strokes == hammered ? "right" : "wrong");
  shmem_finalize();
  return 0;
}

#endif
