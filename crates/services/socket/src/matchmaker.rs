//! Finds the two ends of a TCP connection among the offers of programs.
//!
//! A program that will use a connection through weft offers its end. The offer has the addresses of
//! the socket, which the kernel told the daemon about the descriptor that the program sent; so no
//! program can claim a connection that it does not hold. The offers of the two ends mirror each
//! other. The accepting end brings the memory of a lane, at once or when it hears that the other
//! end is there. When both offers and the memory are there, the connecting end gets the memory.
//!
//! # Invariants
//! - Each end has one offer. A newer offer for the same end replaces the older one, and the pair of
//!   either end: these can only be left from a connection that is gone.
//! - [`TableLimits`] bounds the tables and each user's part of them. An offer beyond the bounds is
//!   refused, and the connection stays on TCP. A connection counts for the users of both ends.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weft_options::share;

use crate::tuple::{Route, Tuple, canonical};

/// The addresses at which a socket may listen to get a connection to `address`.
fn covering(address: SocketAddr) -> [SocketAddr; 3] {
    let any4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
    let any6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
    [address, any4, any6]
}

/// Takes one from the count of `key`. True when none is left.
fn discount<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    *count -= 1;
    let is_over = *count == 0;
    if is_over {
        counts.remove(&key);
    }
    is_over
}

/// Bounds of the tables, and of a user's part of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLimits {
    /// Offers that wait, and pairs.
    pub connections_max: usize,
    /// Listening sockets.
    pub listeners_max: usize,
    /// The percentage that one user may have of what the other users leave.
    pub user_share: u8,
    /// A user who may have all places. Root may have them, too.
    pub user_unbounded: u32,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            listeners_max: 4096,
            user_share: share::ALL,
            user_unbounded: 0,
        }
    }
}

/// Names an offer by its program and a number of that program's choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offerer<P> {
    /// The program.
    pub process: P,
    /// Its number.
    pub token: u64,
}

/// Which end is offered, and with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer<M> {
    /// The accepting end, with the memory of a lane.
    Accepted(M),
    /// The accepting end, which makes a lane when the other end is there.
    Expecting,
    /// The connecting end.
    Connected,
}

/// The result of an offer.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<P, M> {
    /// The other end is there, too. `connected` gets the memory.
    Matched {
        /// The end that connected.
        connected: Offerer<P>,
        /// The accepting end.
        accepted: Offerer<P>,
        /// The memory that the accepting end brought.
        memory: M,
    },
    /// Both ends are there, and `accepted` must make a lane and offer it.
    Wanted {
        /// The connecting end.
        connected: Offerer<P>,
        /// The accepting end.
        accepted: Offerer<P>,
    },
    /// The other end has not come.
    Waiting {
        /// A program under weft listens, or listened, at the address that this end connected to.
        listening: bool,
    },
    /// The user's part of the table is full.
    Full {
        /// How many places the user may have.
        maximum: usize,
    },
}

struct Waiting<P, M> {
    offerer: Offerer<P>,
    user: u32,
    offer: Offer<M>,
}

/// How many places of a table each user has.
#[derive(Debug, Default)]
struct Tally(HashMap<u32, usize>);

impl Tally {
    fn of(&self, user: u32) -> usize {
        self.0.get(&user).copied().unwrap_or(0)
    }

    fn add(&mut self, user: u32) {
        *self.0.entry(user).or_insert(0) += 1;
    }

    fn remove(&mut self, user: u32) {
        if let Some(count) = self.0.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&user);
            }
        }
    }
}

/// A connection whose two offers matched.
#[derive(Clone, Debug)]
pub struct Pair<P, M> {
    /// The accepting end.
    pub accepted: Offerer<P>,
    /// The connecting end.
    pub connected: Offerer<P>,
    /// The tuple of the accepting end.
    pub tuple: Tuple,
    /// The users of the accepting and the connecting end.
    users: [u32; 2],
    /// The lane's memory, also for reading the lane's counters.
    pub memory: M,
    /// True for the accepting and for the connecting offer when its program is gone.
    gone: [bool; 2],
}

