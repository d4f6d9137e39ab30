//! The basic header segment of a PDU; RFC 7143 section 11.
//!
//! ```text
//!  0 opcode, I   1 flags   2-3 by opcode   4 AHS words   5-7 data bytes
//!  8-15 LUN      16-19 initiator task tag  20-47 by opcode
//! ```

/// Bytes of a basic header segment.
pub const HEAD_BYTES: usize = 48;
/// No task, or no transfer.
pub const NO_TAG: u32 = u32::MAX;

/// Requests of an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A ping, or the answer to one.
    NopOut,
    /// A SCSI command.
    Command,
    /// A task management function.
    TaskManagement,
    /// Login.
    Login,
    /// Text.
    Text,
    /// Data of a command that writes.
    DataOut,
    /// Logout.
    Logout,
    /// A request to send something again.
    Snack,
}

/// The head of a PDU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head(pub [u8; HEAD_BYTES]);

impl std::fmt::Debug for Head {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "opcode {:02x} flags {:02x} data {} tag {:08x}",
            self.0[0],
            self.0[1],
            self.data_bytes(),
            self.tag()
        )
    }
}

impl Head {
    /// A head of an answer: the opcode, the flags and the task tag.
    #[must_use]
    pub const fn new(opcode: u8, flags: u8, tag: u32) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = opcode;
        bytes[1] = flags;
        let tag = tag.to_be_bytes();
        bytes[16] = tag[0];
        bytes[17] = tag[1];
        bytes[18] = tag[2];
        bytes[19] = tag[3];
        Self(bytes)
    }

    /// The kind of request; `None` for an opcode that no initiator sends.
    #[must_use]
    pub const fn request(&self) -> Option<Request> {
        Some(match self.0[0] & 0x3f {
            0x00 => Request::NopOut,
            0x01 => Request::Command,
            0x02 => Request::TaskManagement,
            0x03 => Request::Login,
            0x04 => Request::Text,
            0x05 => Request::DataOut,
            0x06 => Request::Logout,
            0x10 => Request::Snack,
            _ => return None,
        })
    }

    /// Whether it is outside of the order of commands.
    #[must_use]
    pub const fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The flags.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Whether it is the last of its sequence.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Bytes of additional header segments.
    #[must_use]
    pub const fn additional_bytes(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// Bytes of data, without padding.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]]) as usize
    }

    /// The bytes of the unit number.
    #[must_use]
    pub fn lun(&self) -> [u8; 8] {
        std::array::from_fn(|byte| self.0[8 + byte])
    }

    /// The initiator task tag.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.word(16)
    }

    /// The 32-bit word at a place.
    #[must_use]
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|byte| self.0[at + byte]))
    }

    /// The same with a 32-bit word.
    #[must_use]
    pub fn with(mut self, at: usize, word: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&word.to_be_bytes());
        self
    }

    /// The same with the length of the data.
    ///
    /// # Panics
    /// When the data are longer than a PDU can say.
    #[must_use]
    pub fn with_data_bytes(mut self, bytes: usize) -> Self {
        assert!(bytes < 1 << 24, "a data segment has at most 2^24 - 1 bytes");
        let [_, a, b, c] = u32::try_from(bytes).expect("24 bits").to_be_bytes();
        (self.0[5], self.0[6], self.0[7]) = (a, b, c);
        self
    }

    /// The command of a SCSI command PDU.
    #[must_use]
    pub fn command(&self) -> [u8; 16] {
        std::array::from_fn(|byte| self.0[32 + byte])
    }
}

/// Bytes of padding behind `length` bytes.
#[must_use]
pub const fn padding(length: usize) -> usize {
    (4 - length % 4) % 4
}

/// Whether `a` is before `b` in the order of serial numbers; RFC 1982.
#[must_use]
pub const fn is_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_lengths_are_read_as_they_are_written() {
        let head = Head::new(0x25, 0x81, 7).with(20, 0x0102_0304).with_data_bytes(0x0001_0203);
        assert_eq!((head.tag(), head.word(20), head.data_bytes()), (7, 0x0102_0304, 0x0001_0203));
        assert_eq!(head.0[4..8], [0, 1, 2, 3]);
        assert!(head.is_final() && !head.is_immediate());
    }

    #[test]
    fn serial_numbers_wrap() {
        assert!(is_before(u32::MAX, 0) && !is_before(0, u32::MAX) && !is_before(5, 5));
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }
}
