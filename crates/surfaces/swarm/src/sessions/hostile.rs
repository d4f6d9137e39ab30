//! An endpoint that sends any frame: right ones, wrong ones, and right ones at the wrong time.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Blocking, Endpoint, EndpointAddress, Event as FabricEvent, Peer};
use weft_message::{Census, Event, Messages, Options};

use super::{PROTOCOL, program::SOON};

/// Kinds of frames: hello, welcome, refusal, request, answer, cancel, pool, pass, free, alive, end,
/// and one that there is not.
const HELLO: u8 = 1;
const REQUEST: u8 = 4;
const POOL: u8 = 7;
const KINDS: u8 = 12;
/// Bytes of a body at most.
const BODY_BYTES_MAX: usize = 600;

pub(super) struct Hostile<E: Endpoint> {
    messages: Messages<E>,
    victims: Vec<(EndpointAddress, Peer)>,
}

impl<E: Endpoint> Hostile<E> {
    pub fn new(endpoint: E, options: Options) -> Self {
        Self { messages: Messages::new(endpoint, options), victims: Vec::new() }
    }

    pub fn address(&mut self) -> EndpointAddress {
        self.messages.endpoint().address()
    }

    pub fn census(&self) -> Census {
        self.messages.census()
    }

    /// Sends something.
    pub fn act(&mut self, victim: EndpointAddress, random: &mut ChaCha8Rng) {
        let known = self.victims.iter().find(|(address, _)| *address == victim);
        let peer = match known {
            Some((_, peer)) => *peer,
            None => match self.messages.endpoint().connect_within(victim, SOON) {
                Ok(peer) => {
                    self.victims.push((victim, peer));
                    peer
                }
                Err(_) => return,
            },
        };
        let kind = if random.random_bool(0.3) { HELLO } else { random.random_range(1..=KINDS) };
        if kind == REQUEST && random.random_bool(0.5) {
            return self.flood(peer, random);
        }
        let small = |random: &mut ChaCha8Rng| random.random_range(0..8_u32);
        let numbers = match kind {
            HELLO => [1, 2 | 3 << 16, small(random)],
            _ => [small(random) | u32::from(random.random_bool(0.5)) << 31, small(random), 8],
        };
        let from_opener = u8::from(kind == HELLO || random.random_bool(0.5));
        let session = random.random_range(0..4_u16);
        let mut head = vec![kind, from_opener];
        head.extend(session.to_le_bytes());
        numbers.iter().for_each(|number| head.extend(number.to_le_bytes()));
        match kind {
            HELLO => head.extend(PROTOCOL.as_bytes()),
            POOL => head.extend([1, 0, 0, 0, 0, 0, 0, 0, 2]),
            _ => head.extend(b"head"),
        }
        match random.random_range(0..20) {
            0 => head.truncate(random.random_range(0..head.len())),
            1 => head.iter_mut().for_each(|byte| *byte = random.random()),
            _ => {}
        }
        // The mark in the hello of a program has 8 bytes.
        let body = vec![b'b'; random.random_range(9..BODY_BYTES_MAX)];
        // Refused for lack of room, or the victim has given it up.
        let _ = self.messages.send(peer, &head, &[&body], 0);
    }

    /// Asks more in each session than a program may have to answer.
    fn flood(&mut self, peer: Peer, random: &mut ChaCha8Rng) {
        let first = random.random_range(0..1_000_u32);
        for session in 0..4_u16 {
            for number in first..first + 10 {
                let mut head = vec![REQUEST, 1];
                head.extend(session.to_le_bytes());
                [number, 0, 0].iter().for_each(|number| head.extend(number.to_le_bytes()));
                let _ = self.messages.send(peer, &head, &[b"more"], 0);
            }
        }
    }

    pub fn poll(&mut self, budget: usize) {
        let victims = &mut self.victims;
        let mut announced = Vec::new();
        self.messages.poll(budget, |event| match event {
            Event::Endpoint(FabricEvent::PeerDown { peer, .. }) => {
                victims.retain(|(_, other)| *other != peer);
            }
            Event::Announced { ticket, .. } => announced.push(ticket),
            _ => {}
        });
        for ticket in announced {
            let _ = self.messages.refuse(ticket);
        }
    }
}
