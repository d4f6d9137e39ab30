//! Messages between the launcher and its proxies: frames of a length and a message.
//!
//! # Invariants
//! - A [`Frames`] holds less than one frame of [`FRAME_BYTES_MAX`] plus what was pushed at once.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest frame in bytes: arguments and variables of a job.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of output, input or PMI in a frame.
pub const PIECE_BYTES_MAX: usize = 32 * 1024;
const LENGTH_BYTES: usize = 4;

/// One of the two outputs of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// It exited with a status.
    Exit(u8),
    /// A signal killed it.
    Signal {
        /// The number of the signal.
        number: u8,
        /// It left a core file.
        has_core: bool,
    },
}

/// The processors on which a process runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Binding {
    /// All.
    #[default]
    None,
    /// One thread of a core, the next one for each process of the host.
    Thread,
    /// A core with all of its threads.
    Core,
    /// All cores of a package.
    Package,
    /// All cores of a NUMA node.
    Numa,
    /// The listed processors: the processes of a host take the sets in turn.
    Listed(Vec<Vec<u16>>),
}

/// One process that a proxy starts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its rank in the job.
    pub rank: u32,
    /// The program: a path, or a name that is searched in `PATH`.
    pub program: Vec<u8>,
    /// Its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Its variables, whole.
    pub variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its directory.
    pub directory: Vec<u8>,
    /// Its processors.
    pub binding: Binding,
}

/// The processes that a proxy starts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The number of processes of the job.
    pub size: u32,
    /// Milliseconds between the request to end and the kill.
    pub grace_ms: u32,
    /// The processes of this host.
    pub processes: Vec<Process>,
}

/// The launcher's messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToProxy {
    /// Start these processes. The first message, and sent once.
    Start(Plan),
    /// Bytes of the launcher for the PMI connection of a process.
    Pmi {
        /// The rank of the process.
        rank: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Standard input of rank 0. Empty is its end.
    Input(Vec<u8>),
    /// Read no more output until [`ToProxy::Resume`].
    Pause,
    /// Read output again.
    Resume,
    /// Pass a signal on to all processes.
    Signal(i32),
    /// End all processes: SIGTERM, and SIGKILL after the grace.
    End,
    /// Kill all processes.
    Kill,
}

/// A proxy's messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromProxy {
    /// The first message.
    Hello {
        /// The version of weft.
        version: String,
    },
    /// A process could not be started.
    NotStarted {
        /// Its rank.
        rank: u32,
        /// The exit code that shells have for this.
        code: u8,
        /// The reason.
        reason: String,
    },
    /// Output of a process.
    Output {
        /// The rank of the process.
        rank: u32,
        /// The stream.
        stream: Stream,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Rank 0 took bytes of its input.
    InputTaken(u32),
    /// Rank 0 reads its input no more.
    InputClosed,
    /// Bytes of a process for the launcher's PMI.
    Pmi {
        /// The rank of the process.
        rank: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A process closed its PMI connection.
    PmiClosed {
        /// The rank of the process.
        rank: u32,
    },
    /// A process ended. Output of it may still come.
    Ended {
        /// The rank of the process.
        rank: u32,
        /// How.
        how: Ending,
    },
    /// All processes have ended and all output was sent. The last message.
    Done,
}

/// Why a stream of frames is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadFrame {
    /// A frame is longer than any may be.
    #[error(
        "a message of {bytes} bytes, more than {FRAME_BYTES_MAX}; does the host's shell print \
         something when weft is started there?"
    )]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A frame is no message.
    #[error("a message that cannot be read; does the host run the same version of weft?")]
    NoMessage,
}

/// The bytes of a message on the stream.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let body = postcard::to_allocvec(message).expect("memory can be written to");
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    frame
}

/// Bytes of a stream, cut into messages.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    begin: usize,
}

impl Frames {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message. After an error the stream is of no use.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BadFrame> {
        let rest = self.bytes.get(self.begin..).unwrap_or_default();
        let Some((length, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if bytes > FRAME_BYTES_MAX {
            return Err(BadFrame::TooLong { bytes });
        }
        let Some(body) = body.get(..bytes) else { return Ok(None) };
        let message = postcard::from_bytes(body).map_err(|_| BadFrame::NoMessage)?;
        self.begin += LENGTH_BYTES + bytes;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_found_in_pieces_of_a_stream() {
        let sent = [FromProxy::Done, FromProxy::Pmi { rank: 3, bytes: b"cmd=x\n".to_vec() }];
        let mut frames = Frames::default();
        let mut seen = Vec::new();
        for byte in sent.iter().flat_map(encode) {
            frames.push(&[byte]);
            seen.extend(frames.next_message::<FromProxy>().unwrap());
        }
        assert_eq!(seen, sent);
    }

    #[test]
    fn what_a_shell_prints_is_no_frame() {
        let mut frames = Frames::default();
        frames.push(b"Welcome to n1!\n");
        assert!(matches!(frames.next_message::<FromProxy>(), Err(BadFrame::TooLong { .. })));
        let mut frames = Frames::default();
        frames.push(&[2, 0, 0, 0, 200, 200]);
        assert_eq!(frames.next_message::<FromProxy>(), Err(BadFrame::NoMessage));
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next_message::<ToProxy>() {}
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next_message::<FromProxy>() {}
        }
    }
}
