//! A peer that sends anything: the fuzzing entry.
//!
//! The input is a script for a hostile endpoint and a victim. The hostile endpoint sends frames
//! that are right but for what the script changes; the victim asks, answers, lends, passes and
//! polls. Nothing may panic, and the victim and its friend must still understand each other.

use std::time::Duration;

use weft_fabric::{
    Access, Blocking, Endpoint, EndpointOptions, Event as FabricEvent, LocalRange, PATIENCE, Peer,
    ServiceName, Source, Transport,
};
use weft_message::{Event as MessageEvent, Messages};

use crate::driver::Sessions;
use crate::event::{BlockId, End, Event, PoolId, SessionId};
use crate::frame::{Frame, Kind};
use crate::options::Options;

/// Steps of a script at most.
const STEPS_MAX: usize = 256;
/// Bytes of one step.
const STEP: usize = 6;
/// The protocol of the victim.
const PROTOCOL: &str = "fuzz";

struct Scene<E: Endpoint> {
    victim: Sessions<E>,
    hostile: Messages<E>,
    at_victim: Option<Peer>,
    region: E::Region,
    sessions: Vec<SessionId>,
    open_requests: Vec<(SessionId, u32)>,
    blocks: Vec<(SessionId, BlockId)>,
    pools: Vec<(SessionId, PoolId)>,
    ends: Vec<End>,
    now: Duration,
}

/// Runs a script, and checks that the victim still talks to a friend. `pass` lets time pass.
/// Returns how the victim's sessions with the hostile endpoint ended.
///
/// # Panics
/// When the victim panics or its friend cannot reach it.
pub fn fuzz_peer<T: Transport>(transport: &T, script: &[u8], pass: &mut dyn FnMut()) -> Vec<End> {
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh transport");
    let options = Options {
        sessions_max: 8,
        requests_max: 4,
        hello_bytes_max: 64,
        pools_max: 2,
        blocks_max: 4,
        silence: Some(Duration::from_secs(40)),
        ..Options::default()
    };
    let mut victim = Sessions::new(open(), options.clone());
    victim.serve(ServiceName::new(PROTOCOL).expect("a name"), &(2..=3));
    let region = victim.endpoint().register(4096).expect("memory");
    let mut scene = Scene {
        victim,
        hostile: Messages::new(open(), options.messages.clone()),
        at_victim: None,
        region,
        sessions: Vec::new(),
        open_requests: Vec::new(),
        blocks: Vec::new(),
        pools: Vec::new(),
        ends: Vec::new(),
        now: Duration::ZERO,
    };
    for step in script.chunks(STEP).take(STEPS_MAX) {
        let mut whole = [0; STEP];
        whole[..step.len()].copy_from_slice(step);
        scene.step(whole);
        pass();
        scene.poll();
    }
    let friend = Sessions::new(open(), options);
    scene.check(friend, pass)
}

impl<E: Endpoint> Scene<E> {
    fn step(&mut self, [action, a, b, c, d, e]: [u8; STEP]) {
        self.now += Duration::from_millis(u64::from(e) * 100);
        let small = |byte: u8| u32::from(byte % 8);
        match action % 24 {
            // Frames of every kind, with numbers that are often right.
            kind @ 0..12 => {
                let kinds = [
                    Kind::Hello,
                    Kind::Welcome,
                    Kind::Refusal,
                    Kind::Request,
                    Kind::Answer,
                    Kind::Cancel,
                    Kind::Pool,
                    Kind::Pass,
                    Kind::Free,
                    Kind::Alive,
                    Kind::End,
                    Kind::Hello,
                ];
                let kind = kinds[usize::from(kind)];
                let numbers = match kind {
                    Kind::Hello => [1, 2 | 3 << 16, 4],
                    Kind::Welcome => [1, 2, small(b)],
                    Kind::Pass | Kind::Free => {
                        [small(b) | u32::from(b >> 7) << 31, small(c), u32::from(d)]
                    }
                    _ => [small(b), small(c), small(d)],
                };
                self.frame(kind, (a & 0x80 == 0, u16::from(a % 4)), numbers, d);
            }
            12 => self.send(&[a, b, c, d, e], usize::from(e)),
            13 => self.frame(Kind::Hello, (true, u16::from(a)), [u32::from(b), !0, !0], c),
            14 => drop(self.open()),
            15 => self.accept(u16::from(a % 4)),
            16 => self.ask(a),
            17 => self.answer(usize::from(a), u16::from(b), usize::from(c) * 8),
            18 => self.lend(a),
            19 => self.fill(a),
            20 => self.free(a),
            21 => {
                if let Some(id) = self.any(a) {
                    self.victim.end(id, u16::from(b), "enough");
                }
            }
            22 => {
                if let Some(id) = self.any(a) {
                    self.victim.cancel(id, small(b));
                }
            }
            _ => {
                if let Some(peer) = self.at_victim.filter(|_| a > 200) {
                    let _ = self.hostile.endpoint().disconnect(peer);
                }
            }
        }
    }

    /// Sends a frame. A twist makes it a wrong one.
    fn frame(
        &mut self,
        kind: Kind,
        (from_opener, session): (bool, u16),
        numbers: [u32; 3],
        twist: u8,
    ) {
        let frame = Frame { kind, from_opener, session, numbers };
        let behind: &[u8] = match kind {
            Kind::Hello if twist == 255 => b"other",
            Kind::Hello => PROTOCOL.as_bytes(),
            Kind::Pool if twist == 254 => &[1, 0, 0, 0, 0, 0, 0, 0, 3],
            Kind::Pool => &[1, 0, 0, 0, 0, 0, 0, 0, 2],
            _ => b"head",
        };
        let mut head = frame.emit(behind);
        if twist == 253 {
            head.truncate(9);
        }
        self.send(&head, usize::from(twist) * 3);
    }

