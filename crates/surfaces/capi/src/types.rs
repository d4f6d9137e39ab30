//! The structures and numbers of the header. Their order, sizes and values never change; new ones
//! come at the end.
#![allow(non_camel_case_types, reason = "they are named as in the header")]
#![allow(dead_code, reason = "some numbers are for programs alone")]

use std::ffi::c_void;

/// An endpoint: the program's own door to the fabric. A number in the form of a pointer; it is
/// never read or written as memory.
pub struct weft_endpoint {
    _private: (),
}

/// Registered memory of an endpoint. A number in the form of a pointer, as weft_endpoint.
pub struct weft_memory {
    _private: (),
}

/// The options of an endpoint that is to be opened. A number in the form of a pointer, as
/// weft_endpoint.
pub struct weft_options {
    _private: (),
}

/// An endpoint's handle for a peer: one life of the endpoint at an address. It is good for that
/// endpoint alone, and never names another peer later.
pub type weft_peer = u32;

/// As in the header, where `cbindgen.toml` has it.
pub const WEFT_ANY_PEER: weft_peer = 0xffff_ffff;
/// As in the header, where `cbindgen.toml` has it.
pub const WEFT_FOREVER: i32 = -1;
/// As in the header, where `cbindgen.toml` has it.
pub const WEFT_CONTEXT_END: u64 = 1 << 63;

/// The result of a call. Zero and positive numbers are good, negative ones are errors.
/// weft_strerror has a text for each, and weft_last_error says more about the last error.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_status {
    /// Done. No event follows.
    WEFT_OK = 0,
    /// Accepted and under way. One WEFT_EVENT_COMPLETION with the context of the call follows.
    WEFT_PENDING = 1,
    /// An argument is not valid: null, unknown, or out of its range.
    WEFT_ERROR_ARGUMENT = -1,
    /// The handle is closed, of another kind, of the process before fork, or was never one.
    WEFT_ERROR_HANDLE = -2,
    /// Another thread is in a call of this endpoint.
    WEFT_ERROR_IN_CALL = -3,
    /// There is no room yet, or the key is being looked up. WEFT_EVENT_ROOM says when to try
    /// again, and weft_wait_room waits for it.
    WEFT_ERROR_AGAIN = -4,
    /// The time has passed.
    WEFT_ERROR_TIMEOUT = -5,
    /// The peer has ended, or is out of reach.
    WEFT_ERROR_PEER_DOWN = -6,
    /// The handle names no peer of this endpoint.
    WEFT_ERROR_NO_PEER = -7,
    /// The key is not valid here: revoked, never granted, damaged, or not for this endpoint.
    WEFT_ERROR_KEY = -8,
    /// The key does not allow the operation.
    WEFT_ERROR_ACCESS = -9,
    /// A range leaves the own memory or that of the peer.
    WEFT_ERROR_RANGE = -10,
    /// A word does not lie at a multiple of its size.
    WEFT_ERROR_ALIGNMENT = -11,
    /// The message is longer than messages can be, or than its receiver takes.
    WEFT_ERROR_TOO_LONG = -12,
    /// A maximum is reached: of endpoints, peers, keys, memories or events.
    WEFT_ERROR_LIMIT = -13,
    /// There is no endpoint, service or host of this name.
    WEFT_ERROR_NOT_FOUND = -14,
    /// This user may not.
    WEFT_ERROR_PERMISSION = -15,
    /// The number or the name is taken.
    WEFT_ERROR_IN_USE = -16,
    /// No node daemon answers, none could be started, or it did not answer in time.
    WEFT_ERROR_NO_DAEMON = -17,
    /// There is no way to other hosts.
    WEFT_ERROR_NETWORK = -18,
    /// The system refused a resource.
    WEFT_ERROR_SYSTEM = -19,
    /// The operation was cancelled. Nothing of it was done.
    WEFT_ERROR_CANCELLED = -20,
    /// The peer's memory is in place and cannot do this.
    WEFT_ERROR_UNSUPPORTED = -21,
    /// The memory moved while the operation stood still. A part of it may be done.
    WEFT_ERROR_INTERRUPTED = -22,
    /// The key is void, but a write that was begun before may still come to memory in place.
    WEFT_ERROR_STILL_WRITING = -23,
    /// A fault of the library. The endpoint can only be closed.
    WEFT_ERROR_INTERNAL = -24,
}

