//! The files of a backup that builds its index itself (Build-Index): the baseline that the shipping
//! of tables is compared with. It has a level 0, and it flushes and compacts as a primary does.
//!
//! It takes the log alone, from the first batch on: it begins with an empty store. Its engine must
//! not collect ([`Options::collects`](crate::engine::Options)): what the primary collects comes by
//! the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::{Envelope, Message, Offer};
use crate::engine::Engine;
use crate::format::{Epoch, damaged};
use crate::record::{HEADER_BYTES, Header, Record};
use crate::segment::name_of;
use crate::store::{Change, Lsn, Store, StoreError};

/// A backup of one region that builds its index.
pub struct Builder {
    engine: Arc<Engine>,
    epoch: Epoch,
    /// The newest batch that was answered.
    lsn: u64,
    /// The primary's segment that comes, and how far it came.
    segments: BTreeMap<u64, (Header, u64)>,
    /// The batch whose end did not come yet.
    batch: Vec<Change>,
}

impl Builder {
    /// A backup whose engine is new.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine, epoch: 0, lsn: 0, segments: BTreeMap::new(), batch: Vec::new() }
    }

    /// The newest batch that it has.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// The newest primary that it knows.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A message of a primary, and the answer to it.
    ///
    /// # Errors
    /// Those of the engine, and [`StoreError::Unknown`] for a message that has no place here. The
    /// backup takes no more then.
    pub fn handle(&mut self, envelope: Envelope) -> Result<Option<Envelope>, StoreError> {
        if envelope.epoch < self.epoch {
            return Ok(Some(Envelope { epoch: self.epoch, message: Message::Stale }));
        }
        self.epoch = envelope.epoch;
        let answer = match envelope.message {
            Message::Offer(offer) => Some(self.join(&offer)?),
            Message::Log { segment, offset, bytes, newest } => {
                self.log(segment, offset, &bytes)?;
                match newest {
                    None => None,
                    Some(lsn) if lsn == self.engine.newest().0 => {
                        self.engine.write_out(Lsn(lsn))?;
                        self.lsn = lsn;
                        Some(Message::Delivered { lsn })
                    }
                    Some(_) => return Err(out_of_place("a number of a batch")),
                }
            }
            Message::Complete => Some(Message::Joined { lsn: self.lsn }),
            _ => return Err(out_of_place("a message")),
        };
        Ok(answer.map(|message| Envelope { epoch: self.epoch, message }))
    }

    /// Of an offer without batches it wants what was written of the log: the headers of segments.
    fn join(&mut self, offer: &Offer) -> Result<Message, StoreError> {
        if offer.lsn != 0 || self.engine.newest().0 != 0 {
            return Err(out_of_place("an offer of a store that is not empty"));
        }
        self.segments.clear();
        let log = offer.log.iter().map(|end| (end.segment, 0)).collect();
        Ok(Message::Want { tables: Vec::new(), log })
    }

    fn log(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut rest = bytes;
        if offset == 0 {
            let header = Header::parse(bytes).filter(|header| header.number == segment);
            let came = "it came without a header";
            let header = header.ok_or_else(|| damaged(&name_of(segment), came))?;
            // The log goes on in one segment at a time.
            self.segments = BTreeMap::from([(segment, (header, 0))]);
            rest = &bytes[HEADER_BYTES..];
        }
        let there = self.segments.get_mut(&segment).filter(|(_, end)| *end == offset);
        let (header, end) = there.ok_or_else(|| out_of_place("a part of the log"))?;
        let (header, seed) = (*header, header.seed());
        *end = offset + bytes.len() as u64;
        while !rest.is_empty() {
            let Some((record, length)) = Record::parse(&header, seed, rest) else {
                return Err(damaged(&name_of(segment), "a record came with a wrong checksum"));
            };
            let key = record.key.to_vec();
            self.batch.push(match record.value {
                Some(value) => Change::Put { key, value: value.to_vec() },
                None => Change::Delete { key },
            });
            rest = &rest[length..];
            if record.is_last && self.engine.write(std::mem::take(&mut self.batch))?.0 != record.lsn
            {
                return Err(out_of_place("a batch"));
            }
        }
        Ok(())
    }
}

