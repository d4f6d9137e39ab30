//! The thread that reads, as the driver of the preload library does it.

use weft_fabric::{Endpoint, WaitFor, Wake};
use weft_socket::{Drained, Empty, Leave, Origin, ReadError, StaleWakeups};

use super::connection::{Connection, Ready, pattern};
use super::tcp::Received;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReaderStep {
    Choose,
    /// The program waits until it can go on without its lane.
    LeaveBehind,
    Try,
    /// A wakeup must be sent to the peer.
    Ring,
    Arm,
    Look,
    Asleep,
    /// Woken, and waits for another thread that uses the direction.
    Waking,
    Over,
}

/// The result of one attempt to read.
enum Attempt {
    Moved(usize, bool),
    Again,
    WouldBlock,
    End,
    Reset,
}

pub struct Reader {
    host: usize,
    state: ReaderStep,
    target: Vec<u8>,
    peek: bool,
    wakes: u32,
    /// The next bytes come from TCP, as far as the thread knew when it fell asleep.
    is_on_tcp: bool,
    /// The wakeups that were stale when the thread armed.
    stale: StaleWakeups,
    /// The kernel had told of the peer's end when the thread last looked, in a wait of
    /// [`ReaderStep::LeaveBehind`].
    has_ended: bool,
    has_waited: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader {:?} of {}, peek {}", self.state, self.target.len(), self.peek)
    }
}

/// Wakes in a row without a byte read that count as spinning.
const WAKES_MAX: u32 = 3_000;

impl Reader {
    pub fn new(host: usize) -> Self {
        let stale = StaleWakeups::default();
        Self {
            host,
            state: ReaderStep::Choose,
            target: Vec::new(),
            peek: false,
            wakes: 0,
            is_on_tcp: true,
            stale,
            has_ended: false,
            has_waited: false,
        }
    }

    pub fn ready<E: Endpoint>(&self, connection: &Connection<E>) -> Ready {
        match self.state {
            ReaderStep::Over => Ready::Over,
            // Across a network the record of a peer wakes, too, that goes back to TCP.
            ReaderStep::Asleep
                if !connection.is_woken(
                    self.host,
                    WaitFor::Data,
                    self.is_on_tcp || connection.plan.network.is_some(),
                ) =>
            {
                Ready::No
            }
            _ => Ready::Now,
        }
    }

