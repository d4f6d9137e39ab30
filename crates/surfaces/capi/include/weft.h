/**
 * @file weft.h
 * The fabric of weft for C and C++: endpoints, messages, put, get, atomics and events between
 * programs of one host, over shared memory, and of joined hosts, over libfabric.
 *
 *     cc -std=c11 program.c $(pkg-config --cflags --libs weft)
 *
 * docs/c.md has a program to begin with, and says how things go together.
 *
 * Results. Functions return an int: WEFT_OK, WEFT_PENDING or a count, and a negative weft_status if
 * they fail. weft_strerror has a text for each, weft_last_error the text of the case. A call that
 * failed has done nothing, unless its error says that a part may be done.
 *
 * Threads. An endpoint is for one thread at a time, as the note at each function says; a second
 * one that calls meanwhile gets WEFT_ERROR_IN_CALL. Threads that each have an endpoint need no
 * lock. Functions for "any thread" need none either.
 *
 * Handles. A handle that is closed, of another kind or NULL is found and gets WEFT_ERROR_HANDLE.
 * Other pointers have to be what they are said to be. Nothing is freed by two sides: what the
 * library makes, its weft_..._free or weft_close ends.
 *
 * fork. A child has none of its parent's endpoints, and gets WEFT_ERROR_HANDLE for them. It opens
 * its own.
 *
 * Growth. Functions and numbers keep their meaning while the library is libweft.so.0. Structures
 * grow at their end, and a program passes the size that it knows.
 */

#ifndef WEFT_H
#define WEFT_H

/* Written by cbindgen from crates/surfaces/capi/src. Do not edit. */

#include <stddef.h>
#include <stdint.h>

/** The version of this header, as weft_version() tells that of the library that runs. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION \
    ((WEFT_VERSION_MAJOR << 16) | (WEFT_VERSION_MINOR << 8) | WEFT_VERSION_PATCH)

/** A timeout without limit, where the function allows it. */
#define WEFT_FOREVER (-1)

/** Of weft_memory_grant: all endpoints that the own one can meet may use the key. */
#define WEFT_ANY_PEER 0xffffffffu

/** Contexts from here on belong to the library. */
#define WEFT_CONTEXT_END 0x8000000000000000u

/** How a weft_operation begins: weft_operation put = WEFT_OPERATION; put.context = 7; */
#define WEFT_OPERATION {sizeof(weft_operation), 0, 0, 0, 0, {0}}

/**
 * The result of a call. Zero and positive numbers are good, negative ones are errors.
 * weft_strerror has a text for each, and weft_last_error says more about the last error.
 */
typedef enum weft_status {
    /**
     * Done. No event follows.
     */
    WEFT_OK = 0,
    /**
     * Accepted and under way. One WEFT_EVENT_COMPLETION with the context of the call follows.
     */
    WEFT_PENDING = 1,
    /**
     * An argument is not valid: null, unknown, or out of its range.
     */
    WEFT_ERROR_ARGUMENT = -1,
    /**
     * The handle is closed, of another kind, of the process before fork, or was never one.
     */
    WEFT_ERROR_HANDLE = -2,
    /**
     * Another thread is in a call of this endpoint.
     */
    WEFT_ERROR_IN_CALL = -3,
    /**
     * There is no room yet, or the key is being looked up. WEFT_EVENT_ROOM says when to try
     * again, and weft_wait_room waits for it.
     */
    WEFT_ERROR_AGAIN = -4,
    /**
     * The time has passed.
     */
    WEFT_ERROR_TIMEOUT = -5,
    /**
     * The peer has ended, or is out of reach.
     */
    WEFT_ERROR_PEER_DOWN = -6,
    /**
     * The handle names no peer of this endpoint.
     */
    WEFT_ERROR_NO_PEER = -7,
    /**
     * The key is not valid here: revoked, never granted, damaged, or not for this endpoint.
     */
    WEFT_ERROR_KEY = -8,
    /**
     * The key does not allow the operation.
     */
    WEFT_ERROR_ACCESS = -9,
    /**
     * A range leaves the own memory or that of the peer.
     */
    WEFT_ERROR_RANGE = -10,
    /**
     * A word does not lie at a multiple of its size.
     */
    WEFT_ERROR_ALIGNMENT = -11,
    /**
     * The message is longer than messages can be, or than its receiver takes.
     */
    WEFT_ERROR_TOO_LONG = -12,
    /**
     * A maximum is reached: of endpoints, peers, keys, memories or events.
     */
    WEFT_ERROR_LIMIT = -13,
    /**
     * There is no endpoint, service or host of this name.
     */
    WEFT_ERROR_NOT_FOUND = -14,
    /**
     * This user may not.
     */
    WEFT_ERROR_PERMISSION = -15,
    /**
     * The number or the name is taken.
     */
    WEFT_ERROR_IN_USE = -16,
    /**
     * No node daemon answers, none could be started, or it did not answer in time.
     */
    WEFT_ERROR_NO_DAEMON = -17,
    /**
     * There is no way to other hosts.
     */
    WEFT_ERROR_NETWORK = -18,
    /**
     * The system refused a resource.
     */
    WEFT_ERROR_SYSTEM = -19,
    /**
     * The operation was cancelled. Nothing of it was done.
     */
    WEFT_ERROR_CANCELLED = -20,
    /**
     * The peer's memory is in place and cannot do this.
     */
    WEFT_ERROR_UNSUPPORTED = -21,
    /**
     * The memory moved while the operation stood still. A part of it may be done.
     */
    WEFT_ERROR_INTERRUPTED = -22,
    /**
     * The key is void, but a write that was begun before may still come to memory in place.
     */
    WEFT_ERROR_STILL_WRITING = -23,
    /**
     * A fault of the library. The endpoint can only be closed.
     */
    WEFT_ERROR_INTERNAL = -24,
} weft_status;

