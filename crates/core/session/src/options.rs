//! The options: limits, and how long a peer may be silent.

use std::time::Duration;

/// The party that decides on a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admission {
    /// The program: [`crate::Sessions::accept`] or [`crate::Sessions::refuse`].
    #[default]
    Ask,
    /// Nobody: each is accepted in the highest version, without options, before
    /// [`crate::Event::Hello`] tells of it.
    All,
}

/// The options of [`crate::Sessions`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Those of the messages that the frames are. A body that is longer than
    /// `receive_bytes_max` is not taken.
    pub messages: weft_message::Options,
    /// The party that decides on a hello. Default: the program.
    pub admission: Admission,
    /// Sessions with all peers at most. A further hello is refused. Default 1,024.
    pub sessions_max: usize,
    /// Requests of the peer in one session that may be without an answer. Default 64, at most
    /// 65,536.
    pub requests_max: u32,
    /// Bytes of the options of a hello or a welcome at most. Default 4,096.
    pub hello_bytes_max: u64,
    /// Pools of the peer in one session at most. Default 8.
    pub pools_max: usize,
    /// Blocks of a pool of the peer at most. Default 4,096.
    pub blocks_max: u32,
    /// How long a hello may be without an answer, and a session without an end that its program
    /// has to confirm. Default 10 s.
    pub open_within: Duration,
    /// A peer that says nothing is asked after a third of this time whether it is there, and its
    /// session ends with [`crate::End::Silent`] after the whole of it. Time in which this end did
    /// not poll does not count. `None`, the default, leaves it to the fabric, which tells of
    /// endpoints that have ended, and lets programs be stopped for as long as they like.
    pub silence: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            messages: weft_message::Options { tag: 78, ..weft_message::Options::default() },
            admission: Admission::Ask,
            sessions_max: 1024,
            requests_max: 64,
            hello_bytes_max: 4096,
            pools_max: 8,
            blocks_max: 4096,
            open_within: Duration::from_secs(10),
            silence: None,
        }
    }
}

impl Options {
    /// Checks the limits.
    ///
    /// # Panics
    /// When one is out of its range.
    pub(crate) fn assert_sound(&self) {
        assert!((1..=65_536).contains(&self.requests_max), "1 to 65,536 requests are open");
        assert!(self.silence.is_none_or(|time| !time.is_zero()), "silence lasts some time");
    }
}
