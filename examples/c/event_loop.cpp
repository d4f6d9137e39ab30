// A loop with poll(2), in which an endpoint of the fabric stands beside a timer, in C++. The loop
// sends itself nothing: each tick of the timer sends a message to the peer, which sends it back.
//
//     event_loop serve
//     event_loop [NAME@HOST] [TICKS]
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/timerfd.h>
#include <unistd.h>
#include <weft.h>

namespace {

constexpr int patience_ms = 5000;

int good(int result, const char *what)
{
    if (result < 0)
        throw std::runtime_error(std::string(what) + ": " + weft_last_error());
    return result;
}

// The library's handles end with their scope.
struct Closing {
    void operator()(weft_endpoint *endpoint) const { weft_close(endpoint); }
    void operator()(weft_options *options) const { weft_options_free(options); }
};
using Endpoint = std::unique_ptr<weft_endpoint, Closing>;
using Options = std::unique_ptr<weft_options, Closing>;

Endpoint open(const std::string &place)
{
    weft_options *made = nullptr;
    good(weft_options_new(&made), "weft_options_new");
    Options options(made);
    if (place == "serve")
        good(weft_options_set_offer(made, "c-loop"), "weft_options_set_offer");
    else
        good(weft_options_set_service(made, place.c_str()), "weft_options_set_service");
    weft_endpoint *endpoint = nullptr;
    good(weft_open(made, &endpoint), "weft_open");
    return Endpoint(endpoint);
}

// A loop over two descriptors. `tick` is called for the timer and `event` for each event; the loop
// ends when one of them returns false.
template <typename Tick, typename Event>
void loop(weft_endpoint *endpoint, int timer, Tick tick, Event event)
{
    pollfd files[] = {{weft_fd(endpoint), POLLIN, 0}, {timer, POLLIN, 0}};
    for (;;) {
        // Events first: the descriptor tells of those alone that come behind weft_arm.
        weft_event events[16];
        int count = 0;
        while ((count = good(weft_poll(endpoint, events, sizeof events[0], 16), "weft_poll")) > 0)
            for (int i = 0; i < count; i++)
                if (!event(events[i]))
                    return;
        int timeout_ms = 0;
        good(weft_arm(endpoint, &timeout_ms), "weft_arm");
        if (poll(files, timer < 0 ? 1 : 2, timeout_ms) < 0)
            throw std::runtime_error("poll failed");
        std::uint64_t ticks = 0;
        if (timer >= 0 && (files[1].revents & POLLIN) &&
            read(timer, &ticks, sizeof ticks) == sizeof ticks && !tick())
            return;
    }
}

void serve(weft_endpoint *endpoint)
{
    std::cout << "serving" << std::endl;
    loop(endpoint, -1, [] { return true; }, [&](const weft_event &event) {
        if (event.type == WEFT_EVENT_MESSAGE)
            weft_send(endpoint, event.peer, event.tag, event.data, event.length, 0);
        return true;
    });
}

void ask(weft_endpoint *endpoint, int ticks)
{
    weft_address service;
    weft_peer peer = 0;
    good(weft_service_address(endpoint, &service), "weft_service_address");
    good(weft_connect(endpoint, service, patience_ms, &peer), "weft_connect");
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    const itimerspec each = {{0, 5'000'000}, {0, 5'000'000}};
    if (timer < 0 || timerfd_settime(timer, 0, &each, nullptr) < 0)
        throw std::runtime_error("there is no timer");
    std::uint64_t sent = 0, back = 0;
    loop(
        endpoint, timer,
        [&] {
            sent++;
            good(weft_send(endpoint, peer, sent, &sent, sizeof sent, 0), "weft_send");
            return true;
        },
        [&](const weft_event &event) {
            if (event.type == WEFT_EVENT_PEER_DOWN)
                throw std::runtime_error("the service has ended");
            if (event.type == WEFT_EVENT_MESSAGE && event.tag == back + 1)
                back++;
            return back < static_cast<std::uint64_t>(ticks);
        });
    close(timer);
    std::cout << back << " ticks came back" << std::endl;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        const std::string place = argc > 1 ? argv[1] : "c-loop";
        Endpoint endpoint = open(place);
        if (place == "serve")
            serve(endpoint.get());
        else
            ask(endpoint.get(), argc > 2 ? std::atoi(argv[2]) : 20);
        return 0;
    } catch (const std::exception &error) {
        std::cerr << "event_loop: " << error.what() << std::endl;
        return 1;
    }
}
