//! The thread that writes, as the driver of the preload library does it.

use weft_fabric::{Carry, Endpoint, WaitFor, Wake};
use weft_socket::{Drained, Leave, Peer, Phase, ReceiveSide, SendSide, StaleWakeups, WriteError};

use super::connection::{Connection, Ready, pattern};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriterStep {
    Choose,
    Try,
    Arm,
    Look,
    Asleep,
    /// Woken, and waits for another thread that uses the other direction.
    Waking,
    /// Asleep in short slices, since unread data would wake the thread again and again.
    Nap,
    /// Asleep until the kernel has room.
    AsleepOnTcp,
    Shut,
    Over,
}

enum Attempt {
    Moved(usize),
    Again,
    WouldBlock,
    Broken,
}

#[derive(Debug)]
pub struct Writer {
    host: usize,
    state: WriterStep,
    total: u64,
    /// Number of bytes of the current call that are left.
    rest: usize,
    /// The wakeups that were stale when the thread armed.
    stale: StaleWakeups,
}

impl Writer {
    pub fn new(host: usize, total: u64) -> Self {
        Self { host, state: WriterStep::Choose, total, rest: 0, stale: StaleWakeups::default() }
    }

    pub fn ready<E: Endpoint>(&self, connection: &Connection<E>) -> Ready {
        match self.state {
            WriterStep::Over => Ready::Over,
            WriterStep::Nap => Ready::Soon,
            WriterStep::Choose if self.must_listen_first(connection) => Ready::No,
            // The driver's writer sleeps in slices. Another thread may have taken the direction
            // back to TCP, or taken the wakeup that said that no more wakeups will come.
            WriterStep::Asleep
                if connection.is_back(self.host) || connection.is_left(self.host) =>
            {
                Ready::Now
            }
            WriterStep::Asleep if !connection.is_woken(self.host, WaitFor::Room, false) => {
                Ready::No
            }
            WriterStep::AsleepOnTcp if !connection.pipes[self.host].borrow().is_writable() => {
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
            WriterStep::Choose => {
                let left = self.total - host.accepted.get();
                self.rest = connection.size().min(usize::try_from(left).expect("it fits"));
                self.state = if left == 0 { WriterStep::Shut } else { WriterStep::Try };
            }
            WriterStep::Try => self.attempt(connection),
            WriterStep::Arm => self.arm(connection),
            WriterStep::Look => self.look(connection),
            WriterStep::Asleep | WriterStep::Nap => {
                connection.set_peer(self.host, WaitFor::Room, true);
                self.wake(connection);
            }
            WriterStep::Waking => self.wake(connection),
            WriterStep::AsleepOnTcp => self.state = WriterStep::Try,
            WriterStep::Shut => self.shut(connection),
            WriterStep::Over => {}
        }
    }

    fn must_listen_first<E: Endpoint>(&self, connection: &Connection<E>) -> bool {
        let (host, other) = (&connection.hosts[self.host], &connection.hosts[1 - self.host]);
        let heard_all = host.got.get() == connection.plan.totals[1 - self.host];
        // A program that was told of a reset does not wait for more.
        let was_reset = connection.plan.network.is_some() && host.common.peer() == Peer::Reset;
        connection.plan.answers == Some(self.host) && !heard_all && !other.is_gone() && !was_reset
    }

    fn next(&self) -> WriterStep {
        if self.rest == 0 { WriterStep::Choose } else { WriterStep::Try }
    }

    fn attempt<E: Endpoint>(&mut self, connection: &Connection<E>) {
        connection.decide(self.host);
        let host = &connection.hosts[self.host];
        let start = host.accepted.get();
        host.offered.set(host.offered.get().max(start + self.rest as u64));
        let attempt = self.try_send(connection);
        if host.is_gone() {
            return;
        }
        self.state = match attempt {
            None => WriterStep::Try,
            Some(Attempt::Again) => WriterStep::Try,
            Some(Attempt::Moved(bytes)) => {
                host.accepted.set(start + bytes as u64);
                self.rest -= bytes;
                connection.moved();
                self.next()
            }
            Some(Attempt::WouldBlock) => WriterStep::Arm,
            Some(Attempt::Broken) => {
                connection.check_reset(self.host, false);
                WriterStep::Over
            }
        };
    }

    /// `None` if another thread holds a lock.
    fn try_send<E: Endpoint>(&mut self, connection: &Connection<E>) -> Option<Attempt> {
        let host = &connection.hosts[self.host];
        let mut send = host.send.try_borrow_mut().ok()?;
        let start = host.accepted.get();
        let bytes: Vec<u8> =
            (0..self.rest as u64).map(|index| pattern(self.host, start + index)).collect();
        let lane = connection.lane(self.host);
        if host.has_lane() {
            let may_write = self.leave(connection, &mut send);
            if !may_write && connection.plan.network.is_some() && !send.is_shut() {
                return Some(Attempt::WouldBlock);
            }
        }
        if host.is_gone() {
            return None;
        }
        if host.has_lane() && connection.plan.network.is_some() {
            let mut sending = connection.sending(self.host, &mut send, &lane);
            sending.leave_if_over();
            if !sending.push() {
                return Some(Attempt::WouldBlock);
            }
        }
        if !host.has_lane() || !send.switch(&lane, host.side) {
            let arrives = connection.arrival();
            let sent = connection.pipes[self.host].borrow_mut().send(&bytes, arrives);
            return Some(match sent {
                None => Attempt::Broken,
                Some(0) if !bytes.is_empty() => Attempt::WouldBlock,
                Some(sent) => {
                    send.begin_tcp();
                    send.wrote_tcp(sent);
                    Attempt::Moved(sent)
                }
            });
        }
        if connection.chance(8) && self.looks_dead(connection) {
            return Some(Attempt::Broken);
        }
        let (head, tail) = bytes.split_at(connection.pick(bytes.len() + 1));
        Some(match send.write(&lane, &[head, tail], connection.plan.limits) {
            Ok(written) => {
                if written.ring {
                    connection.sending(self.host, &mut send, &lane).ring();
                }
                Attempt::Moved(written.bytes)
            }
            Err(WriteError::Full) if !SendSide::peer_can_ring(&lane) => {
                connection.leave(self.host, &mut send, Leave::ForNow);
                Attempt::Again
            }
            Err(WriteError::Full) if !connection.sending(self.host, &mut send, &lane).is_gone() => {
                Attempt::WouldBlock
            }
            Err(_) if connection.plan.network.is_some() && lane.is_over() && !send.is_shut() => {
                Attempt::Again
            }
            Err(_) => Attempt::Broken,
        })
    }

    /// Goes back to TCP if the plan or the peer wants it. False if it is wanted for good, and the
    /// direction cannot go yet. A writer that went on would put off the moment.
    fn leave<E: Endpoint>(&self, connection: &Connection<E>, send: &mut SendSide) -> bool {
        let plan = &connection.plan;
        let lane = connection.lane(self.host);
        let for_good = plan.leaves_at[self.host].is_some_and(|at| connection.steps.get() >= at);
        let for_now = plan.leaves_every[self.host].is_some_and(|every| connection.chance(every));
        if for_good && !send.is_back_for_good() {
            connection.leave(self.host, send, Leave::ForGood);
            return !send.on_lane() || lane.is_over();
        } else if let Some(how) = send.leave_to_follow(&lane) {
            connection.leave(self.host, send, how);
            return !send.on_lane() || lane.is_over();
        } else if for_now && send.on_lane() {
            connection.leave(self.host, send, Leave::ForNow);
        }
        true
    }

    /// Asks the kernel whether the peer was killed.
    fn looks_dead<E: Endpoint>(&self, connection: &Connection<E>) -> bool {
        connection.set_peer(self.host, WaitFor::Room, true);
        let lane = connection.lane(self.host);
        let said_goodbye = ReceiveSide::peer_closed(&lane).is_some();
        let is_gone = connection.hosts[self.host].common.peer() != Peer::Alive;
        is_gone && ReceiveSide::end_is_visible(&lane) && !said_goodbye
    }

    fn arm<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let Ok(send) = host.send.try_borrow_mut() else { return };
        if !send.on_lane() {
            self.state = WriterStep::AsleepOnTcp;
            return;
        }
        drop(send);
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        if !host.has_lane() {
            self.state = WriterStep::Try;
            return;
        }
        host.common.begin_sleep(WaitFor::Room);
        connection.forget_ring(self.host, WaitFor::Room);
        self.stale =
            connection.receive(self.host, &mut receive, |receiving| receiving.arm(WaitFor::Room));
        self.state = WriterStep::Look;
    }

