//! A server that answers messages of any length: each request gets the length and the sum of its
//! bytes. Short requests come as mailbox messages, long ones are fetched from the client's memory.

use weft_examples::Program;
use weft_fabric::{Blocking, Endpoint, PATIENCE, Peer, Region};
use weft_message::{Body, Event, Messages, Options, SendError};

const LENGTHS: [usize; 6] = [0, 10, 112, 5_000, 100_000, 3_000_000];
const ROUNDS: usize = 20;

/// The program.
pub struct MessageServer;

/// A client's requests and the answers so far.
struct Client<E: Endpoint> {
    messages: Messages<E>,
    server: Peer,
    sent: usize,
    answered: usize,
}

impl<E: Endpoint> Client<E> {
    fn new(mut endpoint: E, server: weft_fabric::EndpointAddress) -> Self {
        let server = endpoint.connect_within(server, PATIENCE).expect("it is there");
        let messages = Messages::new(endpoint, Options::default());
        Self { messages, server, sent: 0, answered: 0 }
    }

    /// Sends what there is room for, and checks the answers.
    fn turn(&mut self) {
        while self.sent < ROUNDS {
            let request = vec![1; LENGTHS[self.sent % LENGTHS.len()]];
            match self.messages.send(self.server, b"sum", &[&request], 0) {
                Ok(_) => self.sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let Self { messages, answered, .. } = self;
        messages.poll(16, |event| {
            if let Event::Message(message) = event {
                let Body::Bytes(bytes) = message.body else { panic!("answers are short") };
                let expected = LENGTHS[*answered % LENGTHS.len()] as u64;
                assert_eq!(bytes, [expected.to_le_bytes(), expected.to_le_bytes()].concat());
                *answered += 1;
            }
        });
    }
}

/// Answers what came in, as far as there is room; `waiting` keeps the rest.
fn serve<E: Endpoint>(server: &mut Messages<E>, waiting: &mut Vec<(Peer, [u64; 2])>) {
    server.poll(16, |event| {
        if let Event::Message(message) = event {
            let mut bytes = vec![0; usize::try_from(message.body.length()).expect("it is here")];
            match message.body {
                Body::Bytes(short) => bytes.copy_from_slice(short),
                Body::Range { region, offset, .. } => {
                    region.read(offset, &mut bytes).expect("the range is inside");
                }
            }
            let sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
            waiting.push((message.peer, [bytes.len() as u64, sum]));
        }
    });
    while let Some((peer, [length, sum])) = waiting.first().copied() {
        let answer = [length.to_le_bytes(), sum.to_le_bytes()].concat();
        match server.send(peer, b"", &[&answer], 0) {
            Err(SendError::WouldBlock) => return,
            // A client that is gone needs no answer.
            _ => drop(waiting.remove(0)),
        }
    }
}

impl Program for MessageServer {
    fn run<E: Endpoint>(self, endpoints: Vec<E>, step: &mut dyn FnMut()) {
        let mut endpoints = endpoints.into_iter();
        let mut server = Messages::new(endpoints.next().expect("a server"), Options::default());
        let address = server.endpoint().address();
        let mut clients: Vec<_> = endpoints.map(|one| Client::new(one, address)).collect();
        let mut waiting = Vec::new();
        while clients.iter().any(|client| client.answered < ROUNDS) {
            serve(&mut server, &mut waiting);
            clients.iter_mut().for_each(Client::turn);
            step();
        }
        println!("{} clients had {ROUNDS} answers each", clients.len());
    }
}

fn main() {
    weft_examples::main(4, MessageServer);
}
