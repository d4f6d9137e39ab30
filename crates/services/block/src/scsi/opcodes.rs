//! The commands that a logical unit knows: one table for parsing, for checking reserved bits, and
//! for REPORT SUPPORTED OPERATION CODES.
//!
//! Source: SPC-4 section 6.35, SBC-3 table 33. The usage data of a command has a 1 for each bit
//! that is used; a bit outside of it has to be 0, or the command is refused with a pointer to it.

use std::sync::LazyLock;

use super::sense::Sense;

/// A command, without its fields. The names are those of the standards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    TestUnitReady,
    RequestSense,
    Read,
    Write,
    Inquiry,
    ModeSelect,
    ModeSense,
    Reserve6,
    Release6,
    StartStopUnit,
    PreventAllow,
    ReadCapacity10,
    WriteAndVerify,
    Verify,
    Prefetch,
    SynchronizeCache,
    ReadDefectData,
    WriteSame,
    Unmap,
    Sanitize,
    ReserveIn,
    ReserveOut,
    ExtendedCopy,
    ReceiveCopyResults,
    CompareAndWrite,
    OrWrite,
    ReadCapacity16,
    GetLbaStatus,
    ReportLuns,
    ReportOpcodes,
    ReportTaskManagement,
}

/// How a command meets reservations of others; SPC-4 table 65, SBC-3 table 13.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// No reservation forbids it.
    Always,
    /// Persistent reservations allow it; an old reservation (RESERVE) forbids it.
    Harmless,
    /// It reads: forbidden by exclusive access.
    Reads,
    /// It writes: forbidden by exclusive access and by write exclusive.
    Writes,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The command.
    pub name: Name,
    /// Its operation code.
    pub opcode: u8,
    /// Its service action, for operation codes that have several commands.
    pub action: Option<u8>,
    /// The bits that it uses. Its length is that of the command.
    pub usage: &'static [u8],
    /// How it meets reservations.
    pub access: Access,
}

const fn row(
    name: Name,
    opcode: u8,
    action: Option<u8>,
    usage: &'static [u8],
    access: Access,
) -> Row {
    Row { name, opcode, action, usage, access }
}

use Access::{Always, Harmless, Reads, Writes};

const X: u8 = 0xff;

