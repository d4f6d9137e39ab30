//! Reports that need nothing but a few numbers: unit numbers, capacity, supported commands.
//!
//! Source: SPC-4 sections 6.33, 6.35 and 6.36, SBC-3 sections 5.15 to 5.19.

use super::BLOCK_BYTES;
use super::inquiry::PHYSICAL_EXPONENT;
use super::opcodes::{Row, TABLE, rows};
use super::sense::Sense;

/// Bytes of the timeouts of a command: a head and two times, which are not said.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// REPORT LUNS.
///
/// # Errors
/// INVALID FIELD IN CDB.
pub fn luns(command: &[u8; 16], numbers: &[u64]) -> Result<Vec<u8>, Sense> {
    let shown: &[u64] = match command[2] {
        0 | 2 => numbers,
        // Well-known units, of which there are none.
        1 => &[],
        _ => return Err(Sense::field(2)),
    };
    let length = u32::try_from(shown.len() * 8).expect("units are bounded");
    let mut data = length.to_be_bytes().to_vec();
    data.extend([0; 4]);
    data.extend(shown.iter().flat_map(|number| encode_number(*number)));
    Ok(data)
}

/// The eight bytes of a unit number; SAM-5 section 4.7.
#[must_use]
pub fn encode_number(number: u64) -> [u8; 8] {
    let number = u16::try_from(number & 0x3fff).expect("14 bits");
    let [high, low] = number.to_be_bytes();
    let method = if number < 256 { 0 } else { 0x40 };
    [method | high, low, 0, 0, 0, 0, 0, 0]
}

/// The unit number in eight bytes, if it has one level.
#[must_use]
pub fn decode_number(bytes: [u8; 8]) -> Option<u64> {
    let [high, low, rest @ ..] = bytes;
    let is_of_one_level = rest.iter().all(|byte| *byte == 0);
    match high >> 6 {
        0 if high == 0 && is_of_one_level => Some(low.into()),
        1 if is_of_one_level => Some(u16::from_be_bytes([high & 0x3f, low]).into()),
        _ => None,
    }
}

/// READ CAPACITY (10).
///
/// # Errors
/// INVALID FIELD IN CDB.
pub fn capacity_10(command: &[u8; 16], blocks: u64) -> Result<Vec<u8>, Sense> {
    if command[8] & 1 == 0 && command[2..6] != [0; 4] {
        return Err(Sense::field(2));
    }
    // A larger unit says so by the largest number, and is asked by READ CAPACITY (16).
    let last = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    Ok([last.to_be_bytes(), BLOCK_BYTES.to_be_bytes()].concat())
}

/// READ CAPACITY (16).
///
/// # Errors
/// INVALID FIELD IN CDB.
pub fn capacity_16(command: &[u8; 16], blocks: u64, is_thin: bool) -> Result<Vec<u8>, Sense> {
    if command[14] & 1 == 0 && command[2..10] != [0; 8] {
        return Err(Sense::field(2));
    }
    let mut data = blocks.saturating_sub(1).to_be_bytes().to_vec();
    data.extend(BLOCK_BYTES.to_be_bytes());
    data.extend([0, PHYSICAL_EXPONENT]);
    // LBPME and LBPRZ: space is given back, and reads as zeros.
    data.extend(if is_thin { [0xc0, 0] } else { [0, 0] });
    data.resize(32, 0);
    Ok(data)
}

/// REPORT SUPPORTED OPERATION CODES.
///
/// # Errors
/// INVALID FIELD IN CDB.
pub fn opcodes(command: &[u8; 16]) -> Result<Vec<u8>, Sense> {
    let has_timeouts = command[2] & 0x80 != 0;
    let (opcode, action) = (command[3], u16::from_be_bytes([command[4], command[5]]));
    let with_actions = rows(opcode).any(|row| row.action.is_some());
    let named = rows(opcode).find(|row| match row.action {
        Some(own) => u16::from(own) == action,
        None => true,
    });
    match command[2] & 7 {
        0 => Ok(all(has_timeouts)),
        1 if with_actions => Err(Sense::bit(2, 2)),
        1 => Ok(one(named, has_timeouts)),
        2 if !with_actions => Err(Sense::bit(2, 2)),
        2 | 3 => Ok(one(named, has_timeouts)),
        _ => Err(Sense::bit(2, 2)),
    }
}

fn all(has_timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for row in TABLE {
        let (has_action, action) = (row.action.is_some(), row.action.unwrap_or(0));
        let flags = u8::from(has_action) | if has_timeouts { 2 } else { 0 };
        data.extend([row.opcode, 0, 0, action, 0, flags]);
        data.extend(u16::try_from(row.usage.len()).expect("at most 16").to_be_bytes());
        if has_timeouts {
            data.extend(TIMEOUTS);
        }
    }
    let length = u32::try_from(data.len() - 4).expect("the table is short");
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

fn one(row: Option<&Row>, has_timeouts: bool) -> Vec<u8> {
    const NOT_SUPPORTED: u8 = 1;
    const SUPPORTED: u8 = 3;
    let Some(row) = row else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let timeouts = if has_timeouts { 0x80 } else { 0 };
    let mut data = vec![0, timeouts | SUPPORTED];
    data.extend(u16::try_from(row.usage.len()).expect("at most 16").to_be_bytes());
    data.extend(row.usage);
    if let Some(action) = row.action {
        data[5] = (data[5] & !0x1f) | action;
    }
    if has_timeouts {
        data.extend(TIMEOUTS);
    }
    data
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub fn task_management(command: &[u8; 16]) -> Vec<u8> {
    // Abort task, abort task set, clear task set, unit reset.
    const FUNCTIONS: u8 = 0x80 | 0x40 | 0x10 | 0x08;
    let is_extended = command[2] & 0x80 != 0;
    if is_extended {
        return [&[FUNCTIONS, 0, 0, 12][..], &[0; 12]].concat();
    }
    vec![FUNCTIONS, 0, 0, 0]
}

/// READ DEFECT DATA: there are no defects that a user sees. The second value is the allocation
/// length.
pub fn defects(command: &[u8; 16]) -> (Vec<u8>, usize) {
    if command[0] == 0x37 {
        let length = u16::from_be_bytes([command[7], command[8]]);
        (vec![0, command[2], 0, 0], length.into())
    } else {
        let length = u32::from_be_bytes([command[6], command[7], command[8], command[9]]);
        (vec![0, command[1], 0, 0, 0, 0, 0, 0], length as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_numbers_are_read_as_they_are_written() {
        for number in [0, 1, 255, 256, 16_383] {
            assert_eq!(decode_number(encode_number(number)), Some(number));
        }
        assert_eq!(decode_number([0x40, 3, 0, 0, 0, 0, 0, 0]), Some(3));
        assert_eq!(decode_number([0, 1, 2, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode_number([0xc1, 1, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn one_command_is_reported_with_its_action() {
        let mut command = [0; 16];
        (command[2], command[3], command[5]) = (2, 0x5e, 3);
        let data = opcodes(&command).expect("there");
        assert_eq!(data[..6], [0, 3, 0, 10, 0x5e, 3]);
        command[5] = 9;
        assert_eq!(opcodes(&command), Ok(vec![0, 1, 0, 0]));
        command[2] = 1;
        assert!(opcodes(&command).is_err());
    }
}
