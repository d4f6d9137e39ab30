//! The parameters of a network.

use thiserror::Error;

use crate::time::{MILLISECOND, NANOSECOND, Time};

/// Traffic classes at most, as Extoll has them (EXTOLL-THESIS#3.2, four classes).
pub const CLASSES_MAX: u8 = 4;
/// Bytes of a packet at most, with its header.
pub const PACKET_BYTES_MAX: u32 = 1 << 16;

/// The parameters of a link, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkModel {
    /// Bits per second, headers included; 1,000,000 or more.
    pub bits_per_second: u64,
    /// How long a bit is on the way, in picoseconds.
    pub latency: Time,
    /// Of a million packets, so many arrive damaged. The link sends them again, with all that was
    /// sent behind them (go-back-N).
    pub damaged_per_million: u32,
}

/// The parameters of the interface between a host and its router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostModel {
    /// From the host into the network.
    pub injection: LinkModel,
    /// From the network to the host.
    pub ejection: LinkModel,
    /// The time that the host spends on a message before its first packet leaves. The host sends
    /// nothing else meanwhile. In picoseconds.
    pub message_time: Time,
}

/// Processors that the hosts share, as the nodes of a lab share those of their machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processors {
    /// How many there are. The hosts are dealt out to them in turn.
    pub count: u32,
    /// A message between two hosts of one processor.
    pub within: MessageTime,
    /// A message between hosts of two processors, or to a group.
    pub across: MessageTime,
}

/// The time of a processor for a message, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageTime {
    /// Before its first packet leaves.
    pub send: Time,
    /// After its last packet has arrived. Of a message to a group, that of the last receiver.
    pub receive: Time,
}

/// The packet that a link takes, of those that wait for it in the same virtual channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arbitration {
    /// From each input of the router in turn.
    #[default]
    RoundRobin,
    /// The one whose message was sent first.
    Age,
}

/// The parameters of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The seed of all that is random: damage, ties between routes, detours.
    pub seed: u64,
    /// Payload bytes of a packet at most.
    pub mtu_bytes: u32,
    /// Bytes of a packet beside its payload.
    pub header_bytes: u32,
    /// Traffic classes, 1 to [`CLASSES_MAX`]. Class 0 goes before class 1, and so on. Each has
    /// virtual channels of its own.
    pub classes: u8,
    /// Every link between routers, unless [`crate::Network::set_link`] gives it others.
    pub link: LinkModel,
    /// Room for packets at the end of each virtual channel of a link, and between a host and its
    /// router for each class, in bytes.
    pub buffer_bytes: u32,
    /// From the arrival of a packet's head at a router to the earliest time that it leaves, in
    /// picoseconds.
    pub router_delay: Time,
    /// Every host.
    pub host: HostModel,
    /// The processors of the hosts; `None` if each host has what it needs.
    pub processors: Option<Processors>,
    /// The packet that a link takes next.
    pub arbitration: Arbitration,
    /// A packet that waits longer in one router is lost, in picoseconds. So nothing waits for ever
    /// after a change of routes.
    pub patience: Time,
    /// Messages at most that are on their way at one time. Bounds the memory.
    pub messages_max: u32,
}

/// Why settings are of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SettingsError {
    /// The bandwidth is below a megabit per second.
    #[error("a link moves {0} bit/s; give it 1,000,000 or more")]
    Slow(u64),
    /// Latencies above a second.
    #[error("a latency or delay of {0} ps is more than a second; give a shorter one")]
    Late(Time),
    /// The packets have no payload or are too long.
    #[error(
        "a packet of {mtu} bytes and a header of {header} is none; give 1 byte or more, and \
             {PACKET_BYTES_MAX} at most with the header"
    )]
    Packet {
        /// [`Settings::mtu_bytes`].
        mtu: u32,
        /// [`Settings::header_bytes`].
        header: u32,
    },
    /// No class, or too many.
    #[error("{0} traffic classes; give 1 to {CLASSES_MAX}")]
    Classes(u8),
    /// A buffer is shorter than a packet.
    #[error("a buffer of {buffer} bytes holds no packet of {packet}; make it longer")]
    Buffer {
        /// [`Settings::buffer_bytes`].
        buffer: u32,
        /// The longest packet.
        packet: u32,
    },
    /// Every packet is damaged.
    #[error("{0} of a million packets are damaged; give 900,000 or fewer")]
    Damage(u32),
    /// No packet may wait.
    #[error("a patience of {0} ps; give a microsecond or more")]
    Patience(Time),
    /// The links have too many different parameters.
    #[error("links have more than 65,535 different parameters; round them")]
    Models,
    /// Hosts without a processor.
    #[error("no processor serves the hosts; give one or more")]
    Processors,
    /// No message may be sent.
    #[error("no message may be on its way; give room for one or more")]
    Messages,
}

