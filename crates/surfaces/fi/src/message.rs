//! Messages, without and with a tag.

use weft_rdm::{Begun, How, Label, Memory, Wanted};

use crate::ep::{Call, EpObject, started};
use crate::memory::Pieces;
use crate::pointers::{In, Object, table};
use crate::state::{Counted, Entry, Ep, State, Token};
use weft_libfabric::abi::{Msg, MsgTagged, errno, flag};

table!(MSG: 9 = recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata);
table!(TAGGED: 9 = trecv, trecvv, trecvmsg, tsend, tsendv, tsendmsg, tinject, tsenddata,
    tinjectdata);

const INVALID: isize = -(errno::EINVAL as isize);

/// When an operation is over, by its flags.
#[inline]
pub fn how(flags: u64) -> How {
    if flags & (flag::DELIVERY_COMPLETE | flag::MATCH_COMPLETE) != 0 {
        How::Delivered
    } else {
        How::Sent
    }
}

#[inline]
fn transmit(
    ep: &EpObject,
    address: u64,
    label: Label,
    memory: Option<Pieces>,
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
    if flags & flag::INJECT != 0 && memory.length() > crate::info::inline_bytes_max() {
        return INVALID;
    }
    let label = match flags & flag::REMOTE_CQ_DATA {
        0 if call.flags.is_some() => Label { data: None, ..label },
        _ => label,
    };
    let sent = it.rdm.send(peer, label, &memory, how(flags), Some(token));
    if sent == Ok(Begun::Over) {
        state.sent(ep.number, token, label.tag, memory.length());
    }
    started(ep, state, sent)
}

#[inline]
fn injected(ep: &EpObject, address: u64, label: Label, memory: Pieces) -> isize {
    let mut state = ep.domain.lock();
    let peer = match state.target(ep.number, address) {
        Ok(peer) => peer,
        Err(error) => return error,
    };
    let sent = state.ep(ep.number).rdm.send(peer, label, &memory, How::Injected, None);
    if sent.is_ok() {
        state.count(ep.number, Counted::Send);
    }
    started(ep, state, sent)
}

#[inline]
fn receive(
    ep: &EpObject,
    (address, tag): (u64, Option<(u64, u64)>),
    memory: Option<Pieces>,
    call: Call,
) -> isize {
    let Some(memory) = memory else { return INVALID };
    let mut state = ep.domain.lock();
    let from = match state.origin(ep.number, address) {
        Ok(from) => from,
        Err(error) => return error,
    };
    let it = state.ep(ep.number);
    let (flags, token) = call.token(it.receive_flags, it.receive, memory.address());
    let is_tagged = tag.is_some();
    let (tag, ignore) = tag.unwrap_or((0, 0));
    let wanted = Wanted { is_tagged, from, tag, ignore };
    let special = flag::PEEK | flag::CLAIM | flag::DISCARD;
    if call.flags.is_some() && flags & special != 0 {
        found(it, &wanted, memory, flags, token);
    } else if flags & flag::MULTI_RECV != 0 && !wanted.is_tagged {
        let token = Token { flags: flag::MULTI_RECV, ..token };
        it.rdm.receive(&wanted, memory, Some(it.least_multi), token);
    } else {
        it.rdm.receive(&wanted, memory, None, token);
    }
    started(ep, state, Ok(Begun::UnderWay))
}

/// Looks for a message, claims it, receives what was claimed, or drops it.
fn found(it: &mut Ep, wanted: &Wanted, memory: Pieces, flags: u64, token: Token) {
    let is = |bit: u64| flags & bit != 0;
    if is(flag::PEEK) {
        // The answer makes an entry, and a program that reads it makes no further progress by that.
        it.rdm.poll();
        let claims = is(flag::CLAIM) || is(flag::DISCARD);
        if let Some(found) = it.rdm.peek(wanted, claims, token) {
            if is(flag::DISCARD) {
                it.rdm.forget(found);
            } else {
                it.claims.insert(token.context, found);
            }
        }
        return;
    }
    let Some(found) = it.claims.remove(&token.context) else {
        // Nothing was claimed by this context: the same answer as for nothing found.
        it.rdm.report_nothing(wanted, token);
        return;
    };
    if is(flag::DISCARD) {
        it.rdm.discard(found, token);
    } else {
        it.rdm.receive_found(found, memory, token);
    }
}

impl State {
    /// Counts and reports a send that was over at once.
    #[inline]
    fn sent(&mut self, ep: usize, token: Token, tag: Option<u64>, length: usize) {
        self.count(ep, Counted::Send);
        if token.entry
            && let Some(bound) = self.ep(ep).transmit
        {
            self.cq(bound.cq).entries.push_back(Entry::of_send(token, tag, length));
        }
    }

