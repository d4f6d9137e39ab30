//! Numbers and bytes in messages and records: little-endian, lengths in front, each checked.

use thiserror::Error;

/// Why bytes are no message or record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidBytes {
    /// It ends before what it announced.
    #[error("it ends too early")]
    Short,
    /// Bytes are left behind its end.
    #[error("there are bytes behind its end")]
    Long,
    /// A field has a value that it may not have.
    #[error("{0} has a value that it may not have")]
    Field(&'static str),
    /// The checksum differs.
    #[error("its checksum differs: it was damaged on its way")]
    Damaged,
}

/// Takes fields out of bytes.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], InvalidBytes> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(InvalidBytes::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidBytes> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub fn u8(&mut self) -> Result<u8, InvalidBytes> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, InvalidBytes> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, InvalidBytes> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, InvalidBytes> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, InvalidBytes> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub fn u128(&mut self) -> Result<u128, InvalidBytes> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub fn flag(&mut self, what: &'static str) -> Result<bool, InvalidBytes> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidBytes::Field(what)),
        }
    }

    /// Bytes behind their length, of at most `maximum`.
    pub fn blob(&mut self, maximum: usize, what: &'static str) -> Result<Vec<u8>, InvalidBytes> {
        let length = self.count(maximum, what)?;
        Ok(self.bytes(length)?.to_vec())
    }

    pub fn text(&mut self, maximum: usize, what: &'static str) -> Result<String, InvalidBytes> {
        let bytes = self.blob(maximum, what)?;
        String::from_utf8(bytes).map_err(|_| InvalidBytes::Field(what))
    }

    /// A number of things, of at most `maximum`.
    pub fn count(&mut self, maximum: usize, what: &'static str) -> Result<usize, InvalidBytes> {
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if count > maximum { Err(InvalidBytes::Field(what)) } else { Ok(count) }
    }

    pub fn list<T>(
        &mut self,
        maximum: usize,
        what: &'static str,
        mut one: impl FnMut(&mut Self) -> Result<T, InvalidBytes>,
    ) -> Result<Vec<T>, InvalidBytes> {
        let count = self.count(maximum, what)?;
        // Memory follows the bytes that are there, not the number that was announced.
        let mut all = Vec::with_capacity(count.min(self.0.len()));
        for _ in 0..count {
            all.push(one(self)?);
        }
        Ok(all)
    }

    pub fn end(&self) -> Result<(), InvalidBytes> {
        if self.0.is_empty() { Ok(()) } else { Err(InvalidBytes::Long) }
    }
}

/// Puts fields behind each other.
#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn flag(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("lists and texts are bounded where they are made"))
    }

    pub fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).bytes(bytes)
    }

    pub fn list<T>(&mut self, all: &[T], mut one: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.count(all.len());
        for item in all {
            one(self, item);
        }
        self
    }
}