/// The address of an endpoint. Its text is NODE:NUMBER, as `weft status` prints it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_address {
    /// The host: its number in the fabric, 0 where no fabric was joined.
    pub node: u32,
    /// The number of the endpoint on its host.
    pub number: u32,
}

/// A key: it names a range of an endpoint's memory to peers. A program sends these bytes to a peer
/// by any way: a message, a file, a socket. They are no secret: the fabric checks who uses them.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_key {
    /// The bytes, the same on all machines.
    pub bytes: [u8; 32],
}

/// The rights of a key, as bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_access {
    /// Peers may get.
    WEFT_READ = 1,
    /// Peers may put.
    WEFT_WRITE = 2,
    /// Peers may change words by atomics. Needs WEFT_READ and WEFT_WRITE, too.
    WEFT_ATOMIC = 4,
}

/// How weft_memory_register takes memory of the program.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_memory_kind {
    /// As it is. Any address and length. Peers of the host put and get by a copy of the kernel;
    /// atomics and signals on it are refused with WEFT_ERROR_UNSUPPORTED.
    WEFT_MEMORY_IN_PLACE = 0,
    /// Its pages are replaced by shared ones with the same bytes. Whole pages: address and length
    /// are multiples of the page size. During the call no thread may write to them, nor may the
    /// kernel be asked to. Everything is allowed to peers, and a child of fork shares the memory.
    WEFT_MEMORY_ADOPT = 1,
}

/// The operation of weft_atomic on a word.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_atomic_kind {
    /// Nothing: it is read whole. Needs WEFT_READ alone.
    WEFT_ATOMIC_READ = 0,
    /// word += operand, wrapping.
    WEFT_ATOMIC_ADD = 1,
    /// word = operand.
    WEFT_ATOMIC_SWAP = 2,
    /// if (word == compare) word = operand.
    WEFT_ATOMIC_COMPARE_SWAP = 3,
    /// word &= operand.
    WEFT_ATOMIC_AND = 4,
    /// word |= operand.
    WEFT_ATOMIC_OR = 5,
    /// word ^= operand.
    WEFT_ATOMIC_XOR = 6,
}

/// How weft_put_signal changes its word, which has 64 bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_signal_kind {
    /// word = value. The key of the word must allow WEFT_WRITE.
    WEFT_SIGNAL_SET = 0,
    /// word += value, wrapping. The key of the word must allow WEFT_ATOMIC.
    WEFT_SIGNAL_ADD = 1,
}

/// The bits of weft_operation.flags.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_operation_flag {
    /// The peer gets a WEFT_EVENT_NOTIFICATION when the data of a put is there, or was read.
    WEFT_NOTIFY_PEER = 1,
    /// The own endpoint gets a WEFT_EVENT_NOTIFICATION when its memory is free again.
    WEFT_NOTIFY_SELF = 2,
    /// A good end causes no completion. An error does, and weft_fence tells of the end.
    WEFT_QUIET = 4,
    /// It takes effect after all that this endpoint did to the peer before.
    WEFT_ORDERED = 8,
    /// Another operation to the same peer follows at once: the peer need not be woken yet.
    WEFT_MORE = 16,
}

/// How an operation is to be done. Make one by WEFT_OPERATION, or pass NULL for context 0 and no
/// notification.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_operation {
    /// sizeof(weft_operation) of the program: members behind it are taken as 0.
    pub size: u32,
    /// Bits of weft_operation_flag.
    pub flags: u32,
    /// A number of the program's choice, below WEFT_CONTEXT_END: the completion and the
    /// notifications carry it.
    pub context: u64,
    /// 64 bits for the notifications.
    pub value: u64,
    /// A small number for the notifications.
    pub notification_class: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// The kinds of events. A program skips those that it does not know.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_event_type {
    /// No event.
    WEFT_EVENT_NONE = 0,
    /// A message: peer, address, tag, data, length; group if it was sent to one.
    WEFT_EVENT_MESSAGE = 1,
    /// A call that was WEFT_PENDING has ended: context, status; value of an atomic; peer of a
    /// connect. Of an error, data is a text.
    WEFT_EVENT_COMPLETION = 2,
    /// An operation with WEFT_NOTIFY_PEER or WEFT_NOTIFY_SELF, or a weft_notify: peer, address,
    /// context, value, notification_class, side, offset, length.
    WEFT_EVENT_NOTIFICATION = 3,
    /// A peer is down: peer, address, value (a weft_down_reason). It comes once, after the
    /// completions of all that was pending on the peer.
    WEFT_EVENT_PEER_DOWN = 4,
    /// There is room again for a peer after a WEFT_ERROR_AGAIN: peer.
    WEFT_EVENT_ROOM = 5,
    /// There is room again for a group after a WEFT_ERROR_AGAIN of weft_multicast: value is the
    /// group.
    WEFT_EVENT_GROUP_ROOM = 6,
}

