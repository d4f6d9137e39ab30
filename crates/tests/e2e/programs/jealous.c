/* A library to be loaded in front of weft's. Its functions of the C library's names pass calls on,
 * and end the process if one comes from weft's library: a library may hold a lock in such a
 * function while weft serves a call of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>

#define NAMES(N) \
    N(accept) N(accept4) N(bind) N(clock_gettime) N(clock_nanosleep) N(close) N(close_range) \
    N(connect) N(dup) N(dup2) N(dup3) N(epoll_create) N(epoll_create1) N(epoll_ctl) \
    N(epoll_pwait) N(epoll_pwait2) N(epoll_wait) N(eventfd) N(fallocate) N(fcntl) N(fcntl64) \
    N(flock) N(fstat) N(fstat64) N(fstatat) N(fstatat64) N(ftruncate) N(ftruncate64) N(futimens) \
    N(getcwd) N(getegid) N(geteuid) N(getgid) N(getpeername) N(getpid) N(getppid) N(getrandom) \
    N(getrlimit) N(getrusage) N(getsockname) N(getsockopt) N(gettid) N(gettimeofday) N(getuid) \
    N(ioctl) N(kill) N(listen) N(lseek) N(lseek64) N(lstat) N(lstat64) N(madvise) \
    N(memfd_create) N(mkdir) N(mmap) N(mmap64) N(mprotect) N(mremap) N(munmap) N(nanosleep) \
    N(open) N(open64) N(openat) N(openat64) N(opendir) N(pause) N(pipe) N(pipe2) N(poll) N(ppoll) \
    N(prctl) N(pread) N(pread64) N(preadv) N(preadv2) N(process_vm_readv) N(process_vm_writev) \
    N(pselect) N(pthread_sigmask) N(pwrite) N(pwrite64) N(pwritev) N(pwritev2) N(read) \
    N(readdir) N(readdir64) N(readlink) N(readlinkat) N(readv) N(realpath) N(recv) N(recvfrom) \
    N(recvmmsg) N(recvmsg) N(rename) N(sched_getaffinity) N(sched_yield) N(select) N(send) \
    N(sendfile) N(sendfile64) N(sendmmsg) N(sendmsg) N(sendto) N(setsockopt) N(shutdown) \
    N(sigaction) N(sigaltstack) N(sigprocmask) N(socket) N(socketpair) N(splice) N(stat) \
    N(stat64) N(statx) N(syscall) N(sysconf) N(tgkill) N(timer_create) N(timerfd_create) \
    N(timerfd_settime) N(umask) N(unlink) N(unlinkat) N(usleep) N(write) N(writev)

#define NUMBER(name) number_##name,
enum { NAMES(NUMBER) COUNT };
#define TEXT(name) #name,
static const char *const names[] = { NAMES(TEXT) };
static void *next[COUNT];

/* Is given the address to which the call returns; gives the function to jump to. */
__attribute__((used)) static void *look(void *from, unsigned number)
{
    Dl_info place;
    if (dladdr(from, &place) && place.dli_fname && strstr(place.dli_fname, "libweft_preload")) {
        char line[200];
        int length = snprintf(line, sizeof line, "weft's library called %s\n", names[number]);
        __asm__ volatile("syscall" : : "a"(SYS_write), "D"(2), "S"(line), "d"((long)length)
                         : "rcx", "r11", "memory");
        __builtin_trap();
    }
    if (!next[number])
        next[number] = dlsym(RTLD_NEXT, names[number]);
    return next[number];
}

/* The return address is above the seven registers. */
#define FUNCTION(name) \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n" \
            "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\npush %rax\n" \
            "mov 56(%rsp), %rdi\nmov number_of_" #name "(%rip), %esi\ncall look\nmov %rax, %r11\n" \
            "pop %rax\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%r11\n"); \
    __attribute__((used)) static const unsigned number_of_##name = number_##name;
NAMES(FUNCTION)
