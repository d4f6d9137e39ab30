//! The kernel's connection beside a lane, as the rules of an end use it.

/// The byte of a wakeup.
pub const WAKEUP: u8 = 0;

/// Bytes that lie unread in the kernel's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// How many there are, as far as the look went.
    pub bytes: usize,
    /// How many of them, from the first on, are [`WAKEUP`].
    pub wakeups: usize,
}

impl Unread {
    /// Counts the wakeups at the front of what was seen.
    #[must_use]
    pub fn of(seen: &[u8]) -> Self {
        let wakeups = seen.iter().take_while(|byte| **byte == WAKEUP).count();
        Self { bytes: seen.len(), wakeups }
    }
}

/// The kernel's connection of an end: the shadow socket (003 section 5.5.3).
///
/// A driver implements it with a descriptor, the simulation with a model. Calls do not block but
/// [`Shadow::wait_for_room`].
pub trait Shadow {
    /// Sends a wakeup. False when the kernel took none, since the peer is gone.
    fn ring(&self) -> bool;

    /// Looks at the first unread bytes and leaves them there.
    fn look(&self) -> Unread;

    /// Takes up to `count` unread bytes, which are wakeups, and returns how many it took.
    fn take_wakeups(&self, count: usize) -> usize;

    /// Sends as much data as the kernel takes at once; `None` when the peer is gone.
    fn send(&self, bytes: &[u8]) -> Option<usize>;

    /// Waits until the kernel may take more data. False when that took longer than a peer that goes
    /// on needs.
    fn wait_for_room(&self) -> bool;

    /// Ends the sending direction, as `shutdown(SHUT_WR)` does.
    fn end(&self);

    /// Resets the connection.
    fn abort(&self);

    /// The receiving direction, which is locked, crossed to TCP. The peer may have left for good,
    /// and the wakeup that asked this end to follow may be taken by a thread that only looks by the
    /// way: the sending direction has to follow a peer that left ([`crate::Sending::called_back`]).
    fn crossed(&self);

    /// Tells the user, where one can be told, that bytes were found that are no wakeups: somebody
    /// without weft, who holds the peer's socket, wrote them. The connection is reset.
    fn report_strays(&self) {}
}
