//! A command of a session, while its data are collected and its work runs.

use std::sync::Arc;

use super::pdu::NO_TAG;
use crate::scsi::{Job, Reply, Sense, Unit};

/// How far a command is.
#[derive(Debug)]
pub enum Phase {
    /// Data that come without being asked for are awaited.
    Unsolicited,
    /// It waits until the connection may hold its data.
    Waiting,
    /// Data that were asked for, up to an offset, are awaited.
    Solicited {
        /// The tag of the transfer.
        transfer: u32,
        /// The end of the range that was asked for.
        until: usize,
    },
    /// The work runs.
    Running,
}

/// The step after all data are there.
#[derive(Debug)]
pub enum Plan {
    /// Work on the store.
    Job(Job),
    /// An answer that is known already: the data are thrown away.
    Reply(Reply, Option<Arc<Unit>>),
}

/// A command.
#[derive(Debug)]
pub struct Task {
    /// Distinguishes it from others that had the same tag.
    pub serial: u64,
    /// The unit number.
    pub lun: u64,
    /// The step.
    pub plan: Plan,
    /// How far it is.
    pub phase: Phase,
    /// Its data, maybe with room behind them.
    pub buffer: Vec<u8>,
    /// Bytes of data that are there.
    pub received: usize,
    /// Bytes of data that are collected.
    pub expected: usize,
    /// Bytes that the initiator would send or take.
    pub transfer_length: u32,
    /// Whether the initiator takes data.
    pub is_read: bool,
    /// The number that the next data PDU of the sequence has.
    pub data_number: u32,
    /// R2Ts that were sent.
    pub asked: u32,
    /// Bytes that count as held by the connection.
    pub held: usize,
    /// An error in its data: it fails when they have ended.
    pub broken: Option<Sense>,
}

impl Task {
    /// Takes the head of a data PDU into account. False when its data cannot be used.
    pub fn check_data(&mut self, transfer: u32, number: u32, offset: usize, length: usize) -> bool {
        let until = match self.phase {
            Phase::Unsolicited if transfer == NO_TAG => self.expected,
            Phase::Solicited { transfer: own, until } if transfer == own => until,
            _ => return false,
        };
        let fits = offset == self.received && length <= until - self.received;
        let is_next = number == self.data_number;
        self.data_number = self.data_number.wrapping_add(1);
        if !fits || !is_next {
            self.broken = Some(Sense::DATA_PHASE);
        }
        fits && is_next
    }

    /// The buffer with room for `length` bytes.
    pub fn take_buffer(&mut self, length: usize) -> Vec<u8> {
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        std::mem::take(&mut self.buffer)
    }
}
