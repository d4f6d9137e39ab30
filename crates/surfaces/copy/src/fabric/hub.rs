//! The thread that drives the sessions of one endpoint.
//!
//! The ends of transfers give it orders, and it tells their loops what came. It waits for no loop:
//! a request of a session whose loop is behind is answered when that has caught up, and the other
//! end has a bounded number of requests.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weft_fabric::{Armed, Endpoint, OperationError, Watchable};
use weft_open::{AnyEndpoint, now};
use weft_session::{BlockId, Event, PoolId, SessionId, Sessions, Shape, bytes_of};

use super::talk::{Ear, Early, Out, Part, Talk};
use crate::error::CopyError;
use crate::near::Near;

/// Sessions at a time of an endpoint that offers a service.
pub(crate) const SESSIONS_MAX: usize = 64;
/// How long the thread sleeps at most.
const LOOK: Duration = Duration::from_secs(1);
/// Events of one turn.
const EVENTS_A_TURN: usize = 64;
/// How soon it looks again for a loop that was behind.
const LOOK_BEHIND: Duration = Duration::from_millis(2);

/// Looks in a row at an endpoint that lets nobody sleep and tells nothing.
const LOOKS_MAX: u32 = 200;

/// How soon the thread looks again at an endpoint that does not let it sleep.
///
/// Libfabric moves the bytes of a long put as long as somebody looks, and tells of its end alone. A
/// sleep of a millisecond amid each put lets the sockets run full, and both ends wait for most of
/// the time. An endpoint that has nothing to move and lets nobody sleep all the same is not looked
/// at for ever.
#[derive(Debug, Default)]
struct Looks(u32);

impl Looks {
    /// The endpoint told something, or lets the thread sleep.
    const fn told(&mut self) {
        self.0 = 0;
    }

    /// It does neither, and wants to be looked at within some time.
    fn within(&mut self, time: Duration) -> Duration {
        self.0 = (self.0 + 1).min(LOOKS_MAX);
        if self.0 < LOOKS_MAX { Duration::ZERO } else { time }
    }
}

/// An order to the thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// Sends something, behind all that was ordered before.
    Send(SessionId, Out),
    /// Gives a block back that was used.
    Free(SessionId, BlockId),
    /// The loop of an end hears of the session from now on, and first what came before.
    Begin(SessionId, Part, Ear, Early),
    /// Ends the session when all that was sent has arrived, and lets the sender go.
    Finish(SessionId, mpsc::Sender<()>),
}

/// Where orders are left.
#[derive(Debug)]
pub(crate) struct Post {
    orders: Mutex<Vec<Order>>,
    /// Rung for a thread that sleeps.
    bell: OwnedFd,
    sleeps: AtomicBool,
    is_closing: AtomicBool,
}

impl Post {
    /// Leaves an order.
    pub fn order(&self, order: Order) {
        self.orders.lock().push(order);
        self.wake();
    }

    fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // It fails only when it has rung very often, and is readable then.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Says that the thread sleeps next. False if there is something to do.
    fn may_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        self.orders.lock().is_empty() && !self.is_closing.load(Ordering::SeqCst)
    }

    fn awake(&self, is_rung: bool) {
        self.sleeps.store(false, Ordering::SeqCst);
        if is_rung {
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
    }
}

