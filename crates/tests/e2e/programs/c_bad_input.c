/* Mistakes of a program in C: each gets its status and a text, and none ends the process. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

enum { PATIENCE_MS = 10000, BYTES = 65536 };

static int failures, checks;

#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        int got_ = (call);                                                                         \
        checks++;                                                                                  \
        if (got_ != (wanted) || (got_ < 0 && weft_last_error()[0] == 0)) {                         \
            printf("line %d: %s is %d (%s), not %d\n", __LINE__, #call, got_, weft_last_error(),   \
                   (int)(wanted));                                                                 \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

#define GOOD(call) EXPECT(WEFT_OK, call)

static weft_endpoint *opened(void)
{
    weft_endpoint *endpoint = NULL;
    GOOD(weft_open(NULL, &endpoint));
    return endpoint;
}

static weft_endpoint *waited_on;

static void *wait_long(void *unused)
{
    weft_event event;
    (void)unused;
    /* Until no event has come for some time. */
    while (weft_wait(waited_on, &event, sizeof event, 1, 1000) > 0)
        ;
    return NULL;
}

static void handles(weft_endpoint *endpoint, weft_memory *memory)
{
    weft_address address;
    weft_event event;
    weft_peer peer;
    void *wrong[] = {NULL, (void *)1, (void *)-1, &address, memory, (char *)endpoint + 4096};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        EXPECT(WEFT_ERROR_HANDLE, weft_own_address(wrong[i], &address));
        EXPECT(WEFT_ERROR_HANDLE, weft_send(wrong[i], 0, 0, NULL, 0, 0));
        EXPECT(WEFT_ERROR_HANDLE, weft_poll(wrong[i], &event, sizeof event, 1));
        EXPECT(WEFT_ERROR_HANDLE, weft_connect(wrong[i], (weft_address){0, 1}, 0, &peer));
        EXPECT(WEFT_ERROR_HANDLE, weft_close(wrong[i]));
        EXPECT(WEFT_ERROR_HANDLE, weft_fd(wrong[i]));
        EXPECT(WEFT_ERROR_HANDLE, weft_options_free(wrong[i]));
    }
    wrong[4] = endpoint;
    for (size_t i = 0; i < 5; i++) {
        EXPECT(WEFT_ERROR_HANDLE, weft_memory_free(wrong[i], 0));
        EXPECT(WEFT_ERROR_HANDLE, weft_memory_write(wrong[i], 0, "x", 1));
        EXPECT(0, (int)weft_memory_length(wrong[i]));
        EXPECT(1, weft_memory_address(wrong[i]) == NULL);
    }
    weft_endpoint *closed = opened();
    weft_memory *orphan;
    GOOD(weft_memory_alloc(closed, 4096, &orphan));
    GOOD(weft_close(closed));
    EXPECT(WEFT_ERROR_HANDLE, weft_close(closed));
    EXPECT(WEFT_ERROR_HANDLE, weft_own_address(closed, &address));
    weft_endpoint *later = opened();
    EXPECT(WEFT_ERROR_HANDLE, weft_own_address(closed, &address));
    GOOD(weft_close(later));
    /* Memory outlives its endpoint, and is no more than memory then. */
    weft_key key;
    GOOD(weft_memory_write(orphan, 0, "x", 1));
    EXPECT(WEFT_ERROR_HANDLE, weft_memory_grant(orphan, 0, 8, WEFT_READ, WEFT_ANY_PEER, 100, &key));
    GOOD(weft_memory_free(orphan, 0));
    EXPECT(WEFT_ERROR_HANDLE, weft_memory_free(orphan, 0));
}

