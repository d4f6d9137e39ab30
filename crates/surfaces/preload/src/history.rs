//! Records what connections at each address did, for this process and its relatives by fork.
//!
//! Each listening descriptor and each address that the process connected to has a place, by a hash.
//! Two addresses at one place spoil each other's forecast: a connection gets a lane that does not
//! pay, or gets it late.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_memory::Segment;
use weft_socket::history::{Done, Outlook, Record};
use weft_socket::{ReceiveSide, SendSide};

use crate::arena::Connection;

/// Places; a power of two.
const PLACES: usize = 512;

/// The records. Children that are forked later share them, so servers that fork for each connection
/// learn, too.
static RECORDS: OnceLock<Option<Segment>> = OnceLock::new();

/// The listener or address that a connection belongs to.
#[derive(Hash)]
pub enum Address<'a> {
    /// The listener that accepted it, by its descriptor.
    Listener(i32),
    /// The address that it was connected to, as the program gave it.
    Remote(&'a [u8]),
}

impl Address<'_> {
    /// The place in the records, from 1 on; 0 means no place.
    pub fn place(&self) -> u32 {
        // Every process computes the same place; the keys of the default hasher would differ.
        let mut hasher = Fnv::default();
        self.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() >> 32).unwrap_or(0) % PLACES;
        u32::try_from(place + 1).unwrap_or(1)
    }
}

/// FNV-1a: a short hash, the same in every process.
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes the records. Children that are forked later share them.
pub fn begin() {
    RECORDS.get_or_init(|| Segment::anonymous(PLACES * size_of::<u64>()).ok());
}

fn record(place: u32) -> Option<&'static AtomicU64> {
    let index = usize::try_from(place).ok()?.checked_sub(1)?;
    let records = RECORDS.get_or_init(|| Segment::anonymous(PLACES * size_of::<u64>()).ok());
    records.as_ref().map(|records| records.word64(index % PLACES * size_of::<u64>()))
}

impl Connection {
    /// The forecast from earlier connections at its address.
    pub fn outlook(&self) -> Outlook {
        match record(self.shared.address.load(Ordering::Relaxed)) {
            Some(record) => {
                Record::of(record.load(Ordering::Relaxed)).outlook(self.shared.over_tcp.done())
            }
            None => Outlook::Unknown,
        }
    }

    /// Records a connection that ends.
    pub fn record_use(&self) {
        if self.shared.address.load(Ordering::Relaxed) == 0 {
            return;
        }
        // In the order of all who take both: a reader takes the other one behind its own.
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else { return };
        self.record_use_with(sending.state, receiving.state);
    }

    /// Records a connection that ends, or gives its lane back. The caller holds the locks of both
    /// directions.
    pub fn record_use_with(&self, sending: &SendSide, receiving: &ReceiveSide) {
        let Some(record) = record(self.shared.address.load(Ordering::Relaxed)) else { return };
        let [(sent, sent_on_lane), (received, received_on_lane)] =
            [sending.totals(), receiving.totals()];
        let over_tcp = self.shared.over_tcp.done();
        let done = Done {
            reads: over_tcp.reads + receiving.messages(),
            writes: over_tcp.writes + sending.messages(),
            bytes: sent + sent_on_lane + received + received_on_lane,
        };
        // If two connections end at the same moment, the record of one may be lost.
        let learned = Record::of(record.load(Ordering::Relaxed)).learn(done);
        record.store(learned.word(), Ordering::Relaxed);
    }
}
