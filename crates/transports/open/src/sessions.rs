//! Sessions of a program that has a loop of its own kind: ask and wait, or take and answer.
//!
//! Programs that move blocks, or wait for other things, use [`Sessions`] and [`turn`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use weft_fabric::{Armed, Blocking, Endpoint, EndpointAddress, Waited};
use weft_session::{
    AnswerError, End, Event, Options, RequestError, SessionError, SessionId, Sessions, bytes_of,
};

use crate::clock;
use crate::error::OpeningError;
use crate::opening::{AnyEndpoint, Opening};
use crate::place::{ServicePlace, named};
use crate::waiting::{Waiter, Wakes, Woken};

/// How long a service on another host may take to be reached: both ends may have to load a library.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// Events of one turn.
const EVENTS_A_TURN: usize = 64;

impl<E: Endpoint + Wakes> Wakes for Sessions<E> {
    fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        Self::wait(self, timeout)
    }

    fn arm(&mut self) -> Armed {
        Self::arm(self)
    }

    fn descriptor(&mut self) -> BorrowedFd<'_> {
        self.endpoint().descriptor()
    }
}

/// Waits until sessions have something to do, one of `beside` can be read, or the time has passed,
/// and takes what came.
pub fn turn<E: Endpoint + Wakes>(
    sessions: &mut Sessions<E>,
    waiter: &mut Waiter,
    beside: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    sink: impl FnMut(Event<'_, E::Region>),
) -> Woken {
    let due = sessions.timeout().map(|due| due.saturating_sub(clock::now()));
    let within = [timeout, due].into_iter().flatten().min();
    let woken = waiter.wait(sessions, beside, within);
    sessions.poll(clock::now(), EVENTS_A_TURN, sink);
    woken
}

/// An answer to [`Client::ask`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// A number of the protocol's.
    pub code: u16,
    /// The head.
    pub head: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why [`Client::ask`] has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AskError {
    /// The session has ended.
    #[error("{0}; connect again")]
    Ended(End),
    /// The request was not made, or has no answer.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// A session with a service, for a program that asks and waits for the answer.
///
/// ```no_run
/// use std::time::Duration;
/// use weft_open::{Client, Opening};
///
/// let mut echo = Client::connect(&Opening::named("a client")?, "echo@host2", "echo", &(1..=1))?;
/// let answer = echo.ask(b"", &[b"hello"], Duration::from_secs(1))?;
/// assert_eq!(answer.body, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client<E: Endpoint = AnyEndpoint> {
    sessions: Sessions<E>,
    session: SessionId,
    version: u16,
    waiter: Waiter,
    answers: BTreeMap<u32, Result<Answered, RequestError>>,
    end: Option<End>,
}

impl<E: Endpoint> fmt::Debug for Client<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client<AnyEndpoint> {
    /// Finds a service and opens a session of one of these versions with it. `place` is as for
    /// [`ServicePlace`]; the name of the protocol is the usual name of its service.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn connect(
        opening: &Opening,
        place: &str,
        protocol: &str,
        versions: &RangeInclusive<u16>,
    ) -> Result<Self, OpeningError> {
        let place = ServicePlace::parse(place, protocol)?;
        let endpoint = opening.clone().finding(&place)?.open()?;
        Self::over(endpoint, protocol, versions, Options::default())
    }
}

