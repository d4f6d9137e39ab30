//! INQUIRY: what a unit is, and the pages of vital product data.
//!
//! Source: SPC-4 sections 6.6 and 7.8, SBC-3 section 6.6.

use sha2::{Digest, Sha256};

use super::sense::Sense;
use super::{
    BLOCK_BYTES, COMPARE_BLOCKS_MAX, COPY_BYTES_MAX, COPY_LIST_BYTES_MAX, COPY_SEGMENTS_MAX,
    COPY_TARGETS_MAX, TRANSFER_BLOCKS_MAX, UNMAP_BLOCKS_MAX, UNMAP_RANGES_MAX,
    WRITE_SAME_BLOCKS_MAX,
};

const VENDOR: &[u8; 8] = b"WEFT    ";
const PRODUCT: &[u8; 16] = b"BLOCK           ";
const REVISION: &[u8; 4] = b"0001";
/// Logical blocks in a physical block, as a power of two: 4 KiB.
pub const PHYSICAL_EXPONENT: u8 = 3;
/// A unit number at which there is nothing.
const NO_DEVICE: u8 = 0x7f;
/// SAM-5, SPC-4, SBC-3 and iSCSI.
const STANDARDS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

/// The names of a unit, which stay the same over restarts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The iSCSI name of the target.
    pub target: String,
    /// The number of the unit.
    pub number: u64,
    serial: String,
    naa: [u8; 8],
}

impl Identity {
    /// The names of unit `number` of a target.
    #[must_use]
    pub fn new(target: &str, number: u64) -> Self {
        let digest = Sha256::new().chain_update(target).chain_update(number.to_be_bytes());
        let digest = digest.finalize();
        let mut naa: [u8; 8] = std::array::from_fn(|byte| digest[byte]);
        // NAA 3: assigned locally.
        naa[0] = 0x30 | (naa[0] & 0x0f);
        let serial = naa.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { target: target.to_owned(), number, serial, naa }
    }

    /// The serial number.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The designator that other commands name the unit by.
    #[must_use]
    pub const fn naa(&self) -> &[u8; 8] {
        &self.naa
    }

    /// Whether a designator of an EXTENDED COPY (code set, type, bytes) names this unit.
    #[must_use]
    pub fn is_named_by(&self, kind: u8, bytes: &[u8]) -> bool {
        match kind & 0x0f {
            3 => bytes == self.naa,
            1 => bytes == self.vendor_designator(),
            _ => false,
        }
    }

    fn vendor_designator(&self) -> Vec<u8> {
        [&VENDOR[..], &self.serial.as_bytes()[4..]].concat()
    }
}

/// The properties of a unit that pages show, beside its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nature {
    /// Whether space is given back by UNMAP.
    pub is_thin: bool,
    /// Whether its medium can be taken out.
    pub is_removable: bool,
}

/// INQUIRY of a unit: the data, not yet cut to the allocation length.
///
/// # Errors
/// INVALID FIELD IN CDB for a page that does not exist.
pub fn inquiry(command: &[u8; 16], identity: &Identity, nature: Nature) -> Result<Vec<u8>, Sense> {
    match (command[1] & 1, command[2]) {
        (0, 0) => Ok(standard(0, nature)),
        (1, page) => vital(page, identity, nature).ok_or(Sense::field(2)),
        _ => Err(Sense::field(2)),
    }
}

/// INQUIRY of a number at which there is no unit.
///
/// # Errors
/// INVALID FIELD IN CDB for vital product data, which nothing has.
pub fn inquiry_of_none(command: &[u8; 16]) -> Result<Vec<u8>, Sense> {
    let nature = Nature { is_thin: false, is_removable: false };
    match (command[1] & 1, command[2]) {
        (0, 0) => Ok(standard(NO_DEVICE, nature)),
        _ => Err(Sense::field(2)),
    }
}

fn standard(device: u8, nature: Nature) -> Vec<u8> {
    const COMMAND_QUEUE: u8 = 0x02;
    const THIRD_PARTY_COPY: u8 = 0x08;
    let removable = if nature.is_removable { 0x80 } else { 0 };
    // Version 6 is SPC-4; unit numbers of several levels (HISUP), response data format 2.
    let mut data = vec![device, removable, 0x06, 0x12, 91, THIRD_PARTY_COPY, 0, COMMAND_QUEUE];
    data.extend(VENDOR);
    data.extend(PRODUCT);
    data.extend(REVISION);
    data.resize(58, 0);
    data.extend(STANDARDS.into_iter().flat_map(u16::to_be_bytes));
    data.resize(96, 0);
    data
}

const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];

fn vital(page: u8, identity: &Identity, nature: Nature) -> Option<Vec<u8>> {
    let body = match page {
        0x00 => PAGES.to_vec(),
        0x80 => identity.serial.as_bytes().to_vec(),
        0x83 => device_identification(identity),
        0x86 => extended(),
        0x8f => third_party_copy(),
        0xb0 => block_limits(nature),
        0xb1 => characteristics(),
        0xb2 => provisioning(nature),
        _ => return None,
    };
    let [high, low] = u16::try_from(body.len()).expect("a page is short").to_be_bytes();
    Some([&[0, page, high, low][..], &body].concat())
}

