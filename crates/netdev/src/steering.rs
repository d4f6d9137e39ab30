//! Which queue of a TAP device a packet goes to (000 section 3.4).
//!
//! The kernel's own choice is by flow, with the queue on which the flow's packets came from the
//! device. The others are programs of its virtual machine (eBPF), a few instructions each.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Result;

use crate::bpf::{self, Instruction, MapOfCounter};

/// How a queue is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steering {
    /// By flow: addresses, protocol and ports. Packets of a flow stay in order.
    #[default]
    Flow,
    /// By the processor that sends. Packets of a program that moves may overtake each other.
    Processor,
    /// One after the other. Packets of a flow overtake each other.
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
    /// The program that does it; none for the kernel's own choice. What it returns is taken modulo
    /// the number of queues.
    pub(crate) fn program(self) -> Result<Option<OwnedFd>> {
        match self {
            Self::Flow => Ok(None),
            Self::Processor => bpf::load(&by_processor()).map(Some),
            Self::RoundRobin => {
                // The program keeps it.
                let counter = MapOfCounter::new()?;
                bpf::load(&round_robin(counter.as_raw_fd())).map(Some)
            }
        }
    }
}

fn by_processor() -> Vec<Instruction> {
    vec![Instruction::call(bpf::helper::PROCESSOR), Instruction::exit()]
}

/// Adds one to the counter and returns what it was.
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
        // No counter: queue 0.
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
    fn the_kernel_takes_the_programs() {
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
