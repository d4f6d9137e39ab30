//! The limits and properties of a transport.
//!
//! The defaults are the limits of the Extoll NIC (EXTOLL-THESIS#3.2). A transport may
//! offer more, never less, so that a program written for the defaults runs on every transport.

use crate::error::{OpenError, SendError};
use crate::opening::{EndpointLimits, TrafficClass};
use crate::operation::MessageHeader;

/// The way of the bytes of a put or get between this endpoint and memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// The initiator copies, or its NIC does. Windows and all operations need nothing of the peer.
    Direct,
    /// The kernel copies between the two processes. Puts and gets need nothing of the peer. There
    /// are no windows, and nobody but the owner changes words: atomics, immediate puts and signals
    /// are refused with [`NotMapped`](crate::OperationError::NotMapped), and so are puts and gets
    /// of several ranges that are not all of such memory.
    Kernel,
    /// The transport has no way to memory of this kind.
    Refused,
}

/// How an endpoint reaches memory of each kind of one peer: see [`crate::Endpoint::reach`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Memory that [`crate::Endpoint::register`] made, or that was made to be registered.
    pub fresh: Way,
    /// Memory of a descriptor that somebody else made.
    pub descriptor: Way,
    /// Memory that existed already, and whose pages were replaced by shared ones.
    pub adopted: Way,
    /// Memory that existed already and stays as it is.
    pub in_place: Way,
}

/// Which thread makes progress on a one-sided operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A put, get or atomic completes without any call at the target.
    Auto,
    /// The target has to poll now and then.
    Manual,
}

/// The limits and properties of one transport, or of one of its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The transport's name: `shm`, `sim`, `ofi`.
    pub transport: &'static str,
    /// Largest mailbox message, bytes.
    pub message_bytes_max: usize,
    /// Payload of one packet on the wire in bytes. The transport splits larger operations.
    pub mtu_bytes: usize,
    /// Largest put or get that travels as one descriptor in bytes. The transport splits longer
    /// ones.
    pub descriptor_bytes_max: u64,
    /// Endpoints a node can have.
    pub vpids: u16,
    /// Multicast groups.
    pub groups: u8,
    /// Messages from one sender that may wait in a mailbox. A further send returns
    /// [`SendError::WouldBlock`](crate::SendError::WouldBlock). Between two endpoints with
    /// different depths the smaller one counts.
    pub mailbox_depth: usize,
    /// Operations of one endpoint that may be pending, or whose own notifications wait to be
    /// polled. A further one returns
    /// [`OperationError::WouldBlock`](crate::OperationError::WouldBlock).
    pub operations_max: usize,
    /// Living peers of each endpoint. A further connect, by either end, fails with
    /// [`ConnectError::Exhausted`](crate::ConnectError::Exhausted).
    pub peers_max: usize,
    /// Keys that each endpoint may have granted. A further grant fails with
    /// [`GrantError::Exhausted`](crate::GrantError::Exhausted).
    pub keys_max: usize,
    /// Registered regions of each endpoint. A further one fails with
    /// [`RegisterError::Exhausted`](crate::RegisterError::Exhausted).
    pub regions_max: usize,
    /// Classes of traffic that the transport tells apart. With one, bulk is treated as latency.
    pub classes: u8,
    /// The class of what an endpoint sends.
    pub class: TrafficClass,
    /// The names of the rails that [`crate::EndpointOptions::rail`] can ask for. The first is the
    /// one of an endpoint that asks for none.
    pub rails: Vec<String>,
    /// The rail of an endpoint.
    pub rail: String,
    /// Which thread makes progress on one-sided operations.
    pub progress: Progress,
    /// Operations, messages and notifications to one peer take effect in the order of their calls,
    /// so that [`crate::Endpoint::order`] costs nothing and changes nothing.
    pub ordered: bool,
    /// Operations complete inside the call that starts them.
    pub completes_inline: bool,
    /// A window is mapped memory ([`crate::HostWindow`]): loads and stores need no call, and the
    /// kernel can copy to and from it.
    pub window_is_memory: bool,
    /// The endpoint is [`crate::Watchable`]: it has a descriptor to sleep on.
    pub descriptor: bool,
}

impl Capabilities {
    /// These capabilities with the limits that an endpoint asks for, none above `most`.
    #[must_use]
    pub fn limited(&self, asked: &EndpointLimits, most: &Self) -> Self {
        let limit = |asked: Option<usize>, default: usize, most: usize| {
            asked.map_or(default, |asked| asked.clamp(1, most))
        };
        Self {
            mailbox_depth: limit(asked.mailbox_depth, self.mailbox_depth, most.mailbox_depth),
            operations_max: limit(asked.operations, self.operations_max, most.operations_max),
            peers_max: limit(asked.peers, self.peers_max, most.peers_max),
            keys_max: limit(asked.keys, self.keys_max, most.keys_max),
            regions_max: limit(asked.regions, self.regions_max, most.regions_max),
            ..self.clone()
        }
    }

    /// Checks the header and the length of a mailbox message, and returns the length.
    ///
    /// # Errors
    /// [`SendError::InvalidKind`], [`SendError::TooLong`].
    pub fn check_message(
        &self,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        if header.kind >= MessageHeader::KINDS {
            return Err(SendError::InvalidKind { kind: header.kind });
        }
        let length = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let maximum = self.message_bytes_max;
        if length > maximum {
            return Err(SendError::TooLong { length, maximum });
        }
        Ok(length)
    }

    /// These capabilities with the only rail of a transport, or the first of several.
    #[must_use]
    pub fn with_rails(self, rails: &[&str]) -> Self {
        let rails: Vec<String> = rails.iter().map(|&rail| rail.to_owned()).collect();
        Self { rail: rails.first().cloned().unwrap_or_default(), rails, ..self }
    }

    /// These capabilities with the rail that an endpoint asks for.
    ///
    /// # Errors
    /// [`OpenError::UnknownRail`], with the rails that there are.
    pub fn on_rail(self, asked: Option<&str>) -> Result<Self, OpenError> {
        let Some(rail) = asked else { return Ok(self) };
        if !self.rails.iter().any(|known| known == rail) {
            let (transport, rail) = (self.transport, rail.to_owned());
            return Err(OpenError::UnknownRail { transport, rail, known: self.rails });
        }
        Ok(Self { rail: rail.to_owned(), ..self })
    }

    /// The limits of Extoll's Tourmalet NIC. A transport adds its rails.
    #[must_use]
    pub const fn extoll(transport: &'static str) -> Self {
        Self {
            transport,
            message_bytes_max: 120,
            mtu_bytes: 496,
            descriptor_bytes_max: 8 << 20,
            vpids: 256,
            groups: 64,
            mailbox_depth: 256,
            operations_max: 1024,
            peers_max: 256,
            keys_max: 1024,
            regions_max: 1024,
            classes: 1,
            class: TrafficClass::Latency,
            rails: Vec::new(),
            rail: String::new(),
            progress: Progress::Auto,
            ordered: false,
            completes_inline: false,
            window_is_memory: false,
            descriptor: false,
        }
    }
}
