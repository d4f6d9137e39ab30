/* Each function of weft.h in its good case, between two endpoints of one program. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

enum { PATIENCE_MS = 10000, BYTES = 1 << 20 };

static weft_endpoint *one, *two;
static weft_peer to_two;
static weft_memory *memory;
static weft_key key;

static void check(int is_good, int line, const char *what)
{
    if (!is_good) {
        printf("line %d: %s; the last error: %s\n", line, what, weft_last_error());
        exit(1);
    }
}

#define CHECK(condition) check((condition), __LINE__, #condition)
#define GOOD(call) CHECK((call) == WEFT_OK)

/* The next event of a type at an endpoint, while both make progress: the other keeps its events. */
static weft_event next_(int line, weft_endpoint *endpoint, uint32_t type)
{
    weft_endpoint *other = endpoint == one ? two : one;
    weft_event event;
    for (int turn = 0; turn < PATIENCE_MS; turn++) {
        while (weft_poll(endpoint, &event, sizeof event, 1) == 1)
            if (event.type == type)
                return event;
        CHECK(weft_finish(other, 123456, 0, NULL) == WEFT_ERROR_TIMEOUT);
        poll(NULL, 0, turn < 1000 ? 0 : 1);
    }
    check(0, line, "no such event");
    return event;
}

#define next(endpoint, type) next_(__LINE__, (endpoint), (type))

/* The end of an operation of endpoint one. */
static int over(int result, uint64_t context)
{
    return result == WEFT_PENDING ? weft_finish(one, context, PATIENCE_MS, NULL) : result;
}

static uint64_t word(uint64_t offset)
{
    uint64_t value = 0;
    GOOD(weft_memory_load(memory, offset, &value));
    return value;
}

static void messages(void)
{
    char *much = malloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        much[i] = (char)(i * 7 % 251);
    for (size_t length = 0; length <= BYTES; length = length * 3 + 1) {
        int sent = weft_send(one, to_two, length, much, length, 5);
        CHECK(sent == (length <= 440 ? WEFT_OK : WEFT_PENDING));
        weft_event event = next(two, WEFT_EVENT_MESSAGE);
        CHECK(event.tag == length && event.length == length);
        CHECK(length == 0 || memcmp(event.data, much, length) == 0);
        weft_address own;
        GOOD(weft_own_address(one, &own));
        CHECK(event.address.node == own.node && event.address.number == own.number);
        if (sent == WEFT_PENDING) {
            event = next(one, WEFT_EVENT_COMPLETION);
            CHECK(event.context == 5 && event.status == WEFT_OK);
        }
    }
    /* Until there is no room, and then all of them in order. */
    uint64_t sent = 0, received = 0;
    int result;
    while ((result = weft_send(one, to_two, sent, much, 100, 0)) == WEFT_OK)
        sent++;
    CHECK(result == WEFT_ERROR_AGAIN && sent > 10);
    for (; received < sent; received++)
        CHECK(next(two, WEFT_EVENT_MESSAGE).tag == received);
    GOOD(weft_wait_room(one, to_two, PATIENCE_MS));
    GOOD(weft_send(one, to_two, 0, much, 100, 0));
    next(two, WEFT_EVENT_MESSAGE);
    free(much);
    GOOD(weft_cancel(one, to_two, 4711));
}

static void groups(void)
{
    uint32_t receivers = 0;
    int sent;
    GOOD(weft_join(two, 7, PATIENCE_MS));
    while ((sent = weft_multicast(one, 7, 99, "all", 4, &receivers)) == WEFT_ERROR_AGAIN)
        next(one, WEFT_EVENT_GROUP_ROOM);
    CHECK(sent == WEFT_OK && receivers == 1);
    weft_event event = next(two, WEFT_EVENT_MESSAGE);
    CHECK(event.group == 8 && event.tag == 99 && event.length == 4);
    CHECK(strcmp(event.data, "all") == 0);
    GOOD(weft_leave(two, 7, PATIENCE_MS));
}

