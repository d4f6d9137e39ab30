//! An endpoint beside that of another transport: what the owner of both needs of it.
//!
//! Both have one address. The other one has the numbers of keys.

use std::time::Duration;

use weft_fabric::{Access, Group, MessageHeader, RemoteKey, SendError};
use weft_memory::Memory;

use crate::endpoint::OfiEndpoint;
use crate::nic::Nic;

impl<N: Nic> OfiEndpoint<N> {
    /// So many peers are living on the other way, which count for the endpoint's maximum. Returns
    /// the number of those of this one.
    pub fn count_peers_elsewhere(&mut self, count: usize) -> usize {
        self.shared.lock().engine.count_peers_elsewhere(count)
    }

    /// Whether a broker that was restarted has to hear of the endpoint from the other transport
    /// first. The owner has that one look.
    #[must_use]
    pub fn awaits_other(&self) -> bool {
        self.shared.lock().awaits_other()
    }

    /// Lets the peers of the partition use a key of the other transport: it names `length` bytes of
    /// the memory from `start` on, which lie in it. They are registered when the first peer asks
    /// for the key, and then the memory has to stay where it is. [`weft_fabric::Endpoint::revoke`]
    /// ends it.
    pub fn offer(
        &mut self,
        key: RemoteKey,
        memory: &Memory,
        (start, length): (u64, u64),
        access: Access,
    ) {
        self.shared.lock().engine.offer(key, memory, (start, length), access);
    }

    /// Whether a key is in force that this endpoint has granted, or that was offered to it.
    #[must_use]
    pub fn has_key(&self, key: RemoteKey) -> bool {
        self.shared.lock().engine.has_key(key)
    }

    /// As [`weft_fabric::Endpoint::send_multicast`]. `others` sends the message to the members that
    /// the other transport reaches, when those of this one have room.
    ///
    /// # Errors
    /// [`SendError`] of this endpoint or of `others`; no member of this one receives it then.
    pub fn send_multicast_after(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
        others: impl FnOnce() -> Result<usize, SendError>,
    ) -> Result<usize, SendError> {
        self.shared.lock().send_multicast(group, (header, parts), others)
    }

    /// Whether the endpoint's own thread has found something for the program. A program that does
    /// not poll it each time looks here.
    #[must_use]
    pub fn waits_for_poll(&self) -> bool {
        self.shared.waits()
    }

    /// Whether a poll would hand out an event. Makes progress.
    #[must_use]
    pub fn has_events(&mut self) -> bool {
        self.shared.progress().engine.has_events()
    }

    /// Sleeps until something may have come, at most `time`. An endpoint without a descriptor lets
    /// time pass.
    pub fn doze(&mut self, time: Duration) {
        self.shared.sleep(time);
    }
}