impl LinkModel {
    /// A link of 100 Gbit/s, as Extoll's, without latency or damage.
    pub const HUNDRED_GIGABITS: Self =
        Self { bits_per_second: 100_000_000_000, latency: 0, damaged_per_million: 0 };

    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is of no use.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.bits_per_second < 1_000_000 {
            return Err(SettingsError::Slow(self.bits_per_second));
        }
        if self.damaged_per_million > 900_000 {
            return Err(SettingsError::Damage(self.damaged_per_million));
        }
        check_delay(self.latency)
    }
}

impl Default for Settings {
    //= EXTOLL-THESIS#3.2
    //# Links of 100 Gbit/s; packets carry 496 bytes behind a descriptor of 16.
    /// The parameters of Extoll: links of 100 Gbit/s, packets of 496 bytes behind 16 of header. The
    /// thesis tells no delay of a hop; those here are chosen: 40 ns for the router, 20 ns for the
    /// link. The host is as fast as a link.
    fn default() -> Self {
        let link = LinkModel { latency: 20 * NANOSECOND, ..LinkModel::HUNDRED_GIGABITS };
        let host = HostModel {
            injection: LinkModel::HUNDRED_GIGABITS,
            ejection: LinkModel::HUNDRED_GIGABITS,
            message_time: 0,
        };
        Self {
            seed: 0,
            mtu_bytes: 496,
            header_bytes: 16,
            classes: 1,
            link,
            buffer_bytes: 8_192,
            router_delay: 40 * NANOSECOND,
            host,
            processors: None,
            arbitration: Arbitration::RoundRobin,
            patience: MILLISECOND,
            messages_max: 4_000_000,
        }
    }
}

impl Settings {
    /// Bytes of the longest packet, with its header.
    #[must_use]
    pub fn packet_bytes(&self) -> u32 {
        self.mtu_bytes.saturating_add(self.header_bytes)
    }

    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is of no use.
    pub fn check(&self) -> Result<(), SettingsError> {
        for link in [self.link, self.host.injection, self.host.ejection] {
            link.check()?;
        }
        for delay in [self.router_delay, self.host.message_time] {
            check_delay(delay)?;
        }
        if let Some(Processors { count, within, across }) = self.processors {
            if count == 0 {
                return Err(SettingsError::Processors);
            }
            for time in [within, across] {
                check_delay(time.send)?;
                check_delay(time.receive)?;
            }
        }
        let packet = self.packet_bytes();
        if self.mtu_bytes == 0 || packet > PACKET_BYTES_MAX {
            return Err(SettingsError::Packet { mtu: self.mtu_bytes, header: self.header_bytes });
        }
        if !(1..=CLASSES_MAX).contains(&self.classes) {
            return Err(SettingsError::Classes(self.classes));
        }
        if self.buffer_bytes < packet {
            return Err(SettingsError::Buffer { buffer: self.buffer_bytes, packet });
        }
        if self.patience < 1_000 * NANOSECOND {
            return Err(SettingsError::Patience(self.patience));
        }
        if self.messages_max == 0 {
            return Err(SettingsError::Messages);
        }
        Ok(())
    }
}

fn check_delay(delay: Time) -> Result<(), SettingsError> {
    if delay > crate::time::SECOND { Err(SettingsError::Late(delay)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_no_use_are_refused() {
        assert_eq!(Settings::default().check(), Ok(()));
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check()
        };
        assert_eq!(with(|s| s.link.bits_per_second = 0), Err(SettingsError::Slow(0)));
        assert_eq!(with(|s| s.mtu_bytes = 0), Err(SettingsError::Packet { mtu: 0, header: 16 }));
        assert_eq!(with(|s| s.classes = 5), Err(SettingsError::Classes(5)));
        let buffer = with(|s| s.buffer_bytes = 511);
        assert_eq!(buffer, Err(SettingsError::Buffer { buffer: 511, packet: 512 }));
        let damage = with(|s| s.host.ejection.damaged_per_million = 1_000_000);
        assert_eq!(damage, Err(SettingsError::Damage(1_000_000)));
        assert_eq!(with(|s| s.patience = 0), Err(SettingsError::Patience(0)));
        assert_eq!(with(|s| s.messages_max = 0), Err(SettingsError::Messages));
        let none = |s: &mut Settings| {
            let free = MessageTime::default();
            s.processors = Some(Processors { count: 0, within: free, across: free });
        };
        assert_eq!(with(none), Err(SettingsError::Processors));
        assert_eq!(with(|s| s.router_delay = Time::MAX), Err(SettingsError::Late(Time::MAX)));
    }
}
