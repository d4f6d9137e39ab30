/* Signal handlers write on a connection during their thread's own writes and reads, and one leaves
 * by siglongjmp. No call may fail with EAGAIN, and no byte may be lost or doubled.
 *
 * Words of 8 bytes go to the other process and come back. Words of the program are numbered; all
 * words of the handler are the same. Prints FAILED with the reason, or the number of words. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 150000, BATCH = 50, INTERRUPTIONS = 300 };

static const uint64_t BY_HANDLER = ~UINT64_C(0);
static int connection = -1;
static volatile sig_atomic_t written_by_handler;
static sigjmp_buf again;

static void fail(const char *what, long number)
{
    printf("FAILED: %s %ld, errno %d\n", what, number, errno);
    fflush(stdout);
    _exit(3);
}

static void writes(int signal, siginfo_t *info, void *context)
{
    int before = errno;
    if (info->si_signo != signal || info->si_code != SI_KERNEL || !context)
        fail("the kernel told the handler", info->si_code);
    long written = write(connection, &BY_HANDLER, sizeof BY_HANDLER);
    if (written != sizeof BY_HANDLER)
        fail("a write in a handler", written);
    written_by_handler++;
    errno = before;
}

static void leaves(int signal)
{
    (void)signal;
    siglongjmp(again, 1);
}

static void every(long microseconds)
{
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &often, NULL);
}

static uint64_t next_word(void)
{
    uint64_t word;
    char *place = (char *)&word;
    for (size_t got = 0; got < sizeof word;) {
        long part = recv(connection, place + got, sizeof word - got, 0);
        if (part <= 0)
            fail("recv", part);
        got += (size_t)part;
    }
    return word;
}

static void echo(int socket)
{
    char bytes[4096];
    long got;
    while ((got = recv(socket, bytes, sizeof bytes, 0)) > 0)
        for (long sent = 0, part; sent < got; sent += part)
            if ((part = send(socket, bytes + sent, (size_t)(got - sent), 0)) <= 0)
                exit(1);
    exit(got == 0 ? 0 : 1);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        fail("listen", 0);
    getsockname(listener, (struct sockaddr *)&address, &length);
    if (fork() == 0) {
        int accepted = accept(listener, NULL, NULL);
        close(listener);
        echo(accepted);
    }
    close(listener);
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address))
        fail("connect", 0);

    struct sigaction action = {.sa_sigaction = writes, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(SIGALRM, &action, NULL);
    every(50);
    long seen = 0;
    for (uint64_t number = 0; number < WORDS; number += BATCH) {
        for (uint64_t word = number; word < number + BATCH; word++)
            if (write(connection, &word, sizeof word) != sizeof word)
                fail("a write of the program", (long)word);
        for (uint64_t wanted = number; wanted < number + BATCH;) {
            uint64_t word = next_word();
            if (word == BY_HANDLER)
                seen++;
            else if (word != wanted++)
                fail("another word than was written", (long)word);
        }
    }
    every(0);
    while (seen < written_by_handler) {
        if (next_word() != BY_HANDLER)
            fail("a word too many", seen);
        seen++;
    }
    if (written_by_handler < 100)
        fail("the handler wrote few words", written_by_handler);

    /* The handler leaves the call. A byte of the answer may be lost with it, but no lock is
     * held. */
    struct sigaction leave = {.sa_handler = leaves, .sa_flags = SA_NODEFER};
    sigaction(SIGALRM, &leave, NULL);
    volatile int interruptions = 0;
    if (sigsetjmp(again, 1))
        interruptions++;
    if (interruptions < INTERRUPTIONS) {
        every(70);
        for (;;) {
            uint64_t word = 1;
            send(connection, &word, sizeof word, MSG_DONTWAIT);
            recv(connection, &word, sizeof word, MSG_DONTWAIT);
        }
    }
    every(0);
    signal(SIGALRM, SIG_IGN);
    shutdown(connection, SHUT_WR);
    char rest[4096];
    long got;
    while ((got = recv(connection, rest, sizeof rest, 0)) > 0)
        ;
    if (got < 0)
        fail("the end", got);
    close(connection);
    int status;
    if (wait(&status) < 0 || status != 0)
        fail("the other process", status);
    printf("%d words came back\n", WORDS);
    return 0;
}
