//! Runs the program that tries the paths of data to other hosts: `weft measure path`. A provider
//! that crashes ends that one, and no daemon.
//!
//! # Invariants
//! - A program that was started is ended and waited for, at the latest with the daemon.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use weft_fabric::NodeId;
use weft_options::Options;

use crate::service::{Prober, Said};

/// Most bytes of a line that are read.
const LINE_BYTES_MAX: u64 = 4096;

struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, while it runs.
pub struct Trials {
    socket: PathBuf,
    options: Options,
    running: Option<Running>,
}

impl Trials {
    /// The program of the daemon at `socket`.
    pub const fn new(socket: PathBuf, options: Options) -> Self {
        Self { socket, options, running: None }
    }

    fn start(&self) -> Result<Running, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["measure", "path"]).envs(self.options.to_environment());
        command.env("WEFT_DAEMON_SOCKET", &self.socket).env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (told, lines) = sync_channel(512);
        let reader = std::thread::Builder::new().name("weft-trying".to_owned());
        let begun = reader.spawn(move || {
            let Some(output) = output else { return };
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while let Ok(1..) = (&mut output).take(LINE_BYTES_MAX).read_line(&mut line) {
                if told.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let running = Running { child, input, lines };
        begun.map_err(|error| format!("no thread: {error}"))?;
        Ok(running)
    }
}

impl Prober for Trials {
    fn begin(&mut self) -> Result<(), String> {
        self.running = None;
        self.running = Some(self.start()?);
        Ok(())
    }

    fn attempt(&mut self, node: NodeId, name: &[u8]) {
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let input = self.running.as_mut().and_then(|running| running.input.as_mut());
        // A line is shorter than a pipe's room. If it ended, that is told by `said`.
        let _ = input.map(|input| input.write_all(format!("try {} {name}\n", node.0).as_bytes()));
    }

    fn said(&mut self) -> Option<Said> {
        match self.running.as_mut()?.lines.try_recv() {
            Ok(line) => Some(parse(line.trim())),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.running = None;
                Some(Said::Ended)
            }
        }
    }

    fn end(&mut self) {
        self.running = None;
    }
}

fn parse(line: &str) -> Said {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    match word {
        "at" => match bytes_of(second).filter(|name| !name.is_empty()) {
            Some(name) => Said::At { provider: first.to_owned(), name },
            None => Said::Ended,
        },
        "tried" | "busy" => match first.parse().map(NodeId) {
            Ok(node) if word == "busy" => Said::Busy(node, second.to_owned()),
            Ok(node) => Said::Tried(node, second.to_owned()),
            Err(_) => Said::Ended,
        },
        "without" => Said::Without(rest.to_owned()),
        _ => Said::Ended,
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_none_ends_the_program() {
        let name = vec![0, 255];
        let at = Said::At { provider: "tcp;ofi_rxm".to_owned(), name };
        assert_eq!(parse("at tcp;ofi_rxm 00ff"), at);
        assert_eq!(parse("tried 3"), Said::Tried(NodeId(3), String::new()));
        assert_eq!(parse("tried 3 no answer"), Said::Tried(NodeId(3), "no answer".to_owned()));
        assert_eq!(parse("busy 3 no port"), Said::Busy(NodeId(3), "no port".to_owned()));
        assert_eq!(parse("without a library"), Said::Without("a library".to_owned()));
        for wrong in ["", "at net", "at net 0", "at net zz", "tried", "tried x", "hello"] {
            assert_eq!(parse(wrong), Said::Ended, "{wrong:?}");
        }
    }
}
