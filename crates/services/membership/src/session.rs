//! One connection between two daemons, from its first byte on: TLS, greetings, messages.
//!
//! # Invariants
//! - No message leaves before the other side has proved that it knows the fabric key, and none of
//!   it is told before.
//! - A peer that has not proved it makes this end keep a few KiB at most.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::Connection;
use thiserror::Error;

use crate::identity::Identity;
use crate::key::{FabricKeys, Role};
use crate::message::{
    FRAME_BYTES_MAX, Frames, Greeting, InvalidFrame, Message, Refusal, STRANGER_BYTES_MAX,
    Versions, framed,
};
use crate::tls::{Tls, identity_of, is_ours};

/// The label of the key material that binds the proofs to their connection.
const EXPORTER: &[u8] = b"EXPORTER-weft-fabric-1";
/// Most bytes that a peer may send before it has proved that it knows the key.
const UNPROVED_BYTES_MAX: usize = 16 * 1024;

/// Something that a peer did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// It proved that it knows the fabric key, and speaks a common version.
    Proved {
        /// Its identity.
        identity: Identity,
        /// The versions that it speaks.
        versions: Versions,
    },
    /// It sent a message.
    Message(Message),
}

/// Why a connection ends.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SessionFault {
    /// The other end is no daemon of a fabric.
    #[error("it answers, but is no weft daemon of a fabric ({0})")]
    NotWeft(String),
    /// This end refuses.
    #[error("{0}")]
    Refused(Refusal),
    /// The other end breaks the protocol.
    #[error("it sent {0}")]
    Invalid(#[from] InvalidFrame),
    /// TLS failed behind the handshake: bytes were changed, or the peer has a fault.
    #[error("TLS failed: {0}")]
    Tls(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Handshake,
    Greeting,
    Messages,
    Over,
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    tls: Connection,
    role: Role,
    own: Identity,
    keys: Arc<FabricKeys>,
    versions: Versions,
    frames: Frames,
    stage: Stage,
    received: usize,
}

impl Session {
    /// A new connection, of which this end has a `role`.
    ///
    /// # Errors
    /// The library of TLS refuses.
    pub fn new(
        tls: &Tls,
        role: Role,
        own: Identity,
        keys: Arc<FabricKeys>,
        versions: Versions,
    ) -> Result<Self, SessionFault> {
        let tls = tls.connection(role).map_err(|error| SessionFault::Tls(error.to_string()))?;
        let stage = Stage::Handshake;
        Ok(Self { tls, role, own, keys, versions, frames: Frames::default(), stage, received: 0 })
    }

    /// Whether the other end has proved that it knows the key.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.stage == Stage::Messages
    }

    /// Takes bytes from the other end.
    ///
    /// # Errors
    /// The connection is to be closed, behind [`Session::take_output`]. `events` has what came
    /// before the fault.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        events: &mut Vec<SessionEvent>,
    ) -> Result<(), SessionFault> {
        if !self.is_proved() {
            self.received = self.received.saturating_add(bytes.len());
            if self.received > UNPROVED_BYTES_MAX {
                return self.end(SessionFault::NotWeft("it sends too much".to_owned()));
            }
        }
        while !bytes.is_empty() && self.stage != Stage::Over {
            if let Err(error) = self.tls.read_tls(&mut bytes) {
                return self.end(SessionFault::Tls(error.to_string()));
            }
            if let Err(error) = self.tls.process_new_packets() {
                let fault = match self.stage {
                    Stage::Handshake => SessionFault::NotWeft(error.to_string()),
                    _ => SessionFault::Tls(error.to_string()),
                };
                return self.end(fault);
            }
            if self.stage == Stage::Handshake && !self.tls.is_handshaking() {
                self.greet()?;
            }
            self.read_plain()?;
            self.take_frames(events)?;
        }
        Ok(())
    }

    /// Sends a message. It is dropped before the other end has proved that it knows the key.
    pub fn send(&mut self, message: &Message) {
        if self.stage == Stage::Messages {
            self.write(&message.emit());
        }
    }

    /// The bytes for the other end since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        while self.tls.wants_write() {
            // Writing into memory does not fail.
            if self.tls.write_tls(&mut output).is_err() {
                break;
            }
        }
        output
    }

    fn end(&mut self, fault: SessionFault) -> Result<(), SessionFault> {
        self.stage = Stage::Over;
        Err(fault)
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = self.tls.writer().write_all(&framed(bytes));
        written.expect("there is no limit of the memory that it takes");
    }

    fn greet(&mut self) -> Result<(), SessionFault> {
        if !is_ours(&self.tls) {
            return self.end(SessionFault::NotWeft("it speaks TLS for something else".to_owned()));
        }
        self.stage = Stage::Greeting;
        let proof = self.keys.prove(&self.exporter()?, self.role, &self.own);
        self.write(&Greeting { versions: self.versions.clone(), proof }.emit());
        Ok(())
    }

    fn exporter(&self) -> Result<[u8; 32], SessionFault> {
        self.tls
            .export_keying_material([0; 32], EXPORTER, None)
            .map_err(|error| SessionFault::Tls(error.to_string()))
    }

    fn read_plain(&mut self) -> Result<(), SessionFault> {
        let mut space = [0; 4096];
        loop {
            match self.tls.reader().read(&mut space) {
                Ok(0) => return Ok(()),
                Ok(length) => self.frames.push(&space[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return self.end(SessionFault::Tls(error.to_string())),
            }
        }
    }

    fn take_frames(&mut self, events: &mut Vec<SessionEvent>) -> Result<(), SessionFault> {
        loop {
            let maximum = match self.stage {
                Stage::Messages => FRAME_BYTES_MAX,
                _ => STRANGER_BYTES_MAX,
            };
            let frame = match self.frames.next(maximum) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => return self.end(error.into()),
            };
            match self.stage {
                Stage::Greeting => match Greeting::parse(&frame) {
                    Ok(greeting) => events.push(self.judge(greeting)?),
                    Err(error) => return self.end(error.into()),
                },
                Stage::Messages => match Message::parse(&frame) {
                    Ok(message) => events.push(SessionEvent::Message(message)),
                    Err(error) => return self.end(error.into()),
                },
                Stage::Handshake | Stage::Over => return Ok(()),
            }
        }
    }

    fn judge(&mut self, greeting: Greeting) -> Result<SessionEvent, SessionFault> {
        let exporter = self.exporter()?;
        let Some(identity) = identity_of(&self.tls) else {
            self.stage = Stage::Over;
            return Err(SessionFault::NotWeft("it showed no key of a node".to_owned()));
        };
        let (proof, role) = (&greeting.proof, self.role.other());
        let refusal = if !self.keys.accept(proof, &exporter, role, &identity) {
            // The other side may accept the key of this one, and would wait without an answer.
            self.write(&Message::Refused(Refusal::Key).emit());
            Refusal::Key
        } else if self.versions.common(&greeting.versions).is_none() {
            Refusal::Version(greeting.versions)
        } else {
            self.stage = Stage::Messages;
            return Ok(SessionEvent::Proved { identity, versions: greeting.versions });
        };
        self.stage = Stage::Over;
        Err(SessionFault::Refused(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::OwnIdentity;
    use crate::key::new_key_line;

    struct Node {
        tls: Tls,
        own: Identity,
        keys: Arc<FabricKeys>,
    }

    impl Node {
        fn new(key: &str) -> Self {
            let own = OwnIdentity::generate().expect("random bytes");
            let tls = Tls::new(&own).expect("TLS takes the key");
            let keys = Arc::new(FabricKeys::parse(key).expect("a key"));
            Self { tls, own: own.identity(), keys }
        }

        fn session(&self, role: Role) -> Session {
            let keys = Arc::clone(&self.keys);
            Session::new(&self.tls, role, self.own, keys, Versions::own()).expect("a session")
        }
    }

    /// Carries bytes between a session and a bare TLS connection.
    fn carry(session: &mut Session, bare: &mut Connection) -> Result<(), SessionFault> {
        let mut events = Vec::new();
        for _ in 0..8 {
            let there = session.take_output();
            let mut there = &there[..];
            while !there.is_empty() {
                bare.read_tls(&mut there).expect("memory");
                bare.process_new_packets().expect("TLS of this release");
            }
            let mut back = Vec::new();
            while bare.wants_write() {
                bare.write_tls(&mut back).expect("memory");
            }
            session.receive(&back, &mut events)?;
            assert_eq!(events, [], "nothing was proved");
        }
        Ok(())
    }

    fn plain(bare: &mut Connection) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let length = bare.reader().read(&mut bytes).expect("the greeting is there");
        bytes.truncate(length);
        bytes
    }

    /// A relay without the key ends TLS on both of its sides and passes on what is inside.
    #[test]
    fn a_relayed_proof_is_worth_nothing() {
        let key = new_key_line().expect("random bytes");
        let (one, other) = (Node::new(&key), Node::new(&key));
        let relay = Node::new(&new_key_line().expect("random bytes"));
        let mut dialer = one.session(Role::Dialer);
        let mut listener = other.session(Role::Listener);
        let mut to_dialer = relay.tls.connection(Role::Listener).expect("a connection");
        let mut to_listener = relay.tls.connection(Role::Dialer).expect("a connection");
        carry(&mut dialer, &mut to_dialer).expect("TLS goes on");
        carry(&mut listener, &mut to_listener).expect("TLS goes on");
        let greeting = plain(&mut to_dialer);
        Greeting::parse(&greeting[4..]).expect("the dialer's greeting");
        to_listener.writer().write_all(&greeting).expect("memory");
        to_dialer.writer().write_all(&plain(&mut to_listener)).expect("memory");
        for (session, bare) in [(&mut dialer, &mut to_dialer), (&mut listener, &mut to_listener)] {
            let refused = SessionFault::Refused(Refusal::Key);
            assert_eq!(carry(session, bare), Err(refused));
        }
    }

    #[test]
    fn a_proof_that_comes_back_to_its_sender_is_worth_nothing() {
        let node = Node::new(&new_key_line().expect("random bytes"));
        let mut dialer = node.session(Role::Dialer);
        let mut mirror = node.tls.connection(Role::Listener).expect("a connection");
        carry(&mut dialer, &mut mirror).expect("TLS goes on");
        let greeting = plain(&mut mirror);
        mirror.writer().write_all(&greeting).expect("memory");
        let refused = SessionFault::Refused(Refusal::Key);
        assert_eq!(carry(&mut dialer, &mut mirror), Err(refused));
    }

    #[test]
    fn frames_that_are_no_messages_end_the_connection_also_of_one_that_has_the_key() {
        let node = Node::new(&new_key_line().expect("random bytes"));
        let huge = u32::try_from(FRAME_BYTES_MAX + 1).expect("it fits").to_le_bytes().to_vec();
        for frame in [framed(&[200, 1, 2]), framed(&[]), framed(&[4, 0]), huge] {
            let (mut one, mut other) = (node.session(Role::Dialer), node.session(Role::Listener));
            let mut events = Vec::new();
            for _ in 0..4 {
                other.receive(&one.take_output(), &mut events).expect("sound");
                one.receive(&other.take_output(), &mut events).expect("sound");
            }
            assert!(one.is_proved() && other.is_proved());
            one.tls.writer().write_all(&frame).expect("memory");
            let fault = other.receive(&one.take_output(), &mut events);
            assert!(matches!(fault, Err(SessionFault::Invalid(_))), "{frame:?}: {fault:?}");
            assert_eq!(events.len(), 2, "only the two proofs");
        }
    }
}