/// A socket that listens.
#[derive(Clone, Copy, Debug)]
struct Listener {
    user: u32,
    namespace: u64,
    address: SocketAddr,
}

const CONNECTIONS: usize = 0;
const LISTENERS: usize = 1;

/// The offers, pairs and listeners. `P` names a program, `M` is the memory of a lane (a
/// descriptor).
pub struct Matchmaker<P, M> {
    limits: TableLimits,
    waiting: HashMap<Tuple, Waiting<P, M>>,
    tuples: HashMap<Offerer<P>, Tuple>,
    pairs: HashMap<Offerer<P>, Pair<P, M>>,
    /// The accepting end of each pair, by its tuple.
    paired: HashMap<Tuple, Offerer<P>>,
    partners: HashMap<Offerer<P>, Offerer<P>>,
    listeners: HashMap<Offerer<P>, Listener>,
    /// The places of each user in the tables of connections and listeners.
    tallies: [Tally; 2],
    listening: HashMap<(u64, SocketAddr), usize>,
    /// The same in whatever namespace.
    listening_anywhere: HashMap<SocketAddr, usize>,
    /// Addresses where programs listened that still run. They may hold connections which they
    /// accepted there, and offer them later.
    listened: HashMap<(u64, SocketAddr), P>,
}

impl<P: Copy + Eq + Hash, M: Clone> Matchmaker<P, M> {
    /// Empty tables.
    #[must_use]
    pub fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            waiting: HashMap::new(),
            tuples: HashMap::new(),
            pairs: HashMap::new(),
            paired: HashMap::new(),
            partners: HashMap::new(),
            listeners: HashMap::new(),
            tallies: Default::default(),
            listening: HashMap::new(),
            listening_anywhere: HashMap::new(),
            listened: HashMap::new(),
        }
    }

    /// A program of `user` offers the end `tuple`.
    pub fn offer(
        &mut self,
        offerer: Offerer<P>,
        user: u32,
        tuple: Tuple,
        offer: Offer<M>,
    ) -> Outcome<P, M> {
        self.withdraw(offerer);
        self.remove_waiting(tuple);
        let other = tuple.mirrored();
        for end in [tuple, other] {
            if let Some(stale) = self.paired.get(&end).copied() {
                self.remove_pair(stale);
            }
        }
        let found = self.waiting.get(&other);
        let mut wanted = None;
        match (&offer, found.map(|found| (&found.offer, found.offerer, found.user))) {
            (Offer::Accepted(memory), Some((Offer::Connected, connected, theirs))) => {
                let users = [user, theirs];
                return self.pair(offerer, connected, tuple, users, memory.clone());
            }
            (Offer::Connected, Some((Offer::Accepted(memory), accepted, theirs))) => {
                let (memory, users) = (memory.clone(), [theirs, user]);
                return self.pair(accepted, offerer, other, users, memory);
            }
            (Offer::Expecting, Some((Offer::Connected, connected, _))) => {
                wanted = Some((connected, offerer));
            }
            (Offer::Connected, Some((Offer::Expecting, accepted, _))) => {
                wanted = Some((offerer, accepted));
            }
            _ => {}
        }
        let all = self.waiting.len() + self.pairs.len();
        let maximum = self.allowance(user, CONNECTIONS, self.limits.connections_max, all);
        if self.tallies[CONNECTIONS].of(user) >= maximum {
            return Outcome::Full { maximum };
        }
        let connects = matches!(offer, Offer::Connected);
        let listening = connects && self.is_listened_to(tuple);
        self.tuples.insert(offerer, tuple);
        self.tallies[CONNECTIONS].add(user);
        self.waiting.insert(tuple, Waiting { offerer, user, offer });
        match wanted {
            Some((connected, accepted)) => Outcome::Wanted { connected, accepted },
            None => Outcome::Waiting { listening },
        }
    }

    /// How many places `user` may have in a table of `maximum` places, `all` of which are taken
    /// now.
    fn allowance(&self, user: u32, table: usize, maximum: usize, all: usize) -> usize {
        let is_bounded = user != 0 && user != self.limits.user_unbounded;
        let percent = if is_bounded { self.limits.user_share } else { share::ALL };
        share::allowance(maximum, all.saturating_sub(self.tallies[table].of(user)), percent)
    }

    /// Removes the offer that waits at `tuple`.
    fn remove_waiting(&mut self, tuple: Tuple) {
        if let Some(found) = self.waiting.remove(&tuple) {
            self.tuples.remove(&found.offerer);
            self.tallies[CONNECTIONS].remove(found.user);
        }
    }

    /// Makes a pair; `tuple` is the accepting end's.
    fn pair(
        &mut self,
        accepted: Offerer<P>,
        connected: Offerer<P>,
        tuple: Tuple,
        users: [u32; 2],
        memory: M,
    ) -> Outcome<P, M> {
        for end in [tuple, tuple.mirrored()] {
            self.remove_waiting(end);
        }
        self.tallies[CONNECTIONS].add(users[0]);
        if users[0] != users[1] {
            self.tallies[CONNECTIONS].add(users[1]);
        }
        let gone = [false; 2];
        let pair = Pair { accepted, connected, tuple, users, memory: memory.clone(), gone };
        self.pairs.insert(accepted, pair);
        self.paired.insert(tuple, accepted);
        self.partners.insert(connected, accepted);
        Outcome::Matched { connected, accepted, memory }
    }

    /// The offer that waits at the other end of `tuple`, of either kind.
    #[must_use]
    pub fn waiting_for(&self, tuple: Tuple) -> Option<Offerer<P>> {
        self.waiting.get(&tuple.mirrored()).map(|waiting| waiting.offerer)
    }

    /// The memory of the lane for the connection of `tuple`. Another program that holds one of its
    /// ends asks for it.
    #[must_use]
    pub fn memory_of(&self, tuple: Tuple) -> Option<M> {
        if let Some(waiting) = self.waiting.get(&tuple) {
            return match &waiting.offer {
                Offer::Accepted(memory) => Some(memory.clone()),
                Offer::Expecting | Offer::Connected => None,
            };
        }
        let accepted = self.paired.get(&tuple).or_else(|| self.paired.get(&tuple.mirrored()))?;
        self.pairs.get(accepted).map(|pair| pair.memory.clone())
    }

    /// Removes a pair, given by its accepting end.
    fn remove_pair(&mut self, accepted: Offerer<P>) {
        if let Some(pair) = self.pairs.remove(&accepted) {
            self.partners.remove(&pair.connected);
            self.paired.remove(&pair.tuple);
            self.tallies[CONNECTIONS].remove(pair.users[0]);
            if pair.users[0] != pair.users[1] {
                self.tallies[CONNECTIONS].remove(pair.users[1]);
            }
        }
    }

    /// A program closed the end, or leaves it on TCP. Removes its offer; a pair goes with either
    /// end.
    pub fn withdraw(&mut self, offerer: Offerer<P>) {
        self.withdraw_offer(offerer);
        self.remove_pair(offerer);
        if let Some(accepted) = self.partners.get(&offerer).copied() {
            self.remove_pair(accepted);
        }
    }

    /// Removes the offer of `offerer` that waits, or its listener.
    fn withdraw_offer(&mut self, offerer: Offerer<P>) {
        if let Some(tuple) = self.tuples.remove(&offerer) {
            self.remove_waiting(tuple);
        }
        self.stop_listening(offerer);
    }

    fn stop_listening(&mut self, offerer: Offerer<P>) {
        let Some(Listener { user, namespace, address }) = self.listeners.remove(&offerer) else {
            return;
        };
        self.tallies[LISTENERS].remove(user);
        discount(&mut self.listening_anywhere, address);
        let place = (namespace, address);
        if discount(&mut self.listening, place) && self.listened.len() < self.limits.listeners_max {
            self.listened.entry(place).or_insert(offerer.process);
        }
    }

    /// A socket of a program under weft listens at `address`, and replaces what `offerer` listened
    /// at before. Beyond the bound it is not recorded; a connection to it then stays on TCP if its
    /// connecting end offers first.
    pub fn listen(&mut self, offerer: Offerer<P>, user: u32, namespace: u64, address: SocketAddr) {
        self.stop_listening(offerer);
        let (maximum, all) = (self.limits.listeners_max, self.listeners.len());
        let maximum = self.allowance(user, LISTENERS, maximum, all);
        if self.tallies[LISTENERS].of(user) >= maximum {
            return;
        }
        let address = canonical(address);
        self.listened.remove(&(namespace, address));
        self.tallies[LISTENERS].add(user);
        self.listeners.insert(offerer, Listener { user, namespace, address });
        *self.listening.entry((namespace, address)).or_insert(0) += 1;
        *self.listening_anywhere.entry(address).or_insert(0) += 1;
    }

    /// True when a program under weft listens where a connection of this tuple ends. In a namespace
    /// that is known, also when one did so and may have accepted the connection.
    fn is_listened_to(&self, tuple: Tuple) -> bool {
        match tuple.route {
            Route::Namespaces { there, .. } => self.is_listening(there, tuple.remote),
            Route::Traced(trace) => covering(trace.far_local)
                .iter()
                .any(|address| self.listening_anywhere.contains_key(address)),
            // The other host alone knows, so the other end may come.
            Route::Hosts { .. } => true,
        }
    }

    /// True when a program under weft listens where a connection to `address` ends, or did so and
    /// may have accepted the connection.
    #[must_use]
    pub fn is_listening(&self, namespace: u64, address: SocketAddr) -> bool {
        covering(address).iter().any(|at| {
            let place = (namespace, *at);
            self.listening.contains_key(&place) || self.listened.contains_key(&place)
        })
    }

    /// A program is gone, and its offers with it. A pair stays until the other end is closed or the
    /// other program is gone, too: a relative by fork may hold the end and ask for the memory.
    pub fn process_gone(&mut self, process: P) {
        let offerers: Vec<_> = (self.tuples.keys())
            .chain(self.listeners.keys())
            .filter(|offerer| offerer.process == process)
            .copied()
            .collect();
        for offerer in offerers {
            self.withdraw_offer(offerer);
        }
        self.listened.retain(|_, listener| *listener != process);
        let mut over = Vec::new();
        for pair in self.pairs.values_mut() {
            pair.gone[0] |= pair.accepted.process == process;
            pair.gone[1] |= pair.connected.process == process;
            if pair.gone == [true; 2] {
                over.push(pair.accepted);
            }
        }
        for accepted in over {
            self.remove_pair(accepted);
        }
    }

    /// True when all tables are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let offers = self.waiting.len() + self.tuples.len();
        let pairs = self.pairs.len() + self.paired.len() + self.partners.len();
        let listeners = self.listeners.len() + self.listening.len() + self.listened.len();
        let listeners = listeners + self.listening_anywhere.len();
        let tallies: usize = self.tallies.iter().map(|tally| tally.0.len()).sum();
        offers + pairs + listeners + tallies == 0
    }

    /// The connections whose two offers matched.
    pub fn pairs(&self) -> impl Iterator<Item = &Pair<P, M>> {
        self.pairs.values()
    }

    /// How many offers wait for the other end.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The listening sockets, with their programs.
    pub fn listeners(&self) -> impl Iterator<Item = (P, SocketAddr)> {
        self.listeners.iter().map(|(offerer, listener)| (offerer.process, listener.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::Trace;

    type Maker = Matchmaker<u32, &'static str>;

    fn tuple(local: &str, remote: &str) -> Tuple {
        let parse = |text: &str| text.parse().expect("an address");
        Tuple::new(1, parse(local), parse(remote))
    }

    fn by(process: u32) -> Offerer<u32> {
        Offerer { process, token: 7 }
    }

    fn server() -> Tuple {
        tuple("127.0.0.1:80", "127.0.0.1:5000")
    }

    #[test]
    fn the_connecting_end_gets_the_memory_in_either_order() {
        for accepted_first in [true, false] {
            let mut maker = Maker::new(TableLimits::default());
            let last = if accepted_first {
                maker.offer(by(1), 0, server(), Offer::Accepted("lane"));
                maker.offer(by(2), 0, server().mirrored(), Offer::Connected)
            } else {
                maker.offer(by(2), 0, server().mirrored(), Offer::Connected);
                maker.offer(by(1), 0, server(), Offer::Accepted("lane"))
            };
            let expected = Outcome::Matched { connected: by(2), accepted: by(1), memory: "lane" };
            assert_eq!(last, expected);
            assert_eq!((maker.waiting(), maker.pairs().count()), (0, 1));
            maker.withdraw(by(2));
            assert_eq!(maker.pairs().count(), 0);
        }
    }

    #[test]
    fn an_end_that_expects_the_other_is_told_in_either_order() {
        for expecting_first in [true, false] {
            let mut maker = Maker::new(TableLimits::default());
            let mut offers = [
                (by(1), server(), Offer::Expecting),
                (by(2), server().mirrored(), Offer::Connected),
            ];
            if !expecting_first {
                offers.reverse();
            }
            let [(one, at, offer), (other, there, answer)] = offers;
            assert_eq!(maker.offer(one, 0, at, offer), Outcome::Waiting { listening: false });
            let wanted = Outcome::Wanted { connected: by(2), accepted: by(1) };
            assert_eq!(maker.offer(other, 0, there, answer), wanted);
            assert_eq!((maker.waiting(), maker.memory_of(server())), (2, None));
            let outcome = maker.offer(by(1), 0, server(), Offer::Accepted("lane"));
            let expected = Outcome::Matched { connected: by(2), accepted: by(1), memory: "lane" };
            assert_eq!(outcome, expected);
            assert_eq!((maker.waiting(), maker.pairs().count()), (0, 1));
        }
    }

    #[test]
    fn ipv4_in_ipv6_meets_ipv4() {
        let mut maker = Maker::new(TableLimits::default());
        let dual = tuple("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:5000");
        maker.offer(by(1), 0, dual, Offer::Accepted("lane"));
        assert!(matches!(
            maker.offer(by(2), 0, server().mirrored(), Offer::Connected),
            Outcome::Matched { .. }
        ));
    }

    #[test]
    fn another_namespace_is_another_network() {
        let mut maker = Maker::new(TableLimits::default());
        maker.offer(by(1), 0, server(), Offer::Accepted("lane"));
        let elsewhere = Route::Namespaces { here: 2, there: 2 };
        let elsewhere = Tuple { route: elsewhere, ..server().mirrored() };
        assert_eq!(
            maker.offer(by(2), 0, elsewhere, Offer::Connected),
            Outcome::Waiting { listening: false }
        );
    }

    #[test]
    fn ends_in_two_namespaces_meet_where_a_network_joins_them() {
        let mut maker = Maker::new(TableLimits::default());
        let server = Tuple { route: Route::Namespaces { here: 1, there: 2 }, ..server() };
        maker.listen(by(1), 0, 1, server.local);
        assert_eq!(
            maker.offer(by(2), 0, server.mirrored(), Offer::Connected),
            Outcome::Waiting { listening: true }
        );
        let outcome = maker.offer(by(1), 0, server, Offer::Accepted("lane"));
        assert!(matches!(outcome, Outcome::Matched { .. }), "{outcome:?}");
    }

    /// The end of a server in a container, and that of a client in another one.
    fn traced() -> (Tuple, Tuple) {
        let server = tuple("10.0.0.3:80", "10.0.0.2:5000");
        let (far_local, far_remote) = (server.remote, server.local);
        let trace = Trace { owner: 7, sent: 100, received: 200, far_local, far_remote };
        let server = Tuple { route: Route::Traced(trace), ..server };
        (server, server.mirrored())
    }

    fn is_matched(server: Tuple, client: Tuple) -> bool {
        let offers = [(by(1), server, Offer::Accepted("lane")), (by(2), client, Offer::Connected)];
        let [forward, backward] = [[0, 1], [1, 0]].map(|order| {
            let mut maker = Maker::new(TableLimits::default());
            let [_, last] = order.map(|place| {
                let (offerer, tuple, offer) = offers[place];
                maker.offer(offerer, 0, tuple, offer)
            });
            matches!(last, Outcome::Matched { .. })
        });
        assert_eq!(forward, backward);
        forward
    }

    #[test]
    fn ends_in_unknown_namespaces_meet_if_the_connection_began_alike() {
        let (server, client) = traced();
        assert_eq!(client.mirrored(), server);
        assert!(is_matched(server, client));
    }

    #[test]
    fn a_translation_of_addresses_is_seen_through() {
        let (server, _) = traced();
        let Route::Traced(trace) = server.route else { panic!("made above") };
        // The client connected to a port of the host, and the server sees the host's address.
        let at = |text: &str| text.parse().expect("an address");
        let (far_local, far_remote) = (at("10.1.0.2:5000"), at("192.0.2.1:8080"));
        let route = Route::Traced(Trace { far_local, far_remote, ..trace });
        let server = Tuple { remote: at("10.0.0.1:6000"), route, ..server };
        let client = server.mirrored();
        assert_eq!((client.local, client.remote), (far_local, far_remote));
        assert!(is_matched(server, client));
        let mut maker = Maker::new(TableLimits::default());
        maker.listen(by(1), 0, 5, server.local);
        let waits = maker.offer(by(2), 0, client, Offer::Connected);
        assert_eq!(waits, Outcome::Waiting { listening: true });
    }

    #[test]
    fn the_same_addresses_in_unrelated_networks_do_not_match() {
        let (server, client) = traced();
        let Route::Traced(trace) = client.route else { panic!("made above") };
        let other = |trace| Tuple { route: Route::Traced(trace), ..client };
        // Another connection with these addresses began with other numbers.
        for change in [1, 1 << 16, 1 << 31] {
            assert!(!is_matched(server, other(Trace { sent: trace.sent ^ change, ..trace })));
            assert!(!is_matched(
                server,
                other(Trace { received: trace.received ^ change, ..trace })
            ));
        }
        // A socket with all of it, by root of a user namespace of its own.
        assert!(!is_matched(server, other(Trace { owner: trace.owner + 1, ..trace })));
        // One whose addresses nothing translates to those of the server.
        let far_local = "10.0.0.4:80".parse().expect("an address");
        assert!(!is_matched(server, other(Trace { far_local, ..trace })));
        // One of which the kernel does not know how it began.
        for namespace in [1, 7] {
            assert!(!is_matched(server, Tuple::new(namespace, client.local, client.remote)));
        }
    }

    #[test]
    fn two_connecting_ends_do_not_match() {
        let mut maker = Maker::new(TableLimits::default());
        maker.offer(by(1), 0, server(), Offer::Connected);
        assert_eq!(
            maker.offer(by(2), 0, server().mirrored(), Offer::Connected),
            Outcome::Waiting { listening: false }
        );
    }

    #[test]
    fn a_leftover_is_replaced_by_the_next_connection_with_its_addresses() {
        let mut maker = Maker::new(TableLimits::default());
        maker.offer(by(1), 0, server(), Offer::Accepted("old"));
        maker.offer(by(3), 0, server(), Offer::Accepted("new"));
        let outcome = maker.offer(by(2), 0, server().mirrored(), Offer::Connected);
        assert_eq!(outcome, Outcome::Matched { connected: by(2), accepted: by(3), memory: "new" });
    }

    #[test]
    fn a_listener_on_any_address_makes_waiting_worthwhile() {
        let mut maker = Maker::new(TableLimits::default());
        maker.listen(by(1), 0, 1, "[::]:80".parse().expect("an address"));
        assert_eq!(
            maker.offer(by(2), 0, server().mirrored(), Offer::Connected),
            Outcome::Waiting { listening: true }
        );
        maker.withdraw(by(1));
        assert!(maker.is_listening(1, server().local), "it may have accepted before");
        maker.process_gone(1);
        assert!(!maker.is_listening(1, server().local));
        assert!(maker.waiting() == 1 && maker.listened.is_empty());
    }

    #[test]
    fn every_holder_of_an_end_gets_its_memory() {
        let mut maker = Maker::new(TableLimits::default());
        assert_eq!(maker.memory_of(server()), None);
        maker.offer(by(1), 0, server(), Offer::Accepted("lane"));
        assert_eq!(maker.memory_of(server()), Some("lane"));
        maker.offer(by(2), 0, server().mirrored(), Offer::Connected);
        assert_eq!(maker.memory_of(server().mirrored()), Some("lane"));
    }

    #[test]
    fn a_full_table_refuses_and_a_dead_program_leaves_nothing() {
        let limits = TableLimits { connections_max: 1, listeners_max: 1, ..TableLimits::default() };
        let mut maker = Maker::new(limits);
        maker.offer(by(1), 0, server(), Offer::Accepted("lane"));
        let other = tuple("127.0.0.1:80", "127.0.0.1:5001");
        assert_eq!(
            maker.offer(by(3), 0, other, Offer::Accepted("lane")),
            Outcome::Full { maximum: 1 }
        );
        maker.process_gone(1);
        assert_eq!(maker.waiting(), 0);
    }

    #[test]
    fn no_user_takes_all_and_a_user_that_goes_makes_room() {
        let limits = TableLimits {
            connections_max: 16,
            listeners_max: 4,
            user_share: 50,
            user_unbounded: 9,
        };
        let mut maker = Maker::new(limits);
        let offered = |maker: &mut Maker, user: u32, count: usize| {
            let taken = (0..count).take_while(|number| {
                let local = format!("127.0.0.{user}:{}", number + 1);
                let offerer = Offerer { process: user, token: *number as u64 };
                let tuple = tuple(&local, "127.0.0.100:80");
                maker.offer(offerer, user, tuple, Offer::Connected)
                    == Outcome::Waiting { listening: false }
            });
            taken.count()
        };
        assert_eq!(offered(&mut maker, 1, 16), 8, "half of all");
        assert_eq!(offered(&mut maker, 2, 16), 4, "half of what is left");
        assert_eq!(offered(&mut maker, 3, 16), 2);
        assert_eq!(offered(&mut maker, 9, 16), 2, "the daemon's own user takes the rest");
        maker.process_gone(1);
        assert_eq!(offered(&mut maker, 2, 16), 6, "half of what the others hold no more");
        for user in [2, 3, 9] {
            maker.process_gone(user);
        }
        assert!(maker.is_empty());
    }

    #[test]
    fn a_connection_counts_for_the_users_of_both_ends() {
        let mut maker = Maker::new(TableLimits::default());
        maker.offer(by(1), 1, server(), Offer::Accepted("lane"));
        maker.offer(by(2), 2, server().mirrored(), Offer::Connected);
        assert_eq!([1, 2].map(|user| maker.tallies[CONNECTIONS].of(user)), [1, 1]);
        maker.withdraw(by(2));
        assert!(maker.is_empty());
    }
}
