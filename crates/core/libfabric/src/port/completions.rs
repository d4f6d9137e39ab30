//! Completions: buffers for receiving go to the provider, and its reports come back.

use super::{InUse, Port, Report};
use crate::abi::{self, CqEntry, CqError, Padded, refusal};
use crate::error::Error;
use crate::slots::SlotIndex;

/// Completions that are read by one call.
const BATCH: usize = 32;

impl Port {
    /// Posts a buffer for receiving. It takes one message: a long one of a hostile peer fills no
    /// more than that.
    pub(super) fn post(&mut self, place: SlotIndex, buffer: usize) -> Result<(), Error> {
        let ep = self.objects.ep.as_ptr();
        // SAFETY: a live endpoint. Nobody but the provider uses the buffer until it gives it back.
        let code = unsafe {
            ((*(*ep).msg).recv)(
                ep,
                self.buffers.start(buffer * self.buffers.bytes).cast(),
                self.buffers.bytes,
                self.buffers.descriptor(),
                abi::ADDRESS_UNSPECIFIED,
                self.slots.context(place),
            )
        };
        match code {
            0.. => {}
            // Its table is full until more of what it told is read (libfabric's shm).
            refusal::EAGAIN | refusal::ENOMEM => self.unposted.push((place, buffer)),
            code => return Err(self.offer.library().error("fi_recv", code as i64)),
        }
        Ok(())
    }

    /// Posts the buffers that were kept back.
    fn post_all(&mut self) -> Result<(), Error> {
        if self.unposted.is_empty() {
            return Ok(());
        }
        let mut unposted = std::mem::take(&mut self.unposted);
        for (place, buffer) in unposted.drain(..) {
            self.post(place, buffer)?;
        }
        // Nearly always all were posted, and the list is used again.
        if self.unposted.is_empty() {
            self.unposted = unposted;
        }
        Ok(())
    }

    /// Makes progress, and tells of what happened: up to `budget` completions. Returns their
    /// number.
    ///
    /// # Errors
    /// [`Error::Call`]: the queue or a buffer for receiving is lost, and so is the port. So it is
    /// when `sink` panics: the provider told of more than was handed out.
    pub fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Report<'_>),
    ) -> Result<usize, Error> {
        if self.unposted.len() > self.buffers.spare {
            self.post_all()?;
        }
        // Clearing room for them would cost each look.
        let mut entries = std::mem::take(&mut self.read);
        entries.resize(BATCH, CqEntry::NOTHING);
        let mut told = 0;
        while told < budget {
            let cq = self.objects.cq.as_ptr();
            let room = BATCH.min(budget - told);
            // SAFETY: a live queue of the format of the entries, of which there is room for `room`.
            let code = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), room) };
            match code {
                refusal::EAGAIN | 0 => break,
                refusal::EAVAIL => {
                    told += 1;
                    self.take_error(sink)?;
                }
                code if code < 0 => {
                    return Err(self.offer.library().error("fi_cq_read", code as i64));
                }
                count => {
                    let count = usize::try_from(count).unwrap_or(0).min(room);
                    told += count;
                    for entry in &entries[..count] {
                        self.take(entry, sink)?;
                    }
                    // Another look costs providers in software a system call.
                    if count < room {
                        break;
                    }
                }
            }
        }
        self.read = entries;
        if told == 0 {
            self.post_all()?;
            self.graveyard.look(1);
        }
        Ok(told)
    }

    fn take(&mut self, entry: &CqEntry, sink: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let Some(place) = self.slots.place_of(entry.context) else { return Ok(()) };
        match self.slots.get(place) {
            Some(InUse::Receive(buffer)) => {
                let buffer = *buffer;
                // No longer than the buffer, or the provider tells an error.
                let length = entry.length.min(self.buffers.bytes);
                let message = &mut self.message[..length];
                self.buffers.memory.segment().read(buffer * self.buffers.bytes, message);
                // An answer to the message goes first.
                if self.unposted.len() < self.buffers.spare {
                    self.unposted.push((place, buffer));
                } else {
                    self.post(place, buffer)?;
                }
                sink(Report::Message(&self.message[..length]));
            }
            Some(InUse::Send { .. } | InUse::Access { .. }) => match self.slots.take(place) {
                Some(InUse::Send { buffer, known, .. }) => {
                    self.free_sends.push(buffer);
                    self.let_go(known);
                }
                Some(InUse::Access { token, known, .. }) => {
                    self.let_go(known);
                    sink(Report::Done { token });
                }
                Some(InUse::Receive(_)) | None => {}
            },
            None => {}
        }
        Ok(())
    }

    /// Takes the error at the head of the queue.
    fn take_error(&mut self, sink: &mut dyn FnMut(Report<'_>)) -> Result<(), Error> {
        let library = self.offer.library();
        let mut failed = Padded::new(CqError {
            context: std::ptr::null_mut(),
            flags: 0,
            length: 0,
            buffer: std::ptr::null_mut(),
            data: 0,
            tag: 0,
            surplus: 0,
            error: 0,
            provider_error: 0,
            error_data: std::ptr::null_mut(),
            error_data_size: 0,
        });
        let cq = self.objects.cq.as_ptr();
        // SAFETY: a live queue.
        let code = unsafe { ((*(*cq).ops).readerr)(cq, &raw mut failed.known, 0) };
        let failed = failed.known;
        if code < 0 {
            return if code == refusal::EAGAIN {
                Ok(())
            } else {
                Err(library.error("fi_cq_readerr", code as i64))
            };
        }
        let error = library.error("completion", -i64::from(failed.error));
        let Some(place) = self.slots.place_of(failed.context) else {
            sink(Report::Stray { error });
            return Ok(());
        };
        match self.slots.get(place) {
            Some(InUse::Receive(buffer)) => {
                let buffer = *buffer;
                self.post(place, buffer)?;
                sink(Report::Unfit { error });
            }
            Some(InUse::Send { .. } | InUse::Access { .. }) => match self.slots.take(place) {
                Some(InUse::Send { buffer, to, known }) => {
                    self.free_sends.push(buffer);
                    self.let_go(known);
                    sink(Report::SendFailed { to, error });
                }
                Some(InUse::Access { token, known, .. }) => {
                    self.let_go(known);
                    sink(Report::Failed { token, error });
                }
                Some(InUse::Receive(_)) | None => {}
            },
            None => {}
        }
        Ok(())
    }
}
