/* A child that the C library did not make by fork(3), and its parent, write to one connection at
 * the same time. Each writes bytes of its own, which count. The other end checks that none is
 * missing.
 *
 * usage: cloned HOW [WHEN]      clone: clone(3) with a stack of its own
 *                               number: syscall(SYS_clone)
 *                               Fork: _Fork(3), or syscall(SYS_fork) where there is none
 *                               shares: clone(3) with the memory of its parent. It writes nothing
 *        cloned HOW WHEN HOST PORT FILE    the same with another end at that address; the two talk
 *                                          until there is such a file
 *        cloned listen HOW HOST PORT       is one, for a client with that HOW
 *
 * The other end is a thread, or with a WHEN a process:
 *     alone      the child writes after its parent has closed the connection
 *     handler    the child is made in a signal handler amid a write of its parent
 *     stopped    the other end is stopped, and bytes of it are unread on TCP and behind them on the
 *                lane. It cannot follow to TCP, so the child finds the connection reset, and its
 *                parent goes on
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* In 1,500 slow turns the connection moves to the fabric on a busy machine, too. */
enum { TALKS = 300, SLOW_TALKS = 1500, PIECE = 4096, OF_CHILD = 128 };

/* What the last piece of the talk begins with. */
static const char LAST[] = "last";

static long pieces = 20000;

static int connection, gate[2];
static int is_alone, is_in_handler, is_stopped, shares;
static const char *how;
static volatile sig_atomic_t made;
static unsigned char unread[2000];

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

static void writes(unsigned char who)
{
    unsigned char next = 0, piece[PIECE];
    for (long number = 0; number < pieces; number++) {
        for (int place = 0; place < PIECE; place++)
            piece[place] = who | (next++ & 127);
        for (size_t done = 0; done < sizeof piece;) {
            ssize_t more = write(connection, piece + done, sizeof piece - done);
            if (more <= 0)
                fail("write");
            done += more;
        }
    }
}

static void exactly(int from, void *into, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t more = read(from, (char *)into + done, count - done);
        if (more <= 0)
            fail("bytes are missing");
        done += more;
    }
}

static void *reads(void *listener)
{
    int from = accept(*(int *)listener, NULL, NULL);
    if (from < 0)
        fail("accept");
    char talk[10];
    size_t half = sizeof unread / 2;
    if (is_stopped && write(from, unread, half) != (ssize_t)half)
        fail("write");
    do {
        exactly(from, talk, sizeof talk);
        if (!is_stopped && write(from, talk, sizeof talk) != sizeof talk)
            fail("write");
    } while (memcmp(talk, LAST, sizeof LAST) != 0);
    if (is_stopped && (write(from, unread + half, half) != (ssize_t)half || raise(SIGSTOP)))
        fail("stop");
    unsigned char next[2] = { 0, 0 }, piece[PIECE];
    for (long left = (shares || is_stopped ? 1L : 2L) * pieces * PIECE; left > 0;) {
        ssize_t more = read(from, piece, sizeof piece);
        if (more <= 0)
            fail("bytes are missing");
        left -= more;
        for (ssize_t place = 0; place < more; place++) {
            int who = piece[place] >= OF_CHILD;
            if ((piece[place] & 127) != (next[who]++ & 127)) {
                fprintf(stderr, "a byte of %d is missing or doubled\n", who);
                _exit(1);
            }
        }
    }
    return NULL;
}

static int child(void *nothing)
{
    (void)nothing;
    char letter;
    if (shares)
        syscall(SYS_exit, 0);
    if (is_stopped) {
        if (read(connection, &letter, 1) != -1 || errno != ECONNRESET)
            fail("the child reads what is its parent's");
        _exit(0);
    }
    if (is_alone && (close(gate[1]) || read(gate[0], &letter, 1) != 0))
        fail("gate");
    writes(OF_CHILD);
    _exit(0);
}

static pid_t start(void)
{
    static char stack[1 << 18];
    if (shares)
        return clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (!strcmp(how, "clone"))
        return clone(child, stack + sizeof stack, SIGCHLD, NULL);
    pid_t (*just_fork)(void) = dlsym(RTLD_DEFAULT, "_Fork");
    pid_t one;
    if (!strcmp(how, "Fork") && just_fork)
        one = just_fork();
    else
        one = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (one == 0)
        child(NULL);
    return one;
}