fn out_of_place(what: &str) -> StoreError {
    StoreError::Unknown(format!("{what} of the primary has no place here"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod tests {
    use std::ops::Bound;

    use parking_lot::Mutex;

    use super::*;
    use crate::disk::simulated::SimulatedDisk;
    use crate::engine::{Options, Piece, open_on};
    use crate::manifest::Edit;
    use crate::replication::Shipper;
    use crate::table::TableMeta;

    fn engine(collects: bool) -> Arc<Engine> {
        let options = Options {
            level0_bytes: 2_500,
            table_bytes: 1_500,
            segment_bytes: 3_000,
            in_place_bytes: 60,
            growth: 2,
            threads: 0,
            collects,
            ..Options::default()
        };
        Arc::new(open_on(Arc::new(SimulatedDisk::new()), options).unwrap())
    }

    /// Keeps the log alone.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Message>>);

    impl Shipper for Kept {
        fn log(&self, pieces: &[Piece<'_>], newest: u64) {
            for (number, piece) in pieces.iter().enumerate() {
                let newest = (number + 1 == pieces.len()).then_some(newest);
                let (segment, offset, bytes) = (piece.segment, piece.offset, piece.bytes.to_vec());
                self.0.lock().push(Message::Log { segment, offset, bytes, newest });
            }
        }

        fn edit(&self, _: &Edit, _: Vec<(TableMeta, Vec<u8>)>) {}

        fn wait(&self, _: u64) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn put(key: u32, turn: u32) -> Change {
        let value = format!("{turn:0200}")[..if key.is_multiple_of(3) { 200 } else { 20 }].into();
        Change::Put { key: format!("key{key}").into(), value }
    }

    #[test]
    fn a_backup_that_builds_its_index_has_the_pairs_of_the_primary() {
        let (primary, own, kept) = (engine(true), engine(false), Arc::<Kept>::default());
        let mut builder = Builder::new(Arc::clone(&own));
        let mut say = |message| builder.handle(Envelope { epoch: 1, message });
        primary.offer(|offer, snapshot| {
            let ends = offer.log.clone();
            let wants = say(Message::Offer(offer)).unwrap().unwrap().message;
            let Message::Want { tables, log } = wants else { unreachable!("{wants:?}") };
            assert!(tables.is_empty());
            for (wanted, end) in log.into_iter().zip(ends) {
                let (segment, offset) = wanted;
                let bytes = snapshot.log(segment, offset, end.end).unwrap();
                let part = Message::Log { segment, offset, bytes, newest: None };
                assert_eq!(say(part).unwrap(), None);
            }
        });
        primary.set_shipper(Some(Arc::clone(&kept) as Arc<dyn Shipper>));
        for turn in 0..200 {
            let mut batch: Vec<_> =
                (0..10).map(|key| put((turn * 10 + key) * 7 % 400, turn)).collect();
            batch.push(Change::Delete { key: format!("key{}", turn * 3 % 400).into() });
            let lsn = primary.write(batch).unwrap();
            primary.commit(lsn).unwrap();
            while primary.work().unwrap() {}
            for message in std::mem::take(&mut *kept.0.lock()) {
                let newest = match &message {
                    Message::Log { newest, .. } => *newest,
                    _ => None,
                };
                let answer = say(message).unwrap().map(|it| it.message);
                assert_eq!(answer, newest.map(|lsn| Message::Delivered { lsn }));
            }
            while own.work().unwrap() {}
        }
        let all = |engine: &Engine| {
            engine.scan(Bound::Unbounded, Bound::Unbounded, false, 1_000).unwrap()
        };
        assert!(!all(&primary).is_empty());
        assert_eq!(all(&own), all(&primary));
        let (of_primary, of_own) = (primary.statistics(), own.statistics());
        assert!(of_primary.collections > 0, "{of_primary:?}");
        assert!(of_own.compaction_read_bytes > 0 && of_own.collections == 0, "{of_own:?}");
        // A part that does not follow, and one that was changed on the way.
        let lsn = primary.write(vec![put(1, 1)]).unwrap();
        primary.commit(lsn).unwrap();
        let Some(Message::Log { segment, offset, mut bytes, newest }) = kept.0.lock().pop() else {
            unreachable!("the log was shipped")
        };
        let at = |offset, bytes| Message::Log { segment, offset, bytes, newest };
        assert!(matches!(say(at(offset + 1, bytes.clone())), Err(StoreError::Unknown(_))));
        bytes[20] ^= 1;
        assert!(matches!(say(at(offset, bytes)), Err(StoreError::Damaged(_))));
    }
}
