/* What programs of MPI do at the edges, between two ranks: the part is the first argument. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("rank %d: line %d: %s\n", rank, __LINE__, #condition);                          \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

enum { THREADS = 4, TURNS = 300, LENGTH_MAX = 70000 };

/* Threads with a tag each, and lengths of all ways that a body takes. */
static void *exchange(void *number)
{
    int tag = (int)(long)number, other = 1 - rank;
    unsigned char *mine = malloc(LENGTH_MAX), *its = malloc(LENGTH_MAX);
    for (int turn = 0; turn < TURNS; turn++) {
        int length = (int[]){0, 8, 300, 5000, LENGTH_MAX}[(turn + tag) % 5];
        memset(mine, turn + tag + rank, LENGTH_MAX);
        memset(its, 0, LENGTH_MAX);
        MPI_Status status;
        MPI_Sendrecv(mine, length, MPI_BYTE, other, tag, its, LENGTH_MAX, MPI_BYTE, other, tag,
                     MPI_COMM_WORLD, &status);
        int got;
        MPI_Get_count(&status, MPI_BYTE, &got);
        CHECK(got == length);
        for (int i = 0; i < length; i++)
            CHECK(its[i] == (unsigned char)(turn + tag + other));
    }
    free(mine);
    free(its);
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, exchange, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
}

/* Rank 1 stops itself. No call of rank 0 waits for it. */
static void stopped(void)
{
    enum { COUNT = 3000 };
    static char bytes[COUNT][600];
    static char large[1 << 20];
    MPI_Request requests[COUNT + 1];
    int child = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        pid_t own = getpid();
        child = fork();
        if (child == 0) {
            usleep(1500000);
            kill(own, SIGCONT);
            _exit(0);
        }
        raise(SIGSTOP);
        waitpid(child, NULL, 0);
        for (int i = 0; i < COUNT; i++)
            MPI_Irecv(bytes[i], 600, MPI_BYTE, 0, i, MPI_COMM_WORLD, &requests[i]);
        MPI_Irecv(large, sizeof large, MPI_BYTE, 0, COUNT, MPI_COMM_WORLD, &requests[COUNT]);
    } else {
        usleep(300000);
        double longest = 0;
        for (int i = 0; i <= COUNT; i++) {
            double start = MPI_Wtime();
            int done;
            if (i < 100 || i == COUNT)
                MPI_Isend(i == COUNT ? large : bytes[i], i == COUNT ? sizeof large : 600, MPI_BYTE,
                          1, i, MPI_COMM_WORLD, &requests[i]);
            else
                requests[i] = MPI_REQUEST_NULL;
            MPI_Testall(i + 1, requests, &done, MPI_STATUSES_IGNORE);
            double took = MPI_Wtime() - start;
            if (took > longest)
                longest = took;
        }
        printf("longest call: %.3f s\n", longest);
        CHECK(longest < 1);
        for (int i = 100; i < COUNT; i++)
            MPI_Isend(bytes[i], 600, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(COUNT + 1, requests, MPI_STATUSES_IGNORE);
}

/* Children that leave as programs do, and that become another program. */
static void forks(void)
{
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 3 == 0)
                execlp("true", "true", NULL);
            if (i % 3 == 1)
                exit(0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        exchange((void *)0);
    }
}

/* Processes that MPI starts: not with Open MPI, whose own transports cannot either. */
static void spawned(char *self)
{
    MPI_Comm children;
    int sum = 0, one = rank + 1, codes[2];
    char *arguments[] = {"child", NULL};
    MPI_Comm_spawn(self, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, codes);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, children);
    CHECK(sum == 30);
    MPI_Comm_disconnect(&children);
}

static void child(void)
{
    MPI_Comm parent;
    int sum = 0, ten = 10 + 10 * rank;
    MPI_Comm_get_parent(&parent);
    CHECK(parent != MPI_COMM_NULL);
    MPI_Allreduce(&ten, &sum, 1, MPI_INT, MPI_SUM, parent);
    CHECK(sum == 3);
    MPI_Comm_disconnect(&parent);
}

int main(int argc, char **argv)
{
    int given;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *part = argv[1];
    if (!strcmp(part, "threads") && given == MPI_THREAD_MULTIPLE)
        threads();
    else if (!strcmp(part, "stopped"))
        stopped();
    else if (!strcmp(part, "forks"))
        forks();
    else if (!strcmp(part, "spawn"))
        spawned(argv[0]);
    else if (!strcmp(part, "child"))
        child();
    else
        CHECK(!"such a part");
    if (strcmp(part, "child")) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("all right\n");
    }
    MPI_Finalize();
    return 0;
}
