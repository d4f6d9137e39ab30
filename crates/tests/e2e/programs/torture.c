/* Random calls on TCP connections, compared byte by byte with a model of the sent bytes.
 *
 * usage: torture SEED KILOBYTES PAIRS [together]
 *
 * Each pair is one connection between two processes. With "together" both ends are in this process,
 * without children and signals. Each end has a thread that writes and a thread that reads, each
 * with its own descriptor. Every call, flag, size, wait and pause is drawn from the seed. These
 * rules must hold on kernel TCP and under weft:
 *
 * - bytes arrive once and in order, and the end arrives after all of them;
 * - a blocking write takes all bytes, and no call takes more than it was given;
 * - after poll, select or epoll report readable, a read returns at once; after writable, a byte can
 *   be written at once; FIONREAD counts bytes that can be read;
 * - calls fail only with EAGAIN when they may not wait, or with EINTR.
 *
 * A child that is forked in the middle continues in place of its parent. No standstill is allowed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE_MAX_CALL 300000
#define STANDSTILL_SECONDS 20

/* One direction of a connection, shared by both processes. */
struct stream {
    atomic_ulong sent, received, calls;
    /* The offset and the length of the last write. */
    atomic_ulong began, given;
    uint64_t total;
};

/* The state of one thread. */
struct side {
    uint64_t random;
    struct stream *stream;
    int number, fd, writes, forks, leaves, waited, pipe[2], epoll;
    unsigned char *buffer, *expected;
};

static uint64_t seed;
/* Both ends of all connections are in this process. */
static int together;

static _Noreturn void fail(struct side *side, const char *what, long value) {
    static const char *const ways[] = {"poll", "select", "epoll"};
    fprintf(stderr, "torture: seed %lu, stream %d, %s, waited by %s: %s (%ld, errno %d %s), sent %lu received %lu of %lu\n",
            (unsigned long)seed, side->number, side->writes ? "writer" : "reader", ways[side->waited], what, value, errno,
            strerror(errno), (unsigned long)side->stream->sent, (unsigned long)side->stream->received,
            (unsigned long)side->stream->total);
    kill(0, SIGTERM);
    _exit(1);
}

static uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

static unsigned long pick(struct side *side, unsigned long end) {
    side->random = mix(side->random);
    return side->random % end;
}

/* The bytes of direction `number` from `offset` on. */
static void pattern(int number, uint64_t offset, unsigned char *out, size_t length) {
    for (size_t place = 0; place < length; place++) {
        uint64_t at = offset + place;
        uint64_t word = mix((at >> 3) * 31 + (uint64_t)number);
        out[place] = (unsigned char)(word >> (at & 7) * 8);
    }
}

static size_t size_of_call(struct side *side) {
    static const size_t largest[] = {1, 8, 100, 600, 5000, 40000, SIZE_MAX_CALL};
    return 1 + pick(side, largest[pick(side, 7)]);
}

/* Waits in one of the three ways, whose result is checked by the caller; returns whether ready. */
static int wait_for(struct side *side, int milliseconds) {
    short wanted = side->writes ? POLLOUT : POLLIN;
    int ready = 0;
    side->waited = (int)pick(side, 3);
    switch (side->waited) {
    case 0: {
        struct pollfd entry = {.fd = side->fd, .events = wanted};
        ready = poll(&entry, 1, milliseconds) > 0 && entry.revents & wanted;
        break;
    }
    case 1: {
        fd_set set;
        FD_ZERO(&set);
        if (side->fd >= FD_SETSIZE) return 0;
        FD_SET(side->fd, &set);
        struct timeval time = {milliseconds / 1000, milliseconds % 1000 * 1000};
        fd_set *reads = side->writes ? NULL : &set, *writes = side->writes ? &set : NULL;
        ready = select(side->fd + 1, reads, writes, NULL, &time) > 0;
        break;
    }
    default: {
        uint32_t event = side->writes ? EPOLLOUT : EPOLLIN;
        if (pick(side, 2)) event |= EPOLLET;
        struct epoll_event entry = {.events = event};
        if (epoll_ctl(side->epoll, EPOLL_CTL_ADD, side->fd, &entry) < 0) fail(side, "epoll_ctl", 0);
        int count = epoll_wait(side->epoll, &entry, 1, milliseconds);
        ready = count > 0 && entry.events & (side->writes ? EPOLLOUT : EPOLLIN);
        if (epoll_ctl(side->epoll, EPOLL_CTL_DEL, side->fd, NULL) < 0) fail(side, "epoll_ctl", 1);
    }
    }
    return ready;
}