    fn send(&mut self, head: &[u8], length: usize) {
        let to = self.victim.endpoint().address();
        let peer =
            self.at_victim.or_else(|| self.hostile.endpoint().connect_within(to, PATIENCE).ok());
        self.at_victim = peer;
        let body = vec![b'b'; length];
        if let Some(peer) = peer {
            let _ = self.hostile.send(peer, head, &[&body], 0);
        }
    }

    /// The victim opens a session to the hostile endpoint.
    fn open(&mut self) -> Option<SessionId> {
        let address = self.hostile.endpoint().address();
        let peer = self.victim.endpoint().connect_within(address, PATIENCE).ok()?;
        let name = ServiceName::new(PROTOCOL).expect("a name");
        let id = self.victim.open(peer, name, &(1..=2), b"options", self.now).ok()?;
        self.sessions.push(id);
        Some(id)
    }

    fn accept(&mut self, version: u16) {
        for id in self.sessions.clone() {
            let _ = self.victim.accept(id, version, b"welcome");
        }
    }

    fn any(&self, choice: u8) -> Option<SessionId> {
        let count = self.sessions.len().max(1);
        self.sessions.get(usize::from(choice) % count).copied()
    }

    fn ask(&mut self, choice: u8) {
        let until = Some(self.now + Duration::from_secs(5)).filter(|_| choice & 1 == 0);
        if let Some(id) = self.any(choice) {
            let _ = self.victim.request(id, b"question", &[b"body"], until);
        }
    }

    fn answer(&mut self, place: usize, code: u16, length: usize) {
        if let Some((id, number)) = self.open_requests.get(place).copied() {
            let _ = self.victim.answer(id, number, code, b"", &[&vec![0; length]]);
        }
    }

    fn lend(&mut self, choice: u8) {
        let Some(id) = self.any(choice) else { return };
        let access = if choice & 1 == 0 { Access::READ } else { Access::WRITE };
        let range = LocalRange::new(&self.region, 64, 128);
        if let Ok(pool) = self.victim.lend(id, range, 32, access) {
            self.pools.push((id, pool));
        }
    }

    fn fill(&mut self, choice: u8) {
        let count = self.pools.len().max(1);
        let Some((id, pool)) = self.pools.get(usize::from(choice) % count).copied() else { return };
        let Ok(Some(block)) = self.victim.take(id, pool) else { return };
        let put = self.victim.put(id, block, Source::Bytes(b"put"), b"filled");
        if put.is_err() && self.victim.pass(id, block, 3, b"filled").is_err() {
            let _ = self.victim.free(id, block);
        }
    }

    fn free(&mut self, choice: u8) {
        if self.blocks.is_empty() {
            return;
        }
        let (id, block) = self.blocks.swap_remove(usize::from(choice) % self.blocks.len());
        let _ = self.victim.get(id, block, 0, LocalRange::new(&self.region, 0, 8));
        let _ = self.victim.free(id, block);
    }

    fn poll(&mut self) {
        let Self { victim, sessions, open_requests, blocks, pools, ends, now, .. } = self;
        victim.poll(*now, 64, |event| match event {
            Event::Hello { session, .. } => sessions.push(session),
            Event::Request { session, number, .. } => open_requests.push((session, number)),
            Event::Block { session, block, .. } => blocks.push((session, block)),
            Event::Pool { session, pool, .. } => pools.push((session, pool)),
            Event::Ended { session, why, .. } => {
                sessions.retain(|id| *id != session);
                ends.push(why);
            }
            _ => {}
        });
        let (hostile, at_victim) = (&mut self.hostile, &mut self.at_victim);
        hostile.poll(64, |event| {
            if let MessageEvent::Endpoint(FabricEvent::PeerDown { .. }) = event {
                *at_victim = None;
            }
        });
    }

    /// A friend opens a session, asks, and has its answer; then all sessions end.
    fn check(mut self, mut friend: Sessions<E>, pass: &mut dyn FnMut()) -> Vec<End> {
        for id in self.sessions.clone() {
            self.victim.end(id, 0, "over");
        }
        let to = self.victim.endpoint().address();
        let to = friend.endpoint().connect_within(to, PATIENCE).expect("the victim lives");
        let name = ServiceName::new(PROTOCOL).expect("a name");
        friend.open(to, name, &(3..=9), b"", self.now).expect("its first");
        let mut is_answered = false;
        for _ in 0..10_000 {
            pass();
            let (mut hellos, mut requests, mut opened) = (Vec::new(), Vec::new(), None);
            let Self { victim, now, ends, .. } = &mut self;
            victim.poll(*now, 64, |event| match event {
                Event::Hello { session, version, .. } => hellos.push((session, version)),
                Event::Request { session, number, .. } => requests.push((session, number)),
                Event::Ended { why, .. } => ends.push(why),
                _ => {}
            });
            self.hostile.poll(64, |_| {});
            for (id, version) in hellos {
                self.victim.accept(id, version, b"").expect("it was just asked for");
            }
            for (id, number) in requests {
                self.victim.answer(id, number, 7, b"", &[]).expect("it was just asked");
            }
            friend.poll(self.now, 64, |event| match event {
                Event::Opened { session, .. } => opened = Some(session),
                Event::Answer { answer: Ok(answer), .. } => is_answered = answer.code == 7,
                _ => {}
            });
            if let Some(id) = opened {
                friend.request(id, b"", &[], None).expect("its first");
            }
            if is_answered {
                return self.ends;
            }
        }
        panic!("the friend has no answer");
    }
}