/**
 * The rights of a key, as bits.
 */
typedef enum weft_access {
    /**
     * Peers may get.
     */
    WEFT_READ = 1,
    /**
     * Peers may put.
     */
    WEFT_WRITE = 2,
    /**
     * Peers may change words by atomics. Needs WEFT_READ and WEFT_WRITE, too.
     */
    WEFT_ATOMIC = 4,
} weft_access;

/**
 * How weft_memory_register takes memory of the program.
 */
typedef enum weft_memory_kind {
    /**
     * As it is. Any address and length. Peers of the host put and get by a copy of the kernel;
     * atomics and signals on it are refused with WEFT_ERROR_UNSUPPORTED.
     */
    WEFT_MEMORY_IN_PLACE = 0,
    /**
     * Its pages are replaced by shared ones with the same bytes. Whole pages: address and length
     * are multiples of the page size. During the call no thread may write to them, nor may the
     * kernel be asked to. Everything is allowed to peers, and a child of fork shares the memory.
     */
    WEFT_MEMORY_ADOPT = 1,
} weft_memory_kind;

/**
 * The operation of weft_atomic on a word.
 */
typedef enum weft_atomic_kind {
    /**
     * Nothing: it is read whole. Needs WEFT_READ alone.
     */
    WEFT_ATOMIC_READ = 0,
    /**
     * word += operand, wrapping.
     */
    WEFT_ATOMIC_ADD = 1,
    /**
     * word = operand.
     */
    WEFT_ATOMIC_SWAP = 2,
    /**
     * if (word == compare) word = operand.
     */
    WEFT_ATOMIC_COMPARE_SWAP = 3,
    /**
     * word &= operand.
     */
    WEFT_ATOMIC_AND = 4,
    /**
     * word |= operand.
     */
    WEFT_ATOMIC_OR = 5,
    /**
     * word ^= operand.
     */
    WEFT_ATOMIC_XOR = 6,
} weft_atomic_kind;

/**
 * How weft_put_signal changes its word, which has 64 bits.
 */
typedef enum weft_signal_kind {
    /**
     * word = value. The key of the word must allow WEFT_WRITE.
     */
    WEFT_SIGNAL_SET = 0,
    /**
     * word += value, wrapping. The key of the word must allow WEFT_ATOMIC.
     */
    WEFT_SIGNAL_ADD = 1,
} weft_signal_kind;

/**
 * The bits of weft_operation.flags.
 */
typedef enum weft_operation_flag {
    /**
     * The peer gets a WEFT_EVENT_NOTIFICATION when the data of a put is there, or was read.
     */
    WEFT_NOTIFY_PEER = 1,
    /**
     * The own endpoint gets a WEFT_EVENT_NOTIFICATION when its memory is free again.
     */
    WEFT_NOTIFY_SELF = 2,
    /**
     * A good end causes no completion. An error does, and weft_fence tells of the end.
     */
    WEFT_QUIET = 4,
    /**
     * It takes effect after all that this endpoint did to the peer before.
     */
    WEFT_ORDERED = 8,
    /**
     * Another operation to the same peer follows at once: the peer need not be woken yet.
     */
    WEFT_MORE = 16,
} weft_operation_flag;

/**
 * The kinds of events. A program skips those that it does not know.
 */
