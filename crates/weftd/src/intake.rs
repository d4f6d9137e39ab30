//! A thread for each user: takes the packets of the user's programs and examines what they show.
//!
//! Receiving and closing a descriptor can wait for the program that sent it: for the owner of a
//! file system in user space, for the peer of a socket that lingers. So that a user holds up nobody
//! but itself, each has a thread and an epoll set of its own; what they agree on is in the
//! [`Hub`]. A thread without programs ends after a while.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use weft_channel::{Channel, Credentials};

use crate::hub::Hub;
use crate::node::{ProcessId, Verdict};

/// Beside the number of a program: its process ended.
const ENDED: u64 = 1 << 63;
/// Packets taken from one program before others get their turn.
const PACKETS_A_TURN: usize = 64;
/// Users with a thread of their own; those beyond share one.
const THREADS_MAX: usize = 256;
/// The key of the thread that the others share; no user has this number.
const SHARED: u32 = u32::MAX;
/// So long a thread without programs waits for the next.
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A program that is connected.
struct Program {
    channel: Arc<Channel>,
    /// Its process, until that has ended.
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
    /// Written to when somebody who may asked the daemon to end.
    stop: UnixStream,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Intakes {
    /// No threads yet.
    pub fn new(hub: Arc<Hub>, stop: UnixStream) -> Arc<Self> {
        Arc::new(Self { hub, by_user: Mutex::new(HashMap::new()), stop })
    }

    /// Serves a program that connected, on the thread of its user.
    pub fn admit(self: &Arc<Self>, channel: Channel, credentials: Credentials) {
        let channel = Arc::new(channel);
        let Some(process) = self.hub.admit(&channel, credentials) else { return };
        // Held until the program is in, so that the thread does not end before it sees it.
        let mut by_user = lock(&self.by_user);
        let admitted = self
            .intake(&mut by_user, credentials.uid)
            .and_then(|intake| intake.take(process, channel).map_err(|errno| errno.to_string()));
        if let Err(why) = admitted {
            self.hub.complain(credentials, "a program cannot be served", &why);
            self.hub.gone(process);
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
            .spawn(move || own.run(&all, key))
            .map_err(|error| error.to_string())?;
        by_user.insert(key, Arc::clone(&intake));
        Ok(intake)
    }

    /// True when the thread of `user` has nothing left to do, and is forgotten.
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
    fn take(&self, process: ProcessId, channel: Arc<Channel>) -> Result<(), Errno> {
        let number = process.0;
        let mut programs = lock(&self.programs);
        epoll::add(&self.epoll, &*channel, EventData::new_u64(number), EventFlags::IN)?;
        // One that is gone already has closed its channel, or will have.
        let ended = channel.peer_process().ok().filter(|ended| {
            let data = EventData::new_u64(number | ENDED);
            epoll::add(&self.epoll, ended, data, EventFlags::IN).is_ok()
        });
        programs.insert(process, Program { channel, process: ended });
        Ok(())
    }

    fn run(&self, all: &Intakes, user: u32) {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        loop {
            let ready = match epoll::wait(&self.epoll, &mut space, Some(&IDLE)) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, user, "the programs of a user are no longer served");
                    return;
                }
            };
            if ready.is_empty() && all.is_over(user, self) {
                return;
            }
            for event in ready {
                let number = event.data.u64();
                if number & ENDED != 0 {
                    self.process_ended(ProcessId(number & !ENDED), &all.hub);
                } else if self.serve(ProcessId(number), &all.hub) == Verdict::Stop {
                    // Whoever listens there is the last to go.
                    let _ = rustix::io::write(&all.stop, &[0]);
                }
            }
        }
    }

    fn process_ended(&self, process: ProcessId, hub: &Hub) {
        if let Some(program) = lock(&self.programs).get_mut(&process) {
            // Closing it takes it out of the epoll set.
            program.process = None;
        }
        hub.ended(process);
    }

    fn serve(&self, process: ProcessId, hub: &Hub) -> Verdict {
        let found = lock(&self.programs).get(&process).map(|one| Arc::clone(&one.channel));
        let Some(channel) = found else { return Verdict::Continue };
        for _ in 0..PACKETS_A_TURN {
            let verdict = match channel.receive() {
                Ok(Some(packet)) => hub.handle(process, packet),
                Err(Errno::AGAIN) => return Verdict::Continue,
                Ok(None) | Err(_) => Verdict::Close,
            };
            match verdict {
                Verdict::Continue => {}
                Verdict::Close => {
                    hub.gone(process);
                    // The channel is closed here, and with that out of the epoll set.
                    lock(&self.programs).remove(&process);
                    return Verdict::Continue;
                }
                Verdict::Stop => return Verdict::Stop,
            }
        }
        Verdict::Continue
    }
}