static void pause_now_and_then(struct side *side) {
    unsigned long chance = pick(side, 2000);
    if (chance < 40) usleep(pick(side, 2000));
    if (chance == 1999) usleep(150000);
}

/* Cuts a buffer into up to 4 parts; returns the number of parts. */
static int cut(struct side *side, unsigned char *buffer, size_t length, struct iovec *parts) {
    int count = 1 + (int)pick(side, 4);
    size_t done = 0;
    for (int index = 0; index < count; index++) {
        size_t size = index == count - 1 ? length - done : pick(side, length - done + 1);
        parts[index] = (struct iovec){buffer + done, size};
        done += size;
    }
    return count;
}

static ssize_t write_once(struct side *side, size_t length, int *waits) {
    int fd = side->fd, flags = pick(side, 4) == 0 ? MSG_DONTWAIT : 0;
    if (pick(side, 4) == 0) flags |= MSG_MORE;
    flags |= MSG_NOSIGNAL;
    struct iovec parts[4];
    struct msghdr header = {.msg_iov = parts};
    *waits = 1;
    switch (pick(side, side->leaves ? 10 : 8)) {
    case 0: return write(fd, side->buffer, length);
    case 1: *waits = !(flags & MSG_DONTWAIT); return send(fd, side->buffer, length, flags);
    case 2: *waits = !(flags & MSG_DONTWAIT); return sendto(fd, side->buffer, length, flags, NULL, 0);
    case 3: return writev(fd, parts, cut(side, side->buffer, length, parts));
    case 4:
        *waits = !(flags & MSG_DONTWAIT);
        header.msg_iovlen = (size_t)cut(side, side->buffer, length, parts);
        return sendmsg(fd, &header, flags);
    case 5: {
        /* One message: after a short message the kernel would still send the next one. */
        struct mmsghdr message = {.msg_hdr = {.msg_iov = parts}};
        message.msg_hdr.msg_iovlen = (size_t)cut(side, side->buffer, length, parts);
        int count = sendmmsg(fd, &message, 1, MSG_NOSIGNAL);
        return count <= 0 ? count : (ssize_t)message.msg_len;
    }
    case 6: return pwritev2(fd, parts, cut(side, side->buffer, length, parts), -1, 0);
    case 7: {
        /* A new file each time: the kernel sends its pages later. */
        off_t offset = 0;
        int scratch = memfd_create("torture", 0);
        if (pwrite(scratch, side->buffer, length, 0) != (ssize_t)length) fail(side, "scratch", 0);
        ssize_t sent = sendfile(fd, scratch, &offset, length);
        if (sent >= 0 && offset != sent) fail(side, "sendfile's offset", (long)offset);
        int error = errno;
        close(scratch);
        errno = error;
        *waits = 0;
        return sent;
    }
    case 8: {
        if (length > 4096) length = 4096;
        if (write(side->pipe[1], side->buffer, length) != (ssize_t)length) fail(side, "pipe", 0);
        size_t done = 0;
        while (done < length) {
            ssize_t moved = splice(side->pipe[0], NULL, fd, NULL, length - done, 0);
            if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
                wait_for(side, 10);
                continue;
            }
            if (moved <= 0) fail(side, "splice", moved);
            done += (size_t)moved;
        }
        *waits = 0;
        return (ssize_t)length;
    }
    default: *waits = !(flags & MSG_DONTWAIT); return send(fd, side->buffer, length, flags | MSG_EOR);
    }
}

static void check(struct side *side, size_t length, const char *call) {
    uint64_t offset = side->stream->received;
    if (offset + length > side->stream->total) fail(side, "more than was sent", (long)length);
    pattern(side->number, offset, side->expected, length);
    if (memcmp(side->buffer, side->expected, length) != 0) {
        size_t at = 0;
        while (side->buffer[at] == side->expected[at]) at++;
        for (size_t place = at; place < at + 16 && place < length; place++)
            fprintf(stderr, "%02x for %02x%s", side->buffer[place], side->expected[place], place == at + 15 ? "\n" : ", ");
        fprintf(stderr, "of %zu bytes, from %zu on; the last call that wrote was given %lu from %lu on\n", length, at,
                (unsigned long)side->stream->given, (unsigned long)side->stream->began);
        fail(side, call, (long)at);
    }
}

