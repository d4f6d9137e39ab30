//! The registers: counters of an endpoint, which its program reads (EXTOLL-THESIS#3.2.6).

/// A named counter of an endpoint, of 64 bits. Sending and receiving have separate counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Register {
    /// Mailbox messages sent.
    MessagesSent = 0,
    /// Mailbox messages received.
    MessagesReceived = 1,
    /// Payload bytes of messages sent.
    MessageBytesSent = 2,
    /// Payload bytes of messages received.
    MessageBytesReceived = 3,
    /// Puts started, including immediate ones.
    Puts = 4,
    /// Bytes written to peers by puts.
    PutBytes = 5,
    /// Gets started.
    Gets = 6,
    /// Bytes read from peers by gets.
    GetBytes = 7,
    /// Atomics started.
    Atomics = 8,
    /// Notifications sent to peers.
    NotificationsSent = 9,
    /// Notifications received, including the endpoint's own.
    NotificationsReceived = 10,
    /// Messages and operations refused because a queue was full.
    Refused = 11,
    /// Operations that failed.
    Errors = 12,
    /// Times that the endpoint went to sleep while waiting.
    Sleeps = 13,
    /// Peers reported down.
    PeersDown = 14,
}

impl Register {
    /// The number of registers.
    pub const COUNT: usize = 15;

    /// All registers in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::MessagesSent,
        Self::MessagesReceived,
        Self::MessageBytesSent,
        Self::MessageBytesReceived,
        Self::Puts,
        Self::PutBytes,
        Self::Gets,
        Self::GetBytes,
        Self::Atomics,
        Self::NotificationsSent,
        Self::NotificationsReceived,
        Self::Refused,
        Self::Errors,
        Self::Sleeps,
        Self::PeersDown,
    ];

    /// The register's number.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The register's name, as in output and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MessagesSent => "messages_sent",
            Self::MessagesReceived => "messages_received",
            Self::MessageBytesSent => "message_bytes_sent",
            Self::MessageBytesReceived => "message_bytes_received",
            Self::Puts => "puts",
            Self::PutBytes => "put_bytes",
            Self::Gets => "gets",
            Self::GetBytes => "get_bytes",
            Self::Atomics => "atomics",
            Self::NotificationsSent => "notifications_sent",
            Self::NotificationsReceived => "notifications_received",
            Self::Refused => "refused",
            Self::Errors => "errors",
            Self::Sleeps => "sleeps",
            Self::PeersDown => "peers_down",
        }
    }
}

/// Operations whose times an endpoint shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timed {
    /// Sending a message.
    Message = 0,
    /// Puts.
    Put = 1,
    /// Gets.
    Get = 2,
}

impl Timed {
    /// All in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Message, Self::Put, Self::Get];

    /// The name in output and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "messages_sent",
            Self::Put => "puts",
            Self::Get => "gets",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Register;

    #[test]
    fn registers_are_listed_by_number() {
        for (place, register) in Register::ALL.iter().enumerate() {
            assert_eq!(register.index(), place, "{}", register.name());
        }
    }
}