static void arguments(weft_endpoint *endpoint, weft_peer peer)
{
    weft_options *options;
    weft_event events[2];
    weft_address address;
    weft_limit_values limits;
    weft_peer found;
    char text[24];
    int timeout;
    GOOD(weft_options_new(&options));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_new(NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_set_name(options, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_set_offer(options, "no name"));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_set_service(options, ""));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_set_service(options, "\xff"));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_options_set_peers(options, 0));
    GOOD(weft_options_set_service(options, "nobody-offers-this"));
    weft_endpoint *none;
    EXPECT(WEFT_ERROR_NOT_FOUND, weft_open(options, &none));
    GOOD(weft_options_set_service(options, "0:4095"));
    EXPECT(WEFT_ERROR_NOT_FOUND, weft_open(options, &none));
    GOOD(weft_options_free(options));
    EXPECT(WEFT_ERROR_HANDLE, weft_options_free(options));
    EXPECT(WEFT_ERROR_HANDLE, weft_options_set_peers(options, 1));
    EXPECT(WEFT_ERROR_HANDLE, weft_open(options, &none));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_open(NULL, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_address_parse("1:2:3", &address));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_address_parse("1:65535", &address));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_address_parse(NULL, &address));
    GOOD(weft_address_parse("3:17", &address));
    EXPECT(WEFT_ERROR_TOO_LONG, weft_address_format(address, text, 4));
    GOOD(weft_address_format(address, text, 5));
    EXPECT(0, strcmp(text, "3:17"));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_connect(endpoint, (weft_address){0, 70000}, 0, &found));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_connect(endpoint, address, -2, &found));
    EXPECT(WEFT_ERROR_NOT_FOUND, weft_connect(endpoint, (weft_address){0, 4095}, 1000, &found));
    EXPECT(WEFT_ERROR_NOT_FOUND, weft_service_address(endpoint, &address));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_poll(endpoint, NULL, sizeof events[0], 1));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_poll(endpoint, events, 8, 1));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_poll(endpoint, events, (size_t)-1, 1));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_poll(endpoint, events, sizeof events[0], 0));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_arm(endpoint, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_limits(endpoint, &limits, 4));
    GOOD(weft_limits(endpoint, &limits, sizeof limits));
    EXPECT(112, (int)limits.multicast_bytes_max);
    EXPECT(WEFT_ERROR_TIMEOUT, weft_finish(endpoint, 77, 10, NULL));
    EXPECT(WEFT_ERROR_TIMEOUT, weft_wait_room(endpoint, peer, 10));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_finish(endpoint, WEFT_CONTEXT_END, 10, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_send(endpoint, peer, 0, "x", 1, UINT64_MAX));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_send(endpoint, peer, 0, NULL, 1, 0));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_send(endpoint, peer, 0, "x", (size_t)-1, 0));
    EXPECT(WEFT_ERROR_NO_PEER, weft_send(endpoint, 12345, 0, "x", 1, 0));
    EXPECT(WEFT_ERROR_NO_PEER, weft_notify(endpoint, 12345, 0, 0));
    EXPECT(WEFT_ERROR_NO_PEER, weft_fence(endpoint, 0x80000001u, 0));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_join(endpoint, 64, 10));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_multicast(endpoint, 64, 0, "x", 1, NULL));
    size_t long_bytes = (64u << 20) + 1;
    void *much = calloc(1, long_bytes);
    EXPECT(WEFT_ERROR_TOO_LONG, weft_send(endpoint, peer, 0, much, long_bytes, 0));
    EXPECT(WEFT_ERROR_TOO_LONG, weft_multicast(endpoint, 63, 0, much, 113, NULL));
    free(much);
    EXPECT(1, weft_strerror(-1000)[0] != 0);
    timeout = (int)weft_version();
    EXPECT(WEFT_VERSION, timeout);
}

static void memory_of_the_program(weft_endpoint *owner, weft_endpoint *user, weft_peer to)
{
    weft_memory *memory;
    weft_key key;
    char *page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_register(owner, NULL, 1, 0, &memory));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_register(owner, (void *)4096, 1, 0, &memory));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_register(owner, page, (size_t)-1, 0, &memory));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_register(owner, page, 1, 9, &memory));
    EXPECT(WEFT_ERROR_ALIGNMENT,
           weft_memory_register(owner, page + 1, 4096, WEFT_MEMORY_ADOPT, &memory));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_alloc(owner, 0, &memory));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_alloc(owner, (size_t)-1, &memory));
    EXPECT(WEFT_ERROR_SYSTEM, weft_memory_alloc(owner, (size_t)1 << 62, &memory));
    uint64_t former;
    memcpy(page, "before", 7);
    for (int kind = WEFT_MEMORY_IN_PLACE; kind <= WEFT_MEMORY_ADOPT; kind++) {
        GOOD(weft_memory_register(owner, page, 2 * 4096, (uint32_t)kind, &memory));
        EXPECT(1, weft_memory_address(memory) == page && memcmp(page, "before", 7) == 0);
        GOOD(weft_memory_grant(memory, 0, 4096, WEFT_READ | WEFT_WRITE | WEFT_ATOMIC, WEFT_ANY_PEER,
                               PATIENCE_MS, &key));
        GOOD(weft_resolve(user, to, &key, PATIENCE_MS));
        int put = weft_put(user, to, &key, 100, "by a peer", 10, NULL);
        /* The kernel may not let one process write to another: that is told. */
        if (put != WEFT_ERROR_UNSUPPORTED) {
            EXPECT(WEFT_OK, put);
            EXPECT(0, strcmp(page + 100, "by a peer"));
        }
        int added = weft_fetch_add(user, to, &key, 200, 1, NULL, &former);
        EXPECT(kind == WEFT_MEMORY_ADOPT ? WEFT_OK : WEFT_ERROR_UNSUPPORTED, added);
        GOOD(weft_memory_free(memory, PATIENCE_MS));
        EXPECT(WEFT_ERROR_KEY, weft_put(user, to, &key, 100, "too late", 9, NULL));
    }
    munmap(page, 3 * 4096);
}