static ssize_t read_once(struct side *side, size_t length, int *waits, int *unseen) {
    int fd = side->fd, flags = pick(side, 4) == 0 ? MSG_DONTWAIT : 0;
    struct iovec parts[4];
    struct msghdr header = {.msg_iov = parts};
    *waits = !(flags & MSG_DONTWAIT);
    *unseen = 0;
    switch (pick(side, 9)) {
    case 0: *waits = 1; return read(fd, side->buffer, length);
    case 1: return recv(fd, side->buffer, length, flags);
    case 2: return recvfrom(fd, side->buffer, length, flags, NULL, NULL);
    case 3: *waits = 1; return readv(fd, parts, cut(side, side->buffer, length, parts));
    case 4:
        header.msg_iovlen = (size_t)cut(side, side->buffer, length, parts);
        return recvmsg(fd, &header, flags);
    case 5: *waits = 1; return preadv2(fd, parts, cut(side, side->buffer, length, parts), -1, 0);
    case 6: {
        /* Peeks first: the same bytes must follow, and no fewer. */
        ssize_t seen = recv(fd, side->buffer, length, flags | MSG_PEEK);
        if (seen <= 0) return seen;
        check(side, (size_t)seen, "other bytes at a look");
        ssize_t got = recv(fd, side->buffer, (size_t)seen, MSG_DONTWAIT);
        if (got != seen) fail(side, "fewer bytes than were seen", got);
        return got;
    }
    case 7:
        if (length > 20000) length = 20000;
        *unseen = 1;
        return recv(fd, side->buffer, length, flags | MSG_TRUNC);
    default: {
        if (length > 4096) length = 4096;
        ssize_t moved = splice(fd, NULL, side->pipe[1], NULL, length, flags ? SPLICE_F_NONBLOCK : 0);
        if (moved > 0 && read(side->pipe[0], side->buffer, (size_t)moved) != moved) fail(side, "pipe", moved);
        return moved;
    }
    }
}

/* Passes the descriptor to this process itself, with the unread bytes behind it. Passing may be
 * refused when the peer makes no call on the connection, for example because it has ended. */
static void pass_on(struct side *side) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *message = CMSG_FIRSTHDR(&header);
    *message = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(message), &side->fd, sizeof(int));
    int ways[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ways) < 0) fail(side, "socketpair", 0);
    ssize_t sent;
    while ((sent = sendmsg(ways[0], &header, 0)) < 0 && errno == EINTR) {}
    if (sent < 0 && errno != EOPNOTSUPP) fail(side, "passing", sent);
    if (sent == 1) {
        while ((sent = recvmsg(ways[1], &header, 0)) < 0 && errno == EINTR) {}
        if (sent != 1 || !(message = CMSG_FIRSTHDR(&header))) fail(side, "taking what was passed", sent);
        close(side->fd);
        memcpy(&side->fd, CMSG_DATA(message), sizeof(int));
    }
    close(ways[0]);
    close(ways[1]);
}

