/* More connections than may be on the fabric at a time; they take turns.
 *
 * usage: leases SEED CONNECTIONS REQUESTS
 *
 * A child connects to its parent and sends requests of random sizes; each comes back unchanged. The
 * child makes some requests on one connection, then some on another, and waits for answers in every
 * way. Each thread of the parent waits for requests in its own way, with all of its connections in
 * one set. From time to time the child forks a process that ends at once. No wait may be long.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

#define THREADS 5
#define CONNECTIONS_MAX 64
#define SIZE_MAX_ 40000
#define PATIENCE_S 60

static int connections, requests;
static int sockets[CONNECTIONS_MAX];

static void fail(const char *what)
{
    fprintf(stderr, "leases (%d): %s: %s\n", (int)getpid(), what, strerror(errno));
    exit(1);
}

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0)
            fail("send");
        bytes += sent;
        size -= (size_t)sent;
    }
}

/* Sends the received bytes back; 0 at the end of the stream. */
static int echo(int fd, int until_empty)
{
    char bytes[16384];
    for (;;) {
        ssize_t size = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (size == 0)
            return 0;
        if (size < 0 && errno == EAGAIN)
            return 1;
        if (size < 0)
            fail("recv of a request");
        write_all(fd, bytes, (size_t)size);
        if (!until_empty)
            return 1;
    }
}

enum { LEVEL, EDGE, ONCE, EXCLUSIVE, POLL };

static int mine(long thread, int *found)
{
    int count = 0;
    for (int i = 0; i < connections; i++)
        if (i % THREADS == thread)
            found[count++] = sockets[i];
    return count;
}

static void serve_by_poll(struct pollfd *list, int left)
{
    int count = left;
    while (left > 0) {
        int ready = poll(list, (nfds_t)count, PATIENCE_S * 1000);
        if (ready <= 0)
            fail("no request came (poll)");
        for (int i = 0; i < count; i++) {
            if (list[i].fd >= 0 && list[i].revents && !echo(list[i].fd, 0)) {
                list[i].fd = -1;
                left--;
            }
        }
    }
}

static void *serve(void *argument)
{
    long how = (long)argument;
    int list[CONNECTIONS_MAX];
    int left = mine(how, list);
    if (how == POLL) {
        struct pollfd polled[CONNECTIONS_MAX];
        for (int i = 0; i < left; i++)
            polled[i] = (struct pollfd){.fd = list[i], .events = POLLIN};
        serve_by_poll(polled, left);
        return NULL;
    }
    const uint32_t flags[] = {EPOLLIN, EPOLLIN | EPOLLOUT | EPOLLET, EPOLLIN | EPOLLONESHOT,
                              EPOLLIN | EPOLLEXCLUSIVE};
    int set = epoll_create1(0);
    for (int i = 0; i < left; i++) {
        struct epoll_event event = {.events = flags[how], .data.fd = list[i]};
        if (epoll_ctl(set, EPOLL_CTL_ADD, list[i], &event))
            fail("epoll_ctl");
    }
    while (left > 0) {
        struct epoll_event events[8];
        int count = epoll_wait(set, events, 8, PATIENCE_S * 1000);
        if (count <= 0)
            fail("no request came (epoll)");
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                continue;
            if (!echo(fd, how == EDGE)) {
                left--;
                epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
            } else if (how == ONCE) {
                struct epoll_event event = {.events = flags[how], .data.fd = fd};
                if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event))
                    fail("epoll_ctl again");
            }
        }
    }
    return NULL;
}

/* Returns when the connection is readable. */
static void await(int fd, int set, uint64_t how)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    struct epoll_event event;
    fd_set reads;
    switch (how % 4) {
    case 0:
        break;
    case 1:
        if (poll(&one, 1, PATIENCE_S * 1000) != 1)
            fail("no answer came (poll)");
        break;
    case 2:
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        if (select(fd + 1, &reads, NULL, NULL, &patience) != 1)
            fail("no answer came (select)");
        break;
    case 3:
        if (epoll_wait(set, &event, 1, PATIENCE_S * 1000) != 1)
            fail("no answer came (epoll)");
    }
}

/* The child holds all connections, too, until it ends. */
static void fork_and_end(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        fail("fork");
}

struct work {
    pthread_t thread;
    long number;
    uint64_t seed;
};

static void *ask(void *argument)
{
    struct work *work = argument;
    uint64_t *seed = &work->seed;
    int list[CONNECTIONS_MAX], sets[CONNECTIONS_MAX];
    int count = mine(work->number, list);
    char *question = malloc(SIZE_MAX_), *answer = malloc(SIZE_MAX_);
    for (int i = 0; i < count; i++) {
        struct timeval patience = {.tv_sec = PATIENCE_S};
        setsockopt(list[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = list[i]};
        sets[i] = epoll_create1(0);
        if (epoll_ctl(sets[i], EPOLL_CTL_ADD, list[i], &event))
            fail("epoll_ctl of a client");
    }
    for (int done = 0; done < requests;) {
        int which = (int)(next(seed) % (uint64_t)count);
        int burst = 1 + (int)(next(seed) % 40);
        if (next(seed) % 4 == 0)
            usleep((useconds_t)(next(seed) % 3000));
        if (next(seed) % 16 == 0)
            fork_and_end();
        for (; burst > 0 && done < requests; burst--, done++) {
            static const size_t sizes[] = {8, 100, 1000, SIZE_MAX_};
            size_t size = 1 + next(seed) % sizes[next(seed) % 4];
            for (size_t i = 0; i < size; i++)
                question[i] = (char)(1 + (done * 31 + (long)i * 7 + work->number) % 251);
            write_all(list[which], question, size);
            for (size_t got = 0; got < size;) {
                await(list[which], sets[which], next(seed));
                ssize_t more = recv(list[which], answer + got, size - got, 0);
                if (more <= 0)
                    fail("recv of an answer");
                got += (size_t)more;
            }
            if (memcmp(question, answer, size)) {
                fprintf(stderr, "leases: answer %d of thread %ld is another\n", done,
                        work->number);
                exit(1);
            }
        }
    }
    for (int i = 0; i < count; i++)
        close(list[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4 || atoi(argv[2]) < THREADS || atoi(argv[2]) > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: leases SEED CONNECTIONS(%d..%d) REQUESTS\n", THREADS,
                CONNECTIONS_MAX);
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 10);
    connections = atoi(argv[2]);
    requests = atoi(argv[3]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64)
        || getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listen");
    pid_t child = fork();
    for (int i = 0; i < connections; i++) {
        if (child == 0) {
            sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(sockets[i], (struct sockaddr *)&address, length))
                fail("connect");
        } else {
            sockets[i] = accept(listener, NULL, NULL);
            if (sockets[i] < 0)
                fail("accept");
        }
        int one = 1;
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    close(listener);
    struct work work[THREADS];
    for (long i = 0; i < THREADS; i++) {
        work[i] = (struct work){.number = i, .seed = seed * THREADS + (uint64_t)i};
        void *(*run)(void *) = child == 0 ? ask : serve;
        pthread_create(&work[i].thread, NULL, run, child == 0 ? (void *)&work[i] : (void *)i);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(work[i].thread, NULL);
    if (child == 0)
        return 0;
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child");
    printf("%d requests on %d connections\n", requests * THREADS, connections);
    return 0;
}