static void atomics(void)
{
    struct {
        uint32_t kind, width;
        uint64_t operand, compare, before, after;
    } rows[] = {
        {WEFT_ATOMIC_READ, 8, 0, 0, 9, 9},
        {WEFT_ATOMIC_ADD, 8, 5, 0, 9, 14},
        {WEFT_ATOMIC_ADD, 4, 1, 0, 0xffffffff, 0},
        {WEFT_ATOMIC_SWAP, 8, 3, 0, 9, 3},
        {WEFT_ATOMIC_COMPARE_SWAP, 8, 4, 9, 9, 4},
        {WEFT_ATOMIC_COMPARE_SWAP, 8, 4, 8, 9, 9},
        {WEFT_ATOMIC_AND, 8, 6, 0, 3, 2},
        {WEFT_ATOMIC_OR, 8, 6, 0, 3, 7},
        {WEFT_ATOMIC_XOR, 8, 6, 0, 3, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t former = 77;
        GOOD(weft_memory_store(memory, 64, rows[i].before));
        int done = weft_atomic(one, to_two, &key, 64, rows[i].kind, rows[i].width, rows[i].operand,
                               rows[i].compare, NULL, &former);
        if (done == WEFT_PENDING)
            done = weft_finish(one, 0, PATIENCE_MS, &former);
        CHECK(done == WEFT_OK && former == rows[i].before && word(64) == rows[i].after);
        GOOD(weft_memory_store(memory, 64, rows[i].before));
        GOOD(over(weft_atomic(one, to_two, &key, 64, rows[i].kind, rows[i].width, rows[i].operand,
                              rows[i].compare, NULL, NULL), 0));
        CHECK(word(64) == rows[i].after);
    }
}

static void one_sided(void)
{
    weft_memory *own;
    weft_operation operation = WEFT_OPERATION;
    char bytes[16] = "";
    GOOD(weft_memory_alloc(one, 4096, &own));
    CHECK(weft_memory_length(own) == 4096);
    memcpy(weft_memory_address(own), "by address", 11);
    GOOD(over(weft_put_memory(one, to_two, &key, 200, own, 0, 11, NULL), 0));
    GOOD(weft_memory_read(memory, 200, bytes, 11));
    CHECK(strcmp(bytes, "by address") == 0);
    GOOD(weft_memory_write(memory, 300, "to be read", 11));
    operation.flags = WEFT_NOTIFY_PEER | WEFT_NOTIFY_SELF;
    operation.context = 31;
    operation.value = 32;
    operation.notification_class = 33;
    GOOD(over(weft_get(one, to_two, &key, 300, own, 1000, 11, &operation), 31));
    GOOD(weft_memory_read(own, 1000, bytes, 11));
    CHECK(strcmp(bytes, "to be read") == 0);
    weft_event event = next(two, WEFT_EVENT_NOTIFICATION);
    CHECK(event.side == WEFT_SIDE_RESPONDER && event.context == 31 && event.value == 32);
    CHECK(event.notification_class == 33 && event.offset == 300 && event.length == 11);
    CHECK(next(one, WEFT_EVENT_NOTIFICATION).side == WEFT_SIDE_COMPLETER);
    GOOD(over(weft_put(one, to_two, &key, 300, "x", 1, &operation), 31));
    CHECK(next(two, WEFT_EVENT_NOTIFICATION).side == WEFT_SIDE_COMPLETER);
    CHECK(next(one, WEFT_EVENT_NOTIFICATION).side == WEFT_SIDE_REQUESTER);
    /* Signals. */
    GOOD(weft_memory_store(memory, 400, 1));
    GOOD(over(weft_put_signal(one, to_two, &key, 408, "data", 5, &key, 400, WEFT_SIGNAL_ADD, 4,
                              NULL), 0));
    CHECK(word(400) == 5);
    GOOD(over(weft_put_signal(one, to_two, &key, 408, "data", 5, &key, 400, WEFT_SIGNAL_SET, 9,
                              NULL), 0));
    CHECK(word(400) == 9);
    /* Many quiet ones, and their end. */
    operation.flags = WEFT_QUIET | WEFT_MORE | WEFT_ORDERED;
    for (uint64_t i = 1; i <= 100; i++) {
        int put = weft_put(one, to_two, &key, 512, &i, sizeof i, &operation);
        CHECK(put == WEFT_OK || put == WEFT_PENDING);
    }
    GOOD(weft_order(one, to_two));
    GOOD(weft_notify(one, to_two, 5, 6));
    event = next(two, WEFT_EVENT_NOTIFICATION);
    CHECK(event.notification_class == 5 && event.value == 6 && word(512) == 100);
    GOOD(over(weft_fence(one, to_two, 8), 8));
    GOOD(over(weft_fence_all(one, 9), 9));
    weft_key_content content;
    weft_address owner;
    GOOD(weft_key_read(&key, &content, sizeof content));
    GOOD(weft_own_address(two, &owner));
    CHECK(content.owner.number == owner.number && content.length == BYTES);
    CHECK(content.access == (WEFT_READ | WEFT_WRITE | WEFT_ATOMIC));
    GOOD(weft_memory_free(own, PATIENCE_MS));
}

/* The descriptor is quiet behind weft_arm, and tells of the message that comes then. */
static void descriptor(void)
{
    struct pollfd file = {weft_fd(two), POLLIN, 0};
    weft_event event;
    int timeout_ms, woken = 0;
    CHECK(file.fd >= 0);
    for (uint64_t round = 0; round < 100; round++) {
        do {
            while (weft_poll(two, &event, sizeof event, 1) > 0)
                ;
            GOOD(weft_arm(two, &timeout_ms));
        } while (timeout_ms == 0);
        CHECK(poll(&file, 1, 0) == 0 || timeout_ms > 0);
        GOOD(weft_send(one, to_two, round, "wake", 5, 0));
        woken += poll(&file, 1, timeout_ms < 0 ? PATIENCE_MS : timeout_ms);
        CHECK(weft_wait(two, &event, sizeof event, 1, PATIENCE_MS) == 1 && event.tag == round);
        CHECK(weft_fd(two) == file.fd);
    }
    CHECK(woken == 100);
    CHECK(weft_wait(two, &event, sizeof event, 1, 10) == 0);
}

static void peers(void)
{
    weft_address address, again;
    weft_peer peer = 0;
    GOOD(weft_own_address(two, &address));
    GOOD(weft_peer_address(one, to_two, &again));
    CHECK(again.number == address.number);
    int begun = weft_connect_start(one, address, 3, &peer);
    uint64_t found = peer;
    if (begun == WEFT_PENDING)
        GOOD(weft_finish(one, 3, PATIENCE_MS, &found));
    CHECK(begun >= 0 && found == to_two);
    GOOD(weft_disconnect(one, to_two));
    CHECK(next(one, WEFT_EVENT_PEER_DOWN).value == WEFT_DOWN_DISCONNECTED);
    CHECK(next(two, WEFT_EVENT_PEER_DOWN).value == WEFT_DOWN_DISCONNECTED);
    CHECK(weft_send(one, to_two, 0, "x", 1, 0) == WEFT_ERROR_PEER_DOWN);
    GOOD(weft_connect(one, address, PATIENCE_MS, &peer));
    CHECK(peer != to_two);
    GOOD(weft_send(one, peer, 1, "again", 6, 0));
    CHECK(next(two, WEFT_EVENT_MESSAGE).tag == 1);
}

int main(void)
{
    weft_address address;
    weft_options *options;
    GOOD(weft_options_new(&options));
    GOOD(weft_options_set_name(options, "functions of C"));
    GOOD(weft_options_set_peers(options, 8));
    GOOD(weft_open(options, &one));
    GOOD(weft_options_free(options));
    GOOD(weft_open(NULL, &two));
    weft_limit_values limits;
    GOOD(weft_limits(one, &limits, sizeof limits));
    CHECK(limits.peers_max == 8 && limits.eager_bytes_max == 440);
    GOOD(weft_own_address(two, &address));
    GOOD(weft_connect(one, address, PATIENCE_MS, &to_two));
    GOOD(weft_memory_alloc(two, BYTES, &memory));
    GOOD(weft_memory_grant(memory, 0, BYTES, WEFT_READ | WEFT_WRITE | WEFT_ATOMIC, WEFT_ANY_PEER,
                           PATIENCE_MS, &key));
    GOOD(weft_resolve(one, to_two, &key, PATIENCE_MS));
    messages();
    groups();
    atomics();
    one_sided();
    descriptor();
    peers();
    GOOD(weft_memory_free(memory, PATIENCE_MS));
    GOOD(weft_close(one));
    GOOD(weft_close(two));
    puts("all of it");
    return 0;
}
