//! Two ends of a connection, and strangers at one of them.

use std::sync::Arc;

use proptest::prelude::*;
use weft_membership::{
    FabricKeys, Identity, Message, OwnIdentity, Refusal, Role, Session, SessionEvent, SessionFault,
    Tls, Versions, new_key_line,
};

/// A node's side.
struct Node {
    own: OwnIdentity,
    tls: Tls,
    keys: Arc<FabricKeys>,
    versions: Versions,
}

fn key() -> String {
    new_key_line().expect("random bytes")
}

impl Node {
    fn new(keys: &str) -> Self {
        let own = OwnIdentity::generate().expect("random bytes");
        let tls = Tls::new(&own).expect("TLS takes the key");
        let keys = Arc::new(FabricKeys::parse(keys).expect("keys"));
        Self { own, tls, keys, versions: Versions::own() }
    }

    fn session(&self, role: Role) -> Session {
        let (own, keys) = (self.own.identity(), Arc::clone(&self.keys));
        Session::new(&self.tls, role, own, keys, self.versions.clone()).expect("a session")
    }
}

/// One end, and all that it told.
struct End {
    session: Session,
    events: Vec<SessionEvent>,
    fault: Option<SessionFault>,
}

impl End {
    fn new(node: &Node, role: Role) -> Self {
        Self { session: node.session(role), events: Vec::new(), fault: None }
    }

    fn receive(&mut self, bytes: &[u8]) {
        if self.fault.is_none() {
            self.fault = self.session.receive(bytes, &mut self.events).err();
        }
    }

    fn identity(&self) -> Option<Identity> {
        self.events.iter().find_map(|event| match event {
            SessionEvent::Proved { identity, .. } => Some(*identity),
            SessionEvent::Message(_) => None,
        })
    }

    fn messages(&self) -> Vec<Message> {
        let messages = self.events.iter().filter_map(|event| match event {
            SessionEvent::Message(message) => Some(message.clone()),
            SessionEvent::Proved { .. } => None,
        });
        messages.collect()
    }
}

/// Carries bytes both ways until none are left; `change` sees those of the dialer.
fn carry(dialer: &mut End, listener: &mut End, mut change: impl FnMut(&mut Vec<u8>)) {
    loop {
        let mut there = dialer.session.take_output();
        let back = listener.session.take_output();
        if there.is_empty() && back.is_empty() {
            return;
        }
        change(&mut there);
        listener.receive(&there);
        dialer.receive(&back);
    }
}

fn ends(dialer: &Node, listener: &Node) -> (End, End) {
    (End::new(dialer, Role::Dialer), End::new(listener, Role::Listener))
}

#[test]
fn two_nodes_with_the_key_learn_each_other_s_identity_and_exchange_messages() {
    let key = key();
    let (one, other) = (Node::new(&key), Node::new(&key));
    let (mut dialer, mut listener) = ends(&one, &other);
    carry(&mut dialer, &mut listener, |_| {});
    assert_eq!((&dialer.fault, &listener.fault), (&None, &None));
    assert_eq!(dialer.identity(), Some(other.own.identity()));
    assert_eq!(listener.identity(), Some(one.own.identity()));
    let long = Message::User((0..60_000_u32).map(|at| at.to_le_bytes()[0]).collect());
    for message in [Message::Ping, long.clone()] {
        dialer.session.send(&message);
        listener.session.send(&message);
    }
    carry(&mut dialer, &mut listener, |_| {});
    assert_eq!(dialer.messages(), [Message::Ping, long.clone()]);
    assert_eq!(listener.messages(), [Message::Ping, long]);
}

#[test]
fn different_keys_are_told_at_both_ends() {
    let (key, another) = (key(), key());
    let both = format!("{another}\n{key}");
    for (at_dialer, at_listener) in [(&key, &another), (&key, &both), (&both, &key)] {
        let (one, other) = (Node::new(at_dialer), Node::new(at_listener));
        let (mut dialer, mut listener) = ends(&one, &other);
        carry(&mut dialer, &mut listener, |_| {});
        let refused = |end: &End| {
            let is_own = end.fault == Some(SessionFault::Refused(Refusal::Key));
            is_own || end.messages() == [Message::Refused(Refusal::Key)]
        };
        assert!(refused(&dialer), "{:?} {:?}", dialer.fault, dialer.events);
        assert!(refused(&listener), "{:?} {:?}", listener.fault, listener.events);
    }
}