typedef enum weft_event_type {
    /**
     * No event.
     */
    WEFT_EVENT_NONE = 0,
    /**
     * A message: peer, address, tag, data, length; group if it was sent to one.
     */
    WEFT_EVENT_MESSAGE = 1,
    /**
     * A call that was WEFT_PENDING has ended: context, status; value of an atomic; peer of a
     * connect. Of an error, data is a text.
     */
    WEFT_EVENT_COMPLETION = 2,
    /**
     * An operation with WEFT_NOTIFY_PEER or WEFT_NOTIFY_SELF, or a weft_notify: peer, address,
     * context, value, notification_class, side, offset, length.
     */
    WEFT_EVENT_NOTIFICATION = 3,
    /**
     * A peer is down: peer, address, value (a weft_down_reason). It comes once, after the
     * completions of all that was pending on the peer.
     */
    WEFT_EVENT_PEER_DOWN = 4,
    /**
     * There is room again for a peer after a WEFT_ERROR_AGAIN: peer.
     */
    WEFT_EVENT_ROOM = 5,
    /**
     * There is room again for a group after a WEFT_ERROR_AGAIN of weft_multicast: value is the
     * group.
     */
    WEFT_EVENT_GROUP_ROOM = 6,
} weft_event_type;

/**
 * Why a peer is down.
 */
typedef enum weft_down_reason {
    /**
     * It closed its endpoint, or its process ended.
     */
    WEFT_DOWN_ENDED = 0,
    /**
     * Nothing was heard of it for the configured time.
     */
    WEFT_DOWN_UNREACHABLE = 1,
    /**
     * It broke the protocol.
     */
    WEFT_DOWN_MISBEHAVED = 2,
    /**
     * One of the two ends called weft_disconnect.
     */
    WEFT_DOWN_DISCONNECTED = 3,
} weft_down_reason;

/**
 * The side of an operation that a notification tells of.
 */
typedef enum weft_side {
    /**
     * The operation has left its initiator, whose memory is free again.
     */
    WEFT_SIDE_REQUESTER = 0,
    /**
     * The peer's memory was read, or its word changed.
     */
    WEFT_SIDE_RESPONDER = 1,
    /**
     * The data has arrived here.
     */
    WEFT_SIDE_COMPLETER = 2,
} weft_side;

/**
 * An endpoint: the program's own door to the fabric. A number in the form of a pointer; it is
 * never read or written as memory.
 */
typedef struct weft_endpoint weft_endpoint;

/**
 * Registered memory of an endpoint. A number in the form of a pointer, as weft_endpoint.
 */
typedef struct weft_memory weft_memory;

/**
 * The options of an endpoint that is to be opened. A number in the form of a pointer, as
 * weft_endpoint.
 */
typedef struct weft_options weft_options;

/**
 * The address of an endpoint. Its text is NODE:NUMBER, as `weft status` prints it.
 */
typedef struct weft_address {
    /**
     * The host: its number in the fabric, 0 where no fabric was joined.
     */
    uint32_t node;
    /**
     * The number of the endpoint on its host.
     */
    uint32_t number;
} weft_address;

/**
 * An endpoint's handle for a peer: one life of the endpoint at an address. It is good for that
 * endpoint alone, and never names another peer later.
 */
typedef uint32_t weft_peer;

/**
 * The limits of an endpoint.
 */
typedef struct weft_limit_values {
    /**
     * The longest message by weft_send, bytes.
     */
    uint64_t message_bytes_max;
    /**
     * The longest message that goes without memory of its own and is over when it was accepted.
     */
    uint64_t eager_bytes_max;
    /**
     * The longest message to a group, bytes.
     */
    uint64_t multicast_bytes_max;
    /**
     * Operations that may be pending.
     */
    uint64_t operations_max;
    /**
     * Peers that may be alive at a time.
     */
    uint64_t peers_max;
    /**
     * Keys that may be granted at a time.
     */
    uint64_t keys_max;
    /**
     * Memories that may be registered at a time.
     */
    uint64_t memories_max;
    /**
     * Events that may wait in weft_finish and weft_wait_room.
     */
    uint64_t events_max;
} weft_limit_values;

/**
 * A key: it names a range of an endpoint's memory to peers. A program sends these bytes to a peer
 * by any way: a message, a file, a socket. They are no secret: the fabric checks who uses them.
 */
typedef struct weft_key {
    /**
     * The bytes, the same on all machines.
     */
    uint8_t bytes[32];
} weft_key;

/**
 * The content of a key.
 */
typedef struct weft_key_content {
    /**
     * The endpoint whose memory it is: connect to it.
     */
    struct weft_address owner;
    /**
     * Bits of weft_access.
     */
    uint32_t access;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Bytes of the range.
     */
    uint64_t length;
} weft_key_content;

/**
 * How an operation is to be done. Make one by WEFT_OPERATION, or pass NULL for context 0 and no
 * notification.
 */
