/* Windows of MPI: every way to order accesses, every kind of operation. Prints "all right" at rank
 * 0 and ends with 0 if all ranks agree. The arguments name parts. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, wrong;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            printf("rank %d: line %d: %s\n", rank, __LINE__, #condition);                  \
            wrong++;                                                                       \
        }                                                                                  \
    } while (0)

enum { WORDS = 70000 };

static void fences(void)
{
    static const int counts[] = { 1, 10, 100, 1000, 10000, WORDS };
    long *base, *local = malloc(sizeof(long) * WORDS);
    MPI_Win window;
    MPI_Win_allocate(sizeof(long) * WORDS, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                     &window);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = counts[c];
        for (int i = 0; i < n; i++)
            local[i] = rank * 1000000L + i;
        MPI_Win_fence(0, window);
        MPI_Put(local, n, MPI_LONG, next, WORDS - n, n, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < n; i++)
            CHECK(base[WORDS - n + i] == last * 1000000L + i);
        memset(local, 0, sizeof(long) * n);
        MPI_Win_fence(0, window);
        MPI_Get(local, n, MPI_LONG, next, WORDS - n, n, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < n; i++)
            CHECK(local[i] == rank * 1000000L + i);
        MPI_Win_fence(0, window);
        for (int i = 0; i < n; i++)
            base[i] = 5, local[i] = rank + 1;
        MPI_Win_fence(0, window);
        for (int to = 0; to < size; to++)
            MPI_Accumulate(local, n, MPI_LONG, to, 0, n, MPI_LONG, MPI_SUM, window);
        MPI_Win_fence(0, window);
        CHECK(base[0] == 5 + (long)size * (size + 1) / 2);
        CHECK(base[n - 1] == 5 + (long)size * (size + 1) / 2);
    }
    MPI_Win_free(&window);
    free(local);
}

static void posts(void)
{
    long value[2] = { -1, -1 };
    MPI_Win window;
    MPI_Win_create(value, sizeof value, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Group all, to, from;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    MPI_Group_incl(all, 1, &next, &to);
    MPI_Group_incl(all, 1, &last, &from);
    for (long round = 0; round < 20; round++) {
        long out = rank * 100 + round;
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(&out, 1, MPI_LONG, next, 1, 1, MPI_LONG, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        CHECK(value[1] == last * 100 + round);
    }
    MPI_Group_free(&to);
    MPI_Group_free(&from);
    MPI_Group_free(&all);
    MPI_Win_free(&window);
}

static void locks(void)
{
    long *base;
    MPI_Win window;
    MPI_Win_allocate(sizeof(long) * 64, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                     &window);
    memset(base, 0, sizeof(long) * 64);
    MPI_Barrier(MPI_COMM_WORLD);
    enum { ROUNDS = 50 };
    /* A counter that an exclusive lock guards. */
    for (int i = 0; i < ROUNDS; i++) {
        long value;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&value, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        value++;
        MPI_Put(&value, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Win_lock_all(0, window);
    long one = 1, old, seen = -1;
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 1, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(old > seen);
        seen = old;
    }
    /* A lock made of compare and swap, with which Open MPI 4.1.4 crashes over all its transports. */
    int swaps = getenv("WITHOUT_COMPARE_AND_SWAP") ? 0 : 10;
    for (int i = 0; i < swaps; i++) {
        long free = 0, mine = rank + 1, found, count;
        do {
            MPI_Compare_and_swap(&mine, &free, &found, MPI_LONG, 0, 2, window);
            MPI_Win_flush(0, window);
        } while (found != 0);
        MPI_Get(&count, 1, MPI_LONG, 0, 3, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        count++;
        MPI_Put(&count, 1, MPI_LONG, 0, 3, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        MPI_Fetch_and_op(&free, &found, MPI_LONG, 0, 2, MPI_REPLACE, window);
        MPI_Win_flush(0, window);
        CHECK(found == mine);
    }
    double real = 0.5, was;
    MPI_Get_accumulate(&real, 1, MPI_DOUBLE, &was, 1, MPI_DOUBLE, 0, 10, 1, MPI_DOUBLE, MPI_SUM,
                       window);
    MPI_Win_flush(0, window);
    /* btl/ofi of Open MPI 4.1.4 aborts at others than sums, where ranks do not share memory. */
    int sums = getenv("SUMS_ALONE") != NULL;
    MPI_Op either = sums ? MPI_SUM : MPI_BOR, most = sums ? MPI_SUM : MPI_MAX;
    int bits = 1 << rank, none;
    MPI_Get_accumulate(&bits, 1, MPI_INT, &none, 1, MPI_INT, 0, 12, 1, MPI_INT, either, window);
    MPI_Request request;
    long ten = 10;
    MPI_Raccumulate(&ten, 1, MPI_LONG, 0, 13, 1, MPI_LONG, most, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* Accumulates of one origin to one place are in order. */
    for (long i = 0; i < 200; i++)
        MPI_Accumulate(&(long){ i }, 1, MPI_LONG, (rank + 1) % size, 20, 1, MPI_LONG, MPI_REPLACE,
                       window), MPI_Win_flush_local((rank + 1) % size, window);
    MPI_Win_flush_all(window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    CHECK(base[20] == 199);
    if (rank == 0) {
        double sum;
        int mask;
        memcpy(&sum, &base[10], sizeof sum);
        memcpy(&mask, &base[12], sizeof mask);
        CHECK(base[0] == (long)ROUNDS * size);
        CHECK(base[1] == (long)ROUNDS * size);
        CHECK(base[3] == (long)swaps * size);
        CHECK(sum == 0.5 * size);
        CHECK(mask == (1 << size) - 1);
        CHECK(base[13] == (sums ? 10 * size : 10));
    }
    MPI_Win_unlock(rank, window);
    MPI_Win_free(&window);
}

static void dynamic(void)
{
    MPI_Win window;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    long *memory = calloc(1000, sizeof(long));
    MPI_Win_attach(window, memory, 1000 * sizeof(long));
    MPI_Aint address, *all = malloc(sizeof(MPI_Aint) * size);
    MPI_Get_address(memory, &address);
    MPI_Allgather(&address, 1, MPI_AINT, all, 1, MPI_AINT, MPI_COMM_WORLD);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    long values[1000];
    for (int i = 0; i < 1000; i++)
        values[i] = rank + i;
    MPI_Win_fence(0, window);
    MPI_Put(values, 1000, MPI_LONG, next, all[next], 1000, MPI_LONG, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 1000; i++)
        CHECK(memory[i] == last + i);
    MPI_Win_fence(0, window);
    MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    free(memory);
    free(all);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        { "fences", fences },
        { "posts", posts },
        { "locks", locks },
        { "dynamic", dynamic },
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        int named = argc == 1;
        for (int a = 1; a < argc; a++)
            named |= strcmp(argv[a], parts[i].name) == 0;
        if (!named)
            continue;
        double start = MPI_Wtime();
        parts[i].run();
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%s: %.2f s\n", parts[i].name, MPI_Wtime() - start);
        fflush(stdout);
    }
    int all;
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && all == 0)
        printf("all right\n");
    MPI_Finalize();
    return all != 0;
}
