//! Output of many processes on one stream, without lines that are mixed.
//!
//! Whole lines are passed on. A begin of a line, such as a prompt, is passed on after a while, and
//! a line of another process then begins in a line of its own.
//!
//! # Invariants
//! - At most [`LINE_BYTES_MAX`] bytes are kept for each process.

use std::collections::BTreeMap;
use std::time::Duration;

/// Longer lines are passed on in pieces.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// The begin of a line waits this long for the rest of it.
const REST_WITHIN: Duration = Duration::from_millis(100);

/// The begin of a line of one process.
#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    due: Duration,
}

/// One stream to which many processes write.
#[derive(Debug)]
pub struct Lines {
    /// Each line begins with the rank.
    has_prefix: bool,
    tails: BTreeMap<u32, Tail>,
    /// The process whose line was begun and is not ended.
    amid: Option<u32>,
}

impl Lines {
    pub fn new(has_prefix: bool) -> Self {
        Self { has_prefix, tails: BTreeMap::new(), amid: None }
    }

    /// Takes output of a process; returns what is to be written.
    pub fn take(&mut self, rank: u32, bytes: &[u8], now: Duration) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pending = self.tails.remove(&rank).map(|tail| tail.bytes).unwrap_or_default();
        pending.extend_from_slice(bytes);
        let mut rest = pending.as_slice();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            self.write(rank, line, &mut out);
            rest = after;
        }
        if rest.len() > LINE_BYTES_MAX {
            self.write(rank, rest, &mut out);
        } else if !rest.is_empty() {
            self.tails.insert(rank, Tail { bytes: rest.to_vec(), due: now + REST_WITHIN });
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
            if let Some(tail) = self.tails.remove(&rank) {
                self.write(rank, &tail.bytes, &mut out);
            }
        }
        out
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
    fn a_line_without_end_is_passed_on_in_pieces() {
        let mut lines = Lines::new(false);
        assert_eq!(lines.take(0, &[b'x'; LINE_BYTES_MAX], NOW).len(), 0);
        assert_eq!(lines.take(0, b"x", NOW).len(), LINE_BYTES_MAX + 1);
    }
}
