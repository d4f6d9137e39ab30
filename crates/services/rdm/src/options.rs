//! The limits and thresholds.

use std::fmt::{self, Display, Formatter};

/// The options of [`crate::Rdm`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bodies of up to this many bytes travel in mailbox messages. Default 512, maximum 4,096.
    pub inline_bytes_max: usize,
    /// The same to peers of other nodes, if it is more: there a chunk takes another round trip.
    /// Default 4,096, which is the maximum.
    pub far_inline_bytes_max: usize,
    /// Bodies of up to this many bytes travel in a chunk. Default 32 KiB.
    pub chunk_bytes_max: usize,
    /// Bytes of a chunk. Default 128 KiB.
    pub chunk_bytes: usize,
    /// Chunks, for all peers. One peer has half of them at most. Default 32, which take 4 MiB when
    /// all of them were used.
    pub chunks: u16,
    /// Bodies of at least so many bytes are lent to a peer of another node, which gets them from
    /// the program's memory, if there is a way to lend ([`crate::Rdm::lending`]). Default 256 KiB.
    pub lent_bytes_min: usize,
    /// Bytes that the kernel copies in one poll, so that others are served. Default 1 MiB.
    pub slice_bytes: usize,
    /// Sends, writes, reads and atomics under way. A further one is refused. Default 4,096.
    pub operations_max: usize,
    /// Packets to one peer that wait for its mailbox. A peer that causes more is ended. Default
    /// 65,536, which take 8 MiB.
    pub replies_max: usize,
    /// Events of one poll of the endpoint. Default 64.
    pub budget: usize,
    /// Chunks are mapped by peers on this node. Default true.
    pub maps: bool,
    /// The kernel copies between processes of this node. Default true.
    pub kernel: bool,
    /// Receives from any source fail when the last peer that was met has ended. Default false.
    pub ends_receives: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            inline_bytes_max: 512,
            far_inline_bytes_max: 4096,
            chunk_bytes_max: 32 << 10,
            chunk_bytes: 128 << 10,
            chunks: 32,
            lent_bytes_min: 256 << 10,
            slice_bytes: 1 << 20,
            operations_max: 4096,
            replies_max: 65_536,
            budget: 64,
            maps: true,
            kernel: true,
            ends_receives: false,
        }
    }
}

/// The ways of bodies by their length, for people.
impl Display for Options {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        let Self { inline_bytes_max: inline, chunk_bytes_max: chunk, .. } = self;
        let far = inline.max(&self.far_inline_bytes_max);
        write!(
            text,
            "messages of up to {inline} bytes go in the mailbox, to other hosts of up to {far}; of \
             up to {chunk} bytes through memory that both ends map or the receiver reads; the \
             receiver fetches longer ones"
        )
    }
}

impl Options {
    /// # Panics
    /// When an option is out of its range.
    pub(crate) fn assert_sound(&self) {
        let inline = self.inline_bytes_max.max(self.far_inline_bytes_max);
        assert!(inline <= 4096, "longer bodies go in chunks");
        assert!(self.chunk_bytes >= 256 && self.chunks >= 2, "each of two peers needs a chunk");
        assert!(self.chunk_bytes_max <= self.chunk_bytes, "a body is in one chunk");
        assert!(self.slice_bytes > 0 && self.budget > 0, "a poll makes progress");
    }
}
