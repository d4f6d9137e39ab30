//! One thread for each user: it receives the packets of the user's programs and examines their
//! descriptors.
//!
//! Receiving and closing a descriptor can wait for the program that sent it: for the server of a
//! file system in user space, or for the peer of a socket that lingers. A user must delay only its
//! own programs, so each user has a thread and an epoll set. The threads share the [`Hub`]. A
//! thread without programs ends after a while.
//!
//! When the service of a packet has no room, the thread stops reading the program that sent it
//! until there is room. The kernel holds the further packets, and the user's other programs go on.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use weft_channel::{Channel, Credentials};

use crate::hub::{Hub, Parked, Verdict};
use crate::programs::Line;
use crate::service::ProcessId;

/// Set in the epoll data of a process descriptor, above the number of the program.
const ENDED: u64 = 1 << 63;
/// Packets taken from one program before the next one is served.
const PACKETS_A_TURN: usize = 64;
/// Number of users that have their own thread; all further users share one.
const THREADS_MAX: usize = 256;
/// The key of the shared thread; no user has this number.
const SHARED: u32 = u32::MAX;
/// How long a thread without programs waits for the next one before it ends.
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How long a packet waits before it is passed to its full service again.
const TRY_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// A program whose packet waits for room.
type Waiting = (Arc<Line>, Parked);

/// A program that is connected.
struct Program {
    line: Arc<Line>,
    /// A descriptor of the process; `None` once the process has ended.
    process: Option<OwnedFd>,
}

/// The thread of one user.
struct Intake {
    epoll: OwnedFd,
    programs: Mutex<HashMap<ProcessId, Program>>,
}

/// The threads of all users.
pub struct Intakes {
    hub: Arc<Hub>,
    by_user: Mutex<HashMap<u32, Arc<Intake>>>,
    /// Written to when a permitted user asked the daemon to end.
    stop: UnixStream,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Intakes {
    /// An empty set of threads.
    pub fn new(hub: Arc<Hub>, stop: UnixStream) -> Arc<Self> {
        Arc::new(Self { hub, by_user: Mutex::new(HashMap::new()), stop })
    }

    /// Serves a program that connected, on the thread of its user.
    pub fn admit(self: &Arc<Self>, channel: Channel, credentials: Credentials) {
        let Some(line) = self.hub.admit(channel, credentials) else { return };
        // Held until the program is in the table, so that the thread does not end first.
        let mut by_user = lock(&self.by_user);
        let admitted = self
            .intake(&mut by_user, credentials.uid)
            .and_then(|intake| intake.take(&line).map_err(|errno| errno.to_string()));
        if let Err(why) = admitted {
            self.hub.programs().complain(line.peer(), "a program cannot be served", &why);
            self.hub.gone(&line);
        }
    }

    fn intake(
        self: &Arc<Self>,
        by_user: &mut HashMap<u32, Arc<Intake>>,
        user: u32,
    ) -> Result<Arc<Intake>, String> {
        let has_own = by_user.contains_key(&user) || by_user.len() < THREADS_MAX;
        let key = if has_own { user } else { SHARED };
        if let Some(intake) = by_user.get(&key) {
            return Ok(Arc::clone(intake));
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
        let intake = Arc::new(Intake { epoll, programs: Mutex::new(HashMap::new()) });
        let (all, own) = (Arc::clone(self), Arc::clone(&intake));
        std::thread::Builder::new()
            .name(format!("user {user}"))
            .spawn(move || own.serve_all(&all, key))
            .map_err(|error| error.to_string())?;
        by_user.insert(key, Arc::clone(&intake));
        Ok(intake)
    }

    /// Whether the thread of `user` has no programs; the thread is then removed from the table.
    fn is_over(&self, user: u32, intake: &Intake) -> bool {
        let mut by_user = lock(&self.by_user);
        let is_over = lock(&intake.programs).is_empty();
        if is_over {
            by_user.remove(&user);
        }
        is_over
    }
}

impl Intake {
    fn take(&self, line: &Arc<Line>) -> Result<(), Errno> {
        let process = line.peer().process;
        let mut programs = lock(&self.programs);
        self.listen(line)?;
        // A program that has gone already has closed its channel or is about to.
        let ended = line.channel().peer_process().ok().filter(|ended| {
            let data = EventData::new_u64(process.0 | ENDED);
            epoll::add(&self.epoll, ended, data, EventFlags::IN).is_ok()
        });
        programs.insert(process, Program { line: Arc::clone(line), process: ended });
        Ok(())
    }

    fn listen(&self, line: &Line) -> Result<(), Errno> {
        let data = EventData::new_u64(line.peer().process.0);
        epoll::add(&self.epoll, line, data, EventFlags::IN)
    }

    /// Serves the programs until there are none for a while, or this thread fails.
    fn serve_all(&self, all: &Intakes, user: u32) {
        self.abandon_after(all, user, || self.run(all, user));
    }

    /// If `run` fails or panics, the lines of all programs are closed and the thread is no longer
    /// in the table.
    fn abandon_after(&self, all: &Intakes, user: u32, run: impl FnOnce() -> Result<(), Errno>) {
        // The tables and lines are used on; their locks pass over a panic.
        let why = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(errno)) => errno.to_string(),
            Err(_) => "a panic".to_owned(),
        };
        tracing::error!(
            why,
            user,
            "the programs of a user lose their lines; later ones are served again"
        );
        self.abandon(all, user);
    }

