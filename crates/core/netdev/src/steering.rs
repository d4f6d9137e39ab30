//! The choice of a TAP device's queue for each packet (RED-SEA-D2.3#3.4).
//!
//! By default the kernel chooses by flow: a packet goes to the queue on which the program last
//! wrote packets of the same flow. The other choices are eBPF programs of a few instructions.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Result;

use crate::bpf::{self, Instruction, Kind, MapOfCounter};

/// How the kernel chooses a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steering {
    /// By flow, that is by addresses, protocol and ports. Packets of a flow stay in order.
    #[default]
    Flow,
    /// By the sending processor. If a program moves to another processor, its packets may be
    /// reordered.
    Processor,
    /// In turn. Packets of a flow may be reordered.
    RoundRobin,
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flow => "flow",
            Self::Processor => "processor",
            Self::RoundRobin => "round robin",
        })
    }
}

impl Steering {
    /// The eBPF program for this choice; `None` for the kernel's own. The kernel takes its result
    /// modulo the number of queues.
    pub(crate) fn program(self) -> Result<Option<OwnedFd>> {
        match self {
            Self::Flow => Ok(None),
            Self::Processor => bpf::load(Kind::SocketFilter, &by_processor()).map(Some),
            Self::RoundRobin => {
                // The loaded program keeps a reference to the map.
                let counter = MapOfCounter::new()?;
                bpf::load(Kind::SocketFilter, &round_robin(counter.as_raw_fd())).map(Some)
            }
        }
    }
}

fn by_processor() -> Vec<Instruction> {
    vec![Instruction::call(bpf::helper::PROCESSOR), Instruction::exit()]
}

/// A program that adds one to the counter and returns its old value.
fn round_robin(counter: i32) -> Vec<Instruction> {
    use bpf::register::{FRAME, R0, R1, R2};
    let [load, rest] = Instruction::load_map(R1, counter);
    vec![
        // The key, 0, is on the stack.
        Instruction::store_word(FRAME, -4, 0),
        Instruction::copy(R2, FRAME),
        Instruction::add(R2, -4),
        load,
        rest,
        Instruction::call(bpf::helper::LOOK_UP),
        // If the lookup fails, the result is queue 0.
        Instruction::jump_if_zero(R0, 3),
        Instruction::set(R1, 1),
        Instruction::fetch_add_word(R0, 0, R1),
        Instruction::copy(R0, R1),
        Instruction::exit(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_programs() {
        for steering in [Steering::Flow, Steering::Processor, Steering::RoundRobin] {
            match steering.program() {
                Ok(program) => assert_eq!(program.is_none(), steering == Steering::Flow),
                Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => {
                    eprintln!("skipped: the kernel lets this user load no programs");
                }
                Err(errno) => panic!("{steering}: {errno}"),
            }
        }
    }
}