impl<E: Endpoint + Wakes> Client<E> {
    /// Opens a session with the service whose partition the endpoint came into
    /// ([`Opening::finding`]).
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn over(
        mut endpoint: E,
        protocol: &str,
        versions: &RangeInclusive<u16>,
        options: Options,
    ) -> Result<Self, OpeningError> {
        let (service, protocol) = (protocol.to_owned(), named(protocol)?);
        let not_reached =
            |reason: String| OpeningError::NotReached { service: service.clone(), reason };
        let host = endpoint.host();
        let host = host.ok_or_else(|| not_reached("its address is not known".to_owned()))?;
        let peer = endpoint.connect_within(host, REACHED_WITHIN);
        let peer = peer.map_err(|error| not_reached(error.to_string()))?;
        let mut sessions = Sessions::new(endpoint, options);
        let no_session = |error: SessionError| not_reached(error.to_string());
        let opened = sessions.open(peer, protocol, versions, b"", clock::now());
        let session = opened.map_err(no_session)?;
        let mut waiter = Waiter::default();
        let outcome = loop {
            let mut outcome = None;
            // The session ends by itself if the hello has no answer.
            turn(&mut sessions, &mut waiter, &[], None, |event| match event {
                Event::Opened { version, .. } => outcome = Some(Ok(version)),
                Event::Ended { why, .. } => outcome = Some(Err(why)),
                _ => {}
            });
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        let version = outcome.map_err(|why| OpeningError::NoSession { service, why })?;
        let answers = BTreeMap::new();
        Ok(Self { sessions, session, version, waiter, answers, end: None })
    }

    /// The version that both ends speak.
    #[must_use]
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask(
        &mut self,
        head: &[u8],
        body: &[&[u8]],
        within: Duration,
    ) -> Result<Answered, AskError> {
        let until = clock::now() + within;
        let number = loop {
            if let Some(end) = &self.end {
                return Err(AskError::Ended(end.clone()));
            }
            match self.sessions.request(self.session, head, body, Some(until)) {
                Ok(number) => break number,
                Err(RequestError::WouldBlock) if clock::now() < until => self.turn(until),
                Err(RequestError::WouldBlock) => return Err(RequestError::Late.into()),
                Err(error) => return Err(error.into()),
            }
        };
        loop {
            match (self.answers.remove(&number), &self.end) {
                (Some(Ok(answer)), _) => return Ok(answer),
                (_, Some(end)) => return Err(AskError::Ended(end.clone())),
                (Some(Err(error)), None) => return Err(error.into()),
                (None, None) => self.turn(until),
            }
        }
    }

    fn turn(&mut self, until: Duration) {
        let left = until.saturating_sub(clock::now());
        let Self { sessions, waiter, answers, end, .. } = self;
        turn(sessions, waiter, &[], Some(left), |event| match event {
            Event::Answer { number, answer, .. } => {
                let answer = answer.map(|answer| Answered {
                    code: answer.code,
                    head: answer.head.to_vec(),
                    body: bytes_of(&answer.body),
                });
                answers.insert(number, answer);
            }
            Event::Ended { why, .. } => *end = Some(why),
            _ => {}
        });
    }

    /// The session and all sessions of its endpoint, for a program that goes on with a loop of its
    /// own: [`turn`].
    #[must_use]
    pub fn into_sessions(self) -> (Sessions<E>, SessionId) {
        (self.sessions, self.session)
    }
}

/// A request that waits for its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its session.
    pub session: SessionId,
    /// Its number.
    pub number: u32,
    /// The head.
    pub head: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// A service, for a program that takes requests one by one and answers them.
///
/// ```no_run
/// use weft_open::{Opening, Service};
///
/// let mut echo = Service::offer(&Opening::named("an echo")?, "echo", &(1..=1))?;
/// while let Some(asked) = echo.next(None) {
///     // A client that is gone needs no answer.
///     let _ = echo.answer(&asked, 0, b"", &[&asked.body]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Service<E: Endpoint = AnyEndpoint> {
    sessions: Sessions<E>,
    waiter: Waiter,
    asked: VecDeque<Asked>,
}

impl<E: Endpoint> fmt::Debug for Service<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Service<AnyEndpoint> {
    /// Offers a service of this name, and serves sessions of the protocol of the same name, in any
    /// of these versions.
    ///
    /// # Errors
    /// [`OpeningError`].
    ///
    /// # Panics
    /// When there is no version.
    pub fn offer(
        opening: &Opening,
        name: &str,
        versions: &RangeInclusive<u16>,
    ) -> Result<Self, OpeningError> {
        let endpoint = opening.clone().offering(name)?.open()?;
        Self::over(endpoint, name, versions, Options::default())
    }
}

impl<E: Endpoint + Wakes> Service<E> {
    /// Serves sessions of a protocol at an endpoint, which offers a name ([`Opening::offering`]).
    ///
    /// # Errors
    /// [`OpeningError::Name`].
    ///
    /// # Panics
    /// When there is no version, or an option is out of its range.
    pub fn over(
        endpoint: E,
        protocol: &str,
        versions: &RangeInclusive<u16>,
        options: Options,
    ) -> Result<Self, OpeningError> {
        let protocol = named(protocol)?;
        let mut sessions = Sessions::new(endpoint, options);
        sessions.serve(protocol, versions);
        Ok(Self { sessions, waiter: Waiter::default(), asked: VecDeque::new() })
    }

    /// The address of the service.
    pub fn address(&mut self) -> EndpointAddress {
        self.endpoint().address()
    }

