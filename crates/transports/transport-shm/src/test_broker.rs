//! A broker for tests, which answers as a test wants: late, wrongly, never, or after a restart.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use weft_broker::{
    BrokerError, Client, Connection, Connector, Limits, Received, local::LocalBroker,
};
use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_wire::endpoint_control::{EndpointControl, Reply};

use crate::local_broker;
use crate::{Parameters, ShmEndpoint, ShmTransport};

/// How the broker behaves towards requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    Prompt,
    /// It hears nothing.
    Silent,
    /// It hears everything, and its answers are late.
    Late,
    /// The connection has ended.
    Gone,
    /// A new connection was made, and nobody answers it.
    Greeting,
}

/// The fate of a request.
pub(crate) enum Fate {
    Heard,
    /// This is the answer.
    Answered(Reply),
    /// It cannot be sent.
    Refused,
    /// It is lost.
    Lost,
}

type Judge = Arc<dyn Fn(&EndpointControl) -> Fate + Send + Sync>;

struct Manners {
    broker: LocalBroker,
    mood: Mood,
    judge: Option<Judge>,
    /// How often the broker was restarted.
    life: u64,
    /// The requests that it heard.
    heard: Vec<EndpointControl>,
    /// Connections to earlier lives. A broker that died says nothing about their end.
    former: Vec<Box<dyn Client>>,
}

/// A broker that a test gives a mood. Clones are one broker.
#[derive(Clone)]
pub(crate) struct TestBroker(Arc<Mutex<Manners>>);

impl TestBroker {
    pub fn new() -> Self {
        let broker = local_broker(NodeId::LOCAL, Limits::default());
        let (mood, judge, life) = (Mood::Prompt, None, 0);
        let (heard, former) = (Vec::new(), Vec::new());
        Self(Arc::new(Mutex::new(Manners { broker, mood, judge, life, heard, former })))
    }

    /// The same endpoints, at a broker that has a mood of its own.
    pub fn beside(&self) -> Self {
        let other = Self::new();
        other.0.lock().broker = self.0.lock().broker.clone();
        other
    }

    /// The broker ends, and another begins, that knows nothing.
    pub fn restart(&self) {
        let mut manners = self.0.lock();
        manners.broker = local_broker(NodeId::LOCAL, Limits::default());
        manners.life += 1;
    }

    pub fn set(&self, mood: Mood) {
        self.0.lock().mood = mood;
    }

    /// From now on `judge` says what becomes of a request.
    pub fn judge(&self, judge: impl Fn(&EndpointControl) -> Fate + Send + Sync + 'static) {
        self.0.lock().judge = Some(Arc::new(judge));
    }

    /// Every request is heard again.
    pub fn hear(&self) {
        self.0.lock().judge = None;
    }

    /// Takes the requests that were heard so far.
    pub fn take_heard(&self) -> Vec<EndpointControl> {
        std::mem::take(&mut self.0.lock().heard)
    }

    pub fn transport(&self) -> ShmTransport {
        ShmTransport::new(Arc::new(self.clone()), Parameters::default())
    }

    pub fn open(&self) -> ShmEndpoint {
        self.transport().open(&EndpointOptions::default()).expect("room")
    }
}

impl Connector for TestBroker {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        let (broker, life) = {
            let manners = self.0.lock();
            (manners.broker.clone(), manners.life)
        };
        let (manners, client) = (Arc::clone(&self.0), broker.client()?);
        let (unread, answers) = (VecDeque::new(), VecDeque::new());
        Ok(Box::new(TestClient { client, manners, life, unread, answers }))
    }
}

struct TestClient {
    client: Box<dyn Client>,
    manners: Arc<Mutex<Manners>>,
    /// The life of the broker to which `client` leads.
    life: u64,
    unread: VecDeque<(EndpointControl, Vec<OwnedFd>)>,
    answers: VecDeque<Received>,
}

impl TestClient {
    fn mood(&self) -> Mood {
        self.manners.lock().mood
    }
}

impl Client for TestClient {
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
        let refused = || Err(BrokerError::Unreachable { reason: "gone".to_owned() });
        let judge = self.manners.lock().judge.clone();
        if self.connection() != Connection::Open {
            return refused();
        }
        match judge.map_or(Fate::Heard, |judge| judge(&request)) {
            Fate::Refused => return refused(),
            Fate::Lost => return Ok(()),
            Fate::Answered(reply) => {
                let message = reply.into();
                self.answers.push_back(Received { message, files: Vec::new() });
                return Ok(());
            }
            Fate::Heard => {}
        }
        let copies = files.iter().map(|file| file.try_clone_to_owned().expect("a descriptor"));
        self.unread.push_back((request, copies.collect()));
        Ok(())
    }

    fn next(&mut self) -> Option<Received> {
        let mood = self.mood();
        if !matches!(mood, Mood::Prompt | Mood::Late) {
            return None;
        }
        for (request, files) in std::mem::take(&mut self.unread) {
            self.manners.lock().heard.push(request);
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            self.client.start(request, &files).expect("the broker is in this process");
        }
        if mood == Mood::Late {
            return None;
        }
        self.answers.pop_front().or_else(|| self.client.next())
    }

    fn reconnected(&mut self) -> bool {
        let (life, broker) = {
            let manners = self.manners.lock();
            (manners.life, manners.broker.clone())
        };
        let is_new = self.life != life && self.connection() == Connection::Open;
        if is_new {
            let new = broker.client().expect("the broker is in this process");
            let former = std::mem::replace(&mut self.client, new);
            self.manners.lock().former.push(former);
            self.life = life;
            self.unread.clear();
            self.answers.clear();
        }
        is_new
    }

    fn connection(&self) -> Connection {
        match self.mood() {
            Mood::Gone => Connection::Lost,
            Mood::Greeting => Connection::Greeting,
            Mood::Prompt | Mood::Silent | Mood::Late => Connection::Open,
        }
    }
}
