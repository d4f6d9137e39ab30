/* A reader whose peer sends a message every 3 ms, then none for a while, and is then killed.
 *
 * Another thread looks in /proc how the reader waits. Prints how many messages came, how often the
 * reader was seen in futex(2), and how often in a call on the socket during the long pause. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 300, EVERY_US = 3000, PAUSE_US = 300000, LOOK_US = 200 };

static int connection;
static atomic_int reader, messages, over;

static void fail(const char *call) {
    perror(call);
    exit(1);
}

static void exchange(int fd) {
    char message[8] = "message";
    if (send(fd, message, sizeof message, 0) != sizeof message ||
        recv(fd, message, sizeof message, MSG_WAITALL) != sizeof message)
        fail("exchange");
}

static void sends(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)address, sizeof *address))
        fail("connect");
    for (int i = 0; i < MESSAGES; i++) {
        usleep(EVERY_US);
        exchange(fd);
    }
    usleep(PAUSE_US);
    exchange(fd);
    /* The reader naps by now. */
    usleep(EVERY_US / 2);
    kill(getpid(), SIGKILL);
}

static void *reads(void *unused) {
    char message[8];
    reader = syscall(SYS_gettid);
    while (recv(connection, message, sizeof message, MSG_WAITALL) == sizeof message) {
        messages++;
        if (send(connection, message, sizeof message, 0) != sizeof message)
            fail("send");
    }
    over = 1;
    return unused;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), naps = 0, sleeps = 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (!child)
        sends(&address);
    connection = accept(listener, NULL, NULL);
    pthread_t thread;
    if (connection < 0 || pthread_create(&thread, NULL, reads, NULL))
        fail("accept");
    while (!over) {
        char path[64], text[64] = "";
        usleep(LOOK_US);
        if (!reader)
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", reader);
        int file = open(path, O_RDONLY);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0) {
            naps += strtol(text, NULL, 10) == SYS_futex;
            sleeps += strtol(text, NULL, 10) == SYS_recvfrom && messages == MESSAGES;
        }
        close(file);
    }
    pthread_join(thread, NULL);
    waitpid(child, NULL, 0);
    printf("%d messages, %d naps, %d sleeps\n", messages, naps, sleeps);
    return 0;
}
