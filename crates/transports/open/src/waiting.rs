//! Waiting on an endpoint beside other descriptors.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fabric::{Armed, Endpoint, Waited, Watchable};
use weft_sync::{AdaptiveWait, Step};

use crate::clock::now;
use crate::opening::{AnyEndpoint, FarEndpoint, NearEndpoint};

/// Looks at the endpoint for each look at the descriptors, which is a call of the kernel.
const LOOKS_PER_CALL: u32 = 32;
/// Looks of a wait before it yields.
const SPINS: u32 = 50;
/// Yields of a wait before it sleeps.
const YIELDS: u32 = 50;

/// Something that a [`Waiter`] waits on: an endpoint, or what stands on one.
pub trait Wakes {
    /// As [`Endpoint::wait`].
    fn wait(&mut self, timeout: Option<Duration>) -> Waited;
    /// As [`Endpoint::arm`].
    fn arm(&mut self) -> Armed;
    /// As [`Watchable::descriptor`].
    fn descriptor(&mut self) -> BorrowedFd<'_>;
}

macro_rules! wakes {
    ($($endpoint:ty),*) => {$(
        impl Wakes for $endpoint {
            fn wait(&mut self, timeout: Option<Duration>) -> Waited {
                Endpoint::wait(self, timeout)
            }

            fn arm(&mut self) -> Armed {
                Endpoint::arm(self)
            }

            fn descriptor(&mut self) -> BorrowedFd<'_> {
                Watchable::descriptor(self)
            }
        }
    )*};
}

wakes!(AnyEndpoint, NearEndpoint, FarEndpoint);

/// The result of [`Waiter::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The endpoint has events, or may have.
    Ready,
    /// This one of the other descriptors can be read.
    Beside(usize),
    /// The time has passed.
    TimedOut,
}

/// Waits on an endpoint beside other descriptors. It looks for a while before it sleeps, as long as
/// earlier waits were worth it ([`AdaptiveWait`]): an answer that comes soon costs no sleep.
///
/// ```
/// # use std::sync::Arc;
/// # use std::os::fd::AsFd;
/// # use weft_broker::Limits;
/// # use weft_fabric::{Blocking, Endpoint, MessageHeader, NodeId, PATIENCE};
/// # use weft_options::Options;
/// # use weft_transport_shm::local_broker;
/// use weft_open::{Opening, Waiter, Woken};
///
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// # let opening = Opening::with("an example", &Options::default()).by(broker);
/// # let (mut endpoint, mut peer) = (opening.open()?, opening.open()?);
/// let (reader, writer) = rustix::pipe::pipe()?;
/// let mut waiter = Waiter::default();
/// # while waiter.wait(&mut endpoint, &[], Some(std::time::Duration::ZERO)) == Woken::Ready {
/// #     endpoint.poll(16, &mut |_| {});
/// # }
/// rustix::io::write(&writer, b"x")?;
/// assert_eq!(waiter.wait(&mut endpoint, &[reader.as_fd()], None), Woken::Beside(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waiter {
    adaptive: AdaptiveWait,
}

impl Default for Waiter {
    fn default() -> Self {
        Self { adaptive: AdaptiveWait::new(SPINS, YIELDS) }
    }
}

