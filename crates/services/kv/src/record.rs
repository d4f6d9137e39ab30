//! The records of the log: the write-ahead log and the place of large values in one.
//!
//! ```text
//! segment  = header, record …, zeros
//! header   = magic 8 | region 4 | epoch 4 | number 8 | first lsn 8 | capacity 8 |
//!            durable 1 | 0 … | crc 4
//! record   = crc 4 | flags 1 | lsn − first lsn | key length | value length | key | value
//! ```
//! The three numbers of a record have a variable length. All records of a batch have one number
//! (LSN) and follow each other in one segment; the last has [`LAST`]. The first record of each
//! write of the file has [`GROUP`]: when it was written, all before it had been given to the
//! operating system, and in a durable segment they had been synced. A recovery tells by it a torn
//! end from damage.

use crate::format::{
    Epoch, Region, checksum, put_number, seed, take, take_length, take_number, u32_at, u64_at,
};
use crate::store::{KEY_LIMIT, VALUE_LIMIT};

/// Bytes of the header of a segment.
pub const HEADER_BYTES: usize = 64;

/// Flag of the last record of a batch.
pub const LAST: u8 = 4;
/// Flag of the first record of a write.
pub const GROUP: u8 = 8;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const KIND: u8 = 3;
const MAGIC: &[u8; 8] = b"weftlog1";
const CRC_BYTES: usize = 4;
/// The flags and three numbers of at most ten bytes.
const HEAD_MAX: usize = CRC_BYTES + 1 + 30;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The region that the log belongs to.
    pub region: Region,
    /// The primary that wrote it.
    pub epoch: Epoch,
    /// Number of the segment: dense, and never used again.
    pub number: u64,
    /// The LSN of the first batch in it.
    pub first_lsn: u64,
    /// Bytes of the file, until the segment ends and is cut.
    pub capacity: u64,
    /// Each write was synced before the next one.
    pub is_durable: bool,
}

impl Header {
    /// The start value of the checksums of its records.
    #[must_use]
    pub fn seed(&self) -> u32 {
        seed(self.region, self.epoch, self.number)
    }

    /// The bytes of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&self.region.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_lsn.to_le_bytes());
        out[32..40].copy_from_slice(&self.capacity.to_le_bytes());
        out[40] = u8::from(self.is_durable);
        let crc = checksum(self.seed(), &out[..HEADER_BYTES - CRC_BYTES]);
        out[HEADER_BYTES - CRC_BYTES..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads it back; `None` if the bytes are of no header.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let header = Self {
            region: u32_at(bytes, 8)?,
            epoch: u32_at(bytes, 12)?,
            number: u64_at(bytes, 16)?,
            first_lsn: u64_at(bytes, 24)?,
            capacity: u64_at(bytes, 32)?,
            is_durable: *bytes.get(40)? == 1,
        };
        (header.emit() == bytes).then_some(header)
    }
}

/// One change of a batch, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The number of its batch.
    pub lsn: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value; `None` deletes.
    pub value: Option<&'a [u8]>,
    /// It is the last of its batch.
    pub is_last: bool,
    /// It is the first of a write of the file.
    pub starts_group: bool,
}

impl<'a> Record<'a> {
    /// Most bytes of a record with a key and value of these lengths.
    #[must_use]
    pub fn bytes_max(key: usize, value: usize) -> usize {
        HEAD_MAX + key + value
    }