typedef struct weft_operation {
    /**
     * sizeof(weft_operation) of the program: members behind it are taken as 0.
     */
    uint32_t size;
    /**
     * Bits of weft_operation_flag.
     */
    uint32_t flags;
    /**
     * A number of the program's choice, below WEFT_CONTEXT_END: the completion and the
     * notifications carry it.
     */
    uint64_t context;
    /**
     * 64 bits for the notifications.
     */
    uint64_t value;
    /**
     * A small number for the notifications.
     */
    uint8_t notification_class;
    /**
     * Zero.
     */
    uint8_t reserved[7];
} weft_operation;

/**
 * An event. Members that its type does not name are 0.
 */
typedef struct weft_event {
    /**
     * A weft_event_type.
     */
    uint32_t type;
    /**
     * Of a completion: WEFT_OK or an error.
     */
    int32_t status;
    /**
     * The context that the program gave, of the initiator's for a notification.
     */
    uint64_t context;
    /**
     * The peer. A reply can be sent to it at once.
     */
    weft_peer peer;
    /**
     * The class of a notification.
     */
    uint8_t notification_class;
    /**
     * A weft_side, of a notification.
     */
    uint8_t side;
    /**
     * Of a message: the group that it was sent to, plus 1; 0 if it was sent to this endpoint.
     */
    uint8_t group;
    /**
     * Zero.
     */
    uint8_t reserved;
    /**
     * The address of the peer.
     */
    struct weft_address address;
    /**
     * The tag of a message.
     */
    uint64_t tag;
    /**
     * The bytes of a message, or the text of an error, which ends with a zero. Valid until the
     * next weft_poll, weft_wait or weft_close of this endpoint.
     */
    const void *data;
    /**
     * Bytes of the message, or bytes that the operation moved.
     */
    uint64_t length;
    /**
     * Of a completion: the former word of an atomic. Of a notification: the value that was given.
     */
    uint64_t value;
    /**
     * Of a notification: the offset in the memory that the key names.
     */
    uint64_t offset;
} weft_event;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that runs: major << 16 | minor << 8 | patch. Compare it with
 * WEFT_VERSION, that of the header. Versions with the same major number are compatible; while that
 * is 0, those with the same minor number.
 *
 * Any thread.
 */
uint32_t weft_version(void);

/**
 * The meaning of a status, and the cure: never NULL, valid for ever.
 *
 * Any thread.
 */
const char *weft_strerror(int status);

/**
 * The last error of the calling thread in words, with the numbers and names of the case and what
 * to do; "" before the first error. Never NULL; valid until the next call of weft that fails in
 * this thread.
 *
 * Any thread.
 */
const char *weft_last_error(void);

/**
 * Reads the text of an address, NODE:NUMBER, as weft_address_format and `weft status` write it.
 *
 * Any thread. Errors: WEFT_ERROR_ARGUMENT.
 */
int weft_address_parse(const char *text, struct weft_address *address);

/**
 * Writes the text of an address, with a zero at its end, into size bytes. 24 are always enough.
 *
 * Any thread. Errors: WEFT_ERROR_ARGUMENT; WEFT_ERROR_TOO_LONG if it does not fit.
 */
int weft_address_format(struct weft_address address, char *text, size_t size);

/**
 * Makes options, all with their defaults. End them by weft_options_free.
 *
 * Any thread. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_LIMIT.
 */
int weft_options_new(struct weft_options **options);

/**
 * Ends options. Endpoints that were opened with them stay.
 *
 * One thread at a time. Errors: WEFT_ERROR_HANDLE.
 */
int weft_options_free(struct weft_options *options);

/**
 * The name under which `weft status` lists the endpoint. Default: that of the program.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_name(struct weft_options *options, const char *name);

/**
 * The socket of the node daemon. Default: WEFT_SOCKET, else the daemon of the system or of the
 * user.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_daemon(struct weft_options *options, const char *socket);

/**
 * Whether a node daemon is started when none answers, as `weft run` does. Default: 1.
 *
 * One thread at a time. Errors: WEFT_ERROR_HANDLE.
 */
int weft_options_set_start_daemon(struct weft_options *options, int is_wanted);