    /// Counts an operation that makes no outcome.
    #[inline]
    pub fn count(&mut self, ep: usize, counted: Counted) {
        if let Some(counter) = self.ep(ep).counters[counted as usize] {
            self.counter(counter).value += 1;
        }
    }
}

const fn untagged(data: Option<u64>) -> Label {
    Label { tag: None, data }
}

const fn tagged(tag: u64, data: Option<u64>) -> Label {
    Label { tag: Some(tag), data }
}

type EpRef = Object<EpObject>;
type Iov = In<libc::iovec>;

extern "C" fn recv(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    from: u64,
    context: usize,
) -> isize {
    receive(&ep, (from, None), Some(Pieces::one(buf, len)), Call::plain(context))
}

extern "C" fn recvv(
    ep: EpRef,
    iov: Iov,
    _: usize,
    count: usize,
    from: u64,
    context: usize,
) -> isize {
    receive(&ep, (from, None), Pieces::of(iov.array(count)), Call::plain(context))
}

extern "C" fn recvmsg(ep: EpRef, msg: In<Msg>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let memory = Pieces::of(In::from(msg.iov).array(msg.iov_count));
    receive(&ep, (msg.address, None), memory, Call::with(msg.context.addr(), flags))
}

extern "C" fn send(ep: EpRef, buf: usize, len: usize, _: usize, to: u64, context: usize) -> isize {
    transmit(&ep, to, untagged(None), Some(Pieces::one(buf, len)), Call::plain(context))
}

extern "C" fn sendv(ep: EpRef, iov: Iov, _: usize, count: usize, to: u64, context: usize) -> isize {
    transmit(&ep, to, untagged(None), Pieces::of(iov.array(count)), Call::plain(context))
}

extern "C" fn sendmsg(ep: EpRef, msg: In<Msg>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let memory = Pieces::of(In::from(msg.iov).array(msg.iov_count));
    transmit(
        &ep,
        msg.address,
        untagged(Some(msg.data)),
        memory,
        Call::with(msg.context.addr(), flags),
    )
}

extern "C" fn inject(ep: EpRef, buf: usize, len: usize, to: u64) -> isize {
    injected(&ep, to, untagged(None), Pieces::one(buf, len))
}

extern "C" fn senddata(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    data: u64,
    to: u64,
    context: usize,
) -> isize {
    transmit(&ep, to, untagged(Some(data)), Some(Pieces::one(buf, len)), Call::plain(context))
}

extern "C" fn injectdata(ep: EpRef, buf: usize, len: usize, data: u64, to: u64) -> isize {
    injected(&ep, to, untagged(Some(data)), Pieces::one(buf, len))
}

extern "C" fn trecv(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    let memory = Some(Pieces::one(buf, len));
    receive(&ep, (from, Some((tag, ignore))), memory, Call::plain(context))
}

extern "C" fn trecvv(
    ep: EpRef,
    iov: Iov,
    _: usize,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    let memory = Pieces::of(iov.array(count));
    receive(&ep, (from, Some((tag, ignore))), memory, Call::plain(context))
}

extern "C" fn trecvmsg(ep: EpRef, msg: In<MsgTagged>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let memory = Pieces::of(In::from(msg.iov).array(msg.iov_count));
    let tag = Some((msg.tag, msg.ignore));
    receive(&ep, (msg.address, tag), memory, Call::with(msg.context.addr(), flags))
}

extern "C" fn tsend(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    to: u64,
    tag: u64,
    context: usize,
) -> isize {
    transmit(&ep, to, tagged(tag, None), Some(Pieces::one(buf, len)), Call::plain(context))
}

extern "C" fn tsendv(
    ep: EpRef,
    iov: Iov,
    _: usize,
    count: usize,
    to: u64,
    tag: u64,
    context: usize,
) -> isize {
    transmit(&ep, to, tagged(tag, None), Pieces::of(iov.array(count)), Call::plain(context))
}

extern "C" fn tsendmsg(ep: EpRef, msg: In<MsgTagged>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let memory = Pieces::of(In::from(msg.iov).array(msg.iov_count));
    let label = tagged(msg.tag, Some(msg.data));
    transmit(&ep, msg.address, label, memory, Call::with(msg.context.addr(), flags))
}

extern "C" fn tinject(ep: EpRef, buf: usize, len: usize, to: u64, tag: u64) -> isize {
    injected(&ep, to, tagged(tag, None), Pieces::one(buf, len))
}

extern "C" fn tsenddata(
    ep: EpRef,
    buf: usize,
    len: usize,
    _: usize,
    data: u64,
    to: u64,
    tag: u64,
    context: usize,
) -> isize {
    let memory = Some(Pieces::one(buf, len));
    transmit(&ep, to, tagged(tag, Some(data)), memory, Call::plain(context))
}

extern "C" fn tinjectdata(
    ep: EpRef,
    buf: usize,
    len: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    injected(&ep, to, tagged(tag, Some(data)), Pieces::one(buf, len))
}