impl Waiter {
    /// Waits until `on` has events, one of `beside` can be read, or the time has passed. A signal
    /// may end it early, as [`Woken::Ready`].
    pub fn wait(
        &mut self,
        on: &mut impl Wakes,
        beside: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Woken {
        self.adaptive.restart();
        let until = timeout.map(|timeout| now() + timeout);
        let mut looks = 0;
        loop {
            if on.wait(Some(Duration::ZERO)) == Waited::Ready {
                return Woken::Ready;
            }
            let left = until.map(|until| until.saturating_sub(now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if is_over || looks % LOOKS_PER_CALL == 0 {
                if let Some(woken) = sleep(None, beside, Some(Duration::ZERO)) {
                    return woken;
                }
                if is_over {
                    return Woken::TimedOut;
                }
            }
            looks += 1;
            match self.adaptive.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => self.adaptive.give_way(),
                Step::Sleep => {
                    let (file, most) = match on.arm() {
                        Armed::Busy => return Woken::Ready,
                        Armed::Sleep => (true, left),
                        Armed::PollWithin(time) => {
                            (false, Some(left.map_or(time, |left| left.min(time))))
                        }
                    };
                    let file = file.then(|| on.descriptor());
                    if let Some(woken) = sleep(file, beside, most) {
                        return woken;
                    }
                }
            }
        }
    }
}

/// Sleeps until a descriptor can be read; `None` when the time has passed. The others go before
/// the endpoint, which may be busy for long.
fn sleep(
    own: Option<BorrowedFd<'_>>,
    beside: &[BorrowedFd<'_>],
    most: Option<Duration>,
) -> Option<Woken> {
    if own.is_none() && beside.is_empty() && most == Some(Duration::ZERO) {
        return None;
    }
    let files = beside.iter().chain(&own);
    let mut files: Vec<_> =
        files.map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let most = most.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut files, most.as_ref()) {
        Ok(0) => None,
        // A signal.
        Err(_) => Some(Woken::Ready),
        Ok(_) => {
            let first = files.iter().position(|file| !file.revents().is_empty());
            Some(first.filter(|at| *at < beside.len()).map_or(Woken::Ready, Woken::Beside))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use weft_broker::Limits;
    use weft_fabric::{Blocking, MessageHeader, NodeId, PATIENCE};
    use weft_options::Options;
    use weft_transport_shm::local_broker;

    use super::*;
    use crate::opening::Opening;

    fn opening() -> Opening {
        let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
        Opening::with("a test", &Options::default()).by(broker)
    }

    /// Waits, and takes what is there, until it is something else than readiness.
    fn wait_idle(
        waiter: &mut Waiter,
        endpoint: &mut AnyEndpoint,
        beside: &[BorrowedFd<'_>],
        most: Duration,
    ) -> Woken {
        loop {
            match waiter.wait(endpoint, beside, Some(most)) {
                Woken::Ready => drop(endpoint.poll(16, &mut |_| {})),
                other => return other,
            }
        }
    }

    #[test]
    fn a_wait_ends_by_its_time_by_a_descriptor_and_by_a_message() {
        let opening = opening();
        let mut endpoint = opening.open().expect("an endpoint");
        let mut peer = opening.open().expect("an endpoint");
        let to = peer.connect_within(endpoint.address(), PATIENCE).expect("it is there");
        let mut waiter = Waiter::default();
        let (idle, _idle) = rustix::pipe::pipe().expect("a pipe");
        let (full, filled) = rustix::pipe::pipe().expect("a pipe");
        let begun = now();
        let time = Duration::from_millis(30);
        let woken = wait_idle(&mut waiter, &mut endpoint, &[idle.as_fd()], time);
        assert_eq!(woken, Woken::TimedOut);
        assert!(now() - begun >= time);
        rustix::io::write(&filled, b"x").expect("room");
        let beside = [idle.as_fd(), full.as_fd()];
        // Also without any time.
        for most in [PATIENCE, Duration::ZERO] {
            let woken = wait_idle(&mut waiter, &mut endpoint, &beside, most);
            assert_eq!(woken, Woken::Beside(1));
        }
        peer.send_short(to, MessageHeader::tag(1), &[b"wake up"]).expect("room");
        assert_eq!(waiter.wait(&mut endpoint, &[idle.as_fd()], Some(PATIENCE)), Woken::Ready);
        let mut messages = 0;
        endpoint.poll(16, &mut |event| {
            messages += u32::from(matches!(event, weft_fabric::Event::Message(_)));
        });
        assert_eq!(messages, 1);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the other end is another thread")]
    fn a_sleeper_is_woken_by_a_message_and_by_a_descriptor() {
        let opening = opening();
        let mut endpoint = opening.open().expect("an endpoint");
        let mut peer = opening.open().expect("an endpoint");
        let to = peer.connect_within(endpoint.address(), PATIENCE).expect("it is there");
        let (pipe, filled) = rustix::pipe::pipe().expect("a pipe");
        let mut waiter = Waiter::default();
        wait_idle(&mut waiter, &mut endpoint, &[], Duration::ZERO);
        let late = Duration::from_millis(20);
        let other = std::thread::spawn(move || {
            std::thread::sleep(late);
            peer.send_short(to, MessageHeader::tag(1), &[b"wake up"]).expect("room");
            std::thread::sleep(late);
            rustix::io::write(&filled, b"x").expect("room");
            peer
        });
        assert_eq!(waiter.wait(&mut endpoint, &[pipe.as_fd()], Some(PATIENCE)), Woken::Ready);
        let woken = wait_idle(&mut waiter, &mut endpoint, &[pipe.as_fd()], PATIENCE);
        assert_eq!(woken, Woken::Beside(0));
        drop(other.join().expect("it ends well"));
    }
}
