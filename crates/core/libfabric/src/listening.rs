//! Opens a port that listens where the administrator wants it: within a range of TCP ports, which a
//! firewall lets through.
//!
//! Each endpoint listens at a TCP port of its own, since libfabric has no listener for several. The
//! search begins at a random place of the range, so that many programs do not all try the same
//! ports first.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::library::Library;
use crate::offer::{Offer, Wanted};
use crate::port::{Port, PortOptions};

impl Port {
    /// Opens an endpoint of the first offer that is wanted, at a free one of the wanted ports.
    ///
    /// # Errors
    /// [`Error`]: there is no such offer, it cannot be opened, or all of the ports are in use.
    pub fn of(wanted: &Wanted, options: PortOptions) -> Result<Self, Error> {
        let library = Library::load()?;
        let offer = first(library, wanted, None)?;
        let Some(range) = wanted.ports.clone().filter(|_| offer.has_ip_addresses()) else {
            return Self::open(offer, options);
        };
        let (low, high) = (*range.start(), *range.end());
        for port in ports_from(range, offer.random()?) {
            match Self::open(first(library, wanted, Some(port))?, options) {
                Err(Error::Call { number: libc::EADDRINUSE, .. }) => {}
                opened => return opened,
            }
        }
        Err(Error::PortsInUse { low, high })
    }
}

fn first(library: &'static Library, wanted: &Wanted, port: Option<u16>) -> Result<Offer, Error> {
    let mut offers = library.offers_at(wanted, port)?;
    if offers.is_empty() {
        let provider = wanted.provider.as_deref().unwrap_or("for the fabric");
        let at = wanted.source.as_ref().map(|source| format!(" at {source}")).unwrap_or_default();
        return Err(Error::NoOffer(format!("provider {provider}{at}")));
    }
    Ok(offers.swap_remove(0))
}

/// All ports of the range once, from a place in it that a random number chooses.
fn ports_from(range: RangeInclusive<u16>, random: u64) -> impl Iterator<Item = u16> {
    let length = u64::from(range.end() - range.start()) + 1;
    let begin = usize::try_from(random % length).unwrap_or(0);
    range.clone().skip(begin).chain(range.take(begin))
}

#[cfg(test)]
mod tests {
    use super::ports_from;

    #[test]
    fn each_port_of_a_range_is_tried_once() {
        let from = |random| ports_from(7..=9, random).collect::<Vec<_>>();
        assert_eq!([0, 1, 5].map(from), [[7, 8, 9], [8, 9, 7], [9, 7, 8]]);
        assert_eq!(ports_from(7..=7, u64::MAX).collect::<Vec<_>>(), [7]);
        assert_eq!(ports_from(1..=u16::MAX, 123_456).count(), 65_535);
    }
}
