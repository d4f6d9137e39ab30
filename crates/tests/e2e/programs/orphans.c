/* A server whose children are killed: it accepts connections, forks a child, gives the connections
 * up, and kills the child. In the end it has done so with more connections than one process can
 * have, and still has room for one more.
 *
 * usage: orphans BATCHES      of 500 connections each
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 500 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

int main(int count, char **words)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 4 * BATCH ? limit.rlim_max : 4 * BATCH;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, BATCH))
        fail("listen");
    getsockname(listener, (struct sockaddr *)&at, &size);
    struct linger at_once = { 1, 0 };
    for (int batch = count == 2 ? atoi(words[1]) : 0; batch > 0; batch--) {
        int ends[2 * BATCH];
        for (int one = 0; one < BATCH; one++) {
            ends[2 * one] = socket(AF_INET, SOCK_STREAM, 0);
            /* No port waits for the next connection from it. */
            setsockopt(ends[2 * one], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            if (connect(ends[2 * one], (struct sockaddr *)&at, sizeof at))
                fail("connect");
            ends[2 * one + 1] = accept(listener, NULL, NULL);
            if (ends[2 * one + 1] < 0)
                fail("accept");
        }
        int ready[2];
        if (pipe(ready))
            fail("pipe");
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            if (write(ready[1], "r", 1) == 1)
                pause();
            _exit(1);
        }
        char letter;
        if (read(ready[0], &letter, 1) != 1)
            fail("the child");
        close(ready[0]);
        close(ready[1]);
        for (int one = 0; one < 2 * BATCH; one++)
            close(ends[one]);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    puts("still here");
    return 0;
}
