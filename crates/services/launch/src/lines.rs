//! Output of many processes on one stream, without lines that are mixed.
//!
//! Whole lines are passed on. A begin of a line, such as a prompt, is passed on after a while, and
//! a line of another process then begins in a line of its own.
//!
//! # Invariants
//! - At most [`HELD_BYTES_MAX`] bytes are kept, and those that were taken last.

use std::collections::BTreeMap;
use std::time::Duration;

/// When the begins of lines together are longer, the longest is passed on in pieces.
const HELD_BYTES_MAX: usize = 64 << 20;
/// The begin of a line waits this long for the rest of it.
const REST_WITHIN: Duration = Duration::from_millis(100);

/// The begin of a line of one process.
#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    due: Duration,
}

impl Tail {
    const fn new(now: Duration) -> Self {
        Self { bytes: Vec::new(), due: now }
    }
}

/// One stream to which many processes write.
#[derive(Debug)]
pub struct Lines {
    /// Each line begins with the rank.
    has_prefix: bool,
    tails: BTreeMap<u32, Tail>,
    /// Bytes of all begins.
    held: usize,
    /// The process whose line was begun and is not ended.
    amid: Option<u32>,
}

impl Lines {
    pub fn new(has_prefix: bool) -> Self {
        Self { has_prefix, tails: BTreeMap::new(), held: 0, amid: None }
    }

    /// Takes output of a process; returns what is to be written.
    pub fn take(&mut self, rank: u32, bytes: &[u8], now: Duration) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            self.write_tail(rank, &mut out);
            self.write(rank, line, &mut out);
            rest = after;
        }
        if !rest.is_empty() {
            let tail = self.tails.entry(rank).or_insert_with(|| Tail::new(now));
            tail.bytes.extend_from_slice(rest);
            tail.due = now + REST_WITHIN;
            self.held += rest.len();
        }
        while self.held > HELD_BYTES_MAX {
            let longest = self.tails.iter().max_by_key(|(_, tail)| tail.bytes.len());
            let Some((&longest, _)) = longest else { break };
            self.write_tail(longest, &mut out);
        }
        out
    }

    /// Returns the begins of lines that have waited long enough.
    pub fn due(&mut self, now: Duration) -> Vec<u8> {
        self.pass_on(|tail| tail.due <= now)
    }

    /// Returns all that is left, at the end of the job.
    pub fn rest(&mut self) -> Vec<u8> {
        self.pass_on(|_| true)
    }

    /// When [`Lines::due`] has something next.
    pub fn deadline(&self) -> Option<Duration> {
        self.tails.values().map(|tail| tail.due).min()
    }

    fn pass_on(&mut self, is_ready: impl Fn(&Tail) -> bool) -> Vec<u8> {
        let ready = self.tails.iter().filter(|(_, tail)| is_ready(tail)).map(|(rank, _)| *rank);
        let mut out = Vec::new();
        for rank in ready.collect::<Vec<u32>>() {
            self.write_tail(rank, &mut out);
        }
        out
    }

    /// Writes the begin of a line that a process has.
    fn write_tail(&mut self, rank: u32, out: &mut Vec<u8>) {
        if let Some(tail) = self.tails.remove(&rank) {
            self.held -= tail.bytes.len();
            self.write(rank, &tail.bytes, out);
        }
    }

    fn write(&mut self, rank: u32, bytes: &[u8], out: &mut Vec<u8>) {
        if self.amid.is_some_and(|other| other != rank) {
            out.push(b'\n');
        }
        if self.has_prefix && self.amid != Some(rank) {
            out.extend_from_slice(format!("[{rank}] ").as_bytes());
        }
        out.extend_from_slice(bytes);
        self.amid = (bytes.last() != Some(&b'\n')).then_some(rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("the test writes text")
    }

    #[test]
    fn lines_of_two_processes_are_not_mixed() {
        let mut lines = Lines::new(false);
        assert_eq!(text(lines.take(0, b"one ", NOW)), "");
        assert_eq!(text(lines.take(1, b"other\n", NOW)), "other\n");
        assert_eq!(text(lines.take(0, b"line\nand", NOW)), "one line\n");
        assert_eq!(text(lines.rest()), "and");
    }

    #[test]
    fn a_prompt_is_passed_on_and_not_written_into() {
        let mut lines = Lines::new(false);
        lines.take(0, b"number? ", NOW);
        assert_eq!(lines.deadline(), Some(NOW + REST_WITHIN));
        assert_eq!(text(lines.due(NOW)), "");
        assert_eq!(text(lines.due(NOW + REST_WITHIN)), "number? ");
        assert_eq!(lines.deadline(), None);
        assert_eq!(text(lines.take(1, b"line\n", NOW)), "\nline\n");
        assert_eq!(text(lines.take(0, b"5\n", NOW)), "5\n");
    }

    #[test]
    fn each_line_begins_with_its_rank_if_asked() {
        let mut lines = Lines::new(true);
        assert_eq!(text(lines.take(3, b"a\nb", NOW)), "[3] a\n");
        assert_eq!(text(lines.due(NOW + REST_WITHIN)), "[3] b");
        assert_eq!(text(lines.take(3, b"c\n", NOW)), "c\n");
    }

    #[test]
    fn long_lines_that_come_in_pieces_are_whole() {
        let mut lines = Lines::new(false);
        let mut out = Vec::new();
        for _ in 0..100 {
            for rank in 0..3 {
                out.extend(lines.take(rank, &[b'a' + u8::try_from(rank).expect("few"); 4096], NOW));
            }
        }
        assert_eq!(out.len(), 0);
        for rank in 0..3 {
            out.extend(lines.take(rank, b"\n", NOW));
        }
        let found: Vec<&[u8]> = out.split_inclusive(|byte| *byte == b'\n').collect();
        let whole = |byte: u8| [vec![byte; 409_600], vec![b'\n']].concat();
        assert_eq!(found, [whole(b'a'), whole(b'b'), whole(b'c')]);
        assert_eq!(lines.held, 0);
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let mut lines = Lines::new(false);
        assert_eq!(lines.take(1, b"short", NOW).len(), 0);
        assert_eq!(lines.take(0, &vec![b'x'; HELD_BYTES_MAX - 5], NOW).len(), 0);
        assert_eq!(lines.take(0, b"x", NOW).len(), HELD_BYTES_MAX - 4);
        assert_eq!(text(lines.rest()), "\nshort");
    }
}
