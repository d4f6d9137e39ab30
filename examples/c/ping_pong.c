/*
 * Messages between two programs. One offers a service, the other finds it by its name, on this host
 * or a joined one:
 *
 *     ping_pong serve
 *     ping_pong [NAME@HOST] [ROUNDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft.h>

enum { PING = 1, PONG = 2, PATIENCE_MS = 5000 };

/* Ends the program if a call of weft has failed. */
static int good(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "ping_pong: %s: %s\n", what, weft_last_error());
        exit(1);
    }
    return result;
}

/* Sends a message, and waits while the peer has no room. */
static int send_message(weft_endpoint *endpoint, weft_peer peer, uint64_t tag, const void *data,
                        size_t length)
{
    int sent;
    while ((sent = weft_send(endpoint, peer, tag, data, length, 0)) == WEFT_ERROR_AGAIN) {
        int room = weft_wait_room(endpoint, peer, PATIENCE_MS);
        if (room < 0)
            return room;
    }
    return sent;
}

static void serve(weft_endpoint *endpoint)
{
    weft_event events[16];
    puts("serving");
    fflush(stdout);
    for (;;) {
        int count = weft_wait(endpoint, events, sizeof events[0], 16, WEFT_FOREVER);
        good(count, "weft_wait");
        for (int i = 0; i < count; i++) {
            const weft_event *event = &events[i];
            if (event->type == WEFT_EVENT_PEER_DOWN) {
                puts("a client has ended");
                fflush(stdout);
            } else if (event->type == WEFT_EVENT_MESSAGE && event->tag == PING) {
                /* A client that has ended by now needs no answer. */
                send_message(endpoint, event->peer, PONG, event->data, event->length);
            }
        }
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void ask(weft_endpoint *endpoint, long rounds)
{
    weft_address service;
    weft_peer peer;
    char text[64], word[32];
    good(weft_service_address(endpoint, &service), "weft_service_address");
    good(weft_connect(endpoint, service, PATIENCE_MS, &peer), "weft_connect");
    good(weft_address_format(service, text, sizeof text), "weft_address_format");
    double begun = seconds();
    for (long round = 0; round < rounds; round++) {
        int length = snprintf(word, sizeof word, "ping %ld", round) + 1;
        good(send_message(endpoint, peer, PING, word, (size_t)length), "weft_send");
        weft_event event = {0};
        while (event.type != WEFT_EVENT_MESSAGE) {
            if (good(weft_wait(endpoint, &event, sizeof event, 1, PATIENCE_MS), "weft_wait") == 0) {
                fprintf(stderr, "ping_pong: no answer from %s\n", text);
                exit(1);
            }
            if (event.type == WEFT_EVENT_PEER_DOWN) {
                fprintf(stderr, "ping_pong: the service has ended\n");
                exit(2);
            }
        }
        if (event.tag != PONG || event.length != (uint64_t)length ||
            memcmp(event.data, word, event.length) != 0) {
            fprintf(stderr, "ping_pong: another word came back\n");
            exit(1);
        }
    }
    double took = seconds() - begun;
    printf("%ld round trips with %s, %.2f us each\n", rounds, text, took / rounds * 1e6);
}

int main(int argc, char **argv)
{
    const char *place = argc > 1 ? argv[1] : "c-ping";
    weft_options *options;
    weft_endpoint *endpoint;
    good(weft_options_new(&options), "weft_options_new");
    int serves = strcmp(place, "serve") == 0;
    if (serves)
        good(weft_options_set_offer(options, "c-ping"), "weft_options_set_offer");
    else
        good(weft_options_set_service(options, place), "weft_options_set_service");
    good(weft_open(options, &endpoint), "weft_open");
    weft_options_free(options);
    if (serves)
        serve(endpoint);
    else
        ask(endpoint, argc > 2 ? atol(argv[2]) : 10000);
    return weft_close(endpoint) < 0;
}
