/* Each PE writes its number to the next one. */
#include <shmem.h>
#include <stdio.h>

static int got;

int main(void) {
    shmem_init();
    int own = shmem_my_pe(), all = shmem_n_pes();
    shmem_int_p(&got, own + 1, (own + 1) % all);
    shmem_barrier_all();
    printf("%d of %d got %d\n", own, all, got);
    int wrong = got != (own + all - 1) % all + 1;
    shmem_finalize();
    return wrong;
}
