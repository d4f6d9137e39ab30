/* Each PE puts its number into a static variable of the next one, and prints what it got. */
#include <shmem.h>
#include <stdio.h>

static long got = -1;

int main(void) {
  shmem_init();
  int me = shmem_my_pe(), size = shmem_n_pes();
  shmem_long_p(&got, me, (me + 1) % size);
  shmem_barrier_all();
  printf("PE %d of %d got %ld\n", me, size, got);
  shmem_finalize();
  return 0;
}
