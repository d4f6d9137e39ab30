//! Connections that an initiator made of bytes drives, friendly and not.

use std::time::Duration;

use super::pdu::{Head, NO_TAG, padding};
use super::*;
use crate::fuzz::{connection, login as login_bytes, pdu as bytes_of};
use crate::scsi::Outcome;

const NAME: &str = "iqn.2026-11.example:test";

/// Gives bytes to a connection, and returns the PDUs that it sends.
fn exchange(connection: &mut Connection, bytes: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let out = crate::fuzz::exchange(connection, bytes);
    let mut pdus = Vec::new();
    let mut rest = &out[..];
    while let Some(head) = rest.first_chunk::<48>() {
        let head = Head(*head);
        let length = head.data_bytes();
        pdus.push((head, rest[48..48 + length].to_vec()));
        rest = &rest[48 + length + padding(length)..];
    }
    assert!(rest.is_empty(), "whole PDUs are sent");
    pdus
}

fn logged_in() -> Connection {
    let mut connection = connection(Vec::new());
    let answer = exchange(&mut connection, &login_bytes("InitialR2T=No\0"));
    assert_eq!((answer[0].0.0[0], answer[0].0.0[36]), (0x23, 0), "{:?}", answer[0].0);
    assert!(connection.is_logged_in());
    let attention = exchange(&mut connection, &command(0x81, 10, 2, 0, &[0]));
    assert_eq!(attention[0].0.0[3], 2, "a unit attention");
    connection
}

/// A SCSI command PDU without data.
fn command(flags: u8, number: u32, tag: u32, length: u32, cdb: &[u8]) -> Vec<u8> {
    bytes_of(&command_head(flags, number, tag, length, cdb), &[])
}

fn command_head(flags: u8, number: u32, tag: u32, length: u32, cdb: &[u8]) -> Head {
    let mut head = Head::new(0x01, flags, tag).with(20, length).with(24, number);
    head.0[32..32 + cdb.len()].copy_from_slice(cdb);
    head
}

const WRITE_4: [u8; 10] = [0x2a, 0, 0, 0, 0, 8, 0, 0, 4, 0];
const READ_4: [u8; 10] = [0x28, 0, 0, 0, 0, 8, 0, 0, 4, 0];

#[test]
fn data_come_with_the_command_unasked_and_when_asked_for() {
    let mut connection = logged_in();
    // 512 bytes with the command, 512 unasked, 1024 after an R2T.
    let head = command_head(0x21, 11, 3, 2048, &WRITE_4);
    let mut bytes = bytes_of(&head, &[1; 512]);
    let unasked = Head::new(0x05, 0x80, 3).with(20, NO_TAG).with(40, 512);
    bytes.extend(bytes_of(&unasked, &[2; 512]));
    let asked = exchange(&mut connection, &bytes);
    assert_eq!(asked.len(), 1);
    let r2t = asked[0].0;
    assert_eq!((r2t.0[0], r2t.word(40), r2t.word(44)), (0x31, 1024, 1024));
    let data = Head::new(0x05, 0x80, 3).with(20, r2t.word(20)).with(40, 1024);
    let answer = exchange(&mut connection, &bytes_of(&data, &[3; 1024]));
    assert_eq!((answer[0].0.0[0], answer[0].0.0[3]), (0x21, 0));
    let read = exchange(&mut connection, &command(0xc1, 12, 4, 2048, &READ_4));
    assert_eq!(read[0].1, [vec![1; 512], vec![2; 512], vec![3; 1024]].concat());
    assert_eq!(read[0].0.0[1] & 0x81, 0x81, "the status rides with the data");
}

#[test]
fn digests_are_checked_and_a_wrong_one_fails_the_command_or_the_connection() {
    let mut connection = connection(Vec::new());
    exchange(&mut connection, &login_bytes("HeaderDigest=CRC32C\0DataDigest=CRC32C\0"));
    let digested = |head: &Head, data: &[u8], spoil: bool| {
        let head = head.with_data_bytes(data.len());
        let mut bytes = head.0.to_vec();
        bytes.extend(crc32c::crc32c(&head.0).to_le_bytes());
        if !data.is_empty() {
            bytes.extend(data);
            let digest = crc32c::crc32c(data) ^ u32::from(spoil);
            bytes.extend(digest.to_le_bytes());
        }
        bytes
    };
    let send = |connection: &mut Connection, bytes: &[u8]| {
        let (_, second) = connection.space();
        second[..bytes.len()].copy_from_slice(bytes);
        connection.filled(bytes.len(), Duration::ZERO);
        let mut runs = 0;
        while let Some(event) = connection.poll_event() {
            if let Event::Run { ticket, job, data, mut into } = event {
                runs += 1;
                let outcome = job.run(&data, &mut into, &crate::scsi::NoUnits);
                assert!(matches!(outcome, Outcome::Done(_)));
                connection.finished(ticket, outcome, into, data);
            }
        }
        runs
    };
    send(&mut connection, &digested(&command_head(0x81, 10, 2, 0, &[0]), &[], false));
    let write = command_head(0xa1, 11, 3, 2048, &WRITE_4);
    assert_eq!(send(&mut connection, &digested(&write, &[7; 2048], true)), 0);
    let write = command_head(0xa1, 12, 3, 2048, &WRITE_4);
    assert_eq!(send(&mut connection, &digested(&write, &[7; 2048], false)), 1);
    let mut bytes = digested(&command_head(0x81, 13, 4, 0, &[0]), &[], false);
    bytes[50] ^= 1;
    send(&mut connection, &bytes);
    assert!(!connection.wants_input(), "no later header can be found");
}