/**
 * As a service: clients find the endpoint by this name, of 1 to 48 of the characters a-z, A-Z,
 * 0-9, '.', '_' and '-'. The option daemon.services of weft says which other users may come in. It
 * has a partition of its own: it meets its clients, and none of the user's other endpoints.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_offer(struct weft_options *options, const char *name);

/**
 * As a client of a service: NAME, NAME@HOST (a host's name, number or address in the fabric), or
 * NODE:NUMBER, the address of the service. weft_service_address tells it when the endpoint is
 * open.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_service(struct weft_options *options, const char *place);

/**
 * The provider of libfabric for peers of other hosts, as `weft info` lists them. Default: the
 * first that serves hosts.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_provider(struct weft_options *options, const char *provider);

/**
 * How many peers may be alive at a time. Default: 256. weft_limits tells what it became.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_options_set_peers(struct weft_options *options, uint32_t peers);

/**
 * Opens an endpoint. It reaches peers of its host through shared memory, and those of joined hosts
 * through libfabric, which is loaded when the first is wanted. options may be NULL. Variables
 * WEFT_* of the environment count as for the command `weft`. End it by weft_close.
 *
 * Threads that weft starts get no signals. A child of fork has none of its parent's endpoints; it
 * opens its own.
 *
 * Any thread; the endpoint is for one thread at a time. It may take seconds where a daemon has to
 * be started. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_NO_DAEMON,
 * WEFT_ERROR_NOT_FOUND, WEFT_ERROR_PERMISSION, WEFT_ERROR_IN_USE, WEFT_ERROR_LIMIT,
 * WEFT_ERROR_SYSTEM.
 */
int weft_open(const struct weft_options *options, struct weft_endpoint **endpoint);

/**
 * Closes an endpoint. Its peers are told that it has ended; its keys are void, and its memories
 * are left to weft_memory_free. What was pending has no completion: take those that matter before.
 *
 * One thread at a time. Errors: WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_close(struct weft_endpoint *endpoint);

/**
 * The address of an endpoint, by which others connect to it.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_own_address(struct weft_endpoint *endpoint, struct weft_address *address);

/**
 * The address of the service by which the endpoint was opened (weft_options_set_service).
 *
 * One thread at a time. Errors: WEFT_ERROR_NOT_FOUND for an endpoint that was opened in another
 * way, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_service_address(struct weft_endpoint *endpoint, struct weft_address *address);

/**
 * Finds the endpoint at an address and prepares to talk to it. The handle is the same for the same
 * address as long as that endpoint lives. The other end need not connect: it can answer whoever
 * talks to it.
 *
 * One thread at a time. It waits for at most timeout_ms milliseconds. Errors:
 * WEFT_ERROR_NOT_FOUND, WEFT_ERROR_TIMEOUT, WEFT_ERROR_NETWORK, WEFT_ERROR_LIMIT,
 * WEFT_ERROR_NO_DAEMON, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_connect(struct weft_endpoint *endpoint,
                 struct weft_address to,
                 int timeout_ms,
                 weft_peer *peer);

/**
 * As weft_connect, without a wait: a program with a loop goes on meanwhile. WEFT_OK: peer is set.
 * WEFT_PENDING: the completion with the context has the peer, or the error.
 *
 * One thread at a time. Errors: as weft_connect.
 */
int weft_connect_start(struct weft_endpoint *endpoint,
                       struct weft_address to,
                       uint64_t context,
                       weft_peer *peer);

/**
 * Gives a peer up: what is pending on it ends with WEFT_ERROR_PEER_DOWN, and both ends get
 * WEFT_EVENT_PEER_DOWN. Either may connect again, with a new handle.
 *
 * One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_disconnect(struct weft_endpoint *endpoint, weft_peer peer);

/**
 * The address of a peer, also of one that is down.
 *
 * One thread at a time. Errors: WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_peer_address(struct weft_endpoint *endpoint, weft_peer peer, struct weft_address *address);

/**
 * The limits of an endpoint. size is sizeof(weft_limit_values) of the program; members that the
 * library does not know become 0.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_limits(struct weft_endpoint *endpoint, struct weft_limit_values *limits, size_t size);

/**
 * Sends a message of any length up to weft_limit_values.message_bytes_max (64 MiB). The receiver
 * gets WEFT_EVENT_MESSAGE with the tag and the bytes; messages of a peer arrive in the order of
 * sending. data may be used again when the call returns.
 *
 * WEFT_OK: it was accepted. WEFT_PENDING: a longer one; its completion, with the context, says
 * that the receiver has it. WEFT_ERROR_AGAIN: the receiver or a queue is full.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_TOO_LONG, WEFT_ERROR_PEER_DOWN,
 * WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_send(struct weft_endpoint *endpoint,
              weft_peer peer,
              uint64_t tag,
              const void *data,
              size_t length,
              uint64_t context);

/**
 * Sends a message of up to weft_limit_values.multicast_bytes_max bytes (112) to all other members
 * of a group, 0 to 62, or to all endpoints that this one can meet, group 63. Members become peers.
 * receivers, which may be NULL, tells their number. The first message to a group may be refused
 * with WEFT_ERROR_AGAIN while the members are looked up; WEFT_EVENT_GROUP_ROOM follows.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_TOO_LONG, WEFT_ERROR_SYSTEM,
 * WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_multicast(struct weft_endpoint *endpoint,
                   uint32_t group,
                   uint64_t tag,
                   const void *data,
                   size_t length,
                   uint32_t *receivers);

/**
 * Joins a group, 0 to 62. Waits for at most timeout_ms milliseconds.
 *
 * One thread at a time. Errors: WEFT_ERROR_TIMEOUT, WEFT_ERROR_NO_DAEMON, WEFT_ERROR_ARGUMENT,
 * WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_join(struct weft_endpoint *endpoint, uint32_t group, int timeout_ms);

/**
 * Leaves a group. Waits for at most timeout_ms milliseconds.
 *
 * One thread at a time. Errors: as weft_join.
 */
