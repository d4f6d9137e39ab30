//! PDUs to bytes: heads, data that are not copied, padding and digests.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use super::pdu::{HEAD_BYTES, Head, padding};

/// Parts that are handed out at a time, two or three for each PDU.
const PARTS_MAX: usize = 64;
const DIGEST_BYTES: usize = 4;

/// Data of a PDU: a range of bytes that others may send, too.
#[derive(Clone, Debug)]
pub struct Data {
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
    /// The first byte of the range.
    pub from: usize,
    /// The length of the range.
    pub length: usize,
}

#[derive(Debug)]
struct Pdu {
    head: [u8; HEAD_BYTES + DIGEST_BYTES],
    head_length: usize,
    data: Option<Data>,
    tail: [u8; 3 + DIGEST_BYTES],
    tail_length: usize,
    /// Bytes of a command that are not held any more when the PDU is sent.
    releases: usize,
    lun: u64,
}

impl Pdu {
    fn parts(&self) -> [&[u8]; 3] {
        let data = self.data.as_ref();
        let data = data.map_or(&[][..], |data| &data.bytes[data.from..data.from + data.length]);
        [&self.head[..self.head_length], data, &self.tail[..self.tail_length]]
    }

    fn length(&self) -> usize {
        self.head_length + self.data.as_ref().map_or(0, |data| data.length) + self.tail_length
    }
}

/// PDUs that wait to be sent.
#[derive(Debug, Default)]
pub struct Output {
    head_digest: bool,
    data_digest: bool,
    queue: VecDeque<Pdu>,
    /// Bytes of the first PDU that were sent.
    sent: usize,
}

impl Output {
    /// From now on with digests.
    pub fn set_digests(&mut self, head: bool, data: bool) {
        self.head_digest = head;
        self.data_digest = data;
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// PDUs that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds a PDU. `releases` are bytes that a unit's command held until now.
    pub fn push(&mut self, head: &Head, data: Option<Data>, releases: (u64, usize)) {
        let mut pdu = Pdu {
            head: [0; HEAD_BYTES + DIGEST_BYTES],
            head_length: HEAD_BYTES,
            data: data.filter(|data| data.length > 0),
            tail: [0; 3 + DIGEST_BYTES],
            tail_length: 0,
            releases: releases.1,
            lun: releases.0,
        };
        let length = pdu.data.as_ref().map_or(0, |data| data.length);
        let head = head.with_data_bytes(length);
        pdu.head[..HEAD_BYTES].copy_from_slice(&head.0);
        if self.head_digest {
            let digest = crc32c::crc32c(&head.0);
            pdu.head[HEAD_BYTES..].copy_from_slice(&digest.to_le_bytes());
            pdu.head_length += DIGEST_BYTES;
        }
        if let Some(data) = &pdu.data {
            pdu.tail_length = padding(length);
            if self.data_digest {
                let digest = crc32c::crc32c(&data.bytes[data.from..data.from + length]);
                let digest = crc32c::crc32c_append(digest, &[0; 3][..pdu.tail_length]);
                let end = pdu.tail_length + DIGEST_BYTES;
                pdu.tail[pdu.tail_length..end].copy_from_slice(&digest.to_le_bytes());
                pdu.tail_length = end;
            }
        }
        self.queue.push_back(pdu);
    }

    /// Adds a PDU with data of its own.
    pub fn push_own(&mut self, head: &Head, data: Vec<u8>) {
        let length = data.len();
        let data = Data { bytes: Arc::new(data), from: 0, length };
        self.push(head, Some(data), (0, 0));
    }

    /// The next bytes to send, as parts.
    pub fn parts<'a>(&'a self, into: &mut Vec<IoSlice<'a>>) {
        let mut skip = self.sent;
        for part in self.queue.iter().flat_map(Pdu::parts) {
            if into.len() == PARTS_MAX {
                break;
            }
            let gone = skip.min(part.len());
            skip -= gone;
            if gone < part.len() {
                into.push(IoSlice::new(&part[gone..]));
            }
        }
    }

    /// The first `bytes` of the parts were sent. `released` gets the unit number and the bytes of
    /// each command that ended with it, and `back` the buffers that nobody sends any more.
    pub fn sent(
        &mut self,
        bytes: usize,
        mut released: impl FnMut(u64, usize),
        mut back: impl FnMut(Vec<u8>),
    ) {
        self.sent += bytes;
        while let Some(first) = self.queue.front() {
            let length = first.length();
            if self.sent < length {
                return;
            }
            self.sent -= length;
            let first = self.queue.pop_front().expect("looked at");
            released(first.lun, first.releases);
            if let Some(data) = first.data
                && let Ok(buffer) = Arc::try_unwrap(data.bytes)
            {
                back(buffer);
            }
        }
        assert_eq!(self.sent, 0, "no more can be sent than there was");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pdu_is_padded_and_has_its_digests() {
        let mut output = Output::default();
        output.set_digests(true, true);
        output.push_own(&Head::new(0x20, 0x80, 1), b"abcde".to_vec());
        let mut parts = Vec::new();
        output.parts(&mut parts);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!(bytes.len(), 48 + 4 + 8 + 4);
        assert_eq!(bytes[52..60], *b"abcde\0\0\0");
        assert_eq!(bytes[60..], crc32c::crc32c(b"abcde\0\0\0").to_le_bytes());
        assert_eq!(bytes[48..52], crc32c::crc32c(&bytes[..48]).to_le_bytes());
    }

    #[test]
    fn bytes_that_were_sent_are_not_sent_again() {
        let mut output = Output::default();
        output.push_own(&Head::new(0x20, 0x80, 1), b"abcd".to_vec());
        output.push(&Head::new(0x21, 0x80, 2), None, (3, 7));
        let (mut released, mut back) = (Vec::new(), 0);
        for _ in 0..100 {
            output.sent(1, |lun, bytes| released.push((lun, bytes)), |_| back += 1);
            let mut parts = Vec::new();
            output.parts(&mut parts);
            if parts.is_empty() {
                break;
            }
        }
        assert!(output.is_empty());
        assert_eq!((released, back), (vec![(0, 0), (3, 7)], 1));
    }
}
