//! A server of the Redis protocol whose pairs are in memory: `memory PORT [PASSWORD]`.
#![allow(clippy::disallowed_methods, reason = "a program owns its clock, threads and sockets")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weft_kv_server::{Settings, listen, serve};
use weft_redis::memory::Memory;

fn main() -> io::Result<()> {
    let mut words = std::env::args().skip(1);
    let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(6379);
    let password = words.next().map(String::into_bytes);
    let listener = listen(&[SocketAddr::from((Ipv4Addr::LOCALHOST, port))])?;
    serve(listener, Arc::new(Memory::default()), Settings { password, ..Settings::default() })
}