/// Why a peer is down.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_down_reason {
    /// It closed its endpoint, or its process ended.
    WEFT_DOWN_ENDED = 0,
    /// Nothing was heard of it for the configured time.
    WEFT_DOWN_UNREACHABLE = 1,
    /// It broke the protocol.
    WEFT_DOWN_MISBEHAVED = 2,
    /// One of the two ends called weft_disconnect.
    WEFT_DOWN_DISCONNECTED = 3,
}

/// The side of an operation that a notification tells of.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum weft_side {
    /// The operation has left its initiator, whose memory is free again.
    WEFT_SIDE_REQUESTER = 0,
    /// The peer's memory was read, or its word changed.
    WEFT_SIDE_RESPONDER = 1,
    /// The data has arrived here.
    WEFT_SIDE_COMPLETER = 2,
}

/// An event. Members that its type does not name are 0.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_event {
    /// A weft_event_type.
    pub r#type: u32,
    /// Of a completion: WEFT_OK or an error.
    pub status: i32,
    /// The context that the program gave, of the initiator's for a notification.
    pub context: u64,
    /// The peer. A reply can be sent to it at once.
    pub peer: weft_peer,
    /// The class of a notification.
    pub notification_class: u8,
    /// A weft_side, of a notification.
    pub side: u8,
    /// Of a message: the group that it was sent to, plus 1; 0 if it was sent to this endpoint.
    pub group: u8,
    /// Zero.
    pub reserved: u8,
    /// The address of the peer.
    pub address: weft_address,
    /// The tag of a message.
    pub tag: u64,
    /// The bytes of a message, or the text of an error, which ends with a zero. Valid until the
    /// next weft_poll, weft_wait or weft_close of this endpoint.
    pub data: *const c_void,
    /// Bytes of the message, or bytes that the operation moved.
    pub length: u64,
    /// Of a completion: the former word of an atomic. Of a notification: the value that was given.
    pub value: u64,
    /// Of a notification: the offset in the memory that the key names.
    pub offset: u64,
}

/// The limits of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_limit_values {
    /// The longest message by weft_send, bytes.
    pub message_bytes_max: u64,
    /// The longest message that goes without memory of its own and is over when it was accepted.
    pub eager_bytes_max: u64,
    /// The longest message to a group, bytes.
    pub multicast_bytes_max: u64,
    /// Operations that may be pending.
    pub operations_max: u64,
    /// Peers that may be alive at a time.
    pub peers_max: u64,
    /// Keys that may be granted at a time.
    pub keys_max: u64,
    /// Memories that may be registered at a time.
    pub memories_max: u64,
    /// Events that may wait in weft_finish and weft_wait_room.
    pub events_max: u64,
}

/// The content of a key.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct weft_key_content {
    /// The endpoint whose memory it is: connect to it.
    pub owner: weft_address,
    /// Bits of weft_access.
    pub access: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes of the range.
    pub length: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_these_numbers() {
        let header = include_str!("../include/weft.h");
        for line in [
            format!("#define WEFT_ANY_PEER {WEFT_ANY_PEER:#x}u\n"),
            format!("#define WEFT_FOREVER ({WEFT_FOREVER})\n"),
            format!("#define WEFT_CONTEXT_END {WEFT_CONTEXT_END:#x}u\n"),
        ] {
            assert!(header.contains(&line), "{line}");
        }
    }
}
