//! Sense data: why a command was not done.
//!
//! Source: SPC-4 section 4.5 (fixed and descriptor formats), tables of sense keys and of additional
//! sense codes.

use crate::store::StoreError;

/// The kind of an error; SPC-4 table 48.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Key {
    /// Nothing to report.
    NoSense = 0,
    /// The unit cannot do it now.
    NotReady = 2,
    /// The medium has failed.
    Medium = 3,
    /// The unit has failed.
    Hardware = 4,
    /// The command is wrong.
    IllegalRequest = 5,
    /// Something happened to the unit that the initiator has to know.
    UnitAttention = 6,
    /// The unit is protected from writing.
    DataProtect = 7,
    /// A copy was not completed.
    CopyAborted = 10,
    /// The command was aborted.
    Aborted = 11,
    /// The data differ from those on the medium.
    Miscompare = 14,
}

/// The place of a wrong field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A byte of the command, and the highest bit of the field if it is not a whole byte.
    Command(u16, Option<u8>),
    /// A byte of the parameters.
    Parameter(u16, Option<u8>),
}

/// Why a command was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// The kind of error.
    pub key: Key,
    /// Additional sense code and its qualifier.
    pub code: (u8, u8),
    /// The wrong field, for [`Key::IllegalRequest`].
    pub field: Option<Field>,
    /// INFORMATION: the offset of the first byte that differs, or a block's address.
    pub information: Option<u64>,
    /// How far a long operation is, in parts of 65,536.
    pub progress: Option<u16>,
}

/// Bytes of sense data in fixed format.
const FIXED_BYTES: usize = 18;

impl Sense {
    /// Sense data with a key and an additional sense code alone.
    #[must_use]
    pub const fn new(key: Key, asc: u8, ascq: u8) -> Self {
        Self { key, code: (asc, ascq), field: None, information: None, progress: None }
    }

    /// INVALID FIELD IN CDB at a byte.
    #[must_use]
    pub const fn field(byte: u16) -> Self {
        Self { field: Some(Field::Command(byte, None)), ..Self::new(Key::IllegalRequest, 0x24, 0) }
    }

    /// INVALID FIELD IN CDB at a bit of a byte.
    #[must_use]
    pub const fn bit(byte: u16, bit: u8) -> Self {
        Self {
            field: Some(Field::Command(byte, Some(bit))),
            ..Self::new(Key::IllegalRequest, 0x24, 0)
        }
    }

    /// INVALID FIELD IN PARAMETER LIST at a byte.
    #[must_use]
    pub const fn parameter(byte: u16) -> Self {
        Self {
            field: Some(Field::Parameter(byte, None)),
            ..Self::new(Key::IllegalRequest, 0x26, 0)
        }
    }

    /// PARAMETER LIST LENGTH ERROR.
    pub const PARAMETER_LENGTH: Self = Self::new(Key::IllegalRequest, 0x1a, 0);
    /// INVALID COMMAND OPERATION CODE.
    pub const OPERATION_CODE: Self = Self::new(Key::IllegalRequest, 0x20, 0);
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub const OUT_OF_RANGE: Self = Self::new(Key::IllegalRequest, 0x21, 0);
    /// INVALID FIELD IN CDB, with no field in particular.
    pub const INVALID_COMMAND: Self = Self::new(Key::IllegalRequest, 0x24, 0);
    /// LOGICAL UNIT NOT SUPPORTED.
    pub const NO_UNIT: Self = Self::new(Key::IllegalRequest, 0x25, 0);
    /// WRITE PROTECTED.
    pub const WRITE_PROTECTED: Self = Self::new(Key::DataProtect, 0x27, 0);
    /// MEDIUM NOT PRESENT.
    pub const NO_MEDIUM: Self = Self::new(Key::NotReady, 0x3a, 0);
    /// The bytes of the data segment did not arrive as they were sent: PROTOCOL SERVICE CRC ERROR.
    pub const DATA_DIGEST: Self = Self::new(Key::Aborted, 0x47, 0x05);
    /// Fewer bytes arrived than the command says: NOT ENOUGH UNSOLICITED DATA, which RFC 7143
    /// section 11.4.7.2 names for it.
    pub const TOO_LITTLE_DATA: Self = Self::new(Key::Aborted, 0x0c, 0x0d);

    /// Data in a wrong order or place: DATA PHASE ERROR.
    pub const DATA_PHASE: Self = Self::new(Key::Aborted, 0x4b, 0x00);

    /// The same with INFORMATION.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// The sense data of a store that failed.
    #[must_use]
    pub const fn of_store(error: StoreError) -> Self {
        match error {
            StoreError::Unreadable => Self::new(Key::Medium, 0x11, 0x00),
            StoreError::Unwritable => Self::new(Key::Medium, 0x0c, 0x00),
            // SPACE ALLOCATION FAILED WRITE PROTECT; SBC-3 section 4.7.3.
            StoreError::NoSpace => Self::new(Key::DataProtect, 0x27, 0x07),
            StoreError::ReadOnly => Self::WRITE_PROTECTED,
            // LOGICAL UNIT COMMUNICATION FAILURE.
            StoreError::Offline => Self::new(Key::Hardware, 0x08, 0x00),
        }
    }

    /// The bytes, in descriptor format or in fixed format.
    #[must_use]
    pub fn encode(&self, as_descriptors: bool) -> Vec<u8> {
        if as_descriptors { self.descriptors() } else { self.fixed() }
    }

    fn fixed(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIXED_BYTES];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10;
        (bytes[12], bytes[13]) = self.code;
        bytes[15..18].copy_from_slice(&self.key_specific().unwrap_or_default());
        bytes
    }

    fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some([a, b, c]) = self.key_specific() {
            bytes.extend([0x02, 0x06, 0, 0, a, b, c, 0]);
        }
        bytes[7] = u8::try_from(bytes.len() - 8).expect("two descriptors are short");
        bytes
    }

    /// The three bytes that depend on the key, if there are any.
    fn key_specific(&self) -> Option<[u8; 3]> {
        let (flags, value) = match (self.field, self.progress) {
            (Some(Field::Command(byte, bit)), _) => (0xc0 | bit_flags(bit), byte),
            (Some(Field::Parameter(byte, bit)), _) => (0x80 | bit_flags(bit), byte),
            (None, Some(progress)) => (0x80, progress),
            (None, None) => return None,
        };
        let [high, low] = value.to_be_bytes();
        Some([flags, high, low])
    }
}

/// The flag that a bit is named, and its number.
const fn bit_flags(bit: Option<u8>) -> u8 {
    match bit {
        Some(bit) => 0x08 | (bit & 7),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_bit_of_a_command_is_named_in_both_formats() {
        let sense = Sense::bit(1, 5);
        let fixed = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 1];
        assert_eq!(sense.encode(false), fixed);
        let descriptors = [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xcd, 0, 1, 0];
        assert_eq!(sense.encode(true), descriptors);
    }

    #[test]
    fn information_that_fits_is_told_in_fixed_format() {
        let sense = Sense::new(Key::Miscompare, 0x1d, 0).with_information(700);
        let bytes = sense.encode(false);
        assert_eq!((bytes[0], &bytes[3..7]), (0xf0, &[0, 0, 2, 0xbc][..]));
        let far = sense.with_information(1 << 40).encode(false);
        assert_eq!(far[0], 0x70);
        assert_eq!(sense.encode(true)[8..12], [0, 10, 0x80, 0]);
    }
}