    fn run(&self, all: &Intakes, user: u32) -> Result<(), Errno> {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let mut parked = Vec::new();
        loop {
            let timeout = if parked.is_empty() { &IDLE } else { &TRY_AGAIN };
            let ready = match epoll::wait(&self.epoll, &mut space, Some(timeout)) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            if ready.is_empty() && parked.is_empty() && all.is_over(user, self) {
                return Ok(());
            }
            parked = self.try_again(parked, &all.hub);
            for event in ready {
                let number = event.data.u64();
                let process = ProcessId(number & !ENDED);
                let found = lock(&self.programs).get(&process).map(|one| Arc::clone(&one.line));
                let Some(line) = found else { continue };
                if number & ENDED != 0 {
                    self.process_ended(&line, &all.hub);
                } else if let Some(packet) = self.serve(&line, all) {
                    // Removed from epoll entirely: even without events the end of the channel would
                    // wake this thread again and again.
                    let _ = epoll::delete(&self.epoll, &line);
                    parked.push((line, packet));
                }
            }
        }
    }

    /// Closes the lines of all programs and removes the thread from the table, so that the next
    /// program of the user gets another one.
    fn abandon(&self, all: &Intakes, user: u32) {
        let mut by_user = lock(&all.by_user);
        by_user.remove(&user);
        let programs = std::mem::take(&mut *lock(&self.programs));
        drop(by_user);
        for program in programs.values() {
            all.hub.gone(&program.line);
        }
    }

    /// Passes the waiting packets to their services. Returns those for which there is still no
    /// room.
    fn try_again(&self, parked: Vec<Waiting>, hub: &Hub) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        for (line, packet) in parked {
            match hub.pass(packet) {
                Ok(()) if self.listen(&line).is_ok() => {}
                Ok(()) => self.close(&line, hub),
                Err(packet) => waiting.push((line, packet)),
            }
        }
        waiting
    }

    fn process_ended(&self, line: &Line, hub: &Hub) {
        if let Some(program) = lock(&self.programs).get_mut(&line.peer().process) {
            // Closing the descriptor removes it from the epoll set.
            program.process = None;
        }
        hub.ended(line);
    }

    /// Receives packets of a program. Returns a packet for which there is no room.
    fn serve(&self, line: &Line, all: &Intakes) -> Option<Parked> {
        for _ in 0..PACKETS_A_TURN {
            let verdict = match line.channel().receive() {
                Ok(Some(packet)) => all.hub.handle(line, packet),
                Err(Errno::AGAIN) => return None,
                Ok(None) | Err(_) => Verdict::Close,
            };
            match verdict {
                Verdict::Continue => {}
                Verdict::Wait(packet) => return Some(packet),
                Verdict::Close => {
                    self.close(line, &all.hub);
                    return None;
                }
                Verdict::Stop => {
                    // The main thread ends the daemon.
                    let _ = rustix::io::write(&all.stop, &[0]);
                    return None;
                }
            }
        }
        None
    }

    /// Removes a program. The last reference to the line closes its channel, which removes the
    /// channel from the epoll set.
    fn close(&self, line: &Line, hub: &Hub) {
        hub.gone(line);
        lock(&self.programs).remove(&line.peer().process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use crate::Config;

    /// Longer than any step of this test.
    const WATCHDOG_MS: u32 = 10_000;

    /// The thread of a user with one program ends as `fail` says. The program is told, and later
    /// ones are served.
    fn fails(fail: impl FnOnce(&Arc<Intake>, &Arc<Intakes>)) {
        let nothing: [(&str, &str); 0] = [];
        let (options, _) = weft_options::Options::from_environment(nothing);
        let (socket, node) = (PathBuf::new(), "test".to_owned());
        let devices = Vec::new();
        let config = Config { socket, node, options, foreground: false, devices, links: None };
        let hub = Arc::new(Hub::new(&config, Vec::new(), None, 1000).expect("no threads"));
        let (_, stop) = UnixStream::pair().expect("sockets");
        let intakes = Intakes::new(Arc::clone(&hub), stop);
        let credentials = Credentials { pid: std::process::id(), uid: 1000 };
        let (program, other) = Channel::pair().expect("sockets");
        let line = hub.admit(other, credentials).expect("room");
        // A pipe is no epoll set: waiting for its events fails.
        let (epoll, _writer) = rustix::pipe::pipe().expect("a pipe");
        let served = Program { line: Arc::clone(&line), process: None };
        let programs = Mutex::new(HashMap::from([(line.peer().process, served)]));
        drop(line);
        let intake = Arc::new(Intake { epoll, programs });
        lock(&intakes.by_user).insert(1000, Arc::clone(&intake));
        fail(&intake, &intakes);
        let closed = program.receive_within(WATCHDOG_MS).expect("in time");
        assert!(closed.is_none(), "the program learns that it is not served");
        let (program, other) = Channel::pair().expect("sockets");
        intakes.admit(other, credentials);
        program.send(&weft_wire::control::Control::Status.emit(), &[]).expect("room");
        assert!(program.receive_within(WATCHDOG_MS).expect("in time").is_some(), "an answer");
    }

    #[test]
    fn a_user_whose_epoll_set_fails_loses_its_lines_and_later_programs_are_served() {
        fails(|intake, intakes| intake.serve_all(intakes, 1000));
    }

    #[test]
    fn a_user_whose_thread_panics_loses_its_lines_and_later_programs_are_served() {
        fails(|intake, intakes| {
            let intake = Arc::clone(intake);
            let intakes = Arc::clone(intakes);
            let thread = std::thread::spawn(move || {
                intake.abandon_after(&intakes, 1000, || {
                    // As a panic in the midst of serving: under the locks of both tables.
                    let _by_user = lock(&intakes.by_user);
                    let _programs = lock(&intake.programs);
                    std::panic::resume_unwind(Box::new(()))
                });
            });
            assert!(thread.join().is_ok(), "the panic does not leave the thread");
        });
    }
}
