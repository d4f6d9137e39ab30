/*
 * Memory that another program writes and reads while its owner sleeps. The owner grants a key to
 * whoever asks, and is told by a notification when the bytes are there:
 *
 *     memory own
 *     memory [NAME@HOST]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

enum { KEY_WANTED = 1, KEY = 2, DONE = 3, PATIENCE_MS = 5000, BYTES = 1 << 20, COUNTER_AT = 0 };

static int good(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "memory: %s: %s\n", what, weft_last_error());
        exit(1);
    }
    return result;
}

/* The next event. The program ends if none comes, or if its peer has gone. */
static weft_event next(weft_endpoint *endpoint)
{
    weft_event event;
    if (good(weft_wait(endpoint, &event, sizeof event, 1, PATIENCE_MS), "weft_wait") == 0) {
        fprintf(stderr, "memory: nothing came\n");
        exit(1);
    }
    if (event.type == WEFT_EVENT_PEER_DOWN) {
        fprintf(stderr, "memory: the peer has ended\n");
        exit(2);
    }
    return event;
}

/* The end of an operation, which may be over already. */
static void ended(weft_endpoint *endpoint, int result, uint64_t context, uint64_t *value)
{
    if (result == WEFT_PENDING)
        result = weft_finish(endpoint, context, PATIENCE_MS, value);
    good(result, "an operation");
}

static void own(weft_endpoint *endpoint)
{
    weft_memory *memory;
    good(weft_memory_alloc(endpoint, BYTES, &memory), "weft_memory_alloc");
    puts("waiting");
    fflush(stdout);
    weft_event event;
    do
        good(weft_wait(endpoint, &event, sizeof event, 1, WEFT_FOREVER), "weft_wait");
    while (event.type != WEFT_EVENT_MESSAGE || event.tag != KEY_WANTED);

    /* This peer alone may use the key, as long as it lives. */
    weft_key key;
    weft_peer peer = event.peer;
    good(weft_memory_grant(memory, 0, BYTES, WEFT_READ | WEFT_WRITE | WEFT_ATOMIC, peer,
                           PATIENCE_MS, &key), "weft_memory_grant");
    good(weft_send(endpoint, peer, KEY, &key, sizeof key, 0), "weft_send");

    /* The bytes come without a call of this program, and the notification behind them. */
    do
        event = next(endpoint);
    while (event.type != WEFT_EVENT_NOTIFICATION);
    char text[64] = "";
    size_t length = event.length < sizeof text ? event.length : sizeof text - 1;
    good(weft_memory_read(memory, event.offset, text, length), "weft_memory_read");
    printf("%s; %llu bytes at %llu, with the number %llu\n", text,
           (unsigned long long)event.length, (unsigned long long)event.offset,
           (unsigned long long)event.value);
    do
        event = next(endpoint);
    while (event.type != WEFT_EVENT_MESSAGE || event.tag != DONE);
    uint64_t count;
    good(weft_memory_load(memory, COUNTER_AT, &count), "weft_memory_load");
    printf("the counter is %llu\n", (unsigned long long)count);
    good(weft_memory_free(memory, PATIENCE_MS), "weft_memory_free");
}

static void use(weft_endpoint *endpoint)
{
    weft_address owner;
    weft_peer peer;
    weft_key key;
    good(weft_service_address(endpoint, &owner), "weft_service_address");
    good(weft_connect(endpoint, owner, PATIENCE_MS, &peer), "weft_connect");
    good(weft_send(endpoint, peer, KEY_WANTED, NULL, 0, 0), "weft_send");
    weft_event event;
    do
        event = next(endpoint);
    while (event.type != WEFT_EVENT_MESSAGE || event.tag != KEY || event.length != sizeof key);
    memcpy(&key, event.data, sizeof key);
    good(weft_resolve(endpoint, peer, &key, PATIENCE_MS), "weft_resolve");

    /* Words that each program of the fabric may change at the same time. */
    uint64_t former = 0;
    for (int i = 0; i < 1000; i++) {
        int added = weft_fetch_add(endpoint, peer, &key, COUNTER_AT, 2, NULL, &former);
        ended(endpoint, added, 0, &former);
    }
    ended(endpoint, weft_compare_swap(endpoint, peer, &key, COUNTER_AT, 2000, 7, NULL, &former), 0,
          &former);
    printf("the counter was %llu\n", (unsigned long long)former);

    /* A put, and the owner is told. */
    const char words[] = "written by another program";
    weft_operation put = WEFT_OPERATION;
    put.context = 1;
    put.flags = WEFT_NOTIFY_PEER;
    put.value = 42;
    ended(endpoint, weft_put(endpoint, peer, &key, 4096, words, sizeof words, &put), 1, NULL);

    /* A get brings the bytes into memory of the own endpoint. */
    weft_memory *memory;
    good(weft_memory_alloc(endpoint, 4096, &memory), "weft_memory_alloc");
    ended(endpoint, weft_get(endpoint, peer, &key, 4096, memory, 0, sizeof words, NULL), 0, NULL);
    char back[sizeof words];
    good(weft_memory_read(memory, 0, back, sizeof back), "weft_memory_read");
    printf("read back: %s\n", back);

    /* A range that leaves the memory is refused before anything is sent. */
    if (weft_put(endpoint, peer, &key, BYTES - 1, words, sizeof words, NULL) != WEFT_ERROR_RANGE)
        exit(1);
    printf("refused: %s\n", weft_last_error());
    good(weft_send(endpoint, peer, DONE, NULL, 0, 0), "weft_send");
    good(weft_memory_free(memory, PATIENCE_MS), "weft_memory_free");
    /* The owner ends first. */
    do
        weft_wait(endpoint, &event, sizeof event, 1, PATIENCE_MS);
    while (event.type != WEFT_EVENT_PEER_DOWN);
}

int main(int argc, char **argv)
{
    const char *place = argc > 1 ? argv[1] : "c-memory";
    int owns = strcmp(place, "own") == 0;
    weft_options *options;
    weft_endpoint *endpoint;
    good(weft_options_new(&options), "weft_options_new");
    if (owns)
        good(weft_options_set_offer(options, "c-memory"), "weft_options_set_offer");
    else
        good(weft_options_set_service(options, place), "weft_options_set_service");
    good(weft_open(options, &endpoint), "weft_open");
    weft_options_free(options);
    if (owns)
        own(endpoint);
    else
        use(endpoint);
    return weft_close(endpoint) < 0;
}
