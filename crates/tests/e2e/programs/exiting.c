/* Programs that end while their threads read, write and wait on TCP connections. Until the last
 * instruction no thread may see its connection end. The other end must read all bytes and then an
 * orderly end. Prints FAILED with the reason, or the number of clients.
 *
 * The server is one process with a thread for each connection. Clients run one after the other,
 * each with several connections, and end in one of four ways. One of them is to become another
 * program, which inherits the connections and whatever lock of theirs a thread held then.
 *
 * usage: exiting                           both, in one family of processes
 *        exiting server ADDRESS PORT CLIENTS
 *        exiting clients ADDRESS PORT CLIENTS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 6, EXCHANGES = 20, FAREWELL = 5000 };

static struct sockaddr_in address = {.sin_family = AF_INET};
static int ends[CONNECTIONS], clients = 60;

static void fail(const char *what, long number)
{
    printf("FAILED: %s %ld, errno %d\n", what, number, errno);
    fflush(stdout);
    _exit(3);
}

/* Echoes the exchanges, then counts the bytes until the end. */
static void *serve(void *argument)
{
    int fd = (int)(long)argument;
    char bytes[4096];
    for (int i = 0; i < EXCHANGES; i++)
        if (recv(fd, bytes, 1, 0) != 1 || send(fd, bytes, 1, 0) != 1)
            fail("an exchange in the server", i);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        fail("epoll", set);
    long total = 0, got;
    do {
        if (fd % 2 && epoll_wait(set, &event, 1, -1) != 1)
            fail("epoll_wait", 0);
        got = recv(fd, bytes, sizeof bytes, 0);
        total += got;
    } while (got > 0);
    if (got < 0)
        fail("no orderly end after", total);
    struct pollfd look = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&look, 1, 0) != 1 || look.revents != (POLLIN | POLLRDHUP))
        fail("an orderly end, and poll says", look.revents);
    if (epoll_wait(set, &event, 1, 0) != 1 || event.events != (EPOLLIN | EPOLLRDHUP))
        fail("an orderly end, and epoll says", event.events);
    int error = -1;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) || error)
        fail("an orderly end, and SO_ERROR says", error);
    if (total < FAREWELL)
        fail("bytes are missing; received", total);
    close(set);
    close(fd);
    return NULL;
}

static void *reads(void *argument)
{
    char byte;
    long got = recv(ends[(long)argument], &byte, 1, 0);
    fail("a reader was told", got);
    return NULL;
}

static void *waits(void *argument)
{
    struct pollfd look = {.fd = ends[(long)argument], .events = POLLIN | POLLRDHUP};
    poll(&look, 1, -1);
    fail("a waiting thread was told", look.revents);
    return NULL;
}

static void *writes(void *argument)
{
    for (;;) {
        long sent = send(ends[(long)argument], "more", 4, 0);
        if (sent != 4)
            fail("a writer was told", sent);
    }
    return NULL;
}

static void client(int number)
{
    void *(*const work[])(void *) = {reads, waits, writes};
    char farewell[FAREWELL] = {0};
    for (int i = 0; i < CONNECTIONS; i++) {
        ends[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(ends[i], (struct sockaddr *)&address, sizeof address))
            fail("connect", i);
        for (int j = 0; j < EXCHANGES; j++) {
            char byte = (char)j;
            if (send(ends[i], &byte, 1, 0) != 1 || recv(ends[i], &byte, 1, 0) != 1)
                fail("an exchange in the client", j);
        }
    }
    for (long i = 0; i < CONNECTIONS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work[i % 3], (void *)i))
            fail("pthread_create", i);
    }
    usleep((useconds_t)(number * 37 % 2000));
    for (int i = 0; i < CONNECTIONS; i++)
        if (send(ends[i], farewell, sizeof farewell, 0) != sizeof farewell)
            fail("a farewell", i);
    if (number % 4 == 0)
        _exit(0);
    if (number % 4 == 1)
        exit(0);
    if (number % 4 == 2) {
        execl("/proc/self/exe", "exiting", "at once", NULL);
        fail("exec", number);
    }
}

static void serves(int listener)
{
    pthread_t threads[CONNECTIONS];
    for (int i = 0; i < clients; i++) {
        for (long j = 0; j < CONNECTIONS; j++) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0 || pthread_create(&threads[j], NULL, serve, (void *)(long)fd))
                fail("accept", fd);
        }
        for (int j = 0; j < CONNECTIONS; j++)
            pthread_join(threads[j], NULL);
    }
    exit(0);
}

static void starts_clients(void)
{
    for (int i = 0; i < clients; i++) {
        int status, child = fork();
        if (child == 0) {
            client(i);
            exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0)
            fail("a client ended with status", status);
    }
}

int main(int count, char **words)
{
    if (count == 2)
        return 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (count == 5) {
        address.sin_port = htons((unsigned short)atoi(words[3]));
        clients = atoi(words[4]);
        if (inet_pton(AF_INET, words[2], &address.sin_addr) != 1)
            fail("no address", count);
    }
    if (count < 5 || strcmp(words[1], "clients") != 0) {
        socklen_t length = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
            fail("listen", 0);
        getsockname(listener, (struct sockaddr *)&address, &length);
        if (count == 5) {
            puts("ready");
            fflush(stdout);
            serves(listener);
        }
        int server = fork();
        if (server == 0)
            serves(listener);
        close(listener);
        starts_clients();
        int status;
        if (waitpid(server, &status, 0) != server || status != 0)
            fail("the server ended with status", status);
    } else {
        starts_clients();
    }
    printf("%d clients ended\n", clients);
    return 0;
}
