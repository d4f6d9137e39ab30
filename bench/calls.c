/* Calls on one connection, marked for callgrind: `calls COUNT` makes COUNT of each and dumps, by
 * its name, how many instructions the process executed in them. The connection is one of the
 * process with itself: the data is there before each receive, so no call waits. A wait takes as
 * many instructions as the other end takes time. The last rows are those of a process with a
 * second thread, which sleeps. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

/* Calls before those that count: the connection reaches the fabric, memory is there. */
enum { WARM = 2000, BLOCK = 1 << 16 };

static char memory[BLOCK];
static int from, to, set;

static void fail(const char *call) {
    perror(call);
    exit(1);
}

static void sends(size_t bytes) {
    if (send(from, memory, bytes, 0) != (ssize_t)bytes)
        fail("send");
}

static void receives(size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t part = recv(to, memory, bytes - done, 0);
        if (part <= 0)
            fail("recv");
        done += part;
    }
}

static void polls(size_t bytes) {
    struct pollfd one = {.fd = to, .events = POLLIN};
    (void)bytes;
    if (poll(&one, 1, 1000) != 1)
        fail("poll");
}

static void waits(size_t bytes) {
    struct epoll_event one;
    (void)bytes;
    if (epoll_wait(set, &one, 1, 1000) != 1)
        fail("epoll_wait");
}

static void nothing(size_t bytes) { (void)bytes; }

/* Sends, asks whether that can be read, and receives; the instructions of `counted` count. */
static void measure(const char *name, void (*counted)(size_t), size_t bytes, int count) {
    void (*const all[])(size_t) = {nothing, sends, counted == waits ? waits : polls, receives};
    CALLGRIND_ZERO_STATS;
    for (int i = 0; i < count; i++)
        for (unsigned call = 0; call < sizeof all / sizeof *all; call++) {
            if (all[call] == counted)
                CALLGRIND_TOGGLE_COLLECT;
            all[call](bytes);
            if (all[call] == counted)
                CALLGRIND_TOGGLE_COLLECT;
        }
    CALLGRIND_DUMP_STATS_AT(name);
}

static void *sleeps(void *unused) {
    pause();
    return unused;
}

static void connect_to_itself(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen");
    from = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(from, (void *)&address, length))
        fail("connect");
    to = accept(listener, NULL, NULL);
    if (to < 0 || setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
        fail("accept");
}

int main(int argc, char **argv) {
    int count = argc == 2 ? atoi(argv[1]) : 0;
    if (count < 1) {
        fputs("usage: calls COUNT\n", stderr);
        return 2;
    }
    connect_to_itself();
    for (int i = 0; i < WARM; i++)
        for (size_t bytes = 8; bytes <= BLOCK; bytes *= BLOCK / 8)
            sends(bytes), polls(bytes), receives(bytes);
    measure("nothing", nothing, 8, count);
    measure("send 8 B", sends, 8, count);
    measure("recv 8 B", receives, 8, count);
    measure("poll, readable", polls, 8, count);
    measure("send 64 KiB", sends, BLOCK, count);
    measure("recv 64 KiB", receives, BLOCK, count);
    struct epoll_event readable = {.events = EPOLLIN};
    set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, to, &readable))
        fail("epoll");
    measure("epoll_wait, readable", waits, 8, count);
    close(set);
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeps, NULL))
        fail("pthread_create");
    measure("send 8 B, with threads", sends, 8, count);
    measure("recv 8 B, with threads", receives, 8, count);
    return 0;
}
