//! Mode pages: settings of a unit that initiators read and change.
//!
//! Source: SPC-4 sections 6.11 to 6.14 and 7.5, SBC-3 section 6.4.

use super::sense::{Key, Sense};

/// Pages in order of their codes: read-write error recovery, caching, control, informational
/// exceptions.
const PAGES: [u8; 4] = [0x01, 0x08, 0x0a, 0x1c];
/// SAVING PARAMETERS NOT SUPPORTED.
const NOT_SAVED: Sense = Sense::new(Key::IllegalRequest, 0x39, 0);

/// Settings that initiators may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether a write may be answered before it outlasts a failure of power (WCE).
    pub write_cache: bool,
    /// Whether sense data have descriptor format (`D_SENSE`).
    pub sense_as_descriptors: bool,
    /// Whether writing is forbidden by software (SWP).
    pub write_protected: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { write_cache: true, sense_as_descriptors: false, write_protected: false }
    }
}

/// Which values are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Current,
    Changeable,
    Default,
}

/// The contents of the header and the block descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Medium {
    /// Blocks of the unit.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Whether writing is forbidden, for any reason.
    pub is_protected: bool,
}

/// MODE SENSE of 6 or 10 bytes: the data, not yet cut to the allocation length.
///
/// # Errors
/// INVALID FIELD IN CDB for a page that does not exist.
pub fn sense(command: &[u8; 16], settings: Settings, medium: Medium) -> Result<Vec<u8>, Sense> {
    let is_long = command[0] == 0x5a;
    let values = match command[2] >> 6 {
        0 => Values::Current,
        1 => Values::Changeable,
        2 => Values::Default,
        _ => return Err(NOT_SAVED),
    };
    let settings = if values == Values::Default { Settings::default() } else { settings };
    if !matches!(command[3], 0 | 0xff) {
        return Err(Sense::field(3));
    }
    let mut pages = Vec::new();
    match command[2] & 0x3f {
        0x3f => PAGES.iter().for_each(|code| pages.extend(page(*code, settings, values))),
        code if PAGES.contains(&code) => pages = page(code, settings, values),
        _ => return Err(Sense::bit(2, 5)),
    }
    let has_descriptor = command[1] & 8 == 0;
    let has_long_descriptor = is_long && command[1] & 0x10 != 0;
    let descriptor = match (has_descriptor, has_long_descriptor) {
        (false, _) => Vec::new(),
        (true, false) => short_descriptor(medium),
        (true, true) => long_descriptor(medium),
    };
    // Writing is forbidden, and the bits DPO and FUA are known.
    let device = if medium.is_protected { 0x90 } else { 0x10 };
    let length = u8::try_from(descriptor.len()).expect("a descriptor is short");
    let rest = descriptor.len() + pages.len();
    let mut data = if is_long {
        let [high, low] = u16::try_from(rest + 6).expect("pages are short").to_be_bytes();
        vec![high, low, 0, device, u8::from(has_long_descriptor), 0, 0, length]
    } else {
        vec![u8::try_from(rest + 3).expect("pages are short"), 0, device, length]
    };
    data.extend(descriptor);
    data.extend(pages);
    Ok(data)
}

/// MODE SELECT of 6 or 10 bytes: the settings after it.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR, or INVALID FIELD IN PARAMETER LIST for a value that cannot be
/// changed.
pub fn select(
    command: &[u8; 16],
    data: &[u8],
    settings: Settings,
    medium: Medium,
) -> Result<Settings, Sense> {
    let head = if command[0] == 0x55 { 8 } else { 4 };
    if data.is_empty() {
        return Ok(settings);
    }
    if data.len() < head {
        return Err(Sense::PARAMETER_LENGTH);
    }
    let descriptor = match head {
        8 => usize::from(u16::from_be_bytes([data[6], data[7]])),
        _ => usize::from(data[3]),
    };
    let pages = data.get(head + descriptor..).ok_or(Sense::PARAMETER_LENGTH)?;
    if descriptor != 0 {
        let is_long = head == 8 && data[4] & 1 != 0;
        let own = if is_long { long_descriptor(medium) } else { short_descriptor(medium) };
        let length_of_block = &data[head..head + descriptor];
        // The size of the unit and of its blocks stays.
        let is_same = length_of_block.len() == own.len()
            && length_of_block[own.len() - 3..] == own[own.len() - 3..];
        if !is_same {
            return Err(Sense::parameter(u16::try_from(head).expect("4 or 8")));
        }
    }
    let mut at = head + descriptor;
    let (mut rest, mut after) = (pages, settings);
    while !rest.is_empty() {
        let code = rest[0] & 0x3f;
        if !PAGES.contains(&code) || rest[0] & 0x40 != 0 {
            return Err(Sense::parameter(u16::try_from(at).unwrap_or(u16::MAX)));
        }
        let own = page(code, after, Values::Current);
        let theirs = rest.get(..own.len()).ok_or(Sense::PARAMETER_LENGTH)?;
        let changeable = page(code, after, Values::Changeable);
        let bytes = theirs.iter().zip(&own).zip(&changeable).enumerate();
        for (byte, ((is, own), mask)) in bytes.skip(1) {
            // The second byte, the length of the page, is there in all values.
            let fixed = if byte == 1 { u8::MAX } else { !mask };
            if (is ^ own) & fixed != 0 {
                return Err(Sense::parameter(u16::try_from(at + byte).unwrap_or(u16::MAX)));
            }
        }
        match code {
            0x08 => after.write_cache = theirs[2] & 0x04 != 0,
            0x0a => {
                after.sense_as_descriptors = theirs[2] & 0x04 != 0;
                after.write_protected = theirs[4] & 0x08 != 0;
            }
            _ => {}
        }
        rest = &rest[own.len()..];
        at += own.len();
    }
    Ok(after)
}

