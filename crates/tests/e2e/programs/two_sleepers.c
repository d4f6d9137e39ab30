/* Two threads, or a thread and a child process, that sleep for one connection, each in its own way.
 * One reads the requests; the other sleeps and never reads. A request that the reader does not hear
 * of within some seconds fails.
 *
 * usage: two_sleepers REQUESTS [PAIR]
 *
 * Prints a line for each pair of ways, "idle beside reading". Answers go over a pipe, so that the
 * connection carries requests alone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

#define LIMIT_MS 6000
#define WARM 40

static int connection, answers[2], requests;

static void fail(const char *what)
{
    fprintf(stderr, "two_sleepers (%d): %s: %s\n", (int)getpid(), what, strerror(errno));
    exit(1);
}

static int set_with(uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = connection};
    int set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, connection, &event))
        fail("epoll_ctl");
    return set;
}

static int set_of(int inner)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = inner};
    int set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, inner, &event))
        fail("epoll_ctl of a set");
    return set;
}

/* Ways to sleep beside the reader. */

/* Events that come all the same are slept over: the reader is about to take the bytes. */
static void rest(void)
{
    usleep(100);
}

static void sleeps_in(int set)
{
    struct epoll_event event;
    while (epoll_wait(set, &event, 1, -1) >= 0 || errno == EINTR)
        rest();
    fail("epoll_wait");
}

static void idle_spent(void)
{
    sleeps_in(set_with(EPOLLIN | EPOLLONESHOT));
}

static void idle_nothing(void)
{
    sleeps_in(set_with(0));
}

static void idle_end(void)
{
    sleeps_in(set_with(EPOLLRDHUP));
}

static void idle_room(void)
{
    sleeps_in(set_with(EPOLLOUT | EPOLLET));
}

static void idle_edge(void)
{
    sleeps_in(set_with(EPOLLIN | EPOLLET));
}

static void idle_level(void)
{
    sleeps_in(set_with(EPOLLIN));
}

static void idle_exclusive(void)
{
    sleeps_in(set_with(EPOLLIN | EPOLLEXCLUSIVE | EPOLLET));
}

static void idle_nested(void)
{
    sleeps_in(set_of(set_with(EPOLLIN | EPOLLET)));
}

static void idle_nested_spent(void)
{
    sleeps_in(set_of(set_with(EPOLLIN | EPOLLONESHOT)));
}

/* As Erlang's: armed again and again, for one event each. */
static void idle_once(void)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT}, seen;
    int set = set_with(event.events);
    while (epoll_wait(set, &seen, 1, -1) == 1) {
        rest();
        if (epoll_ctl(set, EPOLL_CTL_MOD, connection, &event))
            fail("epoll_ctl again");
    }
    fail("epoll_wait for one event");
}

static void polls(short events)
{
    struct pollfd one = {.fd = connection, .events = events};
    while (poll(&one, 1, -1) >= 0)
        rest();
    fail("poll");
}

static void idle_poll_nothing(void)
{
    polls(0);
}

static void idle_poll_end(void)
{
    polls(POLLRDHUP);
}

static void idle_poll(void)
{
    polls(POLLIN);
}

static void idle_select(void)
{
    for (;;) {
        fd_set exceptions;
        FD_ZERO(&exceptions);
        FD_SET(connection, &exceptions);
        if (select(connection + 1, NULL, NULL, &exceptions, NULL) < 0)
            fail("select");
        rest();
    }
}

