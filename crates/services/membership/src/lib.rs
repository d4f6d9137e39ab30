//! Layer 3: hosts that join a fabric, without I/O.
//!
//! | module | what it is |
//! |---|---|
//! | `key` | the fabric key, its file, and the proof that a daemon knows it |
//! | `identity` | the key pair of a node |
//! | `message` | messages between daemons, and their frames |
//! | `roster` | the table of nodes |
//! | `tls`, `session` | one connection: TLS 1.3, greetings, messages |
//! | `machine` | who is admitted under which number, and which connections there are |
//! | `etcd` | the table of nodes in etcd, in place of the first daemon |
//!
//! A driver owns sockets, files, the clock and the thread. Randomness for keys is the system's, by
//! the library of cryptography.
#![forbid(unsafe_code)]

mod etcd;
mod identity;
mod key;
mod machine;
mod message;
mod roster;
mod session;
mod tls;

pub use etcd::{
    ANSWER_BYTES_MAX, Etcd, EtcdConfig, EtcdUser, Lead, Request, fuzz_answers as fuzz_etcd_answers,
};
pub use identity::{Identity, InvalidIdentity, OwnIdentity};
pub use key::{FabricKeys, InvalidKey, Role, new_key_line};
pub use machine::{
    Admission, ConnectionId, DirectoryNews, Event, Expulsion, Fault, HANDSHAKE_WITHIN, Machine,
    MachineConfig, NodeState, NodeStatus, NotExpelled, NotSent, Output,
};
pub use message::{
    FACT_BYTES_MAX, FACTS_MAX, FRAME_BYTES_MAX, Frames, Greeting, Hello, InvalidFrame, Message,
    NAME_BYTES_MAX, NODES_MAX, NodeAbout, Refusal, STRANGER_BYTES_MAX, USER_BYTES_MAX, Versions,
    framed, fuzz_frames, is_name,
};
pub use roster::{Member, Numbering, Roster};
pub use session::{Session, SessionEvent, SessionFault};
pub use tls::{Tls, identity_of};
