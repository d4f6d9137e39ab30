/* Work of every kind for some two seconds, so that a rank can be ended in any of it: the beginning,
 * messages of several lengths, collectives, one-sided operations, the end. */
#include <mpi.h>
#include <stdio.h>

static char out[1 << 20], in[1 << 20];

int main(int argc, char **argv)
{
    static const int lengths[] = { 8, 600, 4000, 30000, 300000, 1 << 20 };
    int rank, size;
    long *base, sum, one = 1;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Win_allocate(1 << 16, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    if (rank == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    double end = MPI_Wtime() + 1.5;
    int over = 0;
    for (unsigned i = 0; !over; i++) {
        int length = lengths[i % 6];
        int next = (rank + 1) % size, last = (rank + size - 1) % size;
        MPI_Sendrecv(out, length, MPI_BYTE, next, 1, in, length, MPI_BYTE, last, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Bcast(out, length, MPI_BYTE, i % size, MPI_COMM_WORLD);
        MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        MPI_Win_fence(0, window);
        MPI_Put(out, 1000, MPI_BYTE, next, 0, 1000, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        over = MPI_Wtime() > end;
        MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
