//! Compares the matchmaker with a model that keeps plain lists and searches all of them.

use std::net::SocketAddr;

use proptest::prelude::*;
use weft_socket::matchmaker::{Matchmaker, Offer, Offerer, Outcome, TableLimits};
use weft_socket::tuple::{Route, Tuple};

const LIMITS: TableLimits =
    TableLimits { connections_max: 6, listeners_max: 4, user_share: 100, user_unbounded: 0 };

#[derive(Clone, Debug)]
enum Act {
    Offer { by: Offerer<u8>, tuple: Tuple, how: u8 },
    Withdraw(Offerer<u8>),
    Gone(u8),
    Listen { by: Offerer<u8>, namespace: u64, address: SocketAddr },
}

#[derive(Clone, Debug)]
struct Waits {
    by: Offerer<u8>,
    tuple: Tuple,
    offer: Offer<u32>,
}

#[derive(Clone, Debug)]
struct Pairs {
    accepted: Offerer<u8>,
    connected: Offerer<u8>,
    tuple: Tuple,
    memory: u32,
    gone: [bool; 2],
}

#[derive(Default)]
struct Model {
    waiting: Vec<Waits>,
    pairs: Vec<Pairs>,
    listeners: Vec<(Offerer<u8>, u64, SocketAddr)>,
    listened: Vec<(u8, u64, SocketAddr)>,
}

impl Model {
    fn forget(&mut self, gone: impl Fn(Offerer<u8>) -> bool) {
        self.waiting.retain(|waits| !gone(waits.by));
        self.pairs.retain(|pair| !gone(pair.accepted) && !gone(pair.connected));
        self.stop_listening(gone);
    }

    fn stop_listening(&mut self, gone: impl Fn(Offerer<u8>) -> bool) {
        while let Some(place) = self.listeners.iter().position(|(by, ..)| gone(*by)) {
            let (by, namespace, address) = self.listeners.remove(place);
            let at = |(_, n, a): &(u8, u64, SocketAddr)| (*n, *a) == (namespace, address);
            let others = self.listeners.iter().any(|(_, n, a)| (*n, *a) == (namespace, address));
            let known = self.listened.iter().any(at);
            if !others && !known && self.listened.len() < LIMITS.listeners_max {
                self.listened.push((by.process, namespace, address));
            }
        }
    }

    fn process_gone(&mut self, process: u8) {
        self.waiting.retain(|waits| waits.by.process != process);
        self.stop_listening(|by| by.process == process);
        self.listened.retain(|(by, ..)| *by != process);
        for pair in &mut self.pairs {
            pair.gone[0] |= pair.accepted.process == process;
            pair.gone[1] |= pair.connected.process == process;
        }
        self.pairs.retain(|pair| pair.gone != [true; 2]);
    }

    fn listening(&self, namespace: u64, address: SocketAddr) -> bool {
        let now = self.listeners.iter().map(|(_, at, listens)| (at, listens));
        let before = self.listened.iter().map(|(_, at, listens)| (at, listens));
        now.chain(before).any(|(at, listens)| {
            let any = listens.ip().is_unspecified() && listens.port() == address.port();
            *at == namespace && (*listens == address || any)
        })
    }

    fn offer(&mut self, by: Offerer<u8>, tuple: Tuple, offer: Offer<u32>) -> Outcome<u8, u32> {
        self.forget(|other| other == by);
        self.waiting.retain(|waits| waits.tuple != tuple);
        self.pairs.retain(|pair| pair.tuple != tuple && pair.tuple != tuple.mirrored());
        let other = self.waiting.iter().position(|waits| waits.tuple == tuple.mirrored());
        let there = other.map(|place| self.waiting[place].clone());
        let gone = [false; 2];
        let pair = match (offer, there.as_ref().map(|there| (there.offer, there.by))) {
            (Offer::Accepted(memory), Some((Offer::Connected, connected))) => {
                Some(Pairs { accepted: by, connected, tuple, memory, gone })
            }
            (Offer::Connected, Some((Offer::Accepted(memory), accepted))) => {
                let tuple = tuple.mirrored();
                Some(Pairs { accepted, connected: by, tuple, memory, gone })
            }
            _ => None,
        };
        if let Some(pair) = pair {
            self.waiting.remove(other.expect("it is there"));
            self.pairs.push(pair.clone());
            let Pairs { accepted, connected, memory, .. } = pair;
            return Outcome::Matched { connected, accepted, memory };
        }
        if self.waiting.len() + self.pairs.len() >= LIMITS.connections_max {
            return Outcome::Full { maximum: LIMITS.connections_max };
        }
        self.waiting.push(Waits { by, tuple, offer });
        match (offer, there.map(|there| (there.offer, there.by))) {
            (Offer::Expecting, Some((Offer::Connected, connected))) => {
                Outcome::Wanted { connected, accepted: by }
            }
            (Offer::Connected, Some((Offer::Expecting, accepted))) => {
                Outcome::Wanted { connected: by, accepted }
            }
            (Offer::Connected, _) => {
                let Route::Namespaces { there, .. } = tuple.route else { panic!("none is traced") };
                let listening = self.listening(there, tuple.remote);
                Outcome::Waiting { listening }
            }
            _ => Outcome::Waiting { listening: false },
        }
    }

