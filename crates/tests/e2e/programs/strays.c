/* Bytes written past the library, straight to the kernel's socket of a connection that has moved to
 * the fabric. Readers, waiters and writers at the other end must see a reset, whether the bytes
 * look like bells or not, and whether their writer lives or is killed. Prints FAILED with the
 * reason, or the number of reset connections. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXCHANGES = 40 };

static struct sockaddr_in address = {.sin_family = AF_INET};

static void fail(const char *what, long number)
{
    printf("FAILED: %s %ld, errno %d\n", what, number, errno);
    fflush(stdout);
    _exit(3);
}

/* write(2) without the library. */
static long write_past_the_library(long fd, const void *bytes, long length)
{
#if defined __x86_64__
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_write), "D"(fd), "S"(bytes), "d"(length)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long x8 __asm__("x8") = SYS_write;
    register long x0 __asm__("x0") = fd;
    register const void *x1 __asm__("x1") = bytes;
    register long x2 __asm__("x2") = length;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
#error "no system call of this processor is known here"
#endif
}

static void read_by_poll(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&look, 1, -1) != 1 || !(look.revents & POLLIN))
        fail("poll says", look.revents);
}

static void read_by_select(int fd)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (select(fd + 1, &set, NULL, NULL, NULL) != 1 || !FD_ISSET(fd, &set))
        fail("select", fd);
}

static void read_by_epoll(int fd, unsigned how)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | how};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl", set);
    if (epoll_wait(set, &event, 1, -1) != 1 || !(event.events & EPOLLIN))
        fail("epoll says", event.events);
    close(set);
}

static void write_much(int fd)
{
    static char bytes[1 << 16];
    long sent;
    do {
        sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    } while (sent > 0);
    if (sent != -1 || errno != ECONNRESET)
        fail("a writer was told", sent);
}

enum way { READ, POLL, SELECT, EPOLL, EPOLL_EDGES, WRITE, WAYS };

static void serve(int fd, enum way way)
{
    char byte;
    for (int i = 0; i < EXCHANGES; i++)
        if (recv(fd, &byte, 1, 0) != 1 || send(fd, &byte, 1, 0) != 1)
            fail("an exchange in the server", i);
    switch (way) {
    case POLL: read_by_poll(fd); break;
    case SELECT: read_by_select(fd); break;
    case EPOLL: read_by_epoll(fd, 0); break;
    case EPOLL_EDGES: read_by_epoll(fd, EPOLLET); break;
    case WRITE: write_much(fd); break;
    default: break;
    }
    if (way != WRITE) {
        long got = recv(fd, &byte, 1, 0);
        if (got != -1 || errno != ECONNRESET)
            fail("a reader was told", got);
    }
    if (recv(fd, &byte, 1, 0) != 0)
        fail("a reset was told twice", way);
    close(fd);
}

static void client(const void *bytes, long length, int dies)
{
    char byte = 'x';
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("connect", fd);
    for (int i = 0; i < EXCHANGES; i++)
        if (send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1)
            fail("an exchange in the client", i);
        else
            usleep(500);
    /* Usually the server sleeps by now; the result must be the same if it does not. */
    usleep(30000);
    if (write_past_the_library(fd, bytes, length) != length)
        fail("write", length);
    if (dies)
        kill(getpid(), SIGKILL);
    char rest[1 << 16];
    long got;
    do {
        /* Reads slowly, so that the writer sleeps from time to time. */
        usleep(1000);
        got = recv(fd, rest, sizeof rest, 0);
    } while (got > 0);
    if (got != -1 || errno != ECONNRESET)
        fail("the one whose socket it was is told", got);
}

int main(void)
{
    static const char zeros[40];
    const struct {
        const void *bytes;
        long length;
    } strays[] = {{"x", 1}, {"\0 and more", 10}, {zeros, 1}, {zeros, 5}, {zeros, sizeof zeros}};
    enum { STRAYS = sizeof strays / sizeof *strays };
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
        fail("listen", 0);
    getsockname(listener, (struct sockaddr *)&address, &length);
    int server = fork();
    if (server == 0) {
        for (int i = 0; i < WAYS * STRAYS * 2; i++) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0)
                fail("accept", fd);
            serve(fd, i / (STRAYS * 2));
        }
        exit(0);
    }
    close(listener);
    for (int i = 0; i < WAYS * STRAYS * 2; i++) {
        int status, dies = i % 2, child = fork();
        if (child == 0) {
            client(strays[i / 2 % STRAYS].bytes, strays[i / 2 % STRAYS].length, dies);
            exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != (dies ? SIGKILL : 0))
            fail("a client ended with status", status);
    }
    int status;
    if (waitpid(server, &status, 0) != server || status != 0)
        fail("the server ended with status", status);
    printf("%d connections were reset\n", WAYS * STRAYS * 2);
    return 0;
}
