/* Threads that are cancelled while they sleep in a call on a TCP connection, in each call that is a
 * cancellation point of POSIX. Prints a line for each call; the last line reports success.
 *
 * Both ends are in this process, so that under weft the connection is on the fabric after the first
 * exchanges. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int ends[2];
static int pipes[2];
static int cleaned;
static char bytes[1 << 16];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void must(int holds, const char *what)
{
    if (!holds) {
        printf("FAILED: %s\n", what);
        exit(1);
    }
}

static void connect_ends(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, sizeof address))
        die("connect");
    ends[1] = accept(listener, NULL, NULL);
    if (ends[1] < 0)
        die("accept");
    close(listener);
    if (pipe(pipes))
        die("pipe");
}

/* Sends bytes both ways and compares them. */
static void exchange(int rounds)
{
    static unsigned char next;
    for (int round = 0; round < rounds; round++) {
        for (int from = 0; from < 2; from++) {
            unsigned char sent = next++, got = 0;
            must(write(ends[from], &sent, 1) == 1, "write");
            must(read(ends[!from], &got, 1) == 1, "read");
            must(got == sent, "the byte is the one that was sent");
        }
    }
}

static void in_read(void) { read(ends[0], bytes, 1); }
static void in_recv_all(void) { recv(ends[0], bytes, sizeof bytes, MSG_WAITALL); }
static void in_recvmsg(void)
{
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    recvmsg(ends[0], &message, 0);
}
static void in_readv(void)
{
    struct iovec parts[20];
    for (int i = 0; i < 20; i++)
        parts[i] = (struct iovec){bytes + i, 1};
    readv(ends[0], parts, 20);
}
static void in_write(void)
{
    for (;;)
        write(ends[0], bytes, sizeof bytes);
}
static void in_poll(void)
{
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    poll(&one, 1, -1);
}
static void in_select(void)
{
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends[0], &reads);
    select(ends[0] + 1, &reads, NULL, NULL, NULL);
}
static void in_epoll(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
    epoll_wait(set, &event, 1, -1);
}
static void in_pipe(void) { read(pipes[0], bytes, 1); }

static void clean(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *run(void *call)
{
    pthread_cleanup_push(clean, NULL);
    ((void (*)(void))call)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void nap(int ms)
{
    struct timespec time = {0, ms * 1000000L};
    nanosleep(&time, NULL);
}

static void join_cancelled(pthread_t thread, const char *name)
{
    struct timespec limit;
    void *ended;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 5;
    must(pthread_timedjoin_np(thread, &ended, &limit) == 0, name);
    must(ended == PTHREAD_CANCELED, "the thread ended by being cancelled");
}

static void cancelled_in(const char *name, void (*call)(void), int delay)
{
    pthread_t thread;
    int before = cleaned;
    must(pthread_create(&thread, NULL, run, (void *)call) == 0, "pthread_create");
    if (delay)
        nap(delay);
    must(pthread_cancel(thread) == 0, "pthread_cancel");
    join_cancelled(thread, name);
    must(delay == 0 || cleaned == before + 1, "the cleanup handler ran once");
    if (call == in_write) {
        /* Takes the bytes that were written before the cancellation. */
        while (recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    }
    exchange(3);
    if (delay)
        printf("%s: cancelled\n", name);
}

static void *disabled(void *unused)
{
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    must(recv(ends[0], bytes, 2, MSG_WAITALL) == 2, "a call with cancellation disabled goes on");
    must(bytes[0] == 'a' && bytes[1] == 'b', "with the bytes that were sent");
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    must(poll(&one, 1, 200) == 0, "and waits out its time");
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    read(ends[0], bytes, 1);
    must(0, "the next call ends the thread");
    return NULL;
}

static void cancelled_when_enabled(void)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, disabled, NULL) == 0, "pthread_create");
    nap(20);
    pthread_cancel(thread);
    nap(20);
    must(write(ends[1], "a", 1) == 1, "write");
    nap(20);
    must(write(ends[1], "b", 1) == 1, "write");
    join_cancelled(thread, "disabled");
    exchange(3);
    printf("disabled: cancelled when it was enabled\n");
}

static void *survivor(void *unused)
{
    (void)unused;
    must(read(ends[0], bytes, 1) == 1, "another thread's cancellation is nothing to this one");
    return NULL;
}

static void others_go_on(void)
{
    pthread_t thread, other;
    must(pthread_create(&thread, NULL, survivor, NULL) == 0, "pthread_create");
    must(pthread_create(&other, NULL, run, (void *)in_pipe) == 0, "pthread_create");
    nap(20);
    pthread_cancel(other);
    join_cancelled(other, "other");
    must(write(ends[1], "x", 1) == 1, "write");
    must(pthread_join(thread, NULL) == 0, "join");
    exchange(3);
    printf("another thread: went on\n");
}

int main(void)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {
        {"read", in_read},     {"recv", in_recv_all}, {"recvmsg", in_recvmsg},
        {"readv", in_readv},   {"write", in_write},   {"poll", in_poll},
        {"select", in_select}, {"epoll_wait", in_epoll}, {"read of a pipe", in_pipe},
    };
    const int count = sizeof calls / sizeof *calls;
    connect_ends();
    exchange(200);
    for (int i = 0; i < count; i++)
        cancelled_in(calls[i].name, calls[i].call, 20);
    /* Without a delay, so that the cancellation arrives at any moment of the call. */
    for (int i = 0; i < 50 * count; i++)
        cancelled_in(calls[i % count].name, calls[i % count].call, 0);
    cancelled_when_enabled();
    others_go_on();
    printf("all of them\n");
    return 0;
}