fn device_identification(identity: &Identity) -> Vec<u8> {
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    const UTF8: u8 = 3;
    // Of the target port, and of iSCSI.
    const PORT: u8 = 0x90;
    const PROTOCOL: u8 = 0x50;
    let mut data = Vec::new();
    let mut add = |code_set: u8, kind: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).expect("a name has at most 223 bytes");
        data.extend([code_set, kind, 0, length]);
        data.extend(bytes);
    };
    add(BINARY, 3, &identity.naa);
    add(ASCII, 1, &identity.vendor_designator());
    add(PROTOCOL | BINARY, PORT | 4, &[0, 0, 0, 1]);
    let mut name = format!("{},t,0x0001\0", identity.target).into_bytes();
    name.resize(name.len().next_multiple_of(4), 0);
    add(PROTOCOL | UTF8, PORT | 8, &name);
    data
}

/// Extended INQUIRY data: all kinds of tasks are treated as simple ones or better.
fn extended() -> Vec<u8> {
    let mut data = vec![0; 60];
    // HEADSUP, ORDSUP, SIMPSUP.
    data[1] = 0x07;
    data
}

/// Third-party copy: the commands, the limits, and the kinds of descriptors; SPC-4 section 7.8.17.
fn third_party_copy() -> Vec<u8> {
    let mut data = Vec::new();
    let mut add = |kind: u16, body: &[u8]| {
        let length = (body.len()).next_multiple_of(4);
        data.extend(kind.to_be_bytes());
        data.extend(u16::try_from(length).expect("short").to_be_bytes());
        data.extend(body);
        data.resize(data.len() + length - body.len(), 0);
    };
    add(0x0001, &[7, 0x83, 1, 0x00, 0x84, 2, 0x00, 0x03]);
    let mut parameters = vec![0; 4];
    parameters.extend(COPY_TARGETS_MAX.to_be_bytes());
    parameters.extend(COPY_SEGMENTS_MAX.to_be_bytes());
    parameters.extend(COPY_LIST_BYTES_MAX.to_be_bytes());
    parameters.extend(0_u32.to_be_bytes());
    parameters.resize(28, 0);
    add(0x0004, &parameters);
    add(0x0008, &[2, 0x02, 0xe4]);
    let mut general = 1_u32.to_be_bytes().to_vec();
    general.extend(1_u32.to_be_bytes());
    general.extend(COPY_BYTES_MAX.to_be_bytes());
    general.extend([0, 9, 0, 9]);
    general.resize(32, 0);
    add(0x8001, &general);
    data
}

/// Block limits; SBC-3 section 6.6.4.
fn block_limits(nature: Nature) -> Vec<u8> {
    const GRANULARITY: u32 = 1 << PHYSICAL_EXPONENT;
    const OPTIMAL_BLOCKS: u32 = (1 << 20) / BLOCK_BYTES;
    const ALIGNMENT_VALID: u32 = 1 << 31;
    // WRITE SAME of no blocks is refused (WSNZ).
    let mut data = vec![1, COMPARE_BLOCKS_MAX];
    data.extend(u16::try_from(GRANULARITY).expect("8").to_be_bytes());
    data.extend(TRANSFER_BLOCKS_MAX.to_be_bytes());
    data.extend(OPTIMAL_BLOCKS.to_be_bytes());
    data.extend(0_u32.to_be_bytes());
    let (unmap, ranges, alignment) = if nature.is_thin {
        (UNMAP_BLOCKS_MAX, UNMAP_RANGES_MAX, ALIGNMENT_VALID)
    } else {
        (0, 0, 0)
    };
    data.extend(unmap.to_be_bytes());
    data.extend(ranges.to_be_bytes());
    data.extend(if nature.is_thin { GRANULARITY } else { 0 }.to_be_bytes());
    data.extend(alignment.to_be_bytes());
    data.extend(WRITE_SAME_BLOCKS_MAX.to_be_bytes());
    data.resize(60, 0);
    data
}

/// Block device characteristics: nothing turns, and blocks can be read after a sanitize.
fn characteristics() -> Vec<u8> {
    let mut data = vec![0; 60];
    data[1] = 1;
    // WABEREQ: after BLOCK ERASE, reads succeed. Nothing is encrypted, so no CRYPTO ERASE exists.
    data[3] = 0x40;
    data
}

/// Logical block provisioning; SBC-3 section 6.6.6.
fn provisioning(nature: Nature) -> Vec<u8> {
    // UNMAP, WRITE SAME (16) and (10) give space back, and what was given back reads as zeros.
    if nature.is_thin { vec![0, 0xe4, 2, 0] } else { vec![0, 0, 0, 0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_units_differ_and_stay() {
        let one = Identity::new("iqn.2026-11.example:a", 0);
        assert_eq!(one, Identity::new("iqn.2026-11.example:a", 0));
        assert_ne!(one.naa(), Identity::new("iqn.2026-11.example:a", 1).naa());
        assert_ne!(one.naa(), Identity::new("iqn.2026-11.example:b", 0).naa());
        assert!(one.is_named_by(3, &one.naa.clone()) && !one.is_named_by(2, &one.naa.clone()));
    }

    #[test]
    fn every_page_that_is_listed_is_there_with_its_length() {
        let (identity, mut command) = (Identity::new("iqn.x", 3), [0; 16]);
        command[1] = 1;
        for is_thin in [false, true] {
            let nature = Nature { is_thin, is_removable: false };
            for page in PAGES {
                command[2] = page;
                let data = inquiry(&command, &identity, nature).expect("listed");
                assert_eq!(data[1], page);
                assert_eq!(usize::from(data[2]) * 256 + usize::from(data[3]) + 4, data.len());
            }
            command[2] = 0xb5;
            assert_eq!(inquiry(&command, &identity, nature), Err(Sense::field(2)));
        }
    }
}