    pub fn step<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        if host.is_gone() {
            return;
        }
        match self.state {
            ReaderStep::Choose
                if connection.plan.reads_slowly[self.host] && !connection.chance(24) => {}
            ReaderStep::Choose => {
                self.leave(connection);
                if connection.plan.leaves_behind[self.host]
                    && !self.has_waited
                    && host.has_lane()
                    && host.send.try_borrow().is_ok_and(|send| send.is_back_for_good())
                {
                    self.has_waited = true;
                    self.state = ReaderStep::LeaveBehind;
                    return;
                }
                connection.maybe_give_back(self.host);
                self.target = vec![0; connection.size().max(1)];
                self.peek = connection.chance(8);
                self.state = ReaderStep::Try;
            }
            ReaderStep::LeaveBehind => {
                if connection.leave_behind(self.host, &mut self.has_ended) {
                    self.state = ReaderStep::Choose;
                }
            }
            ReaderStep::Try => self.attempt(connection),
            ReaderStep::Ring => {
                if connection.ring_for_room(self.host) {
                    self.state = ReaderStep::Choose;
                }
            }
            ReaderStep::Arm => self.arm(connection),
            ReaderStep::Look => self.look(connection),
            ReaderStep::Asleep => {
                connection.set_peer(self.host, WaitFor::Data, false);
                self.wake(connection);
            }
            ReaderStep::Waking => self.wake(connection),
            ReaderStep::Over => {}
        }
    }

    /// Goes back to TCP for good when the plan says so, also while the program writes nothing.
    fn leave<E: Endpoint>(&self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let due =
            connection.plan.leaves_at[self.host].is_some_and(|at| connection.steps.get() >= at);
        if due
            && host.has_lane()
            && let Ok(mut send) = host.send.try_borrow_mut()
            && !send.is_back_for_good()
            && !send.is_shut()
        {
            if connection.chance(2)
                && let Ok(mut receive) = host.receive.try_borrow_mut()
            {
                host.has_requested_resend.set(true);
                connection.receive(self.host, &mut receive, |receiving| {
                    receiving.origin();
                    receiving.state.request_resend(receiving.lane);
                });
            }
            connection.leave(self.host, &mut send, Leave::ForGood);
        }
    }

    fn attempt<E: Endpoint>(&mut self, connection: &Connection<E>) {
        connection.decide(self.host);
        let host = &connection.hosts[self.host];
        if host.has_lane()
            && let Ok(mut send) = host.send.try_borrow_mut()
            && let Some(how) = send.leave_to_follow(&connection.lane(self.host))
        {
            connection.leave(self.host, &mut send, how);
        }
        connection.rescue(self.host);
        let attempt = self.try_receive(connection);
        if host.is_gone() {
            return;
        }
        self.state = match attempt {
            None | Some(Attempt::Again) => ReaderStep::Try,
            Some(Attempt::Moved(bytes, ring)) => {
                self.check(connection, bytes);
                if ring { ReaderStep::Ring } else { ReaderStep::Choose }
            }
            Some(Attempt::WouldBlock) => ReaderStep::Arm,
            Some(Attempt::End) => {
                connection.check_end(self.host);
                ReaderStep::Over
            }
            Some(Attempt::Reset) => {
                connection.check_reset(self.host, true);
                ReaderStep::Over
            }
        };
    }

    /// `None` if another thread holds a lock.
    fn try_receive<E: Endpoint>(&mut self, connection: &Connection<E>) -> Option<Attempt> {
        let host = &connection.hosts[self.host];
        let mut receive = host.receive.try_borrow_mut().ok()?;
        if !host.has_lane() {
            let attempt = self.receive_tcp(connection, usize::MAX);
            if let Attempt::Moved(bytes, _) = attempt
                && !self.peek
            {
                receive.begin_tcp();
                receive.took_tcp(bytes);
            }
            return Some(attempt);
        }
        let lane = connection.lane(self.host);
        match connection.origin(self.host, &mut receive) {
            Origin::Lane => {}
            origin => {
                let attempt = match origin {
                    Origin::Tcp { at_most } => {
                        let most = at_most.unwrap_or(u64::MAX);
                        let limit = usize::try_from(most).expect("64 bits");
                        self.receive_tcp_beside_lane(connection, &mut receive, limit)
                    }
                    _ => self.receive_tcp(connection, 0),
                };
                let is_end = matches!(attempt, Attempt::End | Attempt::Reset);
                let tells =
                    matches!(origin, Origin::Tcp { .. }) || connection.plan.network.is_some();
                if !is_end || !tells || connection.plan.mistakes.believe_kernel {
                    return Some(attempt);
                }
                connection.set_peer(self.host, WaitFor::Data, false);
                let met = connection
                    .receive(self.host, &mut receive, |receiving| receiving.after_end_of_tcp());
                return Some(match met {
                    Empty::PeerDied => attempt,
                    Empty::LookAgain => Attempt::Again,
                    Empty::Wait => Attempt::WouldBlock,
                    Empty::Broken => Attempt::Reset,
                });
            }
        }
        let error = match receive.read(&lane, &mut self.target, self.peek) {
            Ok(reading) => return Some(Attempt::Moved(reading.bytes, reading.room)),
            Err(error) => error,
        };
        Some(match error {
            ReadError::Ended => Attempt::End,
            ReadError::Reset => Attempt::Reset,
            ReadError::Return => Attempt::Again,
            ReadError::Empty => {
                match connection
                    .receive(self.host, &mut receive, |receiving| receiving.found_empty())
                {
                    Empty::Wait => Attempt::WouldBlock,
                    Empty::LookAgain => Attempt::Again,
                    Empty::Broken => Attempt::Reset,
                    Empty::PeerDied => {
                        let unread = host.send.try_borrow_mut().ok()?.unread_by_peer(&lane);
                        if unread { Attempt::Reset } else { Attempt::End }
                    }
                }
            }
        })
    }

    /// Takes the data and leaves wakeups to the threads that wait for them. It first looks how many
    /// of the bytes are data.
    fn receive_tcp_beside_lane<E: Endpoint>(
        &mut self,
        connection: &Connection<E>,
        receive: &mut weft_socket::ReceiveSide,
        limit: usize,
    ) -> Attempt {
        let lane = connection.lane(self.host);
        let peeks = self.peek;
        self.peek = true;
        // The peer may cross and ring at this moment.
        (0..8).for_each(|_| connection.meanwhile());
        let seen = self.receive_tcp(connection, limit);
        self.peek = peeks;
        let Attempt::Moved(bytes, _) = seen else { return seen };
        let knows_no_records =
            connection.plan.network.is_none() || connection.plan.mistakes.take_record_for_data;
        let data = if knows_no_records {
            Some(receive.data_of(&lane, bytes))
        } else {
            connection.receive(self.host, receive, |receiving| receiving.data_of(bytes))
        };
        // The host was killed meanwhile, or only wakeups lie there.
        let Some(data) = data.filter(|data| !connection.hosts[self.host].is_gone() && *data > 0)
        else {
            return Attempt::Again;
        };
        if !peeks {
            let mut pipe = connection.pipes[1 - self.host].borrow_mut();
            let taken = pipe.receive(data, false, connection.now());
            assert!(matches!(taken, Received::Bytes(bytes) if bytes.len() == data));
            receive.begin_tcp();
            receive.took_tcp(data);
        }
        Attempt::Moved(data, false)
    }

    fn receive_tcp<E: Endpoint>(&mut self, connection: &Connection<E>, limit: usize) -> Attempt {
        let mut pipe = connection.pipes[1 - self.host].borrow_mut();
        let maximum = self.target.len().min(limit);
        match pipe.receive(maximum, self.peek, connection.now()) {
            Received::Bytes(bytes) => {
                self.target[..bytes.len()].copy_from_slice(&bytes);
                Attempt::Moved(bytes.len(), false)
            }
            Received::End => Attempt::End,
            Received::Reset => Attempt::Reset,
            Received::Nothing => Attempt::WouldBlock,
        }
    }

    /// Checks that the bytes that arrived are those that were sent.
    fn check<E: Endpoint>(&mut self, connection: &Connection<E>, bytes: usize) {
        let host = &connection.hosts[self.host];
        let start = host.got.get();
        assert!(bytes >= 1, "nothing was moved: {}", connection.describe());
        for (index, byte) in self.target[..bytes].iter().enumerate() {
            let expected = pattern(1 - self.host, start + index as u64);
            if *byte != expected {
                let at = start + index as u64;
                panic!("byte {at}: {byte} for {expected} {}", connection.describe());
            }
        }
        let end = start + bytes as u64;
        let offered = connection.hosts[1 - self.host].offered.get();
        assert!(end <= offered, "bytes that were never sent: {}", connection.describe());
        if !self.peek {
            host.got.set(end);
            connection.moved();
        }
        self.wakes = 0;
    }

    fn arm<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        host.common.begin_sleep(WaitFor::Data);
        connection.forget_ring(self.host, WaitFor::Data);
        if host.has_lane() {
            self.stale = connection
                .receive(self.host, &mut receive, |receiving| receiving.arm(WaitFor::Data));
        }
        drop(receive);
        self.state = ReaderStep::Look;
    }

    fn look<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        if host.has_lane() {
            connection.lane(self.host).settle();
            let stale = self.stale;
            let sleeps = connection.receive(self.host, &mut receive, |receiving| {
                receiving.readable(false) != Some(true)
                    && receiving.drain(stale, false, false) == Drained::All
            });
            self.is_on_tcp = connection.origin(self.host, &mut receive) != Origin::Lane;
            // The end that the kernel told may have become the end of all since the last look.
            let ends = self.is_on_tcp
                && connection.has_heard(self.host, WaitFor::Data)
                && connection
                    .receive(self.host, &mut receive, |receiving| receiving.after_end_of_tcp())
                    != Empty::Wait;
            if !sleeps || ends || connection.may_follow(self.host) {
                drop(receive);
                return self.wake(connection);
            }
        }
        self.state = ReaderStep::Asleep;
    }

    fn wake<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        self.state = ReaderStep::Waking;
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        host.common.end_sleep(WaitFor::Data);
        if host.has_lane() {
            connection.receive(self.host, &mut receive, |receiving| {
                receiving.stop_waiting(WaitFor::Data, false);
            });
        }
        self.wakes += 1;
        assert!(self.wakes < WAKES_MAX, "a reader spins: {}", connection.describe());
        self.state = ReaderStep::Try;
    }
}
