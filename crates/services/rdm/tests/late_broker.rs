//! Two ends over shared memory whose broker answers late: their chunks are mapped all the same.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weft_broker::local::LocalBroker;
use weft_broker::{BrokerError, Client, Connector, Limits, Received};
use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_rdm::fuzz::{Bytes, End};
use weft_rdm::{How, Kind, Label, Options, Wanted};
use weft_transport_shm::{Parameters, ShmTransport, local_broker};
use weft_wire::endpoint_control::EndpointControl;

/// Looks at the broker that find no answer behind each request.
const LATE: usize = 5;

struct LateBroker(LocalBroker);

struct LateClient {
    client: Box<dyn Client>,
    left: usize,
}

impl Connector for LateBroker {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        Ok(Box::new(LateClient { client: self.0.client()?, left: 0 }))
    }
}

impl Client for LateClient {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        self.client.call(request, ticket, files)
    }

    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        self.left = LATE;
        self.client.start(request, files)
    }

    fn next(&mut self) -> Option<Received> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        self.client.next()
    }
}

/// A body in a chunk that is mapped comes without the sender, another one does not.
#[test]
fn chunks_are_mapped_when_the_broker_answers_late() {
    let broker = LateBroker(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(Arc::new(broker), Parameters::default());
    let options = Options { kernel: false, ..Options::default() };
    let mut ends = [1, 2].map(|number| {
        let endpoint = transport.open(&EndpointOptions::default()).expect("room");
        End::new(endpoint, number, options.clone())
    });
    let [one, other] = &mut ends;
    let to = one.peer(other);
    let label = Label { tag: Some(1), data: None };
    let wanted = Wanted { is_tagged: true, from: None, tag: 1, ignore: 0 };
    for (token, length) in [(1, 8), (2, 20_000)] {
        let memory = Bytes::zeros(length);
        other.rdm.receive(&wanted, memory.clone(), None, token);
        let body = vec![7; length];
        let sent = one.rdm.send(to, label, &Bytes::new(body.clone()), How::Sent, None);
        assert!(sent.is_ok());
        for _ in 0..200 {
            other.poll();
            // They have to meet with the first message.
            if token == 1 {
                one.poll();
            }
        }
        let last = other.outcomes.last().map(|it| (it.kind, it.token, it.failure));
        assert_eq!(last, Some((Kind::Receive, Some(token), None)));
        assert_eq!(memory.to_vec(), body);
    }
}