/* Fills the connection, which the peer does not read, and sleeps until there is room. */
static void idle_send(void)
{
    static char bytes[1 << 16];
    while (send(connection, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        ;
    pause();
}

/* Ways to wait for a request. */

static int read_set;

static void wait_in_set(void)
{
    struct epoll_event event;
    if (epoll_wait(read_set, &event, 1, -1) != 1)
        fail("epoll_wait of the reader");
}

static void begin_level(void)
{
    read_set = set_with(EPOLLIN);
}

static void begin_edge(void)
{
    read_set = set_with(EPOLLIN | EPOLLET);
}

static void begin_once(void)
{
    read_set = set_with(EPOLLIN | EPOLLONESHOT);
}

static void begin_exclusive(void)
{
    read_set = set_with(EPOLLIN | EPOLLEXCLUSIVE);
}

static void begin_nested(void)
{
    read_set = set_of(set_with(EPOLLIN));
}

static void wait_once(void)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    wait_in_set();
    if (epoll_ctl(read_set, EPOLL_CTL_MOD, connection, &event))
        fail("epoll_ctl of the reader");
}

static void wait_poll(void)
{
    struct pollfd one = {.fd = connection, .events = POLLIN};
    if (poll(&one, 1, -1) != 1)
        fail("poll of the reader");
}

static void wait_select(void)
{
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(connection, &reads);
    if (select(connection + 1, &reads, NULL, NULL, NULL) != 1)
        fail("select of the reader");
}

static void begin_none(void)
{
}

static void wait_none(void)
{
}

static const struct {
    const char *name;
    void (*sleep)(void);
} idlers[] = {
    {"spent", idle_spent},
    {"nothing", idle_nothing},
    {"end", idle_end},
    {"room", idle_room},
    {"edge", idle_edge},
    {"level", idle_level},
    {"exclusive", idle_exclusive},
    {"nested", idle_nested},
    {"nested-spent", idle_nested_spent},
    {"once", idle_once},
    {"poll", idle_poll},
    {"poll-nothing", idle_poll_nothing},
    {"poll-end", idle_poll_end},
    {"select", idle_select},
    {"send", idle_send},
};

static const struct {
    const char *name;
    void (*begin)(void);
    void (*wait)(void);
} readers[] = {
    {"recv", begin_none, wait_none},      {"poll", begin_none, wait_poll},
    {"select", begin_none, wait_select},  {"level", begin_level, wait_in_set},
    {"edge", begin_edge, wait_in_set},    {"once", begin_once, wait_once},
    {"exclusive", begin_exclusive, wait_in_set}, {"nested", begin_nested, wait_in_set},
};

#define IDLERS (sizeof idlers / sizeof *idlers)
#define READERS (sizeof readers / sizeof *readers)

static void *idles(void *number)
{
    idlers[(size_t)number].sleep();
    return NULL;
}

/* Reads what is there, and answers each request. True at the end of the connection. */
static int take(int flags)
{
    char bytes[4096];
    ssize_t size = recv(connection, bytes, sizeof bytes, flags);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    /* The peer closes with bytes unread. */
    if (size < 0 && errno == ECONNRESET)
        return 1;
    if (size < 0)
        fail("recv of a request");
    for (ssize_t at = 0; at < size; at++)
        if (write(answers[1], "a", 1) != 1)
            fail("write of an answer");
    return size == 0;
}

static void serve(size_t idler, size_t reader, int by_process)
{
    pthread_t thread;
    pid_t child = 0;
    for (int i = 0; i < WARM; i++)
        take(0);
    readers[reader].begin();
    if (by_process) {
        child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            idles((void *)idler);
        }
    } else if (pthread_create(&thread, NULL, idles, (void *)idler)) {
        fail("pthread_create");
    }
    while (readers[reader].wait(), !take(readers[reader].wait == wait_none ? 0 : MSG_DONTWAIT))
        ;
    if (child > 0)
        kill(child, SIGKILL);
    _exit(0);
}

static void request(int peer, int number, int to_first)
{
    struct pollfd one = {.fd = answers[0], .events = POLLIN};
    char byte;
    if (send(peer, "r", 1, MSG_NOSIGNAL) != 1)
        fail("send of a request");
    if (poll(&one, 1, LIMIT_MS) != 1) {
        printf(to_first ? "hung while warm at %d\n" : "hung at %d\n", number);
        exit(1);
    }
    if (read(answers[0], &byte, 1) != 1)
        fail("read of an answer");
}

static int listener(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address->sin_port = 0;
    if (fd < 0 || bind(fd, (struct sockaddr *)address, size) || listen(fd, 8) ||
        getsockname(fd, (struct sockaddr *)address, &size))
        fail("listen");
    return fd;
}

static void pair(size_t idler, size_t reader, int by_process)
{
    struct sockaddr_in address = {0};
    uint64_t seed = 1 + idler * READERS + reader;
    int at = listener(&address);
    if (pipe(answers))
        fail("pipe");
    pid_t server = fork();
    if (server == 0) {
        close(answers[0]);
        connection = accept(at, NULL, NULL);
        if (connection < 0)
            fail("accept");
        serve(idler, reader, by_process);
    }
    close(answers[1]);
    close(at);
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    if (peer < 0 || connect(peer, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    printf("%zu %s beside %s%s: ", (by_process * IDLERS + idler) * READERS + reader, idlers[idler].name, readers[reader].name,
           by_process ? " of another process" : "");
    fflush(stdout);
    for (int i = 0; i < WARM; i++)
        request(peer, i, 1);
    usleep(2000);
    for (int i = 0; i < requests; i++) {
        request(peer, i, 0);
        if (i % 4)
            usleep(next(&seed) % 300);
    }
    shutdown(peer, SHUT_RDWR);
    close(peer);
    close(answers[0]);
    int status;
    if (waitpid(server, &status, 0) != server || status)
        fail("the reader failed");
    printf("right\n");
    fflush(stdout);
}

int main(int count, char **words)
{
    requests = count > 1 ? atoi(words[1]) : 100;
    int only = count > 2 ? atoi(words[2]) : -1, number = 0;
    signal(SIGPIPE, SIG_IGN);
    for (int by_process = 0; by_process < 2; by_process++)
        for (size_t idler = 0; idler < IDLERS; idler++)
            for (size_t reader = 0; reader < READERS; reader++)
                if (number++ == only || only < 0)
                    pair(idler, reader, by_process);
    return 0;
}
