/* A child that the C library did not make by fork(3), and its parent, write to one connection at
 * the same time. Each writes bytes of its own, which count. The other end checks that none is
 * missing.
 *
 * usage: cloned HOW [alone]     clone: clone(3) with a stack of its own
 *                               number: syscall(SYS_clone)
 *                               Fork: _Fork(3), or syscall(SYS_fork) where there is none
 *
 * The other end is a thread, or with `alone` a process. Then the child writes after its parent has
 * closed the connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TALKS = 300, PIECES = 20000, PIECE = 4096, OF_CHILD = 128 };

static int connection, gate[2];
static int is_alone;

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

static void writes(unsigned char who)
{
    unsigned char next = 0, piece[PIECE];
    for (int number = 0; number < PIECES; number++) {
        for (int place = 0; place < PIECE; place++)
            piece[place] = who | (next++ & 127);
        for (size_t done = 0; done < sizeof piece;) {
            ssize_t more = write(connection, piece + done, sizeof piece - done);
            if (more <= 0)
                fail("write");
            done += more;
        }
    }
}

static void exactly(int from, void *into, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t more = read(from, (char *)into + done, count - done);
        if (more <= 0)
            fail("bytes are missing");
        done += more;
    }
}

static void *reads(void *listener)
{
    int from = accept(*(int *)listener, NULL, NULL);
    if (from < 0)
        fail("accept");
    char talk[10];
    for (int turn = 0; turn < TALKS; turn++) {
        exactly(from, talk, sizeof talk);
        if (write(from, talk, sizeof talk) != sizeof talk)
            fail("write");
    }
    unsigned char next[2] = { 0, 0 }, piece[PIECE];
    for (long left = 2L * PIECES * PIECE; left > 0;) {
        ssize_t more = read(from, piece, sizeof piece);
        if (more <= 0)
            fail("bytes are missing");
        left -= more;
        for (ssize_t place = 0; place < more; place++) {
            int who = piece[place] >= OF_CHILD;
            if ((piece[place] & 127) != (next[who]++ & 127)) {
                fprintf(stderr, "a byte of %d is missing or doubled\n", who);
                _exit(1);
            }
        }
    }
    return NULL;
}

static int child(void *nothing)
{
    (void)nothing;
    char letter;
    if (is_alone && (close(gate[1]) || read(gate[0], &letter, 1) != 0))
        fail("gate");
    writes(OF_CHILD);
    _exit(0);
}

static pid_t start(const char *how)
{
    static char stack[1 << 18];
    if (!strcmp(how, "clone"))
        return clone(child, stack + sizeof stack, SIGCHLD, NULL);
    pid_t (*just_fork)(void) = dlsym(RTLD_DEFAULT, "_Fork");
    pid_t made;
    if (!strcmp(how, "Fork") && just_fork)
        made = just_fork();
    else if (!strcmp(how, "Fork"))
        made = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    else
        made = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (made == 0)
        child(NULL);
    return made;
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    is_alone = count > 2;
    alarm(50);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1))
        fail("listen");
    getsockname(listener, (struct sockaddr *)&at, &size);
    pthread_t reader;
    pid_t other_end = is_alone ? fork() : 0;
    if (!is_alone)
        pthread_create(&reader, NULL, reads, &listener);
    else if (other_end == 0) {
        reads(&listener);
        exit(0);
    }
    if (pipe(gate))
        fail("pipe");
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&at, sizeof at))
        fail("connect");
    char talk[10] = "turn";
    for (int turn = 0; turn < TALKS; turn++) {
        if (write(connection, talk, sizeof talk) != sizeof talk)
            fail("write");
        exactly(connection, talk, sizeof talk);
    }
    /* The reader is asleep by now, and holds nothing. */
    usleep(50000);
    pid_t made = start(words[1]);
    if (made < 0)
        fail(words[1]);
    writes(0);
    int status;
    if (is_alone && (close(connection) || close(gate[1])))
        fail("close");
    if (waitpid(made, &status, 0) != made || status != 0) {
        fprintf(stderr, "the child ended with %x\n", status);
        return 1;
    }
    if (!is_alone)
        pthread_join(reader, NULL);
    else if (waitpid(other_end, &status, 0) != other_end || status != 0) {
        fprintf(stderr, "the other end ended with %x\n", status);
        return 1;
    }
    puts("all of them");
    return 0;
}
