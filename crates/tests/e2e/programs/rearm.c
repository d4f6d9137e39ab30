/* A server as many are built: one thread waits for a connection in an epoll set, armed for one
 * event, and hands it to another thread, which answers and arms it again.
 *
 * usage: rearm SEED REQUESTS
 *
 * The other thread takes its time, so that the waiting one is anywhere between its last look and its
 * sleep when the connection is armed again. There is one connection: an event of another would wake
 * the thread and hide that a wakeup was lost. A request without an answer for some seconds fails.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

#define LIMIT_S 20
#define BYTES 64
#define DELAY 600000

static int requests, set, ready[2];
static struct sockaddr_in address = {.sin_family = AF_INET};

static void fail(const char *what)
{
    fprintf(stderr, "rearm (%d): %s: %s\n", (int)getpid(), what, strerror(errno));
    exit(1);
}

static void *work(void *unused)
{
    uint64_t seed = 1;
    (void)unused;
    int fd;
    while (read(ready[0], &fd, sizeof fd) == sizeof fd) {
        char bytes[BYTES];
        ssize_t size = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (size < 0 && errno != EAGAIN)
            fail("recv of a request");
        if (size == 0) {
            close(fd);
            continue;
        }
        if (size > 0 && send(fd, bytes, (size_t)size, MSG_NOSIGNAL) != size)
            fail("send of an answer");
        /* Until about when the waiting thread goes to sleep. */
        for (uint64_t turns = next(&seed) % DELAY; turns > 0; turns--)
            __asm__ volatile("");
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = fd};
        if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event))
            fail("epoll_ctl again");
    }
    return NULL;
}

static void *wait_for_requests(void *unused)
{
    (void)unused;
    for (;;) {
        struct epoll_event event;
        int count = epoll_wait(set, &event, 1, -1);
        if (count < 0 && errno != EINTR)
            fail("epoll_wait");
        if (count > 0 && write(ready[1], &event.data.fd, sizeof(int)) != sizeof(int))
            fail("write to the pipe");
    }
    return NULL;
}

static int ask(uint64_t seed)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct timeval limit = {.tv_sec = LIMIT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    for (int i = 0; i < requests; i++) {
        char question[BYTES], answer[BYTES];
        memset(question, i % 251, sizeof question);
        if (send(fd, question, sizeof question, MSG_NOSIGNAL) != sizeof question)
            fail("send of a request");
        for (size_t got = 0; got < sizeof answer;) {
            ssize_t size = recv(fd, answer + got, sizeof answer - got, 0);
            if (size <= 0)
                fail("no answer came");
            got += (size_t)size;
        }
        if (memcmp(question, answer, sizeof answer))
            fail("another answer");
        for (uint64_t turns = next(&seed) % 4096; turns > 0; turns--)
            __asm__ volatile("");
        if (next(&seed) % 32 == 0)
            usleep((useconds_t)(next(&seed) % 300));
    }
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: rearm SEED REQUESTS\n");
        return 2;
    }
    requests = atoi(argv[2]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64)
        || getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listen");
    pid_t child = fork();
    if (child == 0)
        return ask(strtoull(argv[1], NULL, 10));
    if (child < 0 || pipe(ready))
        fail("fork or pipe");
    set = epoll_create1(0);
    int fd = accept(listener, NULL, NULL), one = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        fail("accept or epoll_ctl");
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_create(&thread, NULL, wait_for_requests, NULL);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child");
    printf("%d requests\n", requests);
    return 0;
}
