/* Messages of several lengths around a ring, without end. */
#include <mpi.h>
#include <stdio.h>

static char out[300000], in[300000];

int main(int argc, char **argv)
{
    static const int lengths[] = { 8, 4000, 300000 };
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (unsigned i = 0;; i++) {
        int length = lengths[i % 3];
        MPI_Sendrecv(out, length, MPI_BYTE, (rank + 1) % size, 1, in, length, MPI_BYTE,
                     (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (i == 30 && rank == 0) {
            printf("begun\n");
            fflush(stdout);
        }
    }
}