int weft_leave(struct weft_endpoint *endpoint, uint32_t group, int timeout_ms);

/**
 * Makes memory of length zeroed bytes, which begins at a page. weft_memory_address tells where it
 * is. Nobody reaches it without a key: weft_memory_grant. End it by weft_memory_free.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_LIMIT, WEFT_ERROR_SYSTEM,
 * WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_memory_alloc(struct weft_endpoint *endpoint, size_t length, struct weft_memory **memory);

/**
 * Makes memory of the program known to an endpoint, in the way of a weft_memory_kind. It stays
 * mapped for reading and writing, at its place, until weft_memory_free has ended well or the
 * endpoint is closed.
 *
 * One thread at a time. Errors: WEFT_ERROR_ARGUMENT if a part is not mapped, WEFT_ERROR_ALIGNMENT
 * if WEFT_MEMORY_ADOPT is no whole pages, WEFT_ERROR_LIMIT, WEFT_ERROR_SYSTEM, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_memory_register(struct weft_endpoint *endpoint,
                         void *start,
                         size_t length,
                         uint32_t kind,
                         struct weft_memory **memory);

/**
 * Revokes all keys to a memory and ends it. When it has ended well, no byte of a peer appears in
 * it any more; memory of the library is unmapped, that of the program is the program's again. Its
 * endpoint may be closed before.
 *
 * One thread at a time, that of the endpoint. It waits for at most timeout_ms milliseconds for
 * each key. Errors: WEFT_ERROR_STILL_WRITING: all keys are void, but the bytes must stay mapped
 * until weft_close; WEFT_ERROR_HANDLE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_IN_CALL.
 */
int weft_memory_free(struct weft_memory *memory, int timeout_ms);

/**
 * The address of a memory in this process; NULL for a bad handle, with weft_last_error. Peers may
 * write to it at any time: read it by atomics or after a notification. While a key to the memory
 * is being revoked, what is written by address may be lost.
 *
 * Any thread.
 */
void *weft_memory_address(const struct weft_memory *memory);

/**
 * Bytes of a memory; 0 for a bad handle, with weft_last_error.
 *
 * Any thread.
 */
uint64_t weft_memory_length(const struct weft_memory *memory);

/**
 * Copies bytes out of a memory, also while peers write to it.
 *
 * Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_memory_read(const struct weft_memory *memory, uint64_t offset, void *data, size_t length);

/**
 * Copies bytes into a memory, also during a revocation.
 *
 * Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
 */
int weft_memory_write(struct weft_memory *memory, uint64_t offset, const void *data, size_t length);

/**
 * Loads a 64-bit word with acquire order.
 *
 * Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ALIGNMENT, WEFT_ERROR_ARGUMENT,
 * WEFT_ERROR_HANDLE.
 */
int weft_memory_load(const struct weft_memory *memory, uint64_t offset, uint64_t *value);

/**
 * Stores a 64-bit word with release order.
 *
 * Any thread. Errors: as weft_memory_load.
 */
int weft_memory_store(struct weft_memory *memory, uint64_t offset, uint64_t value);

/**
 * Grants peers access to length bytes of a memory from offset on. access has bits of weft_access.
 * The key is for one peer in this life of it, or, with WEFT_ANY_PEER, for all endpoints that the
 * own one can meet. Send its bytes to them by any way.
 *
 * One thread at a time, that of the endpoint. It waits for at most timeout_ms milliseconds.
 * Errors: WEFT_ERROR_RANGE, WEFT_ERROR_NO_PEER, WEFT_ERROR_LIMIT, WEFT_ERROR_TIMEOUT,
 * WEFT_ERROR_NO_DAEMON, WEFT_ERROR_NETWORK, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_memory_grant(struct weft_memory *memory,
                      uint64_t offset,
                      uint64_t length,
                      uint32_t access,
                      weft_peer peer,
                      int timeout_ms,
                      struct weft_key *key);

/**
 * Revokes a key of a memory. When it has ended, no byte by the key appears any more: each
 * operation by it that ended well is in the memory, and every other ends with an error.
 *
 * One thread at a time, that of the endpoint. Errors: WEFT_ERROR_KEY, WEFT_ERROR_STILL_WRITING
 * (see weft_memory_free), WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_memory_revoke(struct weft_memory *memory, const struct weft_key *key, int timeout_ms);

/**
 * The content of a key: its owner, rights and length. size is sizeof(weft_key_content) of
 * the program. Whether the key is in force shows at its use.
 *
 * Any thread. Errors: WEFT_ERROR_KEY, WEFT_ERROR_ARGUMENT.
 */
