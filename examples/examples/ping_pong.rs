//! Two endpoints send a message back and forth.

use weft_examples::Program;
use weft_fabric::{Blocking, Endpoint, Event, MessageHeader, PATIENCE, Peer};

const ROUNDS: u64 = 10_000;

/// The program.
pub struct PingPong;

impl Program for PingPong {
    fn run<E: Endpoint>(self, endpoints: Vec<E>, step: &mut dyn FnMut()) {
        let [mut ping, mut pong] = <[E; 2]>::try_from(endpoints).ok().expect("two endpoints");
        let peer = ping.connect_within(pong.address(), PATIENCE).expect("it is there");
        send(&mut ping, peer, 0);
        let mut number = 0;
        while number < ROUNDS {
            // An answer goes to the handle that came with the message.
            if let Some((from, received)) = receive(&mut pong) {
                send(&mut pong, from, received + 1);
            }
            if let Some((_, received)) = receive(&mut ping) {
                number = received;
                send(&mut ping, peer, received + 1);
            }
            step();
        }
        println!("{number} messages, the last of them from {}", pong.address());
    }
}

fn send<E: Endpoint>(endpoint: &mut E, to: Peer, number: u64) {
    let sent = endpoint.send_short(to, MessageHeader::tag(1), &[&number.to_le_bytes()]);
    sent.expect("the mailbox is empty: there is one message at a time");
}

fn receive<E: Endpoint>(endpoint: &mut E) -> Option<(Peer, u64)> {
    let mut received = None;
    endpoint.poll(1, &mut |event| {
        if let Event::Message(message) = event {
            let number = message.payload.try_into().expect("8 bytes were sent");
            received = Some((message.peer, u64::from_le_bytes(number)));
        }
    });
    received
}

fn main() {
    weft_examples::main(2, PingPong);
}