/// The thread, as long as somebody has it.
#[derive(Debug)]
pub(crate) struct Hub {
    pub post: Arc<Post>,
    bound: Arc<OnceLock<Near>>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Starts the thread. Sessions that others open are told to `arrived`. Where one is open
    /// already, what it hears before its loop begins is returned. The thread stays near the `rail`,
    /// its network device, from its first transfer with another host on.
    pub fn start(
        sessions: Sessions<AnyEndpoint>,
        rail: Option<Near>,
        open: Option<SessionId>,
        arrived: Option<mpsc::Sender<(SessionId, Early)>>,
    ) -> Result<(Arc<Self>, Option<Early>), CopyError> {
        let failed = |why| CopyError::system("the fabric", &why);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|why| CopyError::system("the fabric", &why))?;
        let (orders, sleeps) = (Mutex::default(), AtomicBool::new(false));
        let is_closing = AtomicBool::new(false);
        let post = Arc::new(Post { orders, bell, sleeps, is_closing });
        let (mut talks, mut early) = (HashMap::new(), None);
        if let Some(session) = open {
            let (ear, heard) = Ear::early();
            talks.insert(session, Talk::new(ear));
            early = Some(heard);
        }
        let at_post = Arc::clone(&post);
        let looks = Looks::default();
        let bound = Arc::new(OnceLock::new());
        let rail = Rail { near: rail, bound: Arc::clone(&bound) };
        let running = Running { post: at_post, sessions, talks, arrived, looks, rail };
        let thread = std::thread::Builder::new().name("weft-fabric".to_owned());
        let thread = thread.spawn(move || running.run()).map_err(failed)?;
        Ok((Arc::new(Self { post, bound, thread: Some(thread) }), early))
    }

    /// Where the thread stays, if it is bound.
    pub fn bound(&self) -> Option<&Near> {
        self.bound.get()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.post.is_closing.store(true, Ordering::SeqCst);
        self.post.wake();
        if let Some(thread) = self.thread.take() {
            // One that panicked has told so by itself.
            let _ = thread.join();
        }
    }
}

/// Something that came, apart from the sessions that it came by.
pub(super) enum Came {
    Hello(u16),
    Request(u32, Vec<u8>),
    /// An answer, or why a request has none.
    Answer(Option<String>),
    Pool(PoolId, Shape),
    Block(BlockId, u32, Vec<u8>),
    Moved(Result<(), OperationError>),
    Room,
    Ended(String),
}

/// The network device of the endpoint.
struct Rail {
    near: Option<Near>,
    /// Set when the thread is bound.
    bound: Arc<OnceLock<Near>>,
}

struct Running {
    post: Arc<Post>,
    sessions: Sessions<AnyEndpoint>,
    talks: HashMap<SessionId, Talk>,
    arrived: Option<mpsc::Sender<(SessionId, Early)>>,
    looks: Looks,
    rail: Rail,
}

impl Running {
    fn run(mut self) {
        let mut came = Vec::new();
        while !self.post.is_closing.load(Ordering::SeqCst) {
            let orders = std::mem::take(&mut *self.post.orders.lock());
            for order in orders {
                self.obey(order);
            }
            let mut is_behind = false;
            for (id, talk) in &mut self.talks {
                is_behind |= talk.go_on(*id, &mut self.sessions);
            }
            let within = match (self.post.may_sleep(), is_behind) {
                (false, _) => Duration::ZERO,
                (true, true) => LOOK_BEHIND,
                (true, false) => LOOK,
            };
            self.sleep(within);
            self.sessions.poll(now(), EVENTS_A_TURN, |event| came.extend(of_event(event)));
            if !came.is_empty() {
                self.looks.told();
            }
            for (id, one) in came.drain(..) {
                self.take_in(id, one);
            }
        }
    }

