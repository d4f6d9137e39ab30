// Large blocking writes, whose reader may take them from the writer's memory.
//
//   blocks SEED ROUNDS
//
// Each round is a connection between two processes. The writer's calls are interrupted by signals
// and end at timeouts; what is behind its count it writes again. The reader reads, peeks, polls and
// waits for all of it, in sizes from a byte to more than a lane holds. In three rounds of four it
// does not come to the end: the writer is killed, or the reader, or a thread of the writer becomes
// another program that has the connection, too. The other gets whole bytes, then an end or an error.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK_MAX = 1 << 20, TOTAL = 24 << 20, GREETINGS = 16 };

static uint64_t state;
static uint64_t received;

static uint64_t number(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static unsigned char byte_at(uint64_t place) {
    return (unsigned char)((place * 0x9e3779b97f4a7c15u) >> 56);
}

static void fail(const char *what) {
    fprintf(stderr, "blocks: %s after %llu bytes: %s\n", what, (unsigned long long)received,
            strerror(errno));
    exit(1);
}

static void ignore(int signal) { (void)signal; }

static void greet(int fd, int first) {
    char one = 'g';
    for (int turn = 0; turn < GREETINGS; turn++)
        for (int way = 0; way < 2; way++) {
            ssize_t moved = way == first ? send(fd, &one, 1, 0) : recv(fd, &one, 1, 0);
            if (moved != 1) fail("a greeting failed");
        }
}

static void write_all(int fd, int may_break) {
    struct sigaction quiet = {.sa_handler = ignore};
    sigaction(SIGALRM, &quiet, NULL);
    struct itimerval often = {{0, 400}, {0, 400}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    struct timeval limit = {0, 3000};
    if (number(2)) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    static unsigned char block[BLOCK_MAX];
    uint64_t sent = 0;
    while (sent < TOTAL) {
        size_t size = 1 + number(number(2) ? BLOCK_MAX : 64 << 10);
        if (size > TOTAL - sent) size = TOTAL - sent;
        for (size_t index = 0; index < size; index++) block[index] = byte_at(sent + index);
        ssize_t moved = send(fd, block, size, MSG_NOSIGNAL);
        // Whoever reads the block after the call reads this.
        memset(block, 0xee, size);
        if (moved > 0) {
            sent += (uint64_t)moved;
        } else if (errno != EINTR && errno != EAGAIN) {
            setitimer(ITIMER_REAL, &never, NULL);
            if (may_break && (errno == EPIPE || errno == ECONNRESET)) return;
            fail("send");
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
}

static void *become_another(void *pause_us) {
    usleep((useconds_t)(uintptr_t)pause_us);
    execl("/proc/self/exe", "blocks", "wait", NULL);
    fail("execl");
    return NULL;
}

static void check(const unsigned char *bytes, size_t size) {
    for (size_t index = 0; index < size; index++)
        if (bytes[index] != byte_at(received + index)) {
            received += index;
            errno = 0;
            fail("a wrong byte");
        }
}

static void read_all(int fd, int may_break) {
    static unsigned char target[BLOCK_MAX];
    for (;;) {
        static const size_t sizes[] = {1, 100, 5000, 70 << 10, BLOCK_MAX};
        // Seldom the small ones, which make the writer offer no more.
        size_t size = 1 + number(sizes[number(40) ? 3 + number(2) : number(3)]);
        int flags = 0;
        switch (number(5)) {
        case 0: flags = MSG_WAITALL; break;
        case 1: flags = MSG_PEEK; break;
        case 2: {
            struct pollfd one = {fd, POLLIN, 0};
            if (poll(&one, 1, 1000) < 0) fail("poll");
            flags = MSG_DONTWAIT;
        }
        }
        ssize_t moved = recv(fd, target, size, flags);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (moved < 0 && may_break && errno == ECONNRESET) return;
        if (moved < 0) fail("recv");
        if (moved == 0) break;
        check(target, (size_t)moved);
        if (flags != MSG_PEEK) received += (uint64_t)moved;
    }
    if (!may_break && received != TOTAL) fail("an early end");
}

static void one_round(int round) {
    int killed = round % 4; // nobody, the writer, the reader; the writer becomes another program
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1)
        || getsockname(listener, (void *)&address, &length))
        fail("listen");
    int writes_here = killed == 2;
    uint64_t pause_us = number(30000);
    received = 0;
    pid_t child = fork();
    if (child == 0) {
        close(listener);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address)) fail("connect");
        greet(fd, 0);
        pthread_t thread;
        void *pause = (void *)(uintptr_t)pause_us;
        if (killed == 3 && pthread_create(&thread, NULL, become_another, pause)) fail("a thread");
        if (writes_here) read_all(fd, 0);
        else write_all(fd, 0);
        close(fd);
        exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) fail("accept");
    close(listener);
    greet(fd, 1);
    pid_t killer = 0;
    if ((killed == 1 || killed == 2) && (killer = fork()) == 0) {
        close(fd);
        usleep((useconds_t)pause_us);
        kill(child, SIGKILL);
        _exit(0);
    }
    if (writes_here) write_all(fd, 1);
    else read_all(fd, killed & 1);
    close(fd);
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (!WIFSIGNALED(status) && status != 0) fail("the other process failed");
    if (killer && waitpid(killer, &status, 0) != killer) fail("waitpid");
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "wait")) {
        usleep(50000);
        return 0;
    }
    if (count != 3) {
        fprintf(stderr, "usage: blocks SEED ROUNDS\n");
        return 2;
    }
    state = strtoull(words[1], NULL, 10) * 2 + 1;
    int rounds = atoi(words[2]);
    for (int round = 0; round < rounds; round++) one_round(round);
    printf("%d connections\n", rounds);
    return 0;
}
