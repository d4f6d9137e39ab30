/* Connections that live for so many bytes: `server PORT` serves until it is killed,
 * `client PORT up|down BYTES REPLY COUNT` makes COUNT of them one after another and prints how many
 * a second. REPLY is 1 when the end that took the bytes answers with one. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct request {
    uint64_t bytes;
    uint32_t up, reply;
};

static char memory[1 << 17];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Writes or reads so many bytes; stops at an end. */
static uint64_t move(int fd, uint64_t bytes, int writes) {
    uint64_t done = 0;
    while (done < bytes) {
        size_t most = bytes - done < sizeof memory ? bytes - done : sizeof memory;
        ssize_t moved = writes ? write(fd, memory, most) : read(fd, memory, most);
        if (moved < 0)
            fail(writes ? "write" : "read");
        if (moved == 0)
            break;
        done += moved;
    }
    return done;
}

static struct sockaddr_in at(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void serve(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = at(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 128))
        fail("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        struct request request;
        if (fd >= 0 && read(fd, &request, sizeof request) == sizeof request) {
            move(fd, request.bytes, !request.up);
            if (request.reply)
                move(fd, 1, request.up);
        }
        close(fd);
    }
}

static void once(int port, struct request request) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = at(port);
    char end;
    if (connect(fd, (void *)&address, sizeof address))
        fail("connect");
    if (write(fd, &request, sizeof request) != sizeof request)
        fail("request");
    if (move(fd, request.bytes, request.up) != request.bytes)
        fail("too few bytes");
    if (request.reply && move(fd, 1, !request.up) != 1)
        fail("no reply");
    /* The next one begins when the server is done with this one. */
    shutdown(fd, SHUT_WR);
    while (read(fd, &end, 1) > 0)
        ;
    close(fd);
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    /* Else all of it is one page of the kernel's. */
    memset(memory, 7, sizeof memory);
    if (count == 3)
        serve(atoi(words[2]));
    if (count != 7)
        return 2;
    struct request request = {.bytes = strtoull(words[4], NULL, 10)};
    request.up = !strcmp(words[3], "up");
    request.reply = atoi(words[5]);
    int times = atoi(words[6]), port = atoi(words[2]);
    struct timespec begin, end;
    /* The first ones teach the library, and are not measured. */
    for (int i = 0; i < 3 && i < times; i++)
        once(port, request);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < times; i++)
        once(port, request);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("%.3f\n", times / seconds);
    return 0;
}
