//! The usual routes of full meshes, fat trees and dragonflies.
//!
//! - A full mesh: the link to the destination.
//! - A fat tree: up to a switch above the destination, then down. Up ports are chosen by digits of
//!   the destination, so that packets for one host meet nowhere but on the way down.
//! - A dragonfly: to the switch with a link to the group of the destination, over it, and to the
//!   destination's switch. Links within the group of the destination are taken on channel 1, others
//!   on channel 0 (Kim, Dally, Scott and Abts).

use weft_topology::layout::{Dragonfly, FatTree};
use weft_topology::{Port, Vertex};

use crate::route::Choice;

/// The step in a full mesh towards `to`.
pub(crate) fn full(at: Vertex, to: Vertex) -> Option<Choice> {
    let port = if to < at { to } else { to.checked_sub(1)? };
    Some(Choice { port: Port::try_from(port).ok()?, vc: 0 })
}

/// The step in a fat tree towards `to`. `spread` chooses among the ports up.
pub(crate) fn fat_tree(tree: &FatTree, at: Vertex, to: Vertex, spread: u32) -> Option<Choice> {
    let FatTree { arity, .. } = *tree;
    let port = match tree.switch(at) {
        None => 0,
        Some((level, number)) => {
            let above = to / arity;
            let digit = arity.saturating_pow(level);
            if number / digit != above / digit {
                arity + spread / digit % arity
            } else if level == 0 {
                to % arity
            } else {
                above / (digit / arity) % arity
            }
        }
    };
    Some(Choice { port: Port::try_from(port).ok()?, vc: 0 })
}

/// The step in a dragonfly towards `to`, a host.
pub(crate) fn dragonfly(own: &Dragonfly, at: Vertex, to: Vertex) -> Option<Choice> {
    let port = |port: u32| Port::try_from(port).ok();
    if at < own.all_hosts() {
        return Some(Choice { port: 0, vc: 0 });
    }
    let Dragonfly { switches, hosts, globals, groups } = *own;
    let (here, there) = (own.switch(at), own.switch(to));
    if here == there {
        return Some(Choice { port: port(to % hosts)?, vc: 1 });
    }
    let inside = |switch: u32| {
        let (from, to) = (here % switches, switch % switches);
        port(hosts + if to < from { to } else { to - 1 })
    };
    let (group, other) = (here / switches, there / switches);
    if group == other {
        return Some(Choice { port: inside(there)?, vc: 1 });
    }
    // The links to that group, of which an own one is the first choice.
    let step = (other + groups - group) % groups - 1;
    let rounds = switches * globals / (groups - 1);
    let links = (0..rounds).map(|round| round * (groups - 1) + step);
    let mine = links.clone().find(|link| link / globals == here % switches);
    if let Some(link) = mine {
        return Some(Choice { port: port(hosts + switches - 1 + link % globals)?, vc: 0 });
    }
    let link = links.clone().nth((other % rounds.max(1)) as usize)?;
    Some(Choice { port: inside(group * switches + link / globals)?, vc: 0 })
}