fn page(code: u8, settings: Settings, values: Values) -> Vec<u8> {
    let flag = |bit: u8, is_set: bool| match values {
        Values::Changeable => bit,
        _ if is_set => bit,
        _ => 0,
    };
    let fixed = |value: u8| if values == Values::Changeable { 0 } else { value };
    match code {
        0x01 => [&[0x01, 10][..], &[0; 10]].concat(),
        0x08 => {
            let cache = flag(0x04, settings.write_cache);
            [&[0x08, 18, cache][..], &[0; 17]].concat()
        }
        0x0a => {
            let sense = flag(0x04, settings.sense_as_descriptors);
            let protected = flag(0x08, settings.write_protected);
            // Commands may be done in any order (QUEUE ALGORITHM MODIFIER 1).
            vec![0x0a, 10, sense, fixed(0x10), protected, 0, 0, 0, fixed(0xff), fixed(0xff), 0, 0]
        }
        _ => [&[0x1c, 10, fixed(0x08)][..], &[0; 9]].concat(),
    }
}

fn short_descriptor(medium: Medium) -> Vec<u8> {
    let blocks = u32::try_from(medium.blocks).unwrap_or(u32::MAX);
    let mut bytes = blocks.to_be_bytes().to_vec();
    bytes.extend(medium.block_bytes.to_be_bytes());
    bytes
}

fn long_descriptor(medium: Medium) -> Vec<u8> {
    let mut bytes = medium.blocks.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(medium.block_bytes.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIUM: Medium = Medium { blocks: 100, block_bytes: 512, is_protected: false };

    fn command(bytes: &[u8]) -> [u8; 16] {
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn what_is_read_can_be_written_back() {
        let command_in = command(&[0x1a, 0, 0x3f, 0, 0xff, 0]);
        let mut data = sense(&command_in, Settings::default(), MEDIUM).expect("all pages");
        assert_eq!(usize::from(data[0]) + 1, data.len());
        data[0] = 0;
        let select_6 = command(&[0x15, 0x10, 0, 0, 0xff, 0]);
        assert_eq!(select(&select_6, &data, Settings::default(), MEDIUM), Ok(Settings::default()));
    }

    #[test]
    fn the_write_cache_is_switched_off_and_other_bits_are_not() {
        let select_10 = command(&[0x55, 0x10]);
        let mut data = vec![0; 8];
        data.extend(page(0x08, Settings::default(), Values::Current));
        data[8 + 2] = 0;
        let after = select(&select_10, &data, Settings::default(), MEDIUM).expect("changeable");
        assert!(!after.write_cache);
        data[8 + 3] = 1;
        let refused = select(&select_10, &data, Settings::default(), MEDIUM);
        assert_eq!(refused, Err(Sense::parameter(11)));
        data.truncate(12);
        let short = select(&select_10, &data, Settings::default(), MEDIUM);
        assert_eq!(short, Err(Sense::PARAMETER_LENGTH));
    }

    #[test]
    fn another_size_of_blocks_is_refused() {
        let select_6 = command(&[0x15, 0x10]);
        let mut data = vec![0, 0, 0, 8];
        data.extend(short_descriptor(MEDIUM));
        assert!(select(&select_6, &data, Settings::default(), MEDIUM).is_ok());
        data[4 + 6] = 0x10;
        assert!(select(&select_6, &data, Settings::default(), MEDIUM).is_err());
    }
}