    /// Appends the record to the bytes of a segment.
    ///
    /// # Panics
    /// If the LSN is lower than the first of the segment.
    pub fn emit(&self, header: &Header, seed: u32, out: &mut Vec<u8>) {
        let start = out.len();
        let mut flags = if self.value.is_some() { PUT } else { DELETE };
        flags |= if self.is_last { LAST } else { 0 } | if self.starts_group { GROUP } else { 0 };
        let delta = self.lsn.checked_sub(header.first_lsn).expect("batches in order");
        out.extend_from_slice(&[0, 0, 0, 0, flags]);
        put_number(out, delta);
        put_number(out, self.key.len() as u64);
        put_number(out, self.value.map_or(0, <[u8]>::len) as u64);
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.value.unwrap_or_default());
        let crc = checksum(seed, &out[start + CRC_BYTES..]);
        out[start..start + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    /// Takes a record off the front, with the number of its bytes. `None` if there is no valid one.
    #[must_use]
    pub fn parse(header: &Header, seed: u32, bytes: &'a [u8]) -> Option<(Self, usize)> {
        let crc = u32_at(bytes, 0)?;
        let body = bytes.get(CRC_BYTES..)?;
        let mut rest = body;
        let flags = *take(&mut rest, 1)?.first()?;
        let is_put = match flags & KIND {
            PUT => true,
            DELETE => false,
            _ => return None,
        };
        if flags & !(KIND | LAST | GROUP) != 0 {
            return None;
        }
        let lsn = header.first_lsn.checked_add(take_number(&mut rest)?)?;
        let key_bytes = take_length(&mut rest)?;
        let value_bytes = take_length(&mut rest)?;
        if key_bytes > KEY_LIMIT || value_bytes > VALUE_LIMIT || (!is_put && value_bytes > 0) {
            return None;
        }
        let key = take(&mut rest, key_bytes)?;
        let value = take(&mut rest, value_bytes)?;
        let body = &body[..body.len() - rest.len()];
        if checksum(seed, body) != crc {
            return None;
        }
        let record = Self {
            lsn,
            key,
            value: is_put.then_some(value),
            is_last: flags & LAST != 0,
            starts_group: flags & GROUP != 0,
        };
        Some((record, CRC_BYTES + body.len()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            region: 3,
            epoch: 2,
            number: 9,
            first_lsn: 1000,
            capacity: 1 << 20,
            is_durable: true,
        }
    }

    #[test]
    fn a_header_comes_back_and_any_changed_byte_is_found() {
        let bytes = header().emit();
        assert_eq!(Header::parse(&bytes), Some(header()));
        for index in 0..HEADER_BYTES {
            let mut changed = bytes;
            changed[index] ^= 1;
            assert_eq!(Header::parse(&changed), None, "byte {index}");
        }
    }

    #[test]
    fn a_record_of_another_segment_or_epoch_is_refused() {
        let own = header();
        let record =
            Record { lsn: 1000, key: b"k", value: None, is_last: true, starts_group: true };
        let mut out = Vec::new();
        record.emit(&own, own.seed(), &mut out);
        for other in [Header { number: 10, ..own }, Header { epoch: 3, ..own }] {
            assert_eq!(Record::parse(&other, other.seed(), &out), None);
        }
    }

    proptest! {
        #[test]
        fn records_come_back_and_cut_ones_do_not(
            delta in 0u64..1 << 40,
            key in prop::collection::vec(any::<u8>(), 0..40),
            value: Option<Vec<u8>>,
            is_last: bool,
            starts_group: bool,
            cut in 1usize..8,
        ) {
            let (own, lsn) = (header(), 1000 + delta);
            let record =
                Record { lsn, key: &key, value: value.as_deref(), is_last, starts_group };
            let mut out = Vec::new();
            record.emit(&own, own.seed(), &mut out);
            let value_bytes = value.as_ref().map_or(0, Vec::len);
            prop_assert!(out.len() <= Record::bytes_max(key.len(), value_bytes));
            prop_assert_eq!(Record::parse(&own, own.seed(), &out), Some((record, out.len())));
            let short = &out[..out.len() - cut.min(out.len())];
            prop_assert_eq!(Record::parse(&own, own.seed(), short), None);
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
            let own = header();
            let _ = Record::parse(&own, own.seed(), &bytes);
            let _ = Header::parse(&bytes);
        }
    }
}
