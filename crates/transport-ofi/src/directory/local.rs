//! A directory inside this process, for endpoints of one process: tests, conformance, examples.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_fabric::{NodeId, OpenError};
use weft_options::ServicePolicy;

use super::state::{ClientId, Outgoing};
use super::{Client, Directory, Limits, News, Opened, Opening, Question, State, Waker};

/// A directory in this process. Clones share one state.
#[derive(Clone)]
pub struct LocalDirectory {
    inner: Arc<Mutex<Inner>>,
    user: u32,
}

struct Inner {
    state: State,
    /// The time of the directory, which only [`LocalDirectory::let_pass`] changes.
    now: Duration,
    queues: BTreeMap<ClientId, VecDeque<News>>,
    wakers: BTreeMap<ClientId, Waker>,
    next: ClientId,
}

impl std::fmt::Debug for LocalDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalDirectory").field("user", &self.user).finish_non_exhaustive()
    }
}

impl LocalDirectory {
    /// A directory of the endpoints of `node`, whose clients are of `user`.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, policy: ServicePolicy, user: u32) -> Self {
        let inner = Inner {
            state: State::new(node, limits, policy),
            now: Duration::ZERO,
            queues: BTreeMap::new(),
            wakers: BTreeMap::new(),
            next: 1,
        };
        Self { inner: Arc::new(Mutex::new(inner)), user }
    }

    /// The same directory, with clients of another user.
    #[must_use]
    pub fn as_user(&self, user: u32) -> Self {
        Self { inner: Arc::clone(&self.inner), user }
    }

    /// Sets the directory's clock ahead.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn let_pass(&self, time: Duration) {
        self.inner.lock().now += time;
    }
}

impl Directory for LocalDirectory {
    fn client(&self) -> Result<Box<dyn Client>, OpenError> {
        let mut inner = self.inner.lock();
        let client = inner.next;
        inner.next += 1;
        inner.queues.insert(client, VecDeque::new());
        Ok(Box::new(LocalClient { inner: Arc::clone(&self.inner), client, user: self.user }))
    }
}

struct LocalClient {
    inner: Arc<Mutex<Inner>>,
    client: ClientId,
    user: u32,
}

impl Inner {
    fn deliver(&mut self, out: Vec<Outgoing>) {
        for (client, news) in out {
            if let Some(queue) = self.queues.get_mut(&client) {
                queue.push_back(news);
            }
            if let Some(waker) = self.wakers.get(&client) {
                waker();
            }
        }
    }
}

/// A number that nobody can guess.
fn secret() -> [u8; 16] {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(16), "the kernel has random numbers");
    bytes
}

impl Client for LocalClient {
    fn open(&mut self, opening: &Opening) -> Result<Opened, OpenError> {
        let mut inner = self.inner.lock();
        let (mut out, now) = (Vec::new(), inner.now);
        let opened = inner.state.open((self.client, self.user), opening, now, &mut out);
        inner.deliver(out);
        opened
    }

    fn ask(&mut self, number: u64, question: Question) -> Result<(), String> {
        let mut inner = self.inner.lock();
        let (mut out, now) = (Vec::new(), inner.now);
        inner.state.ask(self.client, (number, question), secret(), now, &mut out);
        inner.deliver(out);
        Ok(())
    }

    fn next(&mut self) -> Option<News> {
        self.inner.lock().queues.get_mut(&self.client)?.pop_front()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.inner.lock().wakers.insert(self.client, waker);
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        let mut inner = self.inner.lock();
        inner.queues.remove(&self.client);
        inner.wakers.remove(&self.client);
        let mut out = Vec::new();
        inner.state.gone(self.client, &mut out);
        inner.deliver(out);
    }
}