    fn look<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        if !host.has_lane() {
            drop(send);
            return self.wake(connection);
        }
        let lane = connection.lane(self.host);
        lane.settle();
        if send.writable(&lane) || !SendSide::peer_can_ring(&lane) {
            drop(send);
            return self.wake(connection);
        }
        drop(send);
        if connection.may_follow(self.host) {
            return self.wake(connection);
        }
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        if !host.has_lane() {
            drop(receive);
            return self.wake(connection);
        }
        let stale = self.stale;
        self.state = connection.receive(self.host, &mut receive, |receiving| {
            receiving.origin();
            if receiving.state.has_data(&lane) && connection.plan.network.is_none() {
                WriterStep::Nap
            } else {
                match receiving.drain(stale, false, false) {
                    Drained::All => WriterStep::Asleep,
                    Drained::NotYet if connection.plan.network.is_none() => WriterStep::Nap,
                    Drained::NotYet => WriterStep::Asleep,
                    Drained::Broken => WriterStep::Try,
                }
            }
        });
    }

    fn wake<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        self.state = WriterStep::Waking;
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        host.common.end_sleep(WaitFor::Room);
        if host.has_lane() {
            connection.receive(self.host, &mut receive, |receiving| {
                receiving.stop_waiting(WaitFor::Room, false);
            });
        }
        self.state = WriterStep::Try;
    }

    /// Ends the direction, after everything was written.
    fn shut<E: Endpoint>(&mut self, connection: &Connection<E>) {
        let host = &connection.hosts[self.host];
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        if host.phase.get() == Phase::Deciding {
            return;
        }
        let told = if host.has_lane() {
            let lane = connection.lane(self.host);
            connection.sending(self.host, &mut send, &lane).shut()
        } else {
            host.phase.stay();
            connection.decline(self.host);
            false
        };
        if host.is_gone() {
            return;
        }
        if !told {
            let arrives = connection.arrival();
            connection.pipes[self.host].borrow_mut().finish(arrives);
        }
        connection.moved();
        self.state = WriterStep::Over;
    }
}