int weft_key_read(const struct weft_key *key, struct weft_key_content *content, size_t size);

/**
 * Writes length bytes into a peer's memory, from offset of the key's range on. data may be used
 * again when the call returns. A put that has completed is visible to whoever reads there.
 *
 * The first use of a key may be refused with WEFT_ERROR_AGAIN while the key is looked up:
 * weft_resolve does that before.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_KEY, WEFT_ERROR_ACCESS,
 * WEFT_ERROR_RANGE, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_INTERRUPTED,
 * WEFT_ERROR_UNSUPPORTED, WEFT_ERROR_NETWORK, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL; from the call or as the status of the completion.
 */
int weft_put(struct weft_endpoint *endpoint,
             weft_peer peer,
             const struct weft_key *key,
             uint64_t offset,
             const void *data,
             size_t length,
             const struct weft_operation *operation);

/**
 * As weft_put, out of a memory of this endpoint: nothing is copied before. The bytes must not
 * change until the put has completed.
 *
 * One thread at a time. Errors: as weft_put.
 */
int weft_put_memory(struct weft_endpoint *endpoint,
                    weft_peer peer,
                    const struct weft_key *key,
                    uint64_t offset,
                    const struct weft_memory *memory,
                    uint64_t memory_offset,
                    uint64_t length,
                    const struct weft_operation *operation);

/**
 * Writes length bytes into a peer's memory and then changes a 64-bit word of the peer in the way
 * of a weft_signal_kind. A peer that reads the word's new value also reads the data. word_key may
 * be another key of the same peer.
 *
 * One thread at a time. Errors: as weft_put; WEFT_ERROR_ALIGNMENT.
 */
int weft_put_signal(struct weft_endpoint *endpoint,
                    weft_peer peer,
                    const struct weft_key *key,
                    uint64_t offset,
                    const void *data,
                    size_t length,
                    const struct weft_key *word_key,
                    uint64_t word_offset,
                    uint32_t kind,
                    uint64_t value,
                    const struct weft_operation *operation);

/**
 * Reads length bytes of a peer's memory into a memory of this endpoint.
 *
 * One thread at a time. Errors: as weft_put.
 */
int weft_get(struct weft_endpoint *endpoint,
             weft_peer peer,
             const struct weft_key *key,
             uint64_t offset,
             struct weft_memory *memory,
             uint64_t memory_offset,
             uint64_t length,
             const struct weft_operation *operation);

/**
 * Changes a word of a peer in the way of a weft_atomic_kind. width is 4 or 8 bytes, and the word
 * lies at a multiple of it. former, if it is not NULL, gets the word's former value when the call
 * returns WEFT_OK; when it returns WEFT_PENDING, the completion has it. With NULL nothing is
 * fetched. compare is for WEFT_ATOMIC_COMPARE_SWAP alone.
 *
 * One thread at a time. Errors: as weft_put; WEFT_ERROR_ALIGNMENT.
 */
int weft_atomic(struct weft_endpoint *endpoint,
                weft_peer peer,
                const struct weft_key *key,
                uint64_t offset,
                uint32_t kind,
                uint32_t width,
                uint64_t operand,
                uint64_t compare,
                const struct weft_operation *operation,
                uint64_t *former);

/**
 * weft_atomic that adds to a word of 8 bytes.
 *
 * One thread at a time. Errors: as weft_atomic.
 */
int weft_fetch_add(struct weft_endpoint *endpoint,
                   weft_peer peer,
                   const struct weft_key *key,
                   uint64_t offset,
                   uint64_t operand,
                   const struct weft_operation *operation,
                   uint64_t *former);

/**
 * weft_atomic that compares and swaps a word of 8 bytes: it has become desired if former is
 * expected.
 *
 * One thread at a time. Errors: as weft_atomic.
 */
int weft_compare_swap(struct weft_endpoint *endpoint,
                      weft_peer peer,
                      const struct weft_key *key,
                      uint64_t offset,
                      uint64_t expected,
                      uint64_t desired,
                      const struct weft_operation *operation,
                      uint64_t *former);

