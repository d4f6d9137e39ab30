/* A signal handler uses a connection that is in an epoll set, while its thread is in calls of that
 * set. The connection may come to a lane in the handler, where the set is locked by the thread: the
 * set has to find the lane by itself, and to report what comes there.
 *
 * usage: moved_in_a_handler ROUNDS
 *
 * Each round has a new connection to an echo. A timer's handler exchanges bytes on it; then the
 * thread waits for ten more answers with epoll_wait. A byte that lies there unreported fails.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_US 700
#define IN_HANDLER 40
#define IN_WAITS 10
#define LIMIT_S 10.0

/* Shared with the handler. */
static volatile int connection = -1, is_asked, left_in_handler;
static int listener;
static struct sockaddr_in address = {.sin_family = AF_INET};

static void fail(const char *what)
{
    fprintf(stderr, "moved_in_a_handler: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *echo(void *argument)
{
    int fd = (int)(long)argument;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, MSG_NOSIGNAL) == 1) {
    }
    close(fd);
    return NULL;
}

/* One byte is on its way at a time. The first answers are for the handler. */
static void on_timer(int signal)
{
    (void)signal;
    int before = errno;
    char byte;
    if (connection >= 0 && left_in_handler > 0 && is_asked
        && recv(connection, &byte, 1, MSG_DONTWAIT) == 1) {
        is_asked = 0;
        left_in_handler--;
    } else if (connection >= 0 && !is_asked) {
        is_asked = 1;
        send(connection, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    errno = before;
}

/* At an address of its own, so that earlier connections say nothing of it. */
static int new_connection(void)
{
    socklen_t length = sizeof address;
    sigset_t timer;
    /* The timer interrupts none of these calls, and never the echo, which inherits the mask. */
    sigemptyset(&timer);
    sigaddset(&timer, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &timer, NULL);
    close(listener);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_port = 0;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)
        || getsockname(listener, (void *)&address, &length))
        fail("listen");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, sizeof address))
        fail("connect");
    int accepted = accept(listener, NULL, NULL);
    pthread_t thread;
    if (accepted < 0 || pthread_create(&thread, NULL, echo, (void *)(long)accepted))
        fail("accept");
    pthread_detach(thread);
    pthread_sigmask(SIG_UNBLOCK, &timer, NULL);
    return fd;
}

static void add(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl");
}

static void round_of(int set)
{
    struct epoll_event events[8];
    char byte;
    int fd = new_connection(), got = 0, left = IN_HANDLER;
    add(set, fd);
    is_asked = 0;
    left_in_handler = IN_HANDLER;
    connection = fd;
    for (double last = now(); got < IN_WAITS;) {
        int count = epoll_wait(set, events, 8, 100);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd != fd || left_in_handler > 0)
                continue;
            if (recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
                continue;
            got++;
            last = now();
            is_asked = 0;
        }
        if (left_in_handler != left) {
            left = left_in_handler;
            last = now();
        }
        if (now() - last > LIMIT_S) {
            connection = -1;
            errno = ETIMEDOUT;
            fail(recv(fd, &byte, 1, MSG_DONTWAIT) == 1 ? "epoll_wait does not tell of a byte"
                                                       : "no answer");
        }
    }
    connection = -1;
    close(fd);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    struct sigaction action = {.sa_handler = on_timer};
    struct itimerval timer = {{0, PERIOD_US}, {0, PERIOD_US}};
    char byte;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    int set = epoll_create1(0);
    /* A connection that is on its lane already, so that the set is the library's. */
    int other = new_connection();
    for (int i = 0; i < 200; i++) {
        if (send(other, "y", 1, 0) != 1 || recv(other, &byte, 1, 0) != 1)
            fail("first connection");
    }
    add(set, other);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < rounds; i++)
        round_of(set);
    printf("%d rounds\n", rounds);
    return 0;
}
