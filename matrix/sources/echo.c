/* The echo programs in C, to be linked statically; see echo_client.py for the protocol.
 *
 * usage: echo server PORT | client PORT
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char block[4000000], got[4000000];

static int all(int fd, char *bytes, size_t length, int writes) {
    for (size_t done = 0; done < length;) {
        ssize_t count =
            writes ? write(fd, bytes + done, length - done) : read(fd, bytes + done, length - done);
        if (count <= 0) return 0;
        done += (size_t)count;
    }
    return 1;
}

/* The length in front of a block, or -1 at the end. */
static long head(int fd) {
    long length = 0;
    char digit;
    for (;;) {
        if (!all(fd, &digit, 1, 0)) return -1;
        if (digit == '\n') return length;
        length = length * 10 + (digit - '0');
    }
}

static int serve(int listener) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) return 4;
        if (fork() == 0) {
            for (long length; (length = head(fd)) >= 0;) {
                if (length > (long)sizeof block || !all(fd, block, (size_t)length, 0)) _exit(5);
                if (!all(fd, block, (size_t)length, 1)) _exit(6);
            }
            _exit(0);
        }
        close(fd);
    }
}

static int talk(int fd) {
    const size_t sizes[] = {1, 3000, 70000, 1500000, 17, 4000000};
    unsigned seed = 1;
    for (size_t turn = 0; turn < sizeof sizes / sizeof *sizes; turn++) {
        char line[32];
        size_t size = sizes[turn];
        for (size_t place = 0; place < size; place++) {
            seed = seed * 1664525 + 1013904223;
            block[place] = (char)(seed >> 24);
        }
        int length = snprintf(line, sizeof line, "%zu\n", size);
        if (!all(fd, line, (size_t)length, 1) || !all(fd, block, size, 1)) return 7;
        if (!all(fd, got, size, 0)) return 8;
        if (memcmp(block, got, size) != 0) return 9;
    }
    shutdown(fd, SHUT_WR);
    if (read(fd, got, 1) != 0) return 10;
    puts("the same bytes came back");
    return 0;
}

int main(int count, char **words) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (count != 3 || fd < 0) return 2;
    address.sin_port = htons((unsigned short)atoi(words[2]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (strcmp(words[1], "server") == 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) return 3;
        return listen(fd, 64) != 0 ? 3 : serve(fd);
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) return 3;
    return talk(fd);
}
