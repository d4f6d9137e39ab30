/*
 * Two programs of which one is killed: `own` grants memory to whoever asks, `use` puts into it
 * until that fails. Each says what it was told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

enum { KEY_WANTED = 1, KEY = 2, PATIENCE_MS = 10000, BYTES = 1 << 20 };

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static int good(int result)
{
    if (result < 0) {
        printf("failed: %s\n", weft_last_error());
        exit(1);
    }
    return result;
}

static void own(weft_endpoint *endpoint)
{
    weft_memory *memory;
    weft_event event;
    weft_key key;
    good(weft_memory_alloc(endpoint, BYTES, &memory));
    say("ready");
    for (;;) {
        good(weft_wait(endpoint, &event, sizeof event, 1, WEFT_FOREVER));
        if (event.type == WEFT_EVENT_MESSAGE && event.tag == KEY_WANTED) {
            good(weft_memory_grant(memory, 0, BYTES, WEFT_READ | WEFT_WRITE, event.peer,
                                   PATIENCE_MS, &key));
            good(weft_send(endpoint, event.peer, KEY, &key, sizeof key, 0));
        } else if (event.type == WEFT_EVENT_PEER_DOWN) {
            good(weft_memory_revoke(memory, &key, PATIENCE_MS));
            say(event.value == WEFT_DOWN_ENDED ? "peer ended, key revoked" : "peer down otherwise");
        }
    }
}

static void use(weft_endpoint *endpoint)
{
    static char block[65536];
    weft_address owner;
    weft_peer peer;
    weft_event event;
    weft_key key;
    good(weft_service_address(endpoint, &owner));
    good(weft_connect(endpoint, owner, PATIENCE_MS, &peer));
    good(weft_send(endpoint, peer, KEY_WANTED, NULL, 0, 0));
    do
        if (good(weft_wait(endpoint, &event, sizeof event, 1, PATIENCE_MS)) == 0)
            exit(1);
    while (event.type != WEFT_EVENT_MESSAGE);
    memcpy(&key, event.data, sizeof key);
    good(weft_resolve(endpoint, peer, &key, PATIENCE_MS));
    int put;
    for (long puts = 0;; puts++) {
        put = weft_put(endpoint, peer, &key, 0, block, sizeof block, NULL);
        if (put == WEFT_PENDING)
            put = weft_finish(endpoint, 0, PATIENCE_MS, NULL);
        if (put == WEFT_ERROR_AGAIN)
            put = weft_wait_room(endpoint, peer, PATIENCE_MS);
        if (put < 0)
            break;
        if (puts == 1000)
            say("putting");
        /* The end of the owner shows in the events, as progress does. */
        if (weft_poll(endpoint, &event, sizeof event, 1) > 0 && event.type == WEFT_EVENT_PEER_DOWN) {
            say("told by an event");
            exit(weft_put(endpoint, peer, &key, 0, block, 1, NULL) != WEFT_ERROR_PEER_DOWN);
        }
    }
    if (put != WEFT_ERROR_PEER_DOWN)
        good(put);
    do
        if (good(weft_wait(endpoint, &event, sizeof event, 1, PATIENCE_MS)) == 0)
            exit(1);
    while (event.type != WEFT_EVENT_PEER_DOWN);
    say("told by an error and an event");
}

/* Without a daemon, and with the wish that none is started. */
static void alone(weft_options *options)
{
    weft_endpoint *endpoint;
    good(weft_options_set_start_daemon(options, 0));
    int opened = weft_open(options, &endpoint);
    printf("%d: %s\n", opened, weft_last_error());
    exit(opened != WEFT_ERROR_NO_DAEMON);
}

int main(int argc, char **argv)
{
    const char *role = argc > 1 ? argv[1] : "";
    weft_options *options;
    weft_endpoint *endpoint;
    good(weft_options_new(&options));
    if (strcmp(role, "alone") == 0)
        alone(options);
    int owns = strcmp(role, "own") == 0;
    good(owns ? weft_options_set_offer(options, "c-death")
              : weft_options_set_service(options, "c-death"));
    good(weft_open(options, &endpoint));
    if (owns)
        own(endpoint);
    else
        use(endpoint);
    return 0;
}