/// All commands, in order of their codes.
pub const TABLE: &[Row] = &[
    row(Name::TestUnitReady, 0x00, None, &[0, 0, 0, 0, 0, 0], Harmless),
    row(Name::RequestSense, 0x03, None, &[3, 1, 0, 0, X, 0], Always),
    row(Name::Read, 0x08, None, &[8, 0x1f, X, X, X, 0], Reads),
    row(Name::Write, 0x0a, None, &[0x0a, 0x1f, X, X, X, 0], Writes),
    row(Name::Inquiry, 0x12, None, &[0x12, 1, X, X, X, 0], Always),
    row(Name::ModeSelect, 0x15, None, &[0x15, 0x11, 0, 0, X, 0], Writes),
    row(Name::Reserve6, 0x16, None, &[0x16, 0, 0, 0, 0, 0], Always),
    row(Name::Release6, 0x17, None, &[0x17, 0, 0, 0, 0, 0], Always),
    row(Name::ModeSense, 0x1a, None, &[0x1a, 8, X, X, X, 0], Reads),
    row(Name::StartStopUnit, 0x1b, None, &[0x1b, 1, 0, 0x0f, 0xf7, 0], Writes),
    row(Name::PreventAllow, 0x1e, None, &[0x1e, 0, 0, 0, 3, 0], Harmless),
    row(Name::ReadCapacity10, 0x25, None, &[0x25, 0, X, X, X, X, 0, 0, 1, 0], Harmless),
    row(Name::Read, 0x28, None, &[0x28, 0x18, X, X, X, X, 0x1f, X, X, 0], Reads),
    row(Name::Write, 0x2a, None, &[0x2a, 0x18, X, X, X, X, 0x1f, X, X, 0], Writes),
    row(Name::WriteAndVerify, 0x2e, None, &[0x2e, 0x16, X, X, X, X, 0x1f, X, X, 0], Writes),
    row(Name::Verify, 0x2f, None, &[0x2f, 0x16, X, X, X, X, 0x1f, X, X, 0], Reads),
    row(Name::Prefetch, 0x34, None, &[0x34, 2, X, X, X, X, 0x1f, X, X, 0], Reads),
    row(Name::SynchronizeCache, 0x35, None, &[0x35, 2, X, X, X, X, 0x1f, X, X, 0], Writes),
    row(Name::ReadDefectData, 0x37, None, &[0x37, 0, 0x1f, 0, 0, 0, 0, X, X, 0], Reads),
    row(Name::WriteSame, 0x41, None, &[0x41, 8, X, X, X, X, 0x1f, X, X, 0], Writes),
    row(Name::Unmap, 0x42, None, &[0x42, 0, 0, 0, 0, 0, 0x1f, X, X, 0], Writes),
    row(Name::Sanitize, 0x48, Some(1), &[0x48, 0xbf, 0, 0, 0, 0, 0, X, X, 0], Writes),
    row(Name::Sanitize, 0x48, Some(2), &[0x48, 0xbf, 0, 0, 0, 0, 0, X, X, 0], Writes),
    row(Name::Sanitize, 0x48, Some(0x1f), &[0x48, 0xbf, 0, 0, 0, 0, 0, X, X, 0], Writes),
    row(Name::ModeSelect, 0x55, None, &[0x55, 0x11, 0, 0, 0, 0, 0, X, X, 0], Writes),
    row(Name::ModeSense, 0x5a, None, &[0x5a, 0x18, X, X, 0, 0, 0, X, X, 0], Reads),
    row(Name::ReserveIn, 0x5e, Some(0), &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, 0], Always),
    row(Name::ReserveIn, 0x5e, Some(1), &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, 0], Always),
    row(Name::ReserveIn, 0x5e, Some(2), &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, 0], Always),
    row(Name::ReserveIn, 0x5e, Some(3), &[0x5e, 0x1f, 0, 0, 0, 0, 0, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(0), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(1), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(2), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(3), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(4), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(5), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(6), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(Name::ReserveOut, 0x5f, Some(7), &[0x5f, 0x1f, X, 0, 0, X, X, X, X, 0], Always),
    row(
        Name::ExtendedCopy,
        0x83,
        Some(0),
        &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, 0],
        Writes,
    ),
    row(
        Name::ReceiveCopyResults,
        0x84,
        Some(0),
        &[0x84, 0x1f, X, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, 0],
        Reads,
    ),
    row(
        Name::ReceiveCopyResults,
        0x84,
        Some(3),
        &[0x84, 0x1f, X, 0, 0, 0, 0, 0, 0, 0, X, X, X, X, 0, 0],
        Reads,
    ),
    row(Name::Read, 0x88, None, &[0x88, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0], Reads),
    row(
        Name::CompareAndWrite,
        0x89,
        None,
        &[0x89, 0x18, X, X, X, X, X, X, X, X, 0, 0, 0, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::Write,
        0x8a,
        None,
        &[0x8a, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::OrWrite,
        0x8b,
        None,
        &[0x8b, 0x18, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::WriteAndVerify,
        0x8e,
        None,
        &[0x8e, 0x16, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::Verify,
        0x8f,
        None,
        &[0x8f, 0x16, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Reads,
    ),
    row(Name::Prefetch, 0x90, None, &[0x90, 2, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0], Reads),
    row(
        Name::SynchronizeCache,
        0x91,
        None,
        &[0x91, 2, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::WriteSame,
        0x93,
        None,
        &[0x93, 9, X, X, X, X, X, X, X, X, X, X, X, X, 0x1f, 0],
        Writes,
    ),
    row(
        Name::ReadCapacity16,
        0x9e,
        Some(0x10),
        &[0x9e, 0x1f, X, X, X, X, X, X, X, X, X, X, X, X, 1, 0],
        Harmless,
    ),
    row(
        Name::GetLbaStatus,
        0x9e,
        Some(0x12),
        &[0x9e, 0x1f, X, X, X, X, X, X, X, X, X, X, X, X, 0, 0],
        Reads,
    ),
    row(Name::ReportLuns, 0xa0, None, &[0xa0, 0, X, 0, 0, 0, X, X, X, X, 0, 0], Always),
    row(
        Name::ReportOpcodes,
        0xa3,
        Some(0x0c),
        &[0xa3, 0x1f, 0x87, X, X, X, X, X, X, X, 0, 0],
        Harmless,
    ),
    row(
        Name::ReportTaskManagement,
        0xa3,
        Some(0x0d),
        &[0xa3, 0x1f, 0x80, 0, 0, 0, X, X, X, X, 0, 0],
        Harmless,
    ),
    row(Name::Read, 0xa8, None, &[0xa8, 0x18, X, X, X, X, X, X, X, X, 0x1f, 0], Reads),
    row(Name::Write, 0xaa, None, &[0xaa, 0x18, X, X, X, X, X, X, X, X, 0x1f, 0], Writes),
    row(Name::WriteAndVerify, 0xae, None, &[0xae, 0x16, X, X, X, X, X, X, X, X, 0x1f, 0], Writes),
    row(Name::Verify, 0xaf, None, &[0xaf, 0x16, X, X, X, X, X, X, X, X, 0x1f, 0], Reads),
    row(Name::ReadDefectData, 0xb7, None, &[0xb7, 0x1f, X, X, X, X, X, X, X, X, 0, 0], Reads),
];

/// The number of the first row of each operation code; [`u8::MAX`] where there is none.
static FIRST: LazyLock<[u8; 256]> = LazyLock::new(|| {
    let mut first = [u8::MAX; 256];
    for (number, row) in (0..).zip(TABLE) {
        let first = &mut first[usize::from(row.opcode)];
        *first = number.min(*first);
    }
    first
});

/// The rows of an operation code.
pub fn rows(opcode: u8) -> impl Iterator<Item = &'static Row> {
    let first = usize::from(FIRST[usize::from(opcode)]);
    TABLE.get(first..).unwrap_or_default().iter().take_while(move |row| row.opcode == opcode)
}

/// The row of a command whose bits are all in use.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB with a pointer to the highest bit that
/// is set and not used.
pub fn find(command: &[u8; 16]) -> Result<&'static Row, Sense> {
    let action = command[1] & 0x1f;
    let mut of_opcode = rows(command[0]).peekable();
    if of_opcode.peek().is_none() {
        return Err(Sense::OPERATION_CODE);
    }
    let row =
        of_opcode.find(|row| row.action.is_none_or(|own| own == action)).ok_or(Sense::bit(1, 4))?;
    for (byte, (used, is)) in (0_u16..).zip(row.usage.iter().zip(command)).skip(1) {
        let wrong = is & !used;
        if wrong != 0 {
            let bit = u8::try_from(wrong.ilog2()).expect("a byte has 8 bits");
            return Err(Sense::bit(byte, bit));
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_has_commands_of_the_right_lengths() {
        assert!(TABLE.is_sorted_by_key(|row| (row.opcode, row.action)));
        assert!(TABLE.len() < usize::from(u8::MAX));
        for row in TABLE {
            let length = match row.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                _ => 12,
            };
            assert_eq!(row.usage.len(), length, "{row:?}");
            assert_eq!(row.usage[0], row.opcode, "{row:?}");
        }
    }

    #[test]
    fn a_reserved_bit_is_pointed_to() {
        let mut command = [0; 16];
        command[0] = 0x28;
        command[1] = 0x20;
        assert_eq!(find(&command).err(), Some(Sense::bit(1, 5)));
        command[1] = 0x08;
        assert_eq!(find(&command).map(|row| row.name).ok(), Some(Name::Read));
    }

    #[test]
    fn commands_that_do_not_exist_are_told_from_actions_that_do_not() {
        let mut command = [0; 16];
        command[0] = 0xc1;
        assert_eq!(find(&command).err(), Some(Sense::OPERATION_CODE));
        (command[0], command[1]) = (0x5e, 4);
        assert_eq!(find(&command).err(), Some(Sense::bit(1, 4)));
    }
}
