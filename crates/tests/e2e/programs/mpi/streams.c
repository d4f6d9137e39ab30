/* Windows of 64 messages, as benchmarks of bandwidth send them: to one side, and to both at once.
 * Each buffer has words of its own, which are checked. The arguments are the number of windows and
 * the lengths of messages. Prints "all right" at rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 64 };

static int rank, wrong;

static int word(int sender, int turn, int place, long at)
{
    return sender * 1000003 + turn * 10007 + place * 101 + (int)at;
}

static void stream(long words, int turn, int both)
{
    static MPI_Request requests[2 * WINDOW];
    int *out = malloc(words * sizeof(int) * WINDOW), *in = malloc(words * sizeof(int) * WINDOW);
    int n = 0, sends = both || rank == 0, receives = both || rank == 1;
    for (long w = 0; receives && w < WINDOW; w++)
        MPI_Irecv(in + w * words, words, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD, &requests[n++]);
    for (long w = 0; sends && w < WINDOW; w++) {
        for (long at = 0; at < words; at++)
            out[w * words + at] = word(rank, turn, w, at);
        MPI_Isend(out + w * words, words, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD, &requests[n++]);
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    for (long w = 0; receives && w < WINDOW; w++)
        for (long at = 0; at < words; at++)
            wrong += in[w * words + at] != word(1 - rank, turn, w, at);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    int all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int turns = atoi(argv[1]);
    for (int a = 2; a < argc; a++)
        for (int both = 0; both < 2; both++) {
            double start = MPI_Wtime();
            for (int turn = 0; turn < turns; turn++)
                stream(atol(argv[a]) / sizeof(int), turn, both);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0)
                printf("%s bytes, %s: %.2f s\n", argv[a], both ? "both ways" : "one way",
                       MPI_Wtime() - start);
            fflush(stdout);
        }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && all == 0)
        printf("all right\n");
    MPI_Finalize();
    return all != 0;
}