    /// The endpoint.
    pub fn endpoint(&mut self) -> &mut E {
        self.sessions.endpoint()
    }

    /// The next request, of any client; `None` when the time has passed. All clients that the
    /// fabric lets in are accepted.
    pub fn next(&mut self, timeout: Option<Duration>) -> Option<Asked> {
        let until = timeout.map(|timeout| clock::now() + timeout);
        loop {
            if let Some(asked) = self.asked.pop_front() {
                return Some(asked);
            }
            let left = until.map(|until| until.saturating_sub(clock::now()));
            let mut hellos = Vec::new();
            let Self { sessions, waiter, asked } = self;
            turn(sessions, waiter, &[], left, |event| match event {
                Event::Hello { session, version, .. } => hellos.push((session, version)),
                Event::Request { session, number, head, body } => {
                    let (head, body) = (head.to_vec(), bytes_of(&body));
                    asked.push_back(Asked { session, number, head, body });
                }
                Event::Cancelled { session, number } => {
                    asked.retain(|one| (one.session, one.number) != (session, number));
                }
                Event::Ended { session, .. } => asked.retain(|one| one.session != session),
                _ => {}
            });
            for (session, version) in hellos {
                // One that has ended meanwhile needs no word.
                let _ = sessions.accept(session, version, b"");
            }
            if left.is_some_and(|left| left.is_zero()) && asked.is_empty() {
                return None;
            }
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`AnswerError`]: the client is gone, or wants no answer any more.
    pub fn answer(
        &mut self,
        asked: &Asked,
        code: u16,
        head: &[u8],
        body: &[&[u8]],
    ) -> Result<(), AnswerError> {
        self.sessions.answer(asked.session, asked.number, code, head, body)
    }

    /// The sessions, for a program that goes on with a loop of its own: [`turn`].
    #[must_use]
    pub fn into_sessions(self) -> Sessions<E> {
        self.sessions
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_broker::Limits;
    use weft_fabric::{DownReason, NodeId, PATIENCE};
    use weft_transport_shm::local_broker;

    use super::*;

    fn opening() -> Opening {
        let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
        Opening::with("a test", &weft_options::Options::default()).by(broker)
    }

    /// A service that says each body twice, until a client says so.
    fn serve(mut service: Service) {
        while let Some(asked) = service.next(Some(PATIENCE)) {
            let twice = [&asked.body[..], &asked.body];
            service.answer(&asked, 7, &asked.head, &twice).expect("the client waits");
            if asked.body == b"end" {
                return;
            }
        }
        panic!("nobody asked");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a service and its client are two threads")]
    fn a_client_finds_a_service_by_its_name_and_has_its_answers() {
        let opening = opening();
        let service = Service::offer(&opening, "twice", &(1..=3)).expect("a service");
        let service = std::thread::spawn(move || serve(service));
        let mut clients: Vec<_> = (0..3)
            .map(|_| Client::connect(&opening, "twice", "twice", &(2..=5)).expect("a client"))
            .collect();
        for client in &mut clients {
            assert_eq!(client.version(), 3);
            let long = vec![5; 100_000];
            let answered = client.ask(b"head", &[&long, b"x"], PATIENCE).expect("an answer");
            assert_eq!((answered.code, &answered.head[..]), (7, &b"head"[..]));
            assert_eq!(answered.body.len(), 200_002);
        }
        let answered = clients[0].ask(b"", &[b"end"], PATIENCE).expect("an answer");
        assert_eq!(answered.body, b"endend");
        service.join().expect("it ends well");
        let error = clients[1].ask(b"", &[b"x"], PATIENCE).expect_err("it is gone");
        assert_eq!(error, AskError::Ended(End::Down(DownReason::Ended)));
        assert!(error.to_string().contains("connect again"), "{error}");
        let gone = Client::connect(&opening, "twice", "twice", &(1..=1)).expect_err("it is gone");
        assert!(gone.to_string().contains("nobody offers a service twice"), "{gone}");
    }

    #[test]
    fn a_service_that_is_offered_twice_or_has_other_versions_is_refused() {
        let opening = opening();
        let mut first = Service::offer(&opening, "one", &(1..=1)).expect("a service");
        let second = Service::offer(&opening, "one", &(1..=1)).expect_err("the name is taken");
        assert!(second.to_string().contains("another name"), "{second}");
        assert!(first.next(Some(Duration::ZERO)).is_none());
    }
}
