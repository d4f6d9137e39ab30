//! The moment at which an end asks for a lane.

use crate::Side;
use crate::history::Outlook;

/// An end asks after this many reads and writes, or this many bytes over TCP. With 0 calls it asks
/// at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    calls: u64,
    bytes: u64,
}

/// The decision of a connection about a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The connection asks now.
    Now,
    /// The connection asks if a lane is there already, or if a lane pays for later connections.
    AtLowPrice,
    /// The connection stays on TCP for now.
    NotYet,
}

impl Threshold {
    /// The threshold of an end. The accepting end asks later than the connecting one, since it
    /// makes the lane, and only for a peer that is there.
    #[must_use]
    pub const fn of(side: Side, calls: u64, bytes: u64) -> Self {
        match side {
            Side::Connected => Self { calls, bytes },
            Side::Accepted if calls == 0 => Self { calls: 0, bytes: 0 },
            Side::Accepted => {
                Self { calls: calls.saturating_add(calls / 2), bytes: bytes.saturating_mul(2) }
            }
        }
    }

    /// Decides for a connection that has made `calls` calls over TCP, in which `bytes` bytes moved
    /// or are about to. `outlook` is `None` if the library does not see all calls. Then `calls` do
    /// not count: servers that are started for one connection first greet and agree on keys, in
    /// many short calls, and may lock themselves in for that.
    #[must_use]
    pub const fn due(self, calls: u64, bytes: u64, outlook: Option<Outlook>) -> Due {
        let has_moved_much = bytes >= self.bytes;
        let is_due = match outlook {
            _ if self.calls == 0 => true,
            None => has_moved_much,
            Some(Outlook::Long) => true,
            Some(Outlook::Unknown) => calls >= self.calls || has_moved_much,
            Some(Outlook::Middling) => return Due::AtLowPrice,
            Some(Outlook::Short) => false,
        };
        if is_due { Due::Now } else { Due::NotYet }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTED: Threshold = Threshold::of(Side::Connected, 8, 1000);
    const ACCEPTED: Threshold = Threshold::of(Side::Accepted, 8, 1000);

    #[test]
    fn calls_or_bytes_make_it_due() {
        let unknown = Some(Outlook::Unknown);
        assert_eq!(CONNECTED.due(7, 999, unknown), Due::NotYet);
        assert_eq!(CONNECTED.due(8, 0, unknown), Due::Now);
        assert_eq!(CONNECTED.due(0, 1000, unknown), Due::Now);
    }

    #[test]
    fn the_accepting_end_asks_later() {
        let unknown = Some(Outlook::Unknown);
        assert_eq!(ACCEPTED.due(11, 1999, unknown), Due::NotYet);
        assert_eq!(ACCEPTED.due(12, 0, unknown), Due::Now);
        assert_eq!(ACCEPTED.due(0, 2000, unknown), Due::Now);
    }

    #[test]
    fn calls_that_are_not_seen_do_not_count() {
        assert_eq!(CONNECTED.due(100, 999, None), Due::NotYet);
        assert_eq!(CONNECTED.due(0, 1000, None), Due::Now);
    }

    #[test]
    fn the_outlook_goes_before_what_was_done() {
        assert_eq!(CONNECTED.due(0, 0, Some(Outlook::Long)), Due::Now);
        assert_eq!(CONNECTED.due(100, 1 << 30, Some(Outlook::Short)), Due::NotYet);
        assert_eq!(CONNECTED.due(100, 0, Some(Outlook::Middling)), Due::AtLowPrice);
    }

    #[test]
    fn no_calls_mean_at_once() {
        for side in [Side::Accepted, Side::Connected] {
            assert_eq!(Threshold::of(side, 0, 1000).due(0, 0, Some(Outlook::Short)), Due::Now);
        }
    }
}
