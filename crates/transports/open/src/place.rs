//! Where a service is: by name, by name and host, or by address.

use std::fmt;

use weft_fabric::{EndpointAddress, NodeId, Partition, PartitionId, ServiceName, Vpid};

use crate::daemon::HostStatus;
use crate::error::OpeningError;
use crate::opening::Opening;

/// Where a service is, as people write it.
///
/// | text | the service |
/// |---|---|
/// | `NAME` | of this name, on this host before others |
/// | `NAME@HOST` | of this name on this host: its name, its number or its address in the fabric |
/// | `@HOST` | of the usual name on this host |
/// | `NODE:VPID` | that is offered by the endpoint with this address |
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServicePlace {
    /// By its name, on this host if one is given.
    Named(ServiceName, Option<String>),
    /// By the address of its endpoint.
    At(EndpointAddress),
}

impl ServicePlace {
    /// Reads the text of a person. `usual` is the name that stands for none.
    ///
    /// # Errors
    /// [`OpeningError::Name`].
    pub fn parse(text: &str, usual: &str) -> Result<Self, OpeningError> {
        if let Some(address) = address_in(text) {
            return Ok(Self::At(address));
        }
        let (name, host) = match text.split_once('@') {
            Some((name, host)) => (name, Some(host.to_owned())),
            None => (text, None),
        };
        let name = named(if name.is_empty() { usual } else { name })?;
        Ok(Self::Named(name, host.filter(|host| !host.is_empty())))
    }

    /// The way into the partition of the service. `status` asks the daemon, where a host or an
    /// address is to be found.
    pub(crate) fn way_in(
        &self,
        status: impl FnOnce() -> Result<HostStatus, OpeningError>,
    ) -> Result<Partition, OpeningError> {
        match self {
            Self::Named(name, None) => Ok(Partition::Service(*name)),
            Self::Named(name, Some(host)) => {
                let number = match host.parse() {
                    Ok(number) => Some(number),
                    Err(_) => status()?.node_named(host),
                };
                let number =
                    number.ok_or_else(|| OpeningError::NoSuchHost { host: host.clone() })?;
                Ok(Partition::ServiceAt(*name, NodeId(number)))
            }
            Self::At(address) => {
                let status = status()?;
                let name = status.offered_at(*address);
                let name = name.ok_or(OpeningError::NothingOffered { address: *address })?;
                Ok(Partition::ServiceAt(named(name)?, address.node))
            }
        }
    }
}

impl fmt::Display for ServicePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name, None) => name.fmt(f),
            Self::Named(name, Some(host)) => write!(f, "{name}@{host}"),
            Self::At(address) => address.fmt(f),
        }
    }
}

fn address_in(text: &str) -> Option<EndpointAddress> {
    let (node, vpid) = text.split_once(':')?;
    Some(EndpointAddress::new(NodeId(node.parse().ok()?), Vpid(vpid.parse().ok()?)))
}

pub(crate) fn named(name: &str) -> Result<ServiceName, OpeningError> {
    ServiceName::new(name).map_err(|error| OpeningError::Name { name: name.to_owned(), error })
}

/// The partition of a service of this user: each name has its own, so that clients of two services
/// do not meet.
fn partition_of(name: ServiceName) -> PartitionId {
    // FNV-1a. Two names with one number share a partition of their user: no harm to others.
    let mixed = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let number = name.as_str().as_bytes().iter().fold(0x811c_9dc5, mixed);
    let user = rustix::process::geteuid().as_raw();
    // Above the numbers that weft's own parts have.
    PartitionId::of_user_named(user, number | 1 << 31)
}

impl Opening {
    /// As a service of this name: each endpoint that is opened offers it to clients. The option
    /// `daemon.services` says which other users may use it.
    ///
    /// # Errors
    /// [`OpeningError::Name`].
    pub fn offering(self, name: &str) -> Result<Self, OpeningError> {
        let name = named(name)?;
        Ok(self.partition(Partition::Offered(partition_of(name), name)))
    }

    /// As a client of the service at this place. [`weft_fabric::Endpoint::host`] is its address.
    ///
    /// # Errors
    /// [`OpeningError::NoSuchHost`], [`OpeningError::NothingOffered`], [`OpeningError::NoDaemon`].
    pub fn finding(self, place: &ServicePlace) -> Result<Self, OpeningError> {
        let way = place.way_in(|| match self.has_own_broker() {
            true => Ok(HostStatus::default()),
            false => self.daemon()?.status(),
        })?;
        Ok(self.partition(way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        let read = |text| ServicePlace::parse(text, "files").map(|place| place.to_string());
        for (text, place) in [
            ("kv", "kv"),
            ("kv@n2", "kv@n2"),
            ("@n2", "files@n2"),
            ("", "files"),
            ("kv@", "kv"),
            ("kv@10.0.0.2", "kv@10.0.0.2"),
            ("3:17", "3:17"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(place), "{text}");
        }
        for text in ["a b", "a/b@n2", "x:17"] {
            assert!(matches!(read(text), Err(OpeningError::Name { .. })), "{text}");
        }
    }

    #[test]
    fn hosts_and_addresses_are_those_that_the_daemon_knows() {
        let status: HostStatus = serde_json::from_str(
            r#"{"fabric": {"number": 3, "nodes": [
                {"number": 2, "name": "n2", "state": "up", "address": "10.0.0.2:7700"},
                {"number": 3, "name": "n3", "state": "self", "address": "[::ffff:1]:7700"}
            ]}, "offers": [{"name": "kv", "node": 2, "vpid": 5, "user": 0}]}"#,
        )
        .expect("a status");
        let kv = named("kv").expect("a name");
        for (text, way) in [
            ("kv", Some(Partition::Service(kv))),
            ("kv@n2", Some(Partition::ServiceAt(kv, NodeId(2)))),
            ("kv@10.0.0.2", Some(Partition::ServiceAt(kv, NodeId(2)))),
            ("kv@7", Some(Partition::ServiceAt(kv, NodeId(7)))),
            ("2:5", Some(Partition::ServiceAt(kv, NodeId(2)))),
            ("kv@n9", None),
            ("2:6", None),
        ] {
            let place = ServicePlace::parse(text, "kv").expect("a place");
            assert_eq!(place.way_in(|| Ok(status.clone())).ok(), way, "{text}");
        }
    }

    #[test]
    fn each_name_has_a_partition_that_others_may_come_into() {
        let of = |name| partition_of(named(name).expect("a name"));
        assert_ne!(of("kv"), of("files"));
        assert!(!of("kv").is_default());
        assert_eq!(of("kv").user(), rustix::process::geteuid().as_raw());
    }
}
