//! The kernel's connection of a host, as the rules of an end use it: the two pipes of the model.

use weft_fabric::Endpoint;
use weft_socket::{Origin, ReceiveSide, Receiving, SendSide, Sending, Shadow, Unread};

use super::connection::Connection;
use super::lane::Hooked;
use super::tcp::Received;

/// The kernel's connection of host `number`.
pub struct Socket<'a, E: Endpoint> {
    pub connection: &'a Connection<E>,
    pub number: usize,
    /// A planted mistake: wakeups are not sent.
    pub silent: bool,
}

impl<E: Endpoint> Clone for Socket<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Endpoint> Copy for Socket<'_, E> {}

impl<E: Endpoint> Shadow for Socket<'_, E> {
    fn ring(&self) -> bool {
        let Self { connection, number, silent } = *self;
        // Other threads may do anything, except with this direction.
        connection.meanwhile();
        let mistakes = connection.plan.mistakes;
        if silent || mistakes.forget_wakeups && connection.chance(8) {
            return false;
        }
        let arrives = connection.arrival();
        connection.pipes[number].borrow_mut().ring(arrives);
        !mistakes.wakeups_uncounted
    }

    fn look(&self) -> Unread {
        const LOOK_MAX: usize = 16;
        let mut pipe = self.connection.pipes[1 - self.number].borrow_mut();
        match pipe.receive(LOOK_MAX, true, self.connection.now()) {
            Received::Bytes(bytes) => Unread::of(&bytes),
            Received::End | Received::Reset | Received::Nothing => Unread::default(),
        }
    }

    fn peek(&self, target: &mut [u8]) -> usize {
        let mut pipe = self.connection.pipes[1 - self.number].borrow_mut();
        match pipe.receive(target.len(), true, self.connection.now()) {
            Received::Bytes(bytes) => {
                target[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }
            Received::End | Received::Reset | Received::Nothing => 0,
        }
    }

    fn is_acknowledged(&self) -> bool {
        self.connection.pipes[self.number].borrow().has_arrived(self.connection.now())
    }

    fn take_wakeups(&self, count: usize) -> usize {
        let mut pipe = self.connection.pipes[1 - self.number].borrow_mut();
        match pipe.receive(count, false, self.connection.now()) {
            Received::Bytes(bytes) => bytes.len(),
            Received::End | Received::Reset | Received::Nothing => 0,
        }
    }

    fn send(&self, bytes: &[u8]) -> Option<usize> {
        let connection = self.connection;
        if connection.plan.mistakes.send_nothing_again {
            return Some(bytes.len());
        }
        let arrives = connection.arrival();
        let mut pipe = connection.pipes[self.number].borrow_mut();
        if connection.plan.network.is_some() {
            return pipe.send_at_least(bytes, 64, arrives);
        }
        // A kernel holds more than a lane does.
        pipe.send_all(bytes, arrives);
        Some(bytes.len())
    }

    fn wait_until_acknowledged(&self) -> bool {
        // The peer's kernel takes what is on its way, while this thread sleeps.
        self.connection.pipes[self.number].borrow_mut().arrive(self.connection.now())
    }

    fn wait_for_room(&self) -> bool {
        self.connection.pipes[self.number].borrow_mut().grow();
        true
    }

    fn end(&self) {
        let arrives = self.connection.arrival();
        self.connection.pipes[self.number].borrow_mut().finish(arrives);
    }

    fn abort(&self) {
        let connection = self.connection;
        assert!(
            connection.plan.network.is_some(),
            "the model's kernel takes all, so nothing is lost"
        );
        assert!(connection.ends_early(), "nothing is lost: {}", connection.describe());
        let arrives = connection.arrival();
        connection.pipes[self.number].borrow_mut().abort(arrives);
        let mut incoming = connection.pipes[1 - self.number].borrow_mut();
        incoming.reset(connection.now());
        // That is news, whatever the threads heard before.
        connection.hosts[self.number].has_heard.iter().for_each(|heard| heard.set(false));
    }

    fn crossed(&self) {
        self.connection.hosts[self.number].follows.set(true);
    }

    fn report_strays(&self) {
        panic!("data for wakeups: {}", self.connection.describe())
    }
}

/// The two directions of a host that has a lane, as the library locks them.
impl<E: Endpoint> Connection<E> {
    pub fn receiving<'a>(
        &'a self,
        number: usize,
        state: &'a mut ReceiveSide,
        lane: &'a Hooked<'a, E>,
    ) -> Receiving<'a, Hooked<'a, E>, Socket<'a, E>> {
        let shadow = Socket { connection: self, number, silent: false };
        Receiving { state, lane, shadow, common: &self.hosts[number].common }
    }

    pub fn sending<'a>(
        &'a self,
        number: usize,
        state: &'a mut SendSide,
        lane: &'a Hooked<'a, E>,
    ) -> Sending<'a, Hooked<'a, E>, Socket<'a, E>> {
        let host = &self.hosts[number];
        let shadow = Socket { connection: self, number, silent: false };
        Sending { state, lane, shadow, common: &host.common, side: host.side }
    }

    /// The place of the next bytes of the receiving direction, after every crossing that is due.
    pub fn origin(&self, number: usize, state: &mut ReceiveSide) -> Origin {
        self.receive(number, state, |receiving| receiving.origin())
    }

    /// Calls `act` with the receiving direction. If that crossed to TCP, the sending direction
    /// follows a peer that left, as soon as no thread uses it.
    pub fn receive<T>(
        &self,
        number: usize,
        state: &mut ReceiveSide,
        act: impl FnOnce(&mut Receiving<'_, Hooked<'_, E>, Socket<'_, E>>) -> T,
    ) -> T {
        let lane = self.lane(number);
        let mut receiving = self.receiving(number, state, &lane);
        let result = act(&mut receiving);
        self.follow(number);
        result
    }

    /// Makes the sending direction follow a peer that left its lane, if that is due and no thread
    /// uses the direction.
    pub fn follow(&self, number: usize) {
        let host = &self.hosts[number];
        if !host.follows.get() || host.is_gone() {
            return;
        }
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        host.follows.set(false);
        if host.has_lane()
            && let Some(how) = send.leave_to_follow(&self.lane(number))
        {
            self.leave(number, &mut send, how);
        }
    }
}
