//! The kernel's own calls, for bytes that go over TCP.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Attempt;
use crate::sys;

/// How many parts of a vector one call of the kernel gets.
const PARTS_MAX: usize = 64;

pub(super) fn receive_tcp(
    fd: RawFd,
    targets: &mut [&mut [u8]],
    skip: usize,
    limit: usize,
    peek: bool,
) -> Attempt {
    let mut flags = RecvFlags::DONTWAIT;
    flags.set(RecvFlags::PEEK, peek);
    if let [target] = targets {
        // The kernel is quicker with one part than with a vector of one.
        let begin = skip.min(target.len());
        let end = target.len().min(begin.saturating_add(limit));
        if begin == end {
            return Attempt::WouldBlock;
        }
        let received = rustix::net::recv(sys::borrow(fd), &mut target[begin..end], flags);
        return received_tcp(received.map(|(bytes, _)| bytes));
    }
    let (mut before, mut room) = (skip, limit);
    let mut parts: Vec<IoSliceMut<'_>> = Vec::with_capacity(targets.len().min(PARTS_MAX));
    for target in targets.iter_mut() {
        let begin = before.min(target.len());
        before -= begin;
        let end = target.len().min(begin.saturating_add(room));
        room -= end - begin;
        if begin < end && parts.len() < PARTS_MAX {
            parts.push(IoSliceMut::new(&mut target[begin..end]));
        }
    }
    if parts.is_empty() {
        return Attempt::WouldBlock;
    }
    let mut beside = rustix::net::RecvAncillaryBuffer::new(&mut []);
    let received = rustix::net::recvmsg(sys::borrow(fd), &mut parts, &mut beside, flags);
    received_tcp(received.map(|received| received.bytes))
}

/// Receives bytes, and waits as the program's own call does.
pub(super) fn wait_and_receive(fd: RawFd, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
    let flags = RecvFlags::empty();
    if let [target] = targets {
        return rustix::net::recv(sys::borrow(fd), &mut target[..], flags).map(|(bytes, _)| bytes);
    }
    let parts = targets.iter_mut().take(PARTS_MAX);
    let mut parts: Vec<IoSliceMut<'_>> = parts.map(|target| IoSliceMut::new(target)).collect();
    let mut beside = rustix::net::RecvAncillaryBuffer::new(&mut []);
    let received = rustix::net::recvmsg(sys::borrow(fd), &mut parts, &mut beside, flags)?;
    Ok(received.bytes)
}

fn received_tcp(result: Result<usize, Errno>) -> Attempt {
    match result {
        Ok(0) => Attempt::End,
        Ok(bytes) => Attempt::Moved(bytes),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        Err(errno) => Attempt::Failed(errno),
    }
}

pub(super) fn send_tcp(fd: RawFd, parts: &[&[u8]]) -> Attempt {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = if let [part] = parts {
        rustix::net::send(sys::borrow(fd), part, flags)
    } else {
        let slices: Vec<_> = parts.iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect();
        let mut beside = rustix::net::SendAncillaryBuffer::new(&mut []);
        rustix::net::sendmsg(sys::borrow(fd), &slices, &mut beside, flags)
    };
    match sent {
        Ok(bytes) => Attempt::Moved(bytes),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        Err(errno) => Attempt::Failed(errno),
    }
}