    /// Sleeps until the endpoint has events or the bell was rung. It does not spin before where the
    /// endpoint lets it sleep: a block takes much longer than to be woken, and a thread that spins
    /// takes a processor from those that read and write.
    fn sleep(&mut self, within: Duration) {
        let due = self.sessions.timeout().map(|due| due.saturating_sub(now()));
        let within = due.map_or(within, |due| due.min(within));
        let (is_watched, within) = match self.sessions.arm() {
            Armed::Busy => (false, Duration::ZERO),
            Armed::Sleep => {
                self.looks.told();
                (true, within)
            }
            Armed::PollWithin(time) => (false, within.min(self.looks.within(time))),
        };
        let mut files = vec![PollFd::new(&self.post.bell, PollFlags::IN)];
        if is_watched {
            let endpoint = self.sessions.endpoint().descriptor();
            files.push(PollFd::from_borrowed_fd(endpoint, PollFlags::IN));
        }
        let within = Timespec::try_from(within).ok();
        // A signal ends it, too.
        let _ = poll(&mut files, within.as_ref());
        let is_rung = !files[0].revents().is_empty();
        self.post.awake(is_rung);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Send(id, out) => {
                if let Some(talk) = self.talks.get_mut(&id) {
                    talk.send(out);
                }
            }
            // The session may be over.
            Order::Free(id, block) => drop(self.sessions.free(id, block)),
            Order::Begin(id, part, mut ear, early) => {
                ear.catch_up(&early);
                self.stay_near(id);
                match self.talks.get_mut(&id) {
                    Some(talk) => talk.begin(id, part, ear, &mut self.sessions),
                    None => ear.lost("the other end has ended".to_owned()),
                }
            }
            Order::Finish(id, done) => {
                // Without a session the sender is let go at once.
                if let Some(talk) = self.talks.get_mut(&id) {
                    talk.finish(done);
                }
            }
        }
    }

    /// Binds this thread, if the session leads to another host.
    fn stay_near(&mut self, id: SessionId) {
        let endpoint = self.sessions.endpoint();
        let is_far = endpoint
            .peer_address(id.peer())
            .is_some_and(|peer| peer.node != endpoint.address().node);
        if is_far && let Some(near) = self.rail.near.take() {
            near.bind();
            self.rail.bound.get_or_init(|| near);
        }
    }

    fn take_in(&mut self, id: SessionId, came: Came) {
        if let Came::Hello(version) = came {
            let (ear, early) = Ear::early();
            let is_taken = self.talks.len() < SESSIONS_MAX
                && self.arrived.as_ref().is_some_and(|to| to.send((id, early)).is_ok());
            if is_taken && self.sessions.accept(id, version, b"").is_ok() {
                self.talks.insert(id, Talk::new(ear));
            } else {
                let _ = self.sessions.refuse(id, 1, "it takes no transfer now");
            }
            return;
        }
        let Some(talk) = self.talks.get_mut(&id) else { return };
        if let Came::Ended(why) = came {
            talk.ended(why);
            self.talks.remove(&id);
        } else {
            talk.take_in(id, came, &mut self.sessions, &self.post);
        }
    }
}

fn of_event(event: Event<'_, super::lease::FabricRegion>) -> Option<(SessionId, Came)> {
    Some(match event {
        Event::Hello { session, version, .. } => (session, Came::Hello(version)),
        Event::Request { session, number, body, .. } => {
            (session, Came::Request(number, bytes_of(&body)))
        }
        Event::Answer { session, answer, .. } => {
            (session, Came::Answer(answer.err().map(|error| error.to_string())))
        }
        Event::Pool { session, pool, shape } => (session, Came::Pool(pool, shape)),
        Event::Block { session, block, length, head } => {
            (session, Came::Block(block, length, head.to_vec()))
        }
        Event::Moved { session, result, .. } => (session, Came::Moved(result)),
        Event::Room { session } => (session, Came::Room),
        Event::Ended { session, why, .. } => (session, Came::Ended(why.to_string())),
        Event::Opened { .. } | Event::Cancelled { .. } | Event::Endpoint(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_moves_bytes_is_looked_at_at_once_and_one_that_does_not_is_slept_on() {
        let (mut looks, soon) = (Looks::default(), Duration::from_millis(1));
        let at_once = |looks: &mut Looks| {
            (0..10 * LOOKS_MAX).filter(|_| looks.within(soon) == Duration::ZERO).count()
        };
        assert_eq!(at_once(&mut looks), LOOKS_MAX as usize - 1, "and slept on from then on");
        assert_eq!(at_once(&mut looks), 0);
        looks.told();
        assert_eq!(at_once(&mut looks), LOOKS_MAX as usize - 1, "anew behind each event");
    }
}
