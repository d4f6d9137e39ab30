//! A peer that sends anything: the fuzzing entry.
//!
//! The input is a script for two endpoints of one side and a victim. The hostile endpoint sends
//! packets of the script's choice, well formed or not; the victim sends, cancels and polls. Nothing
//! may panic, and the victim and its friend must still understand each other.

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, MessageHeader, PATIENCE,
    Peer, Transport,
};

use crate::driver::Messages;
use crate::event::{Body, Event, Ticket};
use crate::options::{Options, Placement};

/// Steps of a script at most.
const STEPS_MAX: usize = 512;

struct Scene<E: Endpoint> {
    victim: Messages<E>,
    friend: Messages<E>,
    hostile: E,
    at_victim: Peer,
    at_hostile: Option<Peer>,
    asked: Vec<Ticket>,
    /// A key of the hostile endpoint that its packets may name.
    key: u64,
}

/// Runs a script, and checks that the victim still talks to its friend. `pass` lets time pass.
///
/// # Panics
/// When the victim panics or its friend cannot reach it.
pub fn fuzz_peer<T: Transport>(transport: &T, script: &[u8], pass: &mut dyn FnMut()) {
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh transport");
    let (&flags, script) = script.split_first().unwrap_or((&0, &[]));
    let placement = if flags & 1 == 0 { Placement::Allocate } else { Placement::Ask };
    let options = Options {
        window: 32,
        receive_bytes_max: 16_384,
        bounce_bytes_max: 16_384,
        placement,
        ..Options::default()
    };
    let mut victim = Messages::new(open(), options.clone());
    let friend = Messages::new(open(), options);
    let mut hostile = open();
    let address = victim.endpoint().address();
    let at_victim = hostile.connect_within(address, PATIENCE).expect("there");
    let at_hostile = victim.endpoint().connect_within(hostile.address(), PATIENCE).ok();
    let region = hostile.register(4096).expect("memory");
    let range = LocalRange::whole(&region);
    let key = hostile.grant_within(range, Audience::Partition, Access::READ, PATIENCE);
    let key = key.expect("a grant").0;
    let asked = Vec::new();
    let mut scene = Scene { victim, friend, hostile, at_victim, at_hostile, asked, key };
    let mut rest = script;
    for step in 0..STEPS_MAX {
        let Some((action, more)) = rest.split_first() else { break };
        rest = scene.step(*action, more, step as u64);
        pass();
    }
    scene.check(pass);
}

/// Takes up to `length` bytes off the script.
fn take(script: &[u8], length: usize) -> (&[u8], &[u8]) {
    script.split_at(length.min(script.len()))
}

impl<E: Endpoint> Scene<E> {
    /// Does one step and returns the rest of the script.
    fn step<'a>(&mut self, action: u8, script: &'a [u8], context: u64) -> &'a [u8] {
        let header = MessageHeader::tag(Options::default().tag);
        let choice = script.first().copied().unwrap_or(0);
        let short = usize::from(choice % 113);
        match action % 12 {
            // Any bytes.
            0 => {
                let (packet, rest) = take(script, short + 8);
                let _ = self.hostile.send_short(self.at_victim, header, &[packet]);
                return rest;
            }
            // A header with what belongs behind it, and a length that fits or does not.
            1..=4 => {
                let (fields, rest) = take(script, 8);
                let (body, rest) = take(rest, short);
                let _ = self.hostile.send_short(self.at_victim, header, &[fields, body]);
                return rest;
            }
            // An announcement of the granted memory.
            5 => {
                let (fields, rest) = take(script, 8);
                let (range, rest) = take(rest, 3);
                let byte = |at: usize| u64::from(range.get(at).copied().unwrap_or(1));
                let (key, offset) = (self.key ^ (byte(0) & 1), byte(1) * 16);
                let length = byte(2) * 16 + 1;
                let parts = [fields, &key.to_le_bytes(), &offset.to_le_bytes()];
                let [a, b, c] = parts;
                let length = length.to_le_bytes();
                let _ = self.hostile.send_short(self.at_victim, header, &[a, b, c, &length]);
                return rest;
            }
            6 => self.send(usize::from(choice) * 20, context),
            7 => self.send(short, context),
            8 => {
                if let Some(peer) = self.at_hostile {
                    self.victim.cancel(peer, context.saturating_sub(u64::from(choice % 8)));
                }
            }
            9 => self.decide(choice),
            10 => drop(self.hostile.poll(64, &mut |_| {})),
            _ => self.poll_victim(usize::from(choice)),
        }
        script.get(1..).unwrap_or(&[])
    }

    fn send(&mut self, length: usize, context: u64) {
        let Some(peer) = self.at_hostile else { return };
        let _ = self.victim.send(peer, b"head", &[&vec![7; length]], context);
    }

    fn decide(&mut self, choice: u8) {
        let Some(ticket) = self.asked.pop() else { return };
        let _ = match choice % 3 {
            0 => self.victim.refuse(ticket),
            _ => self.victim.accept(ticket),
        };
    }

    fn poll_victim(&mut self, budget: usize) {
        let asked = &mut self.asked;
        self.victim.poll(budget, |event| match event {
            Event::Announced { ticket, .. } => asked.push(ticket),
            Event::Lost { ticket, .. } => asked.retain(|other| *other != ticket),
            Event::Endpoint(_)
            | Event::Message(_)
            | Event::Completion { .. }
            | Event::Room { .. }
            | Event::Misbehaved { .. } => {}
        });
    }

    /// Checks that the victim and its friend still receive each other's messages, of both kinds.
    fn check(mut self, pass: &mut dyn FnMut()) {
        drop(self.hostile);
        let addresses = [self.victim.endpoint().address(), self.friend.endpoint().address()];
        let mut ends = [&mut self.victim, &mut self.friend];
        let peers: Vec<Peer> = (0..2)
            .map(|at| {
                let to = addresses[1 - at];
                ends[at].endpoint().connect_within(to, PATIENCE).expect("the other is there")
            })
            .collect();
        let long = [3; 10_000];
        let mut received = [0, 0];
        let mut sent = [0, 0];
        for _ in 0..2_000 {
            for at in 0..2 {
                let bodies: [&[u8]; 2] = [b"still here", &long];
                if let Some(body) = bodies.get(sent[at]) {
                    let head = b"friend";
                    sent[at] += usize::from(ends[at].send(peers[at], head, &[body], 1).is_ok());
                }
                let mut asked = Vec::new();
                ends[at].poll(64, |event| match event {
                    Event::Message(message) if message.head == b"friend" => {
                        let long = matches!(message.body, Body::Range { length: 10_000, .. });
                        assert_eq!(long, received[at] == 1, "out of order");
                        received[at] += 1;
                    }
                    Event::Announced { ticket, .. } => asked.push(ticket),
                    _ => {}
                });
                for ticket in asked {
                    let _ = ends[at].accept(ticket);
                }
            }
            if received == [2, 2] {
                break;
            }
            pass();
        }
        assert_eq!(received, [2, 2], "the victim and its friend do not understand each other");
        let census = ends[0].census();
        assert_eq!(census.receive_bytes, census.idle_receive_bytes, "memory leaked: {census:?}");
    }
}
