/* Figures of MPI between two ranks: what is measured is the first argument, bytes the second. Prints
 * one number: nanoseconds, megabytes a second, or messages a second. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

static int rank;
static char *mine, *other;

static void latency(int size, int count)
{
    for (int i = 0; i < count; i++) {
        if (rank == 0) {
            MPI_Send(mine, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(other, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(other, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(mine, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
}

static void stream(int size, int count, int both)
{
    MPI_Request requests[2 * WINDOW];
    for (int i = 0; i < count; i++) {
        int n = 0;
        for (int w = 0; w < WINDOW; w++) {
            if (both || rank == 1)
                MPI_Irecv(other, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, &requests[n++]);
        }
        for (int w = 0; w < WINDOW; w++) {
            if (both || rank == 0)
                MPI_Isend(mine, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, &requests[n++]);
        }
        MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
        if (rank == 1)
            MPI_Send(mine, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        else
            MPI_Recv(other, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void onesided(const char *what, int size, int count)
{
    static MPI_Win window;
    static char *base;
    if (!window) {
        MPI_Win_allocate(1 << 22, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
        MPI_Win_lock_all(0, window);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    long one = 1, old;
    if (rank == 0) {
        for (int i = 0; i < count; i++) {
            if (!strcmp(what, "put"))
                MPI_Put(mine, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
            else if (!strcmp(what, "get"))
                MPI_Get(other, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
            else
                MPI_Fetch_and_op(&one, &old, MPI_LONG, 1, 0, MPI_SUM, window);
            MPI_Win_flush(1, window);
        }
    }
    /* The target makes progress here. */
    MPI_Barrier(MPI_COMM_WORLD);
}

static void step(const char *what, int size, int count)
{
    if (!strcmp(what, "latency"))
        latency(size, count);
    else if (!strcmp(what, "bandwidth") || !strcmp(what, "rate"))
        stream(size, count, 0);
    else if (!strcmp(what, "both"))
        stream(size, count, 1);
    else if (!strcmp(what, "barrier"))
        for (int i = 0; i < count; i++)
            MPI_Barrier(MPI_COMM_WORLD);
    else if (!strcmp(what, "allreduce"))
        for (int i = 0; i < count; i++)
            MPI_Allreduce(mine, other, size / 8 ? size / 8 : 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    else
        onesided(what, size, count);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *what = argv[1];
    int size = atoi(argv[2]);
    mine = aligned_alloc(4096, 4 << 20);
    other = aligned_alloc(4096, 4 << 20);
    memset(mine, 1, 4 << 20);
    memset(other, 2, 4 << 20);
    int count = 20;
    double took = 0;
    step(what, size, 10);
    /* Enough for 30 ms, as rank 0 sees it. */
    while (count < 10000000) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        step(what, size, count);
        took = MPI_Wtime() - start;
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (took > 0.03)
            break;
        count = took > 0.001 ? (int)(count * 0.035 / took) + 1 : count * 10;
    }
    double runs[9];
    for (int i = 0; i < 9; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        step(what, size, count);
        runs[i] = (MPI_Wtime() - start) / count;
    }
    qsort(runs, 9, sizeof *runs, compare);
    double one = runs[4];
    if (rank == 0) {
        if (!strcmp(what, "latency"))
            printf("%.1f\n", one / 2 * 1e9);
        else if (!strcmp(what, "bandwidth"))
            printf("%.1f\n", (double)size * WINDOW / one / 1e6);
        else if (!strcmp(what, "both"))
            printf("%.1f\n", 2.0 * size * WINDOW / one / 1e6);
        else if (!strcmp(what, "rate"))
            printf("%.0f\n", WINDOW / one);
        else
            printf("%.1f\n", one * 1e9);
    }
    MPI_Finalize();
    return 0;
}
