//! The network card that the state machine drives: the calls of a port, a clock and randomness.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weft_libfabric::{
    Error, Peer, Port, PortOptions, Refused, Registration, Report, Rights, Spot, Wanted,
};
use weft_memory::Memory;

/// A range of registered memory: the registration, the offset in its range, the length.
pub type Local = (Registration, usize, usize);

/// A port of a provider, or what stands for one.
///
/// The calls are those of [`Port`], which has their meaning and errors.
#[allow(missing_docs, reason = "they are documented at Port")]
pub trait Nic: Send {
    fn name(&self) -> &[u8];
    fn insert(&mut self, name: &[u8]) -> Result<Peer, Error>;
    fn remove(&mut self, peer: Peer);
    fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused>;
    fn register(
        &mut self,
        range: (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error>;

    /// Ends a registration. If it is settled, no peer uses it any more.
    fn deregister(&mut self, registration: Registration, is_settled: bool);
    fn write(&mut self, to: Peer, from: Local, spot: Spot, token: u64) -> Result<(), Refused>;
    fn read(&mut self, from: Peer, into: Local, spot: Spot, token: u64) -> Result<(), Refused>;
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Report<'_>)) -> Result<usize, Error>;
    fn receives(&self) -> usize;

    /// Bytes of one write or read at most.
    fn operation_bytes_max(&self) -> usize;

    /// Whether a message to a peer arrives when the bytes of all writes are there that were begun
    /// before it.
    fn keeps_messages_behind_writes(&self) -> bool;

    /// The time since some moment. It does not go back.
    fn now(&self) -> Duration;

    /// The same, some milliseconds late at most, where that takes less time to tell. The state
    /// machine uses this one alone.
    fn tick(&self) -> Duration {
        self.now()
    }

    /// A number that nobody can guess.
    fn random(&mut self) -> u64;

    /// A descriptor to sleep on, after [`Nic::may_sleep`] said so.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    fn may_sleep(&self) -> bool;

    /// Lets time pass where there is no descriptor: at most `time`.
    fn pass(&mut self, time: Duration);

    /// Has `work` called now and then, without the program, until it says that it is over. A NIC
    /// without a descriptor does so for each of its endpoints.
    fn linger(&mut self, thread_holds: ThreadHolds, work: Work);
}

/// Makes the value that a thread of an endpoint keeps while it runs.
pub type ThreadHolds = fn() -> Box<dyn std::any::Any>;

/// Work that an endpoint that was closed still has to do.
pub type Work = Box<dyn FnMut() -> bool + Send>;

/// A port with the clock of the machine.
#[derive(Debug)]
pub struct PortNic {
    port: Port,
}

impl PortNic {
    /// Opens a port for packets of the transport.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(wanted: &Wanted) -> Result<Self, Error> {
        let options = PortOptions {
            message_bytes_max: crate::packet::PACKET_BYTES,
            receives_max: RECEIVES,
            sends_max: RECEIVES,
        };
        Ok(Self { port: Port::of(wanted, options)? })
    }
}

fn time_of(clock: ClockId) -> Duration {
    // The time since the machine was started, which is never negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Buffers for receiving that are asked for.
const RECEIVES: usize = 1024;

impl Nic for PortNic {
    fn name(&self) -> &[u8] {
        self.port.name()
    }

    fn insert(&mut self, name: &[u8]) -> Result<Peer, Error> {
        self.port.insert(name)
    }

    fn remove(&mut self, peer: Peer) {
        // It is one of this port, and removed once.
        let _ = self.port.remove(peer);
    }

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused> {
        self.port.send(to, message)
    }

    fn register(
        &mut self,
        range: (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error> {
        self.port.register(range, rights)
    }

    fn deregister(&mut self, registration: Registration, is_settled: bool) {
        // It is one of this port, and ended once.
        let _ = if is_settled {
            self.port.deregister_settled(registration)
        } else {
            self.port.deregister(registration)
        };
    }

    fn write(&mut self, to: Peer, from: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.port.write(to, from, spot, token)
    }

    fn read(&mut self, from: Peer, into: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.port.read(from, into, spot, token)
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Report<'_>)) -> Result<usize, Error> {
        self.port.poll(budget, sink)
    }

    fn receives(&self) -> usize {
        self.port.receives()
    }

    fn operation_bytes_max(&self) -> usize {
        self.port.offer().operation_bytes_max()
    }

    fn keeps_messages_behind_writes(&self) -> bool {
        self.port.offer().keeps_messages_behind_writes()
    }

    fn now(&self) -> Duration {
        time_of(ClockId::Monotonic)
    }

    fn tick(&self) -> Duration {
        time_of(ClockId::MonotonicCoarse)
    }

    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        // The kernel gives 8 bytes at once, or its generator is not set up, which a program that
        // starts then cannot mend.
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        assert_eq!(filled, Ok(8), "the kernel has random numbers");
        u64::from_ne_bytes(bytes)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }

    fn may_sleep(&self) -> bool {
        self.port.may_sleep()
    }

    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time.min(Duration::from_millis(1)));
    }

    fn linger(&mut self, thread_holds: ThreadHolds, mut work: Work) {
        // Where no thread can be made, what was accepted last is lost, and peers hear of the end
        // from the directory.
        let thread = std::thread::Builder::new().name("weft-ofi-close".into());
        let _ = thread.spawn(move || {
            let held = thread_holds();
            while !work() {
                std::thread::sleep(Duration::from_micros(200));
            }
            // The provider ends with it.
            drop(work);
            drop(held);
        });
    }
}