#[test]
fn releases_without_a_common_version_name_both_at_both_ends() {
    let key = key();
    let (mut one, other) = (Node::new(&key), Node::new(&key));
    one.versions = Versions { lowest: 7, highest: 9, release: "4.0.0".to_owned() };
    let (mut dialer, mut listener) = ends(&one, &other);
    carry(&mut dialer, &mut listener, |_| {});
    let told = listener.fault.expect("refused").to_string();
    assert!(told.contains("release 4.0.0, versions 7 to 9 there"), "{told}");
    assert!(told.contains(&format!("{} here", Versions::own())), "{told}");
    let told = dialer.fault.expect("refused").to_string();
    assert!(told.contains(&format!("{} there", Versions::own())), "{told}");
}

#[test]
fn a_recorded_join_is_worth_nothing() {
    let key = key();
    let (one, other) = (Node::new(&key), Node::new(&key));
    let (mut dialer, mut listener) = ends(&one, &other);
    let mut recorded = Vec::new();
    carry(&mut dialer, &mut listener, |bytes| recorded.push(bytes.clone()));
    assert!(listener.identity().is_some());
    let mut again = End::new(&other, Role::Listener);
    for bytes in recorded {
        again.receive(&bytes);
        again.session.take_output();
    }
    assert!(again.fault.is_some());
    assert_eq!(again.events, []);
}

#[test]
fn an_address_that_is_no_weft_is_told_as_such() {
    let node = Node::new(&key());
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "+PONG\r\n"] {
        for role in [Role::Dialer, Role::Listener] {
            let mut end = End::new(&node, role);
            end.session.take_output();
            end.receive(answer.as_bytes());
            let told = end.fault.map(|fault| fault.to_string()).unwrap_or_default();
            assert!(told.contains("is no weft daemon"), "{role:?} {answer}: {told:?}");
        }
    }
}

#[test]
fn a_stranger_that_goes_on_sending_is_cut_off() {
    let node = Node::new(&key());
    let mut end = End::new(&node, Role::Listener);
    // The head of a record that never ends.
    let mut sent = 0;
    let record = [&[0x16, 0x03, 0x01, 0x40, 0x00][..], &[0; 1000]].concat();
    while end.fault.is_none() && sent < 1 << 20 {
        end.receive(&record);
        sent += record.len();
    }
    assert!(sent < 20_000, "{sent}");
}

#[test]
fn bytes_that_were_cut_or_changed_end_the_connection_at_every_stage() {
    let key = key();
    let (one, other) = (Node::new(&key), Node::new(&key));
    for place in (0..1_500).step_by(7) {
        let (mut dialer, mut listener) = ends(&one, &other);
        let mut passed = 0;
        carry(&mut dialer, &mut listener, |bytes| {
            if (passed..passed + bytes.len()).contains(&place) {
                bytes[place - passed] ^= 0x20;
            }
            passed += bytes.len();
        });
        let is_sound = passed <= place;
        assert_eq!(listener.identity().is_some() && listener.fault.is_none(), is_sound, "{place}");
        assert!(!dialer.session.is_proved() || is_sound || listener.fault.is_some());
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused_at_every_stage(
        bytes in proptest::collection::vec(any::<u8>(), 1..400), stage in 0..4_usize,
    ) {
        let key = key();
        let (one, other) = (Node::new(&key), Node::new(&key));
        let (mut dialer, mut listener) = ends(&one, &other);
        for _ in 0..stage {
            listener.receive(&dialer.session.take_output());
            dialer.receive(&listener.session.take_output());
        }
        let before = listener.events.len();
        listener.receive(&bytes);
        listener.receive(&[0; 70_000]);
        prop_assert!(listener.fault.is_some());
        prop_assert_eq!(listener.events.len(), before);
    }
}
