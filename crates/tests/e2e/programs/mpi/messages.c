/* Messages between pairs and among all, by every mode of MPI. Each check says what differs; the
 * program prints "all right" at rank 0 and ends with 0 if all ranks agree. */
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

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static int holds(const unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 8)))
            return 0;
    return 1;
}

/* Every length around each threshold, by every mode of sending. */
static void modes(void)
{
    static const int lengths[] = { 0, 1, 8, 80, 96, 97, 104, 105, 200, 500, 512, 513, 1000, 4096,
        16384, 32768, 32769, 65536, 100000, 1 << 20, 5000001 };
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    unsigned char *out = malloc(5000001), *in = malloc(5000001);
    for (unsigned mode = 0; mode < 5; mode++) {
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            int length = lengths[i], got;
            MPI_Request requests[2];
            MPI_Status status;
            fill(out, length, rank + i);
            memset(in, 0xee, length);
            if (mode == 3) {
                MPI_Irecv(in, length, MPI_BYTE, last, 7, MPI_COMM_WORLD, &requests[0]);
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Rsend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD);
                MPI_Wait(&requests[0], &status);
            } else if (mode == 4) {
                char *space = malloc(length + MPI_BSEND_OVERHEAD);
                MPI_Buffer_attach(space, length + MPI_BSEND_OVERHEAD);
                MPI_Bsend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD);
                MPI_Recv(in, length, MPI_BYTE, last, 7, MPI_COMM_WORLD, &status);
                MPI_Buffer_detach(&space, &got);
                free(space);
            } else {
                if (mode == 0)
                    MPI_Isend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD, &requests[1]);
                else
                    MPI_Issend(out, length, MPI_BYTE, next, 7, MPI_COMM_WORLD, &requests[1]);
                MPI_Recv(in, length, MPI_BYTE, mode == 2 ? MPI_ANY_SOURCE : last,
                         mode == 2 ? MPI_ANY_TAG : 7, MPI_COMM_WORLD, &status);
                MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
            }
            MPI_Get_count(&status, MPI_BYTE, &got);
            CHECK(got == length);
            CHECK(status.MPI_SOURCE == last && status.MPI_TAG == 7);
            CHECK(holds(in, length, last + i));
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    free(out);
    free(in);
}

