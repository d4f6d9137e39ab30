/* Messages on one connection, for bench/account.py.
 *
 * `account self BYTES COUNT`: a connection of the process with itself. COUNT messages are sent and
 * received in pieces, as many bytes as the connection takes at a time, so that no call waits. The
 * instructions of all sends, then of all receives are marked for callgrind.
 *
 * `account pair BYTES COUNT`: two processes send a message to and fro COUNT times, and the time of
 * one way is printed in microseconds. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

/* Messages before those that count: the connection reaches the fabric, memory is there. */
enum { WARM = 200 };

static char *memory;
static size_t bytes;
static int listener, near, far;

static void fail(const char *call) {
    perror(call);
    exit(1);
}

static void at_once(int fd) {
    int on = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
        fail("a connection");
}

static struct sockaddr_in listens(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen");
    return address;
}

static int connects(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)address, sizeof *address))
        fail("connect");
    at_once(fd);
    return fd;
}

/* The bytes of a call that does not wait, 0 if it would have to. */
static size_t moved(ssize_t result) {
    if (result <= 0 && errno != EAGAIN)
        fail("a call");
    return result > 0 ? result : 0;
}

/* Sends and receives `count` messages; the calls of one kind count. */
static void messages(long count, int counts_sends, int counts_receives) {
    for (long i = 0; i < count; i++)
        for (size_t sent = 0, received = 0; received < bytes;) {
            if (counts_sends)
                CALLGRIND_TOGGLE_COLLECT;
            if (sent < bytes)
                sent += moved(send(near, memory + sent, bytes - sent, MSG_DONTWAIT));
            if (counts_sends)
                CALLGRIND_TOGGLE_COLLECT;
            while (received < sent) {
                if (counts_receives)
                    CALLGRIND_TOGGLE_COLLECT;
                size_t part = moved(recv(far, memory, sent - received, MSG_DONTWAIT));
                if (counts_receives)
                    CALLGRIND_TOGGLE_COLLECT;
                received += part;
            }
        }
}

static void with_itself(long count) {
    struct sockaddr_in address = listens();
    near = connects(&address);
    at_once(far = accept(listener, NULL, NULL));
    /* A connection moves when its program has waited by it. */
    for (int i = 0; i < WARM; i++)
        if (send(near, memory, 64, 0) != 64 || recv(far, memory, 64, MSG_WAITALL) != 64)
            fail("a message");
    messages(2, 0, 0);
    CALLGRIND_ZERO_STATS;
    messages(count, 1, 0);
    CALLGRIND_DUMP_STATS_AT("send");
    messages(count, 0, 1);
    CALLGRIND_DUMP_STATS_AT("recv");
}

static void whole(int fd, int sends) {
    for (size_t done = 0; done < bytes;) {
        char *at = memory + done;
        ssize_t part = sends ? send(fd, at, bytes - done, 0) : recv(fd, at, bytes - done, 0);
        if (part <= 0)
            fail("a message");
        done += part;
    }
}

static void pair(long count) {
    struct sockaddr_in address = listens();
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    long all = WARM + count;
    if (!child) {
        int fd = connects(&address);
        for (long i = 0; i < all; i++)
            whole(fd, 0), whole(fd, 1);
        _exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    at_once(fd);
    struct timespec begin = {0}, end;
    for (long i = 0; i < all; i++) {
        if (i == WARM)
            clock_gettime(CLOCK_MONOTONIC, &begin);
        whole(fd, 1), whole(fd, 0);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double us = (end.tv_sec - begin.tv_sec) * 1e6 + (end.tv_nsec - begin.tv_nsec) / 1e3;
    printf("%.3f\n", us / count / 2);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    long count = argc == 4 ? atol(argv[3]) : 0;
    bytes = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
    if (count < 1 || bytes < 64) {
        fputs("usage: account self|pair BYTES COUNT, 64 bytes at least\n", stderr);
        return 2;
    }
    memory = malloc(bytes);
    memset(memory, 1, bytes);
    if (!strcmp(argv[1], "self"))
        with_itself(count);
    else
        pair(count);
    return 0;
}
