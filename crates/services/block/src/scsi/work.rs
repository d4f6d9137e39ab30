//! The work that a command is on the store: its range, and what is wrong with its fields.

use super::job::{Compare, Work};
use super::opcodes::{Name, Row};
use super::sense::Sense;
use super::unit::{Status, Unit};
use super::{
    BLOCK_BYTES, COMPARE_BLOCKS_MAX, PARAMETER_BYTES_MAX, TRANSFER_BLOCKS_MAX,
    WRITE_SAME_BLOCKS_MAX,
};

impl Unit {
    /// The work of a command on the store.
    pub(super) fn work(&self, row: &Row, command: &[u8; 16]) -> Result<Work, Status> {
        let fua = command[1] & 8 != 0 && row.opcode >= 0x20;
        let fua = fua || self.is_write_through();
        let (block, blocks) = range(row.opcode, command);
        let is_moved =
            matches!(row.name, Name::Read | Name::Write | Name::WriteAndVerify | Name::OrWrite);
        let compares = row.name == Name::Verify && command[1] & 6 != 0;
        if (is_moved || compares) && blocks > u64::from(TRANSFER_BLOCKS_MAX) {
            self.check_range(block, blocks)?;
            return Err(Sense::field(count_field(row.opcode)).into());
        }
        let at = block.saturating_mul(u64::from(BLOCK_BYTES));
        let length = blocks.saturating_mul(u64::from(BLOCK_BYTES));
        let ranged = |work: Work| self.check_range(block, blocks).map(|()| work);
        let parameters = |length: usize| {
            if length > PARAMETER_BYTES_MAX { Err(Sense::PARAMETER_LENGTH) } else { Ok(length) }
        };
        Ok(match row.name {
            Name::Read => ranged(Work::Read { at, length })?,
            Name::Write => ranged(Work::Write { at, length, fua, then_verify: false })?,
            Name::WriteAndVerify => {
                verified_bytes(command)?;
                ranged(Work::Write { at, length, fua: true, then_verify: true })?
            }
            Name::Verify => {
                let compare = verified_bytes(command)?;
                ranged(Work::Verify { at, length, compare })?
            }
            Name::OrWrite => ranged(Work::OrWrite { at, length, fua })?,
            Name::CompareAndWrite => {
                // The number of blocks is a byte, so it cannot be too large.
                const { assert!(COMPARE_BLOCKS_MAX == u8::MAX) };
                ranged(Work::CompareAndWrite { at, length, fua })?
            }
            Name::WriteSame => self.write_same(row, command, block, blocks, fua)?,
            Name::Prefetch => ranged(Work::Nothing)?,
            Name::SynchronizeCache => ranged(Work::Flush)?,
            Name::Unmap => {
                self.check_thin()?;
                Work::Unmap { parameters: parameters(short(command, 7))? }
            }
            Name::GetLbaStatus => {
                self.check_range(block, 0)?;
                if block >= self.blocks() {
                    return Err(Sense::OUT_OF_RANGE.into());
                }
                Work::Extents { at, allocation: word(command, 10) }
            }
            Name::ModeSelect => {
                if command[1] & 1 != 0 {
                    return Err(Sense::bit(1, 0).into());
                }
                let is_short = row.opcode == 0x15;
                let length = if is_short { command[4].into() } else { short(command, 7) };
                Work::Select { command: *command, parameters: parameters(length)? }
            }
            Name::ReserveOut => Work::Reserve {
                action: command[1] & 0x1f,
                scope_and_kind: command[2],
                parameters: parameters(word(command, 5))?,
            },
            Name::ExtendedCopy => Work::Copy { parameters: parameters(word(command, 10))? },
            Name::Sanitize => super::sanitize::work(command)?,
            _ => unreachable!("all other commands are answered from the state"),
        })
    }

    fn write_same(
        &self,
        row: &Row,
        command: &[u8; 16],
        block: u64,
        blocks: u64,
        fua: bool,
    ) -> Result<Work, Status> {
        let (unmap, no_data) = (command[1] & 8 != 0, row.opcode == 0x93 && command[1] & 1 != 0);
        if unmap && !self.nature().is_thin {
            return Err(Sense::bit(1, 3).into());
        }
        if blocks == 0 || blocks > WRITE_SAME_BLOCKS_MAX {
            self.check_range(block, blocks)?;
            return Err(Sense::field(count_field(row.opcode)).into());
        }
        self.check_range(block, blocks)?;
        let fua = fua && !unmap && row.opcode >= 0x20 && self.is_write_through();
        let size = u64::from(BLOCK_BYTES);
        Ok(Work::WriteSame { at: block * size, length: blocks * size, unmap, no_data, fua })
    }

    fn check_thin(&self) -> Result<(), Sense> {
        if self.nature().is_thin { Ok(()) } else { Err(Sense::OPERATION_CODE) }
    }
}

/// The first block and the number of blocks of a command.
fn range(opcode: u8, command: &[u8; 16]) -> (u64, u64) {
    match opcode >> 5 {
        0 => {
            let block = u32::from_be_bytes([0, command[1] & 0x1f, command[2], command[3]]);
            // 0 means 256 blocks, of these old commands alone.
            let blocks = if command[4] == 0 { 256 } else { command[4].into() };
            (block.into(), blocks)
        }
        1 | 2 => (word(command, 2) as u64, short(command, 7) as u64),
        4 => {
            let block = u64::from_be_bytes(std::array::from_fn(|byte| command[2 + byte]));
            let blocks = if opcode == 0x89 { command[13].into() } else { word(command, 10) as u64 };
            (block, blocks)
        }
        _ => (word(command, 2) as u64, word(command, 6) as u64),
    }
}

/// The byte at which the number of blocks stands.
const fn count_field(opcode: u8) -> u16 {
    match opcode >> 5 {
        0 => 4,
        1 | 2 => 7,
        4 => 10,
        _ => 6,
    }
}

/// BYTCHK: whether the data are compared, and with one block or with all.
fn verified_bytes(command: &[u8; 16]) -> Result<Compare, Sense> {
    match (command[1] >> 1) & 3 {
        0 => Ok(Compare::Nothing),
        1 => Ok(Compare::All),
        3 if command[0] & 0x1f == 0x0f => Ok(Compare::OneBlock),
        _ => Err(Sense::bit(1, 2)),
    }
}

pub(super) fn short(command: &[u8; 16], at: usize) -> usize {
    u16::from_be_bytes([command[at], command[at + 1]]).into()
}

pub(super) fn word(command: &[u8; 16], at: usize) -> usize {
    let bytes = std::array::from_fn(|byte| command[at + byte]);
    u32::from_be_bytes(bytes) as usize
}
