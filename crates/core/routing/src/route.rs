//! One step of a packet: the ways that lead on from a vertex.

use weft_topology::{Port, Vertex};

/// The part of a packet that routing reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Heading {
    /// The host that sent it.
    pub from: Vertex,
    /// The host that it is for.
    pub to: Vertex,
    /// The vertex that it visits on its way, as [`Route::via`] gave it.
    pub via: Option<Vertex>,
}

impl Heading {
    /// A packet from one host to another that visits no vertex in between.
    #[must_use]
    pub const fn new(from: Vertex, to: Vertex) -> Self {
        Self { from, to, via: None }
    }
}

/// A way on: a port out of the vertex, and the virtual channel of the link there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Choice {
    /// The port of the vertex where the packet is.
    pub port: Port,
    /// The virtual channel, below [`Route::vcs`].
    pub vc: u8,
}

/// A routing algorithm, or tables that one has filled.
///
/// A route keeps no state of packets. The same arguments give the same choices, until the route
/// itself is changed.
pub trait Route {
    /// The virtual channels that each direction of a link needs.
    fn vcs(&self) -> u8;

    /// Replaces `choices` by the ways on for the packet `heading` that is at `at`.
    ///
    /// `arrived` has the port of `at` and the virtual channel by which the packet came, and is
    /// `None` where it starts.
    ///
    /// - `at == heading.to`: there are no choices; the packet has arrived.
    /// - `at != heading.to` and no choices: no way leads to the destination.
    /// - One choice: the route is deterministic here.
    /// - Several choices: the route is adaptive. A switch takes any that has room, and of those the
    ///   earliest, or the least loaded. All but the last may be full for ever. The last is the
    ///   *escape*: a packet which waits must be able to take it when it gets room, since deadlock
    ///   freedom rests on it alone.
    fn next(
        &self,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        heading: &Heading,
        choices: &mut Vec<Choice>,
    );

    /// The vertex that a packet from `from` to `to` visits on its way, drawn by `random` (uniform
    /// in 64 bits). `None` for routes that go directly, and where a detour has no use.
    fn via(&self, from: Vertex, to: Vertex, random: u64) -> Option<Vertex> {
        let _ = (from, to, random);
        None
    }

    /// Replaces `copies` by the ways on of a packet to a multicast group: it takes all of them. It
    /// came at a port and on a virtual channel, or starts at `at`.
    fn forward(
        &self,
        group: u8,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        copies: &mut Vec<Choice>,
    ) {
        let _ = (group, at, arrived);
        copies.clear();
    }

    /// True when the packets of a multicast group are for the host `vertex`.
    fn is_member(&self, group: u8, vertex: Vertex) -> bool {
        let _ = (group, vertex);
        false
    }
}
