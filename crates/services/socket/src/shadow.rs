//! The kernel's connection beside a lane, as the rules of an end use it.

/// The byte of a wakeup.
pub const WAKEUP: u8 = 0;

/// Unread bytes in the kernel's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// Number of unread bytes that the look found. There may be more.
    pub bytes: usize,
    /// Number of bytes before the first that is not [`WAKEUP`].
    pub wakeups: usize,
}

impl Unread {
    /// Counts the wakeups at the front of `seen`.
    #[must_use]
    pub fn of(seen: &[u8]) -> Self {
        let wakeups = seen.iter().take_while(|byte| **byte == WAKEUP).count();
        Self { bytes: seen.len(), wakeups }
    }
}

/// The kernel's connection of an end: the shadow socket (EXTOLL-THESIS#5.5.3).
///
/// A driver implements this trait with a descriptor, the simulation with a model. No call blocks,
/// except those that wait.
pub trait Shadow {
    /// Sends a wakeup. False if the kernel took none, since the peer is gone.
    fn ring(&self) -> bool;

    /// Looks at the first unread bytes and leaves them there.
    fn look(&self) -> Unread;

    /// Copies the first unread bytes and leaves them there. Returns how many there are, at most as
    /// many as `target` has.
    fn peek(&self, target: &mut [u8]) -> usize;

    /// Takes up to `count` unread bytes, which are wakeups, or no bytes for the program. Returns
    /// how many it took.
    fn take_wakeups(&self, count: usize) -> usize;

    /// True if the peer's kernel has all bytes that were sent. The driver tries again soon where it
    /// has not.
    fn is_acknowledged(&self) -> bool;

    /// Waits until [`Shadow::is_acknowledged`], for less time than a program notices.
    fn wait_until_acknowledged(&self) -> bool;

    /// Sends as many bytes of data as the kernel takes at once. Returns their number, or `None` if
    /// the peer is gone.
    fn send(&self, bytes: &[u8]) -> Option<usize>;

    /// Waits until the kernel may take more data. False if that takes longer than a live peer
    /// needs.
    fn wait_for_room(&self) -> bool;

    /// Waits until `is_done`, which takes a live peer some microseconds. False if it takes much
    /// longer.
    fn wait_until(&self, is_done: &dyn Fn() -> bool) -> bool {
        is_done()
    }

    /// Ends the sending direction, as `shutdown(SHUT_WR)` does.
    fn end(&self);

    /// Resets the connection.
    fn abort(&self);

    /// The driver learns here that the receiving direction, whose lock the caller holds, crossed to
    /// TCP. The peer may have left for good. A thread that does not read may have taken the wakeup
    /// that asked this end to follow. So the driver makes the sending direction follow
    /// ([`crate::Sending::leave_to_follow`]).
    fn crossed(&self);

    /// Tells the user, if possible, that strays lie in the socket. A process without weft that
    /// holds the peer's socket wrote them. The connection is reset.
    fn report_strays(&self) {}
}
