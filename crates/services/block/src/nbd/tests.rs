//! Connections that a client made of bytes drives, friendly and not.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::fuzz::{Bytes, One, exchange_nbd as exchange, unit_over};

fn server(requires_tls: bool) -> Server {
    let exports = Arc::new(One(unit_over(Bytes::new(64 * 512))));
    let mut server = Server::new(&Start { exports, requires_tls, now: Duration::ZERO });
    let greeting = exchange(&mut server, &[]);
    assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
    server
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(77_u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

const GO: [u8; 6] = [0, 0, 0, 0, 0, 0];

fn in_transmission(is_structured: bool) -> Server {
    let mut server = server(false);
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    if is_structured {
        bytes.extend(option(8, &[]));
        let query = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
        bytes.extend(option(10, &query));
    }
    bytes.extend(option(7, &GO));
    exchange(&mut server, &bytes);
    assert!(server.is_in_use());
    server
}

#[test]
fn bytes_are_read_as_they_were_written_at_any_offset() {
    let mut server = in_transmission(false);
    let mut bytes = request(1, 1, 1000, 5);
    bytes.extend(b"hello");
    let answer = exchange(&mut server, &bytes);
    assert_eq!(answer[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    let answer = exchange(&mut server, &request(0, 0, 999, 7));
    assert_eq!(answer[16..], *b"\0hello\0");
    let zeroed = exchange(&mut server, &request(6, 0, 1001, 3));
    assert_eq!(zeroed.len(), 16);
    assert_eq!(exchange(&mut server, &request(0, 0, 1000, 5))[16..], *b"h\0\0\0o");
}

#[test]
fn structured_replies_carry_data_status_and_errors() {
    let mut server = in_transmission(true);
    let answer = exchange(&mut server, &request(0, 0, 0, 8));
    assert_eq!(answer[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
    assert_eq!(answer.len(), 20 + 8 + 8);
    let status = exchange(&mut server, &request(7, 8, 0, 4096));
    assert_eq!(status[6..8], [0, 5]);
    assert_eq!(status[20..], [0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 0]);
    let error = exchange(&mut server, &request(0, 0, 64 * 512, 1));
    assert_eq!(error[6..8], [0x80, 1]);
    assert_eq!(error[20..24], [0, 0, 0, 22]);
}

#[test]
fn wrong_ranges_flags_and_requests_are_errors_and_the_connection_goes_on() {
    let mut server = in_transmission(false);
    let error = |server: &mut Server, bytes: &[u8]| exchange(server, bytes)[4..8].to_vec();
    let mut beyond = request(1, 0, 64 * 512 - 1, 2);
    beyond.extend([0, 0]);
    assert_eq!(error(&mut server, &beyond), [0, 0, 0, 28]);
    assert_eq!(error(&mut server, &request(0, 0, u64::MAX, 2)), [0, 0, 0, 22]);
    assert_eq!(error(&mut server, &request(0, 0x8000, 0, 2)), [0, 0, 0, 22]);
    assert_eq!(error(&mut server, &request(99, 0, 0, 0)), [0, 0, 0, 22]);
    assert_eq!(error(&mut server, &request(7, 0, 0, 512)), [0, 0, 0, 22], "not agreed on");
    assert_eq!(error(&mut server, &request(3, 0, 0, 0)), [0, 0, 0, 0]);
    exchange(&mut server, &request(2, 0, 0, 0));
    assert!(server.is_over());
}

#[test]
fn a_name_that_is_not_there_is_told_from_one_that_is() {
    let mut server = server(false);
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend(option(7, &[0, 0, 0, 1, b'9', 0, 0]));
    assert_eq!(exchange(&mut server, &bytes)[12..16], 0x8000_0006_u32.to_be_bytes());
    bytes = option(3, &[]);
    let list = exchange(&mut server, &bytes);
    assert_eq!(list[20..25], [0, 0, 0, 1, b'0']);
    assert_eq!(exchange(&mut server, &option(4242, b"x"))[12..16], 0x8000_0001_u32.to_be_bytes());
    assert!(server.wants_input() && !server.is_in_use());
    exchange(&mut server, &option(1, b"nothing"));
    assert!(server.is_over(), "an old request for a name can only be refused so");
}

#[test]
fn with_tls_nothing_is_told_before_it() {
    let mut server = server(true);
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend(option(3, &[]));
    assert_eq!(exchange(&mut server, &bytes)[12..16], 0x8000_0005_u32.to_be_bytes());
    assert_eq!(exchange(&mut server, &option(7, &GO))[12..16], 0x8000_0005_u32.to_be_bytes());
    assert_eq!(exchange(&mut server, &option(5, &[]))[12..16], 1_u32.to_be_bytes());
    exchange(&mut server, &option(7, &GO));
    assert!(server.is_in_use());
}

#[test]
fn a_client_that_sends_too_much_or_no_request_is_left() {
    for bytes in [request(1, 0, 0, REQUEST_BYTES_MAX + 1), vec![0; 28]] {
        let mut server = in_transmission(false);
        exchange(&mut server, &bytes);
        assert!(server.is_over());
    }
    let mut server = server(false);
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT\0\0\0\x07\x7f\xff\xff\xff");
    exchange(&mut server, &bytes);
    assert!(server.is_over());
    let late = self::server(false);
    assert!(late.is_late(Duration::from_secs(60)) && !late.is_late(Duration::from_secs(1)));
}
