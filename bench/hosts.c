// One connection between two hosts: hosts serve PORT, hosts turns ADDRESS PORT BYTES COUNT PAUSE_US,
// hosts bulk ADDRESS PORT MEGABYTES. Turns prints the median round trip in microseconds, bulk the
// megabytes per second until the other end has all.

#include <arpa/inet.h>
#include <err.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES_MAX = 1 << 20 };

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void read_all(int fd, char *bytes, size_t length) {
    while (length > 0) {
        ssize_t got = read(fd, bytes, length);
        if (got <= 0) err(1, "read");
        bytes += got;
        length -= (size_t)got;
    }
}

static void write_all(int fd, const char *bytes, size_t length) {
    while (length > 0) {
        ssize_t put = write(fd, bytes, length);
        if (put <= 0) err(1, "write");
        bytes += put;
        length -= (size_t)put;
    }
}

static struct sockaddr_in address(const char *host, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) errx(1, "not an address: %s", host);
    return to;
}

// A connection begins with two numbers: the bytes of a turn, or 0 and the bytes of all.
static void serve_one(int fd) {
    uint64_t wish[2];
    char *bytes = malloc(BYTES_MAX);
    read_all(fd, (char *)wish, sizeof wish);
    if (wish[0] == 0) {
        for (uint64_t left = wish[1]; left > 0;) {
            ssize_t got = read(fd, bytes, BYTES_MAX);
            if (got <= 0) err(1, "read");
            left -= (uint64_t)got;
        }
        write_all(fd, "!", 1);
    } else {
        for (uint64_t turn = 0; turn < wish[1]; turn++) {
            read_all(fd, bytes, wish[0]);
            write_all(fd, bytes, wish[0]);
        }
    }
    free(bytes);
    close(fd);
}

static int compare(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

int main(int count, char **words) {
    int one = 1;
    if (count == 3 && strcmp(words[1], "serve") == 0) {
        struct sockaddr_in own = address("0.0.0.0", words[2]);
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, 8)) err(1, "listen");
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) err(1, "accept");
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            serve_one(fd);
        }
    }
    if (count < 5) errx(2, "see the first lines of this program");
    struct sockaddr_in to = address(words[2], words[3]);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) err(1, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char *bytes = calloc(1, BYTES_MAX);
    if (strcmp(words[1], "bulk") == 0) {
        uint64_t all = strtoull(words[4], NULL, 10) << 20, wish[2] = {0, all};
        write_all(fd, (char *)wish, sizeof wish);
        double start = now_us();
        for (uint64_t sent = 0; sent < all; sent += BYTES_MAX) write_all(fd, bytes, BYTES_MAX);
        read_all(fd, bytes, 1);
        printf("%.2f\n", (double)all / (now_us() - start));
        return 0;
    }
    uint64_t length = strtoull(words[4], NULL, 10), turns = strtoull(words[5], NULL, 10);
    // The first quarter moves the connection, and is not counted.
    uint64_t first = turns / 4, wish[2] = {length, turns + first};
    double *times = calloc(turns, sizeof *times);
    write_all(fd, (char *)wish, sizeof wish);
    for (uint64_t turn = 0; turn < turns + first; turn++) {
        if (atoi(words[6]) > 0) usleep((useconds_t)atoi(words[6]));
        double start = now_us();
        write_all(fd, bytes, length);
        read_all(fd, bytes, length);
        if (turn >= first) times[turn - first] = now_us() - start;
    }
    qsort(times, turns, sizeof *times, compare);
    printf("%.2f %.2f\n", times[turns / 2], times[turns * 99 / 100]);
    return 0;
}
