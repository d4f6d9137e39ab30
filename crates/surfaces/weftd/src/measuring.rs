//! Runs the programs that measure the ways to another host: `weft measure`, without weft and under
//! `weft run`, so that the figures are those of programs, and a provider that crashes ends a
//! measurement and no daemon.
//!
//! # Invariants
//! - A program that was started is ended and waited for, at the latest with the daemon.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use weft_fabric::NodeId;
use weft_options::Options;
use weft_socket::ways::{Figures, Measured};

use crate::fabric::Fabric;
use crate::service::Runner;

/// Most bytes of a program's output that are read.
const OUTPUT_BYTES_MAX: u64 = 4096;

/// A program, and its output.
struct Running {
    child: Child,
    output: Receiver<String>,
}

impl Running {
    /// Starts a program. Its output comes when it `is_line` with the first line, else with its end.
    fn start(mut command: Command, is_line: bool) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
        let (told, output) = channel();
        let pipe = child.stdout.take();
        let reader = std::thread::Builder::new().name("weft-measuring".to_owned());
        let begun = reader.spawn(move || {
            let Some(pipe) = pipe else { return };
            let mut pipe = BufReader::new(pipe.take(OUTPUT_BYTES_MAX));
            let mut text = Vec::new();
            // Output that came before a fault is told.
            let _ = if is_line {
                pipe.read_until(b'\n', &mut text)
            } else {
                pipe.read_to_end(&mut text)
            };
            // Nobody may wait for it any more.
            let _ = told.send(String::from_utf8_lossy(&text).into_owned());
        });
        let running = Self { child, output };
        begun.map_err(|error| format!("no thread: {error}"))?;
        Ok(running)
    }

    /// The output, once it is there.
    fn told(&mut self) -> Option<String> {
        match self.output.try_recv() {
            Ok(text) => Some(text),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(String::new()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The programs of measurements.
pub struct Programs {
    socket: PathBuf,
    options: Options,
    fabric: Option<Arc<Fabric>>,
    servers: Vec<Running>,
    ports: Vec<u16>,
    clients: Option<Running>,
}

impl Programs {
    /// The programs of the daemon at `socket`.
    pub fn new(socket: PathBuf, options: Options, fabric: Option<Arc<Fabric>>) -> Self {
        Self { socket, options, fabric, servers: Vec::new(), ports: Vec::new(), clients: None }
    }

    /// This program with its options.
    fn command(&self, words: &[&str]) -> Result<Command, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(words).envs(self.options.to_environment());
        command.env("WEFT_DAEMON_SOCKET", &self.socket).env_remove("LD_PRELOAD");
        Ok(command)
    }
}

/// The words of a program over the fabric.
const OVER_FABRIC: [&str; 3] = ["run", "--socket-between-hosts", "always"];

impl Runner for Programs {
    fn serve(&mut self) -> Result<(), String> {
        self.end_servers();
        let listen = self.options.fabric_listen().ok_or("there is no fabric")?;
        let address = listen.ip().to_string();
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let own = own.to_str().ok_or("its own path is no text")?;
        let serve = ["measure", "serve", &address];
        let under: Vec<&str> = OVER_FABRIC.into_iter().chain(["--", own]).chain(serve).collect();
        for words in [&serve[..], &under] {
            self.servers.push(Running::start(self.command(words)?, true)?);
        }
        Ok(())
    }

    fn ports(&mut self) -> Option<Result<[u16; 2], String>> {
        while let Some(server) = self.servers.get_mut(self.ports.len()) {
            let told = server.told()?;
            match told.trim().parse() {
                Ok(port) => self.ports.push(port),
                Err(_) => return Some(Err(format!("a server ended and said {told:?}"))),
            }
        }
        self.ports.clone().try_into().ok().map(Ok)
    }

    fn end_servers(&mut self) {
        self.servers.clear();
        self.ports.clear();
    }

    fn measure(&mut self, node: NodeId, ports: [u16; 2]) -> Result<(), String> {
        let fabric = self.fabric.as_ref().ok_or("there is no fabric")?;
        let known = fabric.nodes().into_iter().find(|known| known.node == Some(node));
        let ip = known.ok_or("the host is gone")?.address.ip();
        let [plain, fabric] = ports.map(|port| std::net::SocketAddr::new(ip, port).to_string());
        let command = self.command(&["measure", "to", &plain, &fabric])?;
        self.clients = Some(Running::start(command, false)?);
        Ok(())
    }

    fn figures(&mut self) -> Option<Result<Measured, String>> {
        let told = self.clients.as_mut()?.told()?;
        self.clients = None;
        Some(parse(&told))
    }

    fn end_clients(&mut self) {
        self.clients = None;
    }
}

/// The output of `weft measure to`: four numbers, or why there are none.
fn parse(told: &str) -> Result<Measured, String> {
    let words: Vec<u64> = told.split_whitespace().map_while(|word| word.parse().ok()).collect();
    match words[..] {
        [tcp_ns, tcp_bytes, fabric_ns, fabric_bytes] => Ok(Measured {
            tcp: Figures { round_trip_ns: tcp_ns, bytes_per_s: tcp_bytes },
            fabric: Figures { round_trip_ns: fabric_ns, bytes_per_s: fabric_bytes },
        }),
        _ if told.trim().is_empty() => Err("the programs ended without a word".to_owned()),
        _ => Err(told.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_four_numbers_and_all_else_is_a_reason() {
        let figures = |round_trip_ns, bytes_per_s| Figures { round_trip_ns, bytes_per_s };
        let measured = Measured { tcp: figures(1, 2), fabric: figures(3, 4) };
        assert_eq!(parse("1 2 3 4\n"), Ok(measured));
        for wrong in ["1 2 3", "1 2 3 4 5", "-1 2 3 4", "no provider"] {
            assert_eq!(parse(wrong), Err(wrong.to_owned()));
        }
        assert!(parse("\n").is_err_and(|reason| reason.contains("without a word")));
    }

    #[test]
    fn a_program_that_is_dropped_has_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 7; exec sleep 1000"]);
        let mut running = Running::start(command, true).expect("a shell");
        let told = loop {
            if let Some(told) = running.told() {
                break told;
            }
            std::thread::yield_now();
        };
        assert_eq!(told.trim(), "7");
        let pid = running.child.id();
        drop(running);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
