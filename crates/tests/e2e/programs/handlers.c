/* A signal handler writes on a connection for which its thread waits. The thread sleeps in recv,
 * and the handler sends the question whose answer ends the recv. Another process answers.
 *
 * The first questions go over TCP. Under weft the later ones go over the fabric, so the connection
 * moves in between. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { QUESTIONS = 400 };

static int connection = -1;
static volatile sig_atomic_t asked, answered;

static void fail(const char *what)
{
    printf("FAILED: %s, %d asked, %d answered\n", what, (int)asked, (int)answered);
    exit(1);
}

static void ask(int signal)
{
    (void)signal;
    /* One question at a time, so that a lost answer is noticed. */
    if (asked == answered && asked < QUESTIONS) {
        unsigned char question = (unsigned char)asked++;
        if (write(connection, &question, 1) != 1)
            asked--;
    }
}

static void does_nothing(int signal)
{
    (void)signal;
}

static void answer(int socket)
{
    unsigned char byte;
    while (recv(socket, &byte, 1, 0) == 1) {
        byte ^= 0x55;
        if (send(socket, &byte, 1, 0) != 1)
            exit(1);
    }
    exit(0);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    if (fork() == 0) {
        int accepted = accept(listener, NULL, NULL);
        close(listener);
        answer(accepted);
    }
    close(listener);
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    /* Another signal, also during the handler, does nothing but interrupt every wait. */
    struct sigaction nothing = {.sa_handler = does_nothing, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &nothing, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec oftener = {{0, 700000}, {0, 700000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &oftener, NULL))
        fail("timer");
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (answered < QUESTIONS) {
        unsigned char byte;
        if (recv(connection, &byte, 1, 0) != 1)
            fail("recv");
        if (byte != (unsigned char)((unsigned char)answered ^ 0x55))
            fail("another byte than the answer");
        answered++;
    }
    signal(SIGALRM, SIG_IGN);
    close(connection);
    int status;
    if (wait(&status) < 0 || status != 0)
        fail("the other process");
    printf("all %d answered\n", QUESTIONS);
    return 0;
}