#[test]
fn nobody_gets_on_without_the_secret() {
    let known =
        vec![Credentials { user: "host".into(), secret: "a long secret".into(), target: None }];
    let mut open = connection(known.clone());
    let answer = exchange(&mut open, &login_bytes(""));
    assert_eq!(answer[0].0.0[36..38], [2, 1]);
    assert!(!open.wants_input() && open.is_over());
    // With security, but with the wrong method.
    let keys = format!("InitiatorName=iqn.i\0TargetName={NAME}\0AuthMethod=None\0");
    let mut open = connection(known.clone());
    let head = Head::new(0x43, 0x81, 1).with(24, 10);
    assert_eq!(exchange(&mut open, &bytes_of(&head, keys.as_bytes()))[0].0.0[36..38], [2, 1]);
    // A transit to full feature phase in the middle of the exchange is not followed.
    let mut open = connection(known);
    let keys = format!("InitiatorName=iqn.i\0TargetName={NAME}\0AuthMethod=CHAP\0");
    let head = Head::new(0x43, 0x83, 1).with(24, 10);
    let answer = exchange(&mut open, &bytes_of(&head, keys.as_bytes()));
    assert_eq!((answer[0].0.0[36], answer[0].0.0[1] & 0x80), (0, 0));
    let next = bytes_of(&head, b"CHAP_A=5\0");
    assert_eq!(exchange(&mut open, &next)[0].0.0[1] & 0x80, 0);
    assert!(!open.is_logged_in());
}

#[test]
fn hostile_data_are_refused_and_the_next_command_works() {
    // Offsets and tags of others, too much data, a number out of order.
    for (flag, transfer, number, offset, length) in [
        (0x80, 77, 0, 0, 512),
        (0x80, NO_TAG, 0, 4096, 512),
        (0x80, NO_TAG, 5, 512, 512),
        (0x80, NO_TAG, 0, u32::MAX, 4),
        (0x80, NO_TAG, 0, 512, 8192),
    ] {
        let mut connection = logged_in();
        let mut bytes = bytes_of(&command_head(0x21, 11, 3, 2048, &WRITE_4), &[1; 512]);
        let data = Head::new(0x05, flag, 3).with(20, transfer).with(36, number).with(40, offset);
        bytes.extend(bytes_of(&data, &vec![2; length]));
        let answer = exchange(&mut connection, &bytes);
        assert!(answer.iter().all(|(head, _)| head.0[3] != 0 || head.0[0] != 0x21));
        let answer = exchange(&mut connection, &command(0x81, 12, 9, 0, &[0]));
        assert!(answer.iter().any(|(head, _)| head.tag() == 9 && head.0[3] == 0));
    }
}

#[test]
fn numbers_far_off_are_passed_over() {
    let mut connection = logged_in();
    for number in [10, 12, 11 + WINDOW, 11_u32.wrapping_sub(1 << 31)] {
        let answer = exchange(&mut connection, &command(0x81, number, 5, 0, &[0]));
        assert!(answer.is_empty(), "{number}");
    }
    assert_eq!(exchange(&mut connection, &command(0x81, 11, 5, 0, &[0])).len(), 1);
}

#[test]
fn a_task_that_is_aborted_is_not_answered() {
    let mut connection = logged_in();
    let asked = exchange(&mut connection, &command(0xa1, 11, 3, 2048, &WRITE_4));
    assert_eq!(asked[0].0.0[0], 0x31, "it is asked for its data");
    let abort = Head::new(0x42, 0x81, 4).with(20, 3).with(24, 12);
    let answer = exchange(&mut connection, &bytes_of(&abort, &[]));
    assert_eq!((answer[0].0.0[0], answer[0].0.0[2]), (0x22, 0));
    let again = exchange(&mut connection, &bytes_of(&abort, &[]));
    assert_eq!(again[0].0.0[2], 1, "there is no such task any more");
    let data = Head::new(0x05, 0x80, 3).with(20, asked[0].0.word(20));
    assert!(exchange(&mut connection, &bytes_of(&data, &[3; 2048])).is_empty());
}

#[test]
fn a_silent_initiator_is_asked_and_then_left() {
    let mut silent = connection(Vec::new());
    assert!(!silent.handle_timeout(silent.poll_timeout()), "no login");
    let mut connection = logged_in();
    assert!(connection.handle_timeout(Duration::from_secs(1)));
    let at = connection.poll_timeout();
    assert!(connection.handle_timeout(at));
    let mut parts = Vec::new();
    connection.parts(&mut parts);
    assert_eq!(parts[0][0], 0x20, "a ping");
    drop(parts);
    assert!(!connection.handle_timeout(connection.poll_timeout()));
}

#[test]
fn heads_that_announce_too_much_end_the_connection() {
    let mut connection = logged_in();
    let head = command_head(0xa1, 11, 3, 2048, &WRITE_4).with_data_bytes((1 << 24) - 1);
    exchange(&mut connection, &head.0);
    assert!(connection.is_over());
    let mut fresh = crate::fuzz::connection(Vec::new());
    exchange(&mut fresh, &Head::new(0x43, 0x87, 1).with_data_bytes(8193).0);
    assert!(fresh.is_over());
    // Text that never ends is not collected without a bound.
    let mut fresh = crate::fuzz::connection(Vec::new());
    let part = bytes_of(&Head::new(0x43, 0x44, 1), &[b'a'; 8192]);
    for _ in 0..3 {
        exchange(&mut fresh, &part);
    }
    assert!(fresh.is_over());
}