    fn listen(&mut self, by: Offerer<u8>, namespace: u64, address: SocketAddr) {
        self.stop_listening(|other| other == by);
        if self.listeners.len() < LIMITS.listeners_max {
            self.listened.retain(|(_, n, a)| (*n, *a) != (namespace, address));
            self.listeners.push((by, namespace, address));
        }
    }
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let texts = vec!["127.0.0.1:1", "127.0.0.1:2", "127.0.0.2:1", "[::1]:1", "0.0.0.0:1", "[::]:2"];
    proptest::sample::select(texts).prop_map(|text| text.parse().expect("an address"))
}

fn offerer() -> impl Strategy<Value = Offerer<u8>> {
    (0..3_u8, 0..4_u64).prop_map(|(process, token)| Offerer { process, token })
}

fn tuple() -> impl Strategy<Value = Tuple> {
    (0..2_u64, 0..2_u64, address(), address()).prop_map(|(here, there, local, remote)| Tuple {
        route: Route::Namespaces { here, there },
        ..Tuple::new(here, local, remote)
    })
}

fn act() -> impl Strategy<Value = Act> {
    let offer = (offerer(), tuple(), 0..3_u8);
    let listen = (offerer(), 0..2_u64, address());
    prop_oneof![
        8 => offer.prop_map(|(by, tuple, how)| Act::Offer { by, tuple, how }),
        2 => offerer().prop_map(Act::Withdraw),
        1 => (0..3_u8).prop_map(Act::Gone),
        2 => listen.prop_map(|(mut by, namespace, address)| {
            by.token |= 1 << 63;
            Act::Listen { by, namespace, address }
        }),
    ]
}

fn compare(maker: &Matchmaker<u8, u32>, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(maker.waiting(), model.waiting.len());
    let mut pairs: Vec<_> = maker.pairs().map(|p| (p.memory, p.accepted, p.connected)).collect();
    let mut expected: Vec<_> =
        model.pairs.iter().map(|p| (p.memory, p.accepted, p.connected)).collect();
    pairs.sort_by_key(|pair| pair.0);
    expected.sort_by_key(|pair| pair.0);
    prop_assert_eq!(pairs, expected);
    prop_assert!(maker.waiting() + maker.pairs().count() <= LIMITS.connections_max);
    prop_assert!(maker.listeners().count() <= LIMITS.listeners_max);
    prop_assert_eq!(maker.listeners().count(), model.listeners.len());
    for pair in &model.pairs {
        prop_assert_eq!(maker.memory_of(pair.tuple), Some(pair.memory));
        prop_assert_eq!(maker.memory_of(pair.tuple.mirrored()), Some(pair.memory));
    }
    for waits in &model.waiting {
        let memory = if let Offer::Accepted(memory) = waits.offer { Some(memory) } else { None };
        prop_assert_eq!(maker.memory_of(waits.tuple), memory);
        prop_assert_eq!(maker.waiting_for(waits.tuple.mirrored()), Some(waits.by));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn offers_match_as_in_the_model(acts in prop::collection::vec(act(), 0..60)) {
        let mut maker = Matchmaker::new(LIMITS);
        let mut model = Model::default();
        for (number, act) in acts.into_iter().enumerate() {
            let memory = u32::try_from(number).expect("few");
            match act {
                Act::Offer { by, tuple, how } => {
                    let offer = match how {
                        0 => Offer::Accepted(memory),
                        1 => Offer::Expecting,
                        _ => Offer::Connected,
                    };
                    let outcome = maker.offer(by, 7, tuple, offer);
                    prop_assert_eq!(outcome, model.offer(by, tuple, offer));
                }
                Act::Withdraw(by) => {
                    maker.withdraw(by);
                    model.forget(|other| other == by);
                }
                Act::Gone(process) => {
                    maker.process_gone(process);
                    model.process_gone(process);
                }
                Act::Listen { by, namespace, address } => {
                    maker.listen(by, 7, namespace, address);
                    model.listen(by, namespace, address);
                }
            }
            compare(&maker, &model)?;
        }
        for process in 0..3 {
            maker.process_gone(process);
        }
        prop_assert!(maker.is_empty(), "something was left behind");
    }
}
