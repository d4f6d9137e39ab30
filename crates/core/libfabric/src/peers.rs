//! The peers of a port.
//!
//! Providers take any number for the address of a peer and read where it leads. So a port gives out
//! numbers of its own, and only addresses that it finds by them reach libfabric.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Address;

/// A peer of one port. No two insertions in this process give the same number: a port refuses that
/// of another one, and that of a peer that was removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(pub u64);

/// A number that this process has not used yet.
pub fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A name in the address vector. Operations that are under way keep it.
#[derive(Debug)]
pub struct Known {
    pub address: Address,
    name: Box<[u8]>,
}

/// The peers of a port, by number and by name. Those of one name share its address.
#[derive(Debug, Default)]
pub struct Peers {
    numbers: BTreeMap<u64, Rc<Known>>,
    names: BTreeMap<Box<[u8]>, Rc<Known>>,
}

impl Peers {
    pub fn get(&self, peer: Peer) -> Option<&Rc<Known>> {
        self.numbers.get(&peer.0)
    }

    /// A further number for a name that the address vector has.
    pub fn again(&mut self, name: &[u8]) -> Option<Peer> {
        let known = Rc::clone(self.names.get(name)?);
        Some(self.number(known))
    }

    /// The first number for a name.
    pub fn add(&mut self, name: &[u8], address: Address) -> Peer {
        let known = Rc::new(Known { address, name: name.into() });
        self.names.insert(name.into(), Rc::clone(&known));
        self.number(known)
    }

    fn number(&mut self, known: Rc<Known>) -> Peer {
        let number = next_number();
        self.numbers.insert(number, known);
        Peer(number)
    }

    pub fn remove(&mut self, peer: Peer) -> Option<Rc<Known>> {
        self.numbers.remove(&peer.0)
    }

    /// Gives back what a number or an operation kept. Returns the address if that was the last of
    /// them: the address vector has to forget it.
    pub fn let_go(&mut self, known: Rc<Known>) -> Option<Address> {
        // Beside the argument, the table of names has one.
        if Rc::strong_count(&known) > 2 {
            return None;
        }
        self.names.remove(&known.name);
        Some(known.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_forgotten_behind_its_last_number_and_its_last_operation() {
        let mut peers = Peers::default();
        assert_eq!(peers.again(b"name"), None);
        let one = peers.add(b"name", 7);
        let other = peers.again(b"name").expect("it is known");
        assert_ne!(one, other);
        let under_way = Rc::clone(peers.get(one).expect("it is there"));
        assert_eq!(under_way.address, 7);
        let known = peers.remove(one).expect("it was there");
        assert_eq!(peers.let_go(known), None, "the other number is left");
        assert!(peers.get(one).is_none() && peers.remove(one).is_none());
        let known = peers.remove(other).expect("it was there");
        assert_eq!(peers.let_go(known), None, "an operation is under way");
        assert_eq!(peers.let_go(under_way), Some(7));
        assert_eq!(peers.again(b"name"), None);
    }

    #[test]
    fn a_name_that_comes_back_amid_an_operation_keeps_its_address() {
        let mut peers = Peers::default();
        let one = peers.add(b"name", 7);
        let under_way = Rc::clone(peers.get(one).expect("it is there"));
        let known = peers.remove(one).expect("it was there");
        assert_eq!(peers.let_go(known), None);
        let back = peers.again(b"name").expect("it is still known");
        assert_eq!(peers.let_go(under_way), None);
        assert_eq!(peers.get(back).map(|known| known.address), Some(7));
    }
}
