//! A peer that sends anything: the fuzzing entry.
//!
//! The input is a script for a hostile endpoint and a victim. The hostile endpoint sends packets
//! that are right but for what the script changes; the victim sends, cancels and polls. Nothing may
//! panic, and the victim and its friend must still understand each other.

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, MessageHeader, PATIENCE,
    Peer, Transport,
};

use crate::driver::Messages;
use crate::error::Offence;
use crate::event::{Body, Event, Ticket};
use crate::options::{Options, Placement};
use crate::packet::{Header, Kind};

/// Steps of a script at most.
const STEPS_MAX: usize = 512;
/// Bytes of one step.
const STEP: usize = 4;

struct Scene<E: Endpoint> {
    victim: Messages<E>,
    friend: Messages<E>,
    hostile: E,
    at_victim: Option<Peer>,
    at_hostile: Option<Peer>,
    asked: Vec<Ticket>,
    /// A key of the hostile endpoint that its packets may name.
    key: u64,
    /// The number of the hostile endpoint's next message.
    number: u16,
    offences: Vec<Offence>,
}

/// Runs a script, and checks that the victim still talks to its friend. `pass` lets time pass.
/// Returns what the victim says of the hostile endpoint.
///
/// # Panics
/// When the victim panics or its friend cannot reach it.
pub fn fuzz_peer<T: Transport>(
    transport: &T,
    script: &[u8],
    pass: &mut dyn FnMut(),
) -> Vec<Offence> {
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
    let (asked, offences) = (Vec::new(), Vec::new());
    let at_victim = Some(at_victim);
    let number = 0;
    let mut scene =
        Scene { victim, friend, hostile, at_victim, at_hostile, asked, key, number, offences };
    for (context, step) in (0..).zip(script.chunks(STEP).take(STEPS_MAX)) {
        let mut whole = [0; STEP];
        whole[..step.len()].copy_from_slice(step);
        scene.step(whole, context);
        pass();
    }
    scene.poll_victim(64);
    scene.check(pass)
}

impl<E: Endpoint> Scene<E> {
    /// Does one step: an action, two numbers for it, and how the packet differs from a right one.
    fn step(&mut self, [action, choice, other, twist]: [u8; STEP], context: u64) {
        let own = self.number;
        let back = |by: u8| own.wrapping_sub(u16::from(by % 8));
        let kinds = [Kind::Done, Kind::Refused, Kind::Cancelled];
        match action % 13 {
            0 => self.packet(Kind::Whole, (own, 0, 0), usize::from(choice) % 113, twist),
            // A message of two parts, or what the twist makes of it.
            1 => {
                let length = 113 + u16::from(choice % 100);
                self.packet(Kind::Part, (own, length, 0), 112, twist);
                self.packet(Kind::Part, (own, length, 0), usize::from(length) - 112, twist >> 4);
            }
            2 => self.announcement(u64::from(choice) * 16, u64::from(other) * 16, twist),
            3 => self.packet(Kind::Cancel, (back(choice), 0, 0), 0, twist),
            4 => {
                let kind = kinds[usize::from(choice) % 3];
                self.packet(kind, (u16::from(other % 8), 0, 0), 0, twist);
            }
            5 => {
                let credits = if twist == 255 { u16::MAX } else { u16::from(choice) };
                self.packet(Kind::Credit, (0, 0, credits), 0, twist);
            }
            6 => {
                self.send_raw(&[choice, other, twist]);
                self.send_raw(&[choice, 0, 0, 0, other, 0, twist, 0]);
            }
            7 => self.send(usize::from(choice) * 20, context),
            8 => {
                if let Some(peer) = self.at_hostile {
                    self.victim.cancel(peer, context.saturating_sub(u64::from(choice % 8)));
                }
            }
            9 => self.decide(choice),
            10 => drop(self.hostile.poll(64, &mut |_| {})),
            11 => self.connect(),
            _ => self.poll_victim(usize::from(choice)),
        }
    }

    /// Makes the hostile endpoint known again after the victim gave it up.
    fn connect(&mut self) {
        self.poll_victim(64);
        self.hostile.poll(64, &mut |_| {});
        let (victim, hostile) = (self.victim.endpoint().address(), self.hostile.address());
        let connected = self.hostile.connect_within(victim, PATIENCE).ok();
        if connected != self.at_victim {
            self.number = 0;
        }
        self.at_victim = connected;
        self.at_hostile = self.victim.endpoint().connect_within(hostile, PATIENCE).ok();
    }

    /// Sends a packet with so many bytes of body, changed by the low bits of `twist`.
    fn packet(
        &mut self,
        kind: Kind,
        (number, length, credits): (u16, u16, u16),
        body: usize,
        twist: u8,
    ) {
        let mut header = Header { kind, head: 0, credits, number, length };
        let mut bytes = body;
        match twist & 15 {
            1 => header.number = number.wrapping_add(1),
            2 => header.head = 113,
            3 => header.length = length.wrapping_add(200),
            4 => bytes = (body + 1).min(112),
            5 => bytes = body / 2,
            6 => header.head = 5,
            _ => {}
        }
        let body = [9; 112];
        self.send_raw(&[&header.emit()[..], &body[..bytes]].concat());
        let is_last = kind == Kind::Whole || kind == Kind::Part && body.len() != bytes;
        self.number = self.number.wrapping_add(u16::from(is_last));
    }

    fn announcement(&mut self, offset: u64, length: u64, twist: u8) {
        let key = if twist & 15 == 1 { self.key ^ 1 } else { self.key };
        let length = if twist & 15 == 2 { u64::MAX } else { length + 1 };
        let head = if twist & 15 == 3 { 7 } else { 0 };
        let number = self.number.wrapping_add(u16::from(twist & 15 == 4));
        let header = Header { kind: Kind::Announcement, head, credits: 0, number, length: 0 };
        let range = [key.to_le_bytes(), offset.to_le_bytes(), length.to_le_bytes()].concat();
        self.send_raw(&[&header.emit()[..], &range].concat());
        self.number = self.number.wrapping_add(1);
    }

    fn send_raw(&mut self, packet: &[u8]) {
        let header = MessageHeader::tag(Options::default().tag);
        let Some(peer) = self.at_victim else { return };
        let _ = self.hostile.send_short(peer, header, &[packet]);
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
        let Self { asked, offences, .. } = self;
        self.victim.poll(budget, |event| match event {
            Event::Misbehaved { offence, .. } => offences.push(offence),
            Event::Announced { ticket, .. } => asked.push(ticket),
            Event::Lost { ticket, .. } => asked.retain(|other| *other != ticket),
            Event::Endpoint(_)
            | Event::Message(_)
            | Event::Completion { .. }
            | Event::Room { .. } => {}
        });
    }

    /// Checks that the victim and its friend still receive each other's messages, of both kinds.
    fn check(mut self, pass: &mut dyn FnMut()) -> Vec<Offence> {
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
        self.offences
    }
}