/* Makes one call and checks the rules; 0 when the direction has ended. */
static int step(struct side *side) {
    struct stream *stream = side->stream;
    pause_now_and_then(side);
    stream->calls++;
    if (pick(side, 50) == 0) {
        int flags = fcntl(side->fd, F_GETFL);
        fcntl(side->fd, F_SETFL, flags ^ O_NONBLOCK);
    }
    if (pick(side, 200) == 0) {
        int copy = pick(side, 2) ? dup(side->fd) : fcntl(side->fd, F_DUPFD_CLOEXEC, 100);
        if (copy < 0) fail(side, "dup", copy);
        close(side->fd);
        side->fd = copy;
    }
    /* Only readers pass: while another thread passes the connection, bytes that are sent again are
     * missing for a moment. */
    if (side->leaves && !side->writes && pick(side, 100) == 0) pass_on(side);
    size_t length = size_of_call(side);
    int waits, unseen = 0;
    if (side->writes) {
        if (stream->sent == stream->total) return 0;
        if (length > stream->total - stream->sent) length = stream->total - stream->sent;
        pattern(side->number, stream->sent, side->buffer, length);
        stream->began = stream->sent;
        stream->given = length;
        if (pick(side, 3) == 0 && wait_for(side, (int)pick(side, 50))) {
            ssize_t one = send(side->fd, side->buffer, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (one != 1 && errno != EINTR) fail(side, "writable takes nothing", one);
            if (one == 1) stream->sent++;
            return 1;
        }
        ssize_t sent = write_once(side, length, &waits);
        if (sent > (ssize_t)length) fail(side, "more was taken than given", sent);
        if (sent < 0 && errno == EAGAIN) {
            wait_for(side, 20);
        } else if (sent < 0 && errno != EINTR) {
            fail(side, "writing", sent);
        } else if (sent >= 0) {
            stream->sent += (uint64_t)sent;
        }
        (void)waits;
        return 1;
    }
    int must = 0;
    if (pick(side, 3) == 0) must = wait_for(side, (int)pick(side, 50));
    int there = 0;
    if (pick(side, 10) == 0 && ioctl(side->fd, FIONREAD, &there) == 0 && there > 0) must = 1;
    if (must) {
        ssize_t got = recv(side->fd, side->buffer, length, MSG_DONTWAIT);
        if (got < 0 && errno != EINTR) fail(side, "readable gives nothing", there);
        if (got == 0 && stream->received != stream->total) fail(side, "an end before all data", there);
        if (got == 0) return 0;
        if (got > 0) {
            check(side, (size_t)got, "other bytes");
            stream->received += (uint64_t)got;
        }
        return 1;
    }
    ssize_t got = read_once(side, length, &waits, &unseen);
    if (got < 0 && errno == EAGAIN) {
        wait_for(side, 20);
    } else if (got < 0 && errno != EINTR) {
        fail(side, "reading", got);
    } else if (got == 0) {
        if (stream->received != stream->total) fail(side, "an end before all data", 0);
        return 0;
    } else if (got > 0) {
        if (!unseen) check(side, (size_t)got, "other bytes");
        stream->received += (uint64_t)got;
    }
    return 1;
}

static void open_own(struct side *side) {
    side->epoll = epoll_create1(0);
    if (side->epoll < 0 || pipe(side->pipe) < 0) fail(side, "descriptors", 0);
}

static void *run(void *argument) {
    struct side *side = argument;
    side->buffer = malloc(SIZE_MAX_CALL + 1);
    side->expected = malloc(SIZE_MAX_CALL + 1);
    open_own(side);
    for (;;) {
        if (side->forks && pick(side, 300) == 0) {
            unsigned long steps = 1 + pick(side, 30);
            pid_t child = fork();
            if (child == 0) {
                /* Its own epoll set and pipe: those of the parent are shared. */
                open_own(side);
                while (steps-- > 0 && step(side)) {}
                _exit(0);
            }
            int status;
            while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
            if (child < 0 || status != 0) fail(side, "a child", status);
        }
        if (!step(side)) break;
    }
    if (side->writes && shutdown(side->fd, SHUT_WR) < 0) fail(side, "shutdown", 0);
    close(side->fd);
    close(side->epoll);
    close(side->pipe[0]);
    close(side->pipe[1]);
    free(side->buffer);
    free(side->expected);
    return NULL;
}

static void tick(int number) { (void)number; }

/* Runs both directions of one end. */
static void one_end(int fd, struct stream *streams, int pair, int end) {
    pthread_t threads[2];
    struct side sides[2];
    uint64_t character = mix(seed * 977 + (uint64_t)pair);
    for (int writes = 0; writes < 2; writes++) {
        int number = 2 * pair + (writes ? end : 1 - end);
        struct side *side = &sides[writes];
        memset(side, 0, sizeof *side);
        side->random = mix(seed + (uint64_t)(4 * pair + 2 * end + writes));
        side->stream = &streams[number];
        side->number = number;
        side->fd = dup(fd);
        side->writes = writes;
        side->forks = character % 3 == 0 && !together;
        side->leaves = character / 3 % 4 == 0;
    }
    close(fd);
    if (character / 12 % 3 == 0 && !together) {
        struct sigaction action = {.sa_handler = tick, .sa_flags = character / 36 % 2 ? SA_RESTART : 0};
        struct itimerval timer = {{0, 3000}, {0, 3000}};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    for (int index = 0; index < 2; index++) {
        if (pthread_create(&threads[index], NULL, run, &sides[index]) != 0) fail(&sides[index], "thread", 0);
    }
    for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
}

/* An end, which a child process or a thread runs. */
struct end {
    int fd, pair, number;
    struct stream *streams;
};

static atomic_int ended;

static void *end_in_thread(void *argument) {
    struct end *end = argument;
    one_end(end->fd, end->streams, end->pair, end->number);
    free(end);
    ended++;
    return NULL;
}

static void play(struct end end) {
    pthread_t thread;
    struct end *own = malloc(sizeof end);
    *own = end;
    if (pthread_create(&thread, NULL, end_in_thread, own) != 0 || pthread_detach(thread) != 0) exit(3);
}

/* How many ends have finished since the last call; -1 when one failed. */
static int ends_over(void) {
    if (together) return atomic_exchange(&ended, 0);
    int status, over = 0;
    while (waitpid(-1, &status, WNOHANG) > 0) {
        over++;
        if (status == 0) continue;
        fprintf(stderr, "torture: seed %lu: a process ended with status %x\n", (unsigned long)seed, status);
        return -1;
    }
    return over;
}

int main(int count, char **words) {
    together = count == 5 && strcmp(words[4], "together") == 0;
    if (count != 4 + together) {
        fprintf(stderr, "usage: torture SEED KILOBYTES PAIRS [together]\n");
        return 2;
    }
    seed = strtoull(words[1], NULL, 0);
    uint64_t bytes = strtoull(words[2], NULL, 0) * 1024;
    int pairs = atoi(words[3]);
    setpgid(0, 0);
    size_t shared = (size_t)(2 * pairs) * sizeof(struct stream);
    struct stream *streams = mmap(NULL, shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (streams == MAP_FAILED || bind(listener, (void *)&address, length) < 0 || listen(listener, 64) < 0 ||
        getsockname(listener, (void *)&address, &length) < 0) {
        perror("torture");
        return 3;
    }
    for (int number = 0; number < 2 * pairs; number++) streams[number].total = bytes;
    for (int pair = 0; pair < pairs; pair++) {
        if (together || fork() == 0) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(fd, (void *)&address, length) < 0) _exit(4);
            if (together) {
                play((struct end){fd, pair, 0, streams});
            } else {
                one_end(fd, streams, pair, 0);
                exit(0);
            }
        }
        /* One after the other, so that both ends know the number of their pair. */
        int fd = accept(listener, NULL, NULL);
        if (together) {
            play((struct end){fd, pair, 1, streams});
            continue;
        }
        if (fork() == 0) {
            one_end(fd, streams, pair, 1);
            exit(0);
        }
        close(fd);
    }
    unsigned long before = 0, still = 0;
    for (int left = 2 * pairs; left > 0;) {
        int over = ends_over();
        if (over < 0) {
            kill(0, SIGTERM);
            return 1;
        }
        left -= over;
        if (left == 0) break;
        usleep(20000);
        unsigned long now = 0;
        for (int number = 0; number < 2 * pairs; number++) now += streams[number].sent + streams[number].received;
        still = now == before ? still + 1 : 0;
        before = now;
        if (still * 20 > STANDSTILL_SECONDS * 1000) {
            for (int number = 0; number < 2 * pairs; number++)
                fprintf(stderr, "torture: seed %lu stands still: stream %d, %lu sent, %lu received of %lu\n",
                        (unsigned long)seed, number, (unsigned long)streams[number].sent,
                        (unsigned long)streams[number].received, (unsigned long)streams[number].total);
            if (getenv("TORTURE_STOP")) pause();
            kill(0, SIGTERM);
            return 1;
        }
    }
    unsigned long calls = 0, received = 0;
    for (int number = 0; number < 2 * pairs; number++) {
        calls += streams[number].calls;
        received += streams[number].received;
    }
    if (received != 2 * bytes * (unsigned long)pairs) return 1;
    printf("seed %lu: %d connections, %lu calls, %lu bytes\n", (unsigned long)seed, pairs, calls, received);
    return 0;
}
