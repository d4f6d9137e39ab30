/* Figures of MPI. The arguments are pairs of a test and a number of bytes; a line with one number
 * is printed for each: nanoseconds, megabytes a second, or messages a second. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

static int rank, ranks;
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

/* A kernel as those of NPB: an exchange with both neighbours in a ring, some computing, a sum. */
static void halo(int count)
{
    enum { CELLS = 4096 };
    static double cells[CELLS + 2];
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (int i = 0; i < count; i++) {
        double sum = 0, all;
        MPI_Sendrecv(&cells[CELLS], 1, MPI_DOUBLE, right, 0, &cells[0], 1, MPI_DOUBLE, left, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&cells[1], 1, MPI_DOUBLE, left, 1, &cells[CELLS + 1], 1, MPI_DOUBLE, right, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int cell = 1; cell <= CELLS; cell++) {
            cells[cell] = 0.25 * cells[cell - 1] + 0.5 * cells[cell] + 0.25 * cells[cell + 1];
            sum += cells[cell];
        }
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void step(const char *what, int size, int count)
{
    if (!strcmp(what, "latency"))
        latency(size, count);
    else if (!strcmp(what, "bandwidth") || !strcmp(what, "rate"))
        stream(size, count, 0);
    else if (!strcmp(what, "both"))
        stream(size, count, 1);
    else if (!strcmp(what, "halo"))
        halo(count);
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

/* The median of nine runs of some 35 ms each, in seconds a step. */
static double measured(const char *what, int size)
{
    /* A window of long messages is long enough by itself. */
    int count = (long)size * WINDOW > 1 << 22 ? 1 : 20;
    double took = 0, runs[9];
    step(what, size, (count + 1) / 2);
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
    for (int i = 0; i < 9; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        step(what, size, count);
        runs[i] = (MPI_Wtime() - start) / count;
    }
    qsort(runs, 9, sizeof *runs, compare);
    return runs[4];
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    mine = aligned_alloc(4096, 4 << 20);
    other = aligned_alloc(4096, 4 << 20);
    memset(mine, 1, 4 << 20);
    memset(other, 2, 4 << 20);
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *what = argv[i];
        int size = atoi(argv[i + 1]);
        double one = measured(what, size);
        if (rank > 0)
            continue;
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
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