static void keys(weft_endpoint *owner, weft_endpoint *user, weft_peer to, weft_memory *memory)
{
    weft_key key, other, narrow;
    weft_memory *own;
    weft_operation operation = WEFT_OPERATION;
    uint64_t former;
    char bytes[64];
    EXPECT(WEFT_ERROR_ARGUMENT,
           weft_memory_grant(memory, 0, 64, WEFT_ATOMIC, WEFT_ANY_PEER, 0, &key));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_grant(memory, 0, 64, 0, WEFT_ANY_PEER, 0, &key));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_memory_grant(memory, 0, 64, 256, WEFT_ANY_PEER, 0, &key));
    EXPECT(WEFT_ERROR_RANGE,
           weft_memory_grant(memory, 1, BYTES, WEFT_READ, WEFT_ANY_PEER, 100, &key));
    EXPECT(WEFT_ERROR_NO_PEER, weft_memory_grant(memory, 0, 64, WEFT_READ, 999, 100, &key));
    GOOD(weft_memory_grant(memory, 0, BYTES, WEFT_READ | WEFT_WRITE | WEFT_ATOMIC, WEFT_ANY_PEER,
                           PATIENCE_MS, &key));
    GOOD(weft_memory_grant(memory, 0, 64, WEFT_READ, WEFT_ANY_PEER, PATIENCE_MS, &narrow));
    GOOD(weft_memory_alloc(user, 4096, &own));
    GOOD(weft_resolve(user, to, &key, PATIENCE_MS));
    GOOD(weft_resolve(user, to, &narrow, PATIENCE_MS));
    GOOD(weft_put(user, to, &key, BYTES - 4, "four", 4, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_put(user, to, &key, BYTES - 3, "four", 4, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_put(user, to, &key, UINT64_MAX, "four", 4, NULL));
    EXPECT(WEFT_ERROR_ACCESS, weft_put(user, to, &narrow, 0, "four", 4, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_get(user, to, &narrow, 60, own, 0, 8, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_get(user, to, &key, 0, own, 4090, 8, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_get(user, to, &key, 0, memory, 0, 8, NULL));
    EXPECT(WEFT_ERROR_HANDLE, weft_get(user, to, &key, 0, NULL, 0, 8, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_put_memory(user, to, &key, 0, own, 4095, 2, NULL));
    EXPECT(WEFT_ERROR_ALIGNMENT, weft_fetch_add(user, to, &key, 3, 1, NULL, &former));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_atomic(user, to, &key, 0, 99, 8, 0, 0, NULL, &former));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_atomic(user, to, &key, 0, 1, 2, 0, 0, NULL, &former));
    EXPECT(WEFT_ERROR_RANGE, weft_put_signal(user, to, &key, 0, "x", 1, &key, BYTES, 0, 1, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put_signal(user, to, &key, 0, "x", 1, NULL, 0, 0, 1, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put_signal(user, to, &key, 0, "x", 1, &key, 0, 7, 1, NULL));
    EXPECT(WEFT_ERROR_NO_PEER, weft_put(user, 999, &key, 0, "x", 1, NULL));
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put(user, to, NULL, 0, "x", 1, NULL));
    operation.size = 3;
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put(user, to, &key, 0, "x", 1, &operation));
    operation.size = 4096;
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put(user, to, &key, 0, "x", 1, &operation));
    operation.size = sizeof operation;
    operation.flags = 1u << 31;
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put(user, to, &key, 0, "x", 1, &operation));
    operation.flags = WEFT_NOTIFY_PEER;
    operation.context = WEFT_CONTEXT_END;
    EXPECT(WEFT_ERROR_ARGUMENT, weft_put(user, to, &key, 0, "x", 1, &operation));
    operation.context = 0;
    operation.size = 16;
    GOOD(weft_put(user, to, &key, 0, "x", 1, &operation));
    /* Bytes that are no key, and every key with one bit changed. */
    memset(&other, 0, sizeof other);
    EXPECT(WEFT_ERROR_KEY, weft_put(user, to, &other, 0, "x", 1, NULL));
    for (size_t bit = 0; bit < 8 * sizeof key; bit++) {
        other = key;
        other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int put = weft_put(user, to, &other, BYTES - 1, "x", 1, NULL);
        if (put < 0 && put != WEFT_ERROR_KEY && put != WEFT_ERROR_RANGE &&
            put != WEFT_ERROR_AGAIN && put != WEFT_ERROR_ACCESS) {
            printf("bit %zu: %d, %s\n", bit, put, weft_last_error());
            failures++;
        }
    }
    /* The key of one endpoint, used with another. */
    weft_endpoint *third = opened();
    weft_address address;
    weft_peer wrong;
    GOOD(weft_own_address(third, &address));
    GOOD(weft_connect(user, address, PATIENCE_MS, &wrong));
    EXPECT(WEFT_ERROR_KEY, weft_resolve(user, wrong, &key, PATIENCE_MS));
    EXPECT(1, strstr(weft_last_error(), "the key is of endpoint") != NULL);
    GOOD(weft_close(third));
    EXPECT(WEFT_ERROR_PEER_DOWN, weft_put(user, wrong, &key, 0, "x", 1, NULL));
    EXPECT(WEFT_ERROR_PEER_DOWN, weft_send(user, wrong, 0, "x", 1, 0));
    /* A key for one peer alone, a revoked one, and one of a memory that is gone. */
    GOOD(weft_memory_revoke(memory, &narrow, PATIENCE_MS));
    EXPECT(WEFT_ERROR_KEY, weft_memory_revoke(memory, &narrow, PATIENCE_MS));
    EXPECT(WEFT_ERROR_KEY, weft_get(user, to, &narrow, 0, own, 0, 8, NULL));
    EXPECT(WEFT_ERROR_KEY, weft_memory_revoke(own, &key, PATIENCE_MS));
    GOOD(weft_memory_free(memory, PATIENCE_MS));
    EXPECT(WEFT_ERROR_KEY, weft_put(user, to, &key, 0, "x", 1, NULL));
    EXPECT(WEFT_ERROR_RANGE, weft_memory_read(own, 4090, bytes, 7));
    EXPECT(WEFT_ERROR_ALIGNMENT, weft_memory_load(own, 4, &former));
    EXPECT(WEFT_ERROR_RANGE, weft_memory_store(own, 4096, 1));
    (void)owner;
}

static void threads(weft_endpoint *endpoint)
{
    pthread_t waiter;
    weft_address address;
    int result = 0;
    waited_on = endpoint;
    pthread_create(&waiter, NULL, wait_long, NULL);
    for (int i = 0; i < 2000 && result == 0; i++, usleep(1000))
        result = weft_own_address(endpoint, &address);
    EXPECT(WEFT_ERROR_IN_CALL, result);
    EXPECT(WEFT_ERROR_IN_CALL, weft_close(endpoint));
    pthread_join(waiter, NULL);
    GOOD(weft_own_address(endpoint, &address));
}

static void children(weft_endpoint *endpoint)
{
    pid_t child = fork();
    if (child == 0) {
        weft_address address;
        EXPECT(WEFT_ERROR_HANDLE, weft_own_address(endpoint, &address));
        EXPECT(WEFT_ERROR_HANDLE, weft_close(endpoint));
        weft_endpoint *own = opened();
        GOOD(weft_own_address(own, &address));
        GOOD(weft_close(own));
        fflush(stdout);
        _exit(failures != 0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(0, status);
    weft_address address;
    GOOD(weft_own_address(endpoint, &address));
}

int main(void)
{
    weft_endpoint *owner = opened(), *user = opened();
    weft_memory *memory;
    weft_address address;
    weft_peer to;
    GOOD(weft_memory_alloc(owner, BYTES, &memory));
    GOOD(weft_own_address(owner, &address));
    GOOD(weft_connect(user, address, PATIENCE_MS, &to));
    handles(owner, memory);
    arguments(user, to);
    memory_of_the_program(owner, user, to);
    keys(owner, user, to, memory);
    threads(owner);
    children(user);
    GOOD(weft_close(user));
    GOOD(weft_close(owner));
    printf("%d checks\n", checks);
    if (failures == 0)
        puts("all of it");
    return failures != 0;
}
