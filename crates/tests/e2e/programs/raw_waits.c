/* A server that waits by system calls of its own, which no library sees, and moves its bytes by
 * calls of the C library. The client waits as programs do.
 *
 * usage: raw_waits MESSAGES
 *
 * Prints a line for each way to wait. An answer that does not come within some seconds fails.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 8000
#define BYTES 1024
#define DATA 0x123456789abcdef0u

static int messages, set;

static void fail(const char *what)
{
    fprintf(stderr, "raw_waits (%d): %s: %s\n", (int)getpid(), what, strerror(errno));
    exit(1);
}

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

static void begin(int fd, uint32_t events, int by_library)
{
    struct epoll_event event = {.events = events, .data.u64 = DATA};
    if (by_library) {
        set = epoll_create1(0);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
            fail("epoll_ctl");
    } else {
        set = (int)raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0);
        if (raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, (long)&event, 0, 0))
            fail("epoll_ctl of its own");
    }
}

static void begin_level(int fd)
{
    begin(fd, EPOLLIN, 1);
}

static void begin_edge(int fd)
{
    begin(fd, EPOLLIN | EPOLLET, 1);
}

static void begin_once(int fd)
{
    begin(fd, EPOLLIN | EPOLLONESHOT, 1);
}

static void begin_raw(int fd)
{
    begin(fd, EPOLLIN, 0);
}

static void begin_none(int fd)
{
    (void)fd;
}

static void wait_in_set(int fd)
{
    struct epoll_event event;
    (void)fd;
    if (raw(SYS_epoll_pwait, set, (long)&event, 1, LIMIT_MS, 0, 8) != 1)
        fail("nothing came to the set");
    if (event.data.u64 != DATA)
        fail("the set has other data");
}

static void wait_once(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = DATA};
    wait_in_set(fd);
    if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event))
        fail("epoll_ctl again");
}

static void wait_poll(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (raw(SYS_poll, (long)&one, 1, LIMIT_MS, 0, 0, 0) != 1)
        fail("nothing came to poll");
}

static const struct {
    const char *name;
    void (*begin)(int);
    void (*wait)(int);
    int nonblocking;
} ways[] = {
    {"level", begin_level, wait_in_set, 1},
    {"level, blocking", begin_level, wait_in_set, 0},
    {"edge", begin_edge, wait_in_set, 1},
    {"once", begin_once, wait_once, 1},
    {"a set of its own", begin_raw, wait_in_set, 1},
    {"poll", begin_none, wait_poll, 1},
    {"poll, blocking", begin_none, wait_poll, 0},
};

static void serve(int fd, size_t way)
{
    char bytes[BYTES];
    ssize_t size;
    if (ways[way].nonblocking && fcntl(fd, F_SETFL, O_NONBLOCK))
        fail("fcntl");
    ways[way].begin(fd);
    for (;;) {
        ways[way].wait(fd);
        do {
            size = recv(fd, bytes, sizeof bytes, 0);
            if (size == 0)
                _exit(0);
            if (size > 0 && send(fd, bytes, (size_t)size, MSG_NOSIGNAL) != size)
                fail("send of an answer");
        } while (size > 0 && ways[way].nonblocking);
        if (size < 0 && errno != EAGAIN)
            fail("recv of a question");
    }
}

static void ask(struct sockaddr_in *address)
{
    struct timeval limit = {.tv_sec = LIMIT_MS / 1000 + 2};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)address, sizeof *address))
        fail("connect");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int i = 0; i < messages; i++) {
        char question[BYTES], answer[BYTES];
        memset(question, i % 251, sizeof question);
        if (send(fd, question, sizeof question, MSG_NOSIGNAL) != sizeof question)
            fail("send of a question");
        if (recv(fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
            fail("no answer came");
        if (memcmp(question, answer, sizeof answer))
            fail("another answer");
    }
    close(fd);
}

int main(int count, char **words)
{
    messages = count > 1 ? atoi(words[1]) : 300;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        struct sockaddr_in address = {.sin_family = AF_INET};
        socklen_t size = sizeof address;
        int at = socket(AF_INET, SOCK_STREAM, 0), status;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (at < 0 || bind(at, (struct sockaddr *)&address, size) || listen(at, 8) ||
            getsockname(at, (struct sockaddr *)&address, &size))
            fail("listen");
        pid_t server = fork();
        if (server == 0)
            serve(accept(at, NULL, NULL), way);
        close(at);
        ask(&address);
        if (waitpid(server, &status, 0) != server || status)
            fail("the server failed");
        printf("%s: right\n", ways[way].name);
        fflush(stdout);
    }
    return 0;
}