static void handler(int number)
{
    (void)number;
    made = start();
}

/* Has `handler` called at the next tick or two of processor time, while this process computes or
 * writes: `writes` must not be done by then. */
static void start_soon(void)
{
    struct sigaction what = { .sa_handler = handler, .sa_flags = SA_RESTART };
    struct itimerval soon = { .it_value.tv_usec = 1000 };
    if (sigaction(SIGVTALRM, &what, NULL) || setitimer(ITIMER_VIRTUAL, &soon, NULL))
        fail("timer");
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    how = words[1];
    shares = !strcmp(how, "shares");
    const char *when = count > 2 ? words[2] : "";
    is_alone = !strcmp(when, "alone");
    is_in_handler = !strcmp(when, "handler");
    is_stopped = !strcmp(when, "stopped");
    int is_far = count > 4, listens = !strcmp(how, "listen");
    if (is_far && count != (listens ? 5 : 6))
        return 2;
    shares |= listens && !strcmp(when, "shares");
    int is_process = is_alone || is_in_handler || is_stopped;
    for (size_t place = 0; place < sizeof unread; place++)
        unread[place] = place % 251;
    alarm(200);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    if (is_far) {
        pieces = 2000;
        inet_pton(AF_INET, words[3], &at.sin_addr);
        at.sin_port = htons(atoi(words[4]));
    }
    int listener = is_far && !listens ? -1 : socket(AF_INET, SOCK_STREAM, 0);
    if (listener >= 0 && (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1)))
        fail("listen");
    if (listens) {
        puts("ready");
        fflush(stdout);
        reads(&listener);
        puts("all of them");
        return 0;
    }
    if (!is_far)
        getsockname(listener, (struct sockaddr *)&at, &size);
    pthread_t reader;
    pid_t other_end = is_process && !is_far ? fork() : 1;
    if (is_far)
        ;
    else if (!is_process)
        pthread_create(&reader, NULL, reads, &listener);
    else if (other_end == 0) {
        reads(&listener);
        exit(0);
    }
    if (pipe(gate))
        fail("pipe");
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&at, sizeof at))
        fail("connect");
    char talk[10] = "turn";
    int talks = is_stopped ? SLOW_TALKS : TALKS;
    for (int turn = 1, is_last = 0; !is_last; turn++) {
        is_last = is_far ? access(words[5], F_OK) == 0 : turn == talks;
        if (is_last)
            memcpy(talk, LAST, sizeof LAST);
        if (write(connection, talk, sizeof talk) != sizeof talk)
            fail("write");
        if (is_stopped)
            usleep(500);
        else
            exactly(connection, talk, sizeof talk);
        if (is_far)
            usleep(1000);
    }
    /* The reader is asleep by now, and holds nothing. */
    usleep(50000);
    int status;
    if (is_stopped && (waitpid(other_end, &status, WUNTRACED) != other_end || !WIFSTOPPED(status)))
        fail("stop");
    if (is_in_handler)
        start_soon();
    else
        made = start();
    if (is_stopped) {
        unsigned char got[sizeof unread];
        /* The child must be done with the connection while the other end is stopped. */
        if (waitpid(made, &status, 0) != made || status != 0 || kill(other_end, SIGCONT))
            fail("the child");
        exactly(connection, got, sizeof got);
        if (memcmp(got, unread, sizeof got) != 0)
            fail("other bytes");
    }
    writes(0);
    while (made == 0)
        ;
    if (made < 0)
        fail(how);
    if (is_alone && (close(connection) || close(gate[1])))
        fail("close");
    if (!is_stopped && (waitpid(made, &status, 0) != made || status != 0)) {
        fprintf(stderr, "the child ended with %x\n", status);
        return 1;
    }
    if (is_far)
        close(connection);
    else if (!is_process)
        pthread_join(reader, NULL);
    else if (waitpid(other_end, &status, 0) != other_end || status != 0) {
        fprintf(stderr, "the other end ended with %x\n", status);
        return 1;
    }
    puts("all of them");
    return 0;
}
