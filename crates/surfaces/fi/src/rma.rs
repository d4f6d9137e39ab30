//! Reads and writes of memory of peers.

use weft_rdm::{Begun, How, Memory, Remote};

use crate::ep::{Call, EpObject, started};
use crate::memory::Pieces;
use crate::message::how;
use crate::pointers::{In, Object, table};
use crate::state::Token;
use weft_libfabric::abi::{MsgRma, errno, flag};

table!(RMA: 9 = read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata);

const INVALID: isize = -(errno::EINVAL as isize);

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write(Option<u64>),
}

fn begin(
    ep: &EpObject,
    address: u64,
    direction: Direction,
    (memory, remote): (Option<Pieces>, Remote),
    call: Call,
) -> isize {
    let Some(memory) = memory else { return INVALID };
    let mut state = ep.domain.lock();
    let peer = match state.target(ep.number, address) {
        Ok(peer) => peer,
        Err(error) => return error,
    };
    let it = state.ep(ep.number);
    let (flags, token) = call.token(it.transmit_flags, it.transmit, memory.address());
    let begun = match direction {
        Direction::Read => it.rdm.read(peer, (&memory, remote), Some(token)),
        Direction::Write(data) => {
            let data = match flags & flag::REMOTE_CQ_DATA {
                0 if call.flags.is_some() => None,
                _ => data,
            };
            if flags & flag::INJECT != 0 && memory.length() > crate::info::inline_bytes_max() {
                return INVALID;
            }
            it.rdm.write(peer, (&memory, remote), data, how(flags), Some(token))
        }
    };
    started(ep, state, begun.map(|()| Begun::UnderWay))
}

fn injected(
    ep: &EpObject,
    address: u64,
    data: Option<u64>,
    (memory, remote): (Pieces, Remote),
) -> isize {
    let mut state = ep.domain.lock();
    let peer = match state.target(ep.number, address) {
        Ok(peer) => peer,
        Err(error) => return error,
    };
    // It has a name so that it is counted, and no entry.
    let token = Token { context: 0, buffer: 0, entry: false, flags: 0 };
    let it = state.ep(ep.number);
    let begun = it.rdm.write(peer, (&memory, remote), data, How::Injected, Some(token));
    started(ep, state, begun.map(|()| Begun::UnderWay))
}

/// The place that a call with a structure names.
fn place(msg: &MsgRma) -> Option<(Option<Pieces>, Remote)> {
    let [it] = In::from(msg.rma_iov).array(msg.rma_iov_count) else { return None };
    let memory = Pieces::of(In::from(msg.iov).array(msg.iov_count));
    let fits = memory.as_ref().is_some_and(|memory| memory.length() == it.length);
    fits.then_some((memory, Remote { key: it.key, address: it.address }))
}

type EpRef = Object<EpObject>;
type Iov = In<libc::iovec>;

extern "C" fn read(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    from: u64,
    address: u64,
    key: u64,
    context: usize,
) -> isize {
    let places = (Some(Pieces::one(buf, len)), Remote { key, address });
    begin(&ep, from, Direction::Read, places, Call::plain(context))
}

extern "C" fn readv(
    ep: EpRef,
    iov: Iov,
    _: usize,
    count: usize,
    from: u64,
    address: u64,
    key: u64,
    context: usize,
) -> isize {
    let places = (Pieces::of(iov.array(count)), Remote { key, address });
    begin(&ep, from, Direction::Read, places, Call::plain(context))
}

extern "C" fn readmsg(ep: EpRef, msg: In<MsgRma>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let Some(places) = place(msg) else { return INVALID };
    begin(&ep, msg.address, Direction::Read, places, Call::with(msg.context.addr(), flags))
}

extern "C" fn write(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    to: u64,
    address: u64,
    key: u64,
    context: usize,
) -> isize {
    let places = (Some(Pieces::one(buf, len)), Remote { key, address });
    begin(&ep, to, Direction::Write(None), places, Call::plain(context))
}

extern "C" fn writev(
    ep: EpRef,
    iov: Iov,
    _: usize,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    context: usize,
) -> isize {
    let places = (Pieces::of(iov.array(count)), Remote { key, address });
    begin(&ep, to, Direction::Write(None), places, Call::plain(context))
}

extern "C" fn writemsg(ep: EpRef, msg: In<MsgRma>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let Some(places) = place(msg) else { return INVALID };
    let direction = Direction::Write(Some(msg.data));
    begin(&ep, msg.address, direction, places, Call::with(msg.context.addr(), flags))
}

extern "C" fn inject(ep: EpRef, buf: usize, len: usize, to: u64, address: u64, key: u64) -> isize {
    injected(&ep, to, None, (Pieces::one(buf, len), Remote { key, address }))
}

extern "C" fn writedata(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
    context: usize,
) -> isize {
    let places = (Some(Pieces::one(buf, len)), Remote { key, address });
    begin(&ep, to, Direction::Write(Some(data)), places, Call::plain(context))
}

extern "C" fn injectdata(
    ep: EpRef,
    buf: usize,
    len: usize,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
) -> isize {
    injected(&ep, to, Some(data), (Pieces::one(buf, len), Remote { key, address }))
}