/**
 * Gives a peer a WEFT_EVENT_NOTIFICATION with a class and a value. Needs no memory.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER,
 * WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_notify(struct weft_endpoint *endpoint,
                weft_peer peer,
                uint8_t notification_class,
                uint64_t value);

/**
 * Prepares the use of a key: afterwards operations by it are not refused because it is looked up.
 *
 * One thread at a time. It waits for at most timeout_ms milliseconds. Errors: WEFT_ERROR_KEY,
 * WEFT_ERROR_TIMEOUT, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_NO_DAEMON,
 * WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_resolve(struct weft_endpoint *endpoint,
                 weft_peer peer,
                 const struct weft_key *key,
                 int timeout_ms);

/**
 * Later operations to this peer take effect after all that came before: operations, messages and
 * notifications. Nothing waits. For one operation alone WEFT_ORDERED costs less.
 *
 * One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_order(struct weft_endpoint *endpoint, weft_peer peer);

/**
 * Ends when all that this endpoint did to a peer before is visible there or has ended with an
 * error: WEFT_OK, or WEFT_PENDING and a completion with the context.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER,
 * WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_fence(struct weft_endpoint *endpoint, weft_peer peer, uint64_t context);

/**
 * As weft_fence, for all peers.
 *
 * One thread at a time. Errors: WEFT_ERROR_AGAIN, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_fence_all(struct weft_endpoint *endpoint, uint64_t context);

/**
 * Asks to give up what was begun on a peer with a context: a message or an operation. It ends with
 * WEFT_ERROR_CANCELLED if nothing of it is done; else, and if there is none, this has no effect.
 *
 * One thread at a time. Errors: WEFT_ERROR_PEER_DOWN, WEFT_ERROR_NO_PEER, WEFT_ERROR_ARGUMENT,
 * WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_cancel(struct weft_endpoint *endpoint, weft_peer peer, uint64_t context);

/**
 * Takes up to count events that are there, and makes progress. size is sizeof(weft_event) of the
 * program. Returns the number of events, 0 if there are none. What data of earlier events pointed
 * to is no longer valid.
 *
 * One thread at a time. Never waits. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_poll(struct weft_endpoint *endpoint, struct weft_event *events, size_t size, size_t count);

/**
 * As weft_poll, but waits until there is an event, or timeout_ms milliseconds have passed; 0 is
 * the result then. It looks for a while before it sleeps, as long as that was worth it lately.
 * WEFT_FOREVER waits without limit, also when a signal comes: a program that is to end by one
 * waits by weft_fd or in turns.
 *
 * One thread at a time. Errors: as weft_poll.
 */
int weft_wait(struct weft_endpoint *endpoint,
              struct weft_event *events,
              size_t size,
              size_t count,
              int timeout_ms);

/**
 * Waits until what was begun with a context has ended, and takes its completion: for programs that
 * have no loop. Other events stay for weft_poll. value, which may be NULL, gets the former word of
 * an atomic or the peer of weft_connect_start. What data of earlier events pointed to stays valid.
 *
 * A call that returned WEFT_OK has no completion: do not wait for it.
 *
 * One thread at a time. It waits for at most timeout_ms milliseconds. Errors: that of the
 * completion; WEFT_ERROR_TIMEOUT: what was begun goes on; WEFT_ERROR_LIMIT: too many other events
 * wait; WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_finish(struct weft_endpoint *endpoint, uint64_t context, int timeout_ms, uint64_t *value);

/**
 * Waits until there is room for a peer after a WEFT_ERROR_AGAIN, and takes that event. Other
 * events stay for weft_poll.
 *
 * One thread at a time. It waits for at most timeout_ms milliseconds. Errors:
 * WEFT_ERROR_PEER_DOWN, WEFT_ERROR_TIMEOUT, WEFT_ERROR_LIMIT, WEFT_ERROR_ARGUMENT,
 * WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_wait_room(struct weft_endpoint *endpoint, weft_peer peer, int timeout_ms);

/**
 * The descriptor of an endpoint, for poll, select, epoll or the loop of a library. It is the same
 * as long as the endpoint is open, becomes readable behind weft_arm alone, and belongs to the
 * library: never read or close it.
 *
 * One thread at a time. Returns the descriptor. Errors: WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
 */
int weft_fd(struct weft_endpoint *endpoint);

/**
 * Prepares to sleep on weft_fd, and says how long the sleep may last: timeout_ms becomes 0 if
 * there are events already, -1 if the descriptor tells of the next event, or a time after which to
 * look. It is what poll and epoll_wait take; a program with timers sleeps for the shorter time.
 * Behind the sleep comes weft_poll until it returns 0, then weft_arm again. Nothing that comes
 * after the call is missed.
 *
 * One thread at a time. Never waits. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
 * WEFT_ERROR_IN_CALL.
 */
int weft_arm(struct weft_endpoint *endpoint, int *timeout_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEFT_H */