static void probes(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    unsigned char out[3000], in[3000];
    for (unsigned i = 0; i < 50; i++) {
        int length = i * 59, got = -1, flag = 0;
        MPI_Request request;
        MPI_Status status;
        MPI_Message message;
        fill(out, length, rank + i);
        MPI_Isend(out, length, MPI_BYTE, next, i, MPI_COMM_WORLD, &request);
        if (i % 3 == 0) {
            MPI_Probe(last, i, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            MPI_Recv(in, got, MPI_BYTE, last, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (i % 3 == 1) {
            while (!flag)
                MPI_Iprobe(MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &flag, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            MPI_Recv(in, got, MPI_BYTE, status.MPI_SOURCE, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Mprobe(last, i, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            MPI_Mrecv(in, got, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        }
        CHECK(got == length);
        CHECK(holds(in, length, last + i));
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Iprobe(MPI_ANY_SOURCE, 12345, MPI_COMM_WORLD, &flag, &status);
        CHECK(!flag);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void cancels_and_truncation(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size, flag;
    char bytes[100000];
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(bytes, 10, MPI_BYTE, last, 99, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);
    MPI_Comm other;
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN);
    static const int lengths[] = { 50, 400, 20000, 100000 };
    for (unsigned i = 0; i < 4; i++) {
        MPI_Request sent;
        MPI_Isend(bytes, lengths[i], MPI_BYTE, next, 5, other, &sent);
        int error = MPI_Recv(bytes, 20, MPI_BYTE, last, 5, other, &status), class = 0;
        MPI_Error_class(error, &class);
        CHECK(class == MPI_ERR_TRUNCATE);
        MPI_Wait(&sent, MPI_STATUS_IGNORE);
        int value = rank, got = -1;
        MPI_Sendrecv(&value, 1, MPI_INT, next, 6, &got, 1, MPI_INT, last, 6, other,
                     MPI_STATUS_IGNORE);
        CHECK(got == last);
    }
    MPI_Comm_free(&other);
}

/* More messages than any queue has places, with receives in another order. */
static void many(void)
{
    enum { COUNT = 3000 };
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    static int out[COUNT], in[COUNT];
    static MPI_Request requests[2 * COUNT];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++) {
            out[i] = rank * COUNT + i;
            if (round == 1)
                MPI_Irecv(&in[i], 1, MPI_INT, last, i, MPI_COMM_WORLD, &requests[COUNT + i]);
        }
        for (int i = COUNT - 1; i >= 0; i--)
            MPI_Isend(&out[i], 1, MPI_INT, next, i, MPI_COMM_WORLD, &requests[i]);
        if (round == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            for (int i = 0; i < COUNT; i++)
                MPI_Irecv(&in[i], 1, MPI_INT, last, i, MPI_COMM_WORLD, &requests[COUNT + i]);
        }
        MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < COUNT; i++)
            CHECK(in[i] == last * COUNT + i);
        memset(in, 0, sizeof in);
    }
    /* The order of one sender, long and short mixed. */
    char *bytes = malloc(200000), *got = malloc(200000);
    for (int i = 0; i < 60; i++) {
        int length = i % 3 == 0 ? 200000 : i % 3 == 1 ? 8 : 5000;
        memset(bytes, i, length);
        MPI_Request request;
        MPI_Isend(bytes, length, MPI_BYTE, next, 1, MPI_COMM_WORLD, &request);
        MPI_Status status;
        int count;
        MPI_Recv(got, 200000, MPI_BYTE, last, 1, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == length && got[0] == i && got[length - 1] == i);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    free(bytes);
    free(got);
}

static void datatypes(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    enum { ROWS = 300, COLUMNS = 400 };
    static double out[ROWS][COLUMNS], in[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            out[i][j] = rank + i * 1000.0 + j, in[i][j] = -1;
    MPI_Datatype column;
    MPI_Type_vector(ROWS, 3, COLUMNS, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(&out[0][5], 1, column, next, 3, &in[0][7], 1, column, last, 3, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 0; i < ROWS; i++) {
        CHECK(in[i][6] == -1 && in[i][10] == -1);
        for (int j = 0; j < 3; j++)
            CHECK(in[i][7 + j] == last + i * 1000.0 + 5 + j);
    }
    MPI_Type_free(&column);
}

static void collectives(void)
{
    static const int counts[] = { 1, 7, 300, 5000, 70000 };
    for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = counts[c];
        long *out = malloc(sizeof(long) * n * size), *in = malloc(sizeof(long) * n * size);
        MPI_Request request;
        for (int i = 0; i < n; i++)
            out[i] = rank + i;
        MPI_Allreduce(out, in, n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++)
            CHECK(in[i] == (long)size * (size - 1) / 2 + (long)size * i);
        MPI_Iallreduce(out, in, n, MPI_LONG, MPI_MAX, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++)
            CHECK(in[i] == size - 1 + i);
        for (int root = 0; root < size; root++) {
            if (rank == root)
                for (int i = 0; i < n; i++)
                    in[i] = root * 10 + i;
            MPI_Bcast(in, n, MPI_LONG, root, MPI_COMM_WORLD);
            CHECK(in[n - 1] == root * 10 + n - 1);
        }
        for (int i = 0; i < n * size; i++)
            out[i] = rank * 100 + i / n;
        MPI_Alltoall(out, n, MPI_LONG, in, n, MPI_LONG, MPI_COMM_WORLD);
        for (int i = 0; i < n * size; i++)
            CHECK(in[i] == (i / n) * 100 + rank);
        MPI_Allgather(out, n, MPI_LONG, in, n, MPI_LONG, MPI_COMM_WORLD);
        for (int i = 0; i < size; i++)
            CHECK(in[i * n] == i * 100);
        MPI_Ialltoall(out, n, MPI_LONG, in, n, MPI_LONG, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(in[n * size - 1] == (size - 1) * 100 + rank);
        MPI_Gather(out, n, MPI_LONG, in, n, MPI_LONG, 0, MPI_COMM_WORLD);
        MPI_Scatter(in, n, MPI_LONG, out, n, MPI_LONG, 0, MPI_COMM_WORLD);
        CHECK(out[0] == rank * 100);
        for (int i = 0; i < n; i++)
            out[i] = 1;
        MPI_Scan(out, in, n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK(in[0] == rank + 1);
        MPI_Reduce_scatter_block(out, in, n / size, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (n / size > 0)
            CHECK(in[0] == size);
        free(out);
        free(in);
    }
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    int members, sum, one = 1;
    MPI_Comm_size(half, &members);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, half);
    CHECK(sum == members);
    MPI_Comm_free(&half);
}

static void large(void)
{
    size_t length = (size_t)64 << 20;
    unsigned char *out = malloc(length), *in = malloc(length);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    fill(out, length, rank);
    MPI_Sendrecv(out, (int)length, MPI_BYTE, next, 2, in, (int)length, MPI_BYTE, last, 2,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(holds(in, length, last));
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        { "modes", modes },
        { "probes", probes },
        { "cancels", cancels_and_truncation },
        { "many", many },
        { "datatypes", datatypes },
        { "collectives", collectives },
        { "large", large },
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name) != 0)
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
