//! The common part of the examples: a fabric with some endpoints, over the transport that an
//! argument names.
//!
//! ```text
//! cargo run -p weft-examples --example ping_pong [shm|sim]
//! ```
//!
//! All endpoints of an example are in one process. Over shared memory the broker is in the process,
//! too; programs that are processes of their own leave [`Opening::by`] out and meet at that of the
//! daemon. `ping` and `file_server` are such programs, when they are told so.
#![forbid(unsafe_code)]

pub mod service;

use std::process::ExitCode;
use std::sync::Arc;

use weft_fabric::{Endpoint, EndpointOptions, NodeId, Transport};
use weft_open::Opening;
use weft_options::Options;
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_sim::{Settings, SimWorld};

/// The end of a program: an error is told in words.
pub fn ended<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A program on some endpoints.
pub trait Program {
    /// Runs it. `step` lets time pass where time is simulated; call it whenever there is nothing
    /// to do.
    fn run<E: Endpoint>(self, endpoints: Vec<E>, step: &mut dyn FnMut());
}

/// Runs a program on `count` endpoints over the transport that the first argument names.
pub fn main(count: usize, program: impl Program) {
    let transport = std::env::args().nth(1).unwrap_or_else(|| "shm".to_owned());
    over(&transport, count, program);
}

/// Runs a program on `count` endpoints over a transport.
///
/// # Panics
/// When there is no such transport.
pub fn over(transport: &str, count: usize, program: impl Program) {
    match transport {
        "shm" => {
            let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
            let opening = Opening::with("an example", &Options::default()).by(broker);
            let open = |_| opening.open().expect("a node has 256 endpoints");
            program.run((0..count).map(open).collect(), &mut || {});
        }
        "sim" => {
            let world = SimWorld::new(Settings::seeded(1));
            let open = |node| {
                let transport = world.transport(NodeId(node), 1000);
                let options = EndpointOptions::default();
                transport.open(&options).expect("the node has no other endpoint")
            };
            let nodes = 0..u32::try_from(count).expect("few");
            program.run(nodes.map(open).collect(), &mut || {
                world.step();
            });
        }
        other => panic!("no transport {other}; there are shm and sim"),
    }
}
