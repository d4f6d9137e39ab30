//! Atomics.

use std::ffi::c_int;

use weft_rdm::atomics::{Call as Atomic, Datatype, Operator};
use weft_rdm::{Begun, Memory, Remote};

use crate::domain::numbered;
use crate::ep::{Call, EpObject, started};
use crate::memory::Pieces;
use crate::pointers::{In, Object, Out, table};
use crate::state::Token;
use weft_libfabric::abi::{Ioc, MsgAtomic, errno, flag};

table!(ATOMIC: 13 = write, writev, writemsg, inject, readwrite, readwritev, readwritemsg,
    compwrite, compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid);

const INVALID: isize = -(errno::EINVAL as isize);

/// The three forms of atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Plain,
    Fetch,
    Compare,
}

/// The type and the operation with these numbers, if they are defined for the form.
pub fn valid(datatype: c_int, op: c_int, form: Form) -> Option<(Datatype, Operator)> {
    let (datatype, operator) = numbered(datatype, op)?;
    let is_of_form = match form {
        Form::Plain => !operator.compares() && operator != Operator::Read,
        Form::Fetch => !operator.compares(),
        Form::Compare => operator.compares(),
    };
    (is_of_form && operator.takes(datatype)).then_some((datatype, operator))
}

/// Bytes of the words of one atomic.
const BYTES_MAX: usize = 2048;

/// Words of one atomic at most.
pub const fn count(datatype: Datatype) -> usize {
    BYTES_MAX / datatype.bytes()
}

/// All of an atomic but how it is reported.
struct Order {
    to: u64,
    remote: Remote,
    datatype: c_int,
    op: c_int,
    operand: Option<Vectors>,
    compare: Option<Vectors>,
    result: Option<Vectors>,
    form: Form,
}

/// Words of the program: a piece or several.
enum Vectors {
    One(usize, usize),
    Many(In<Ioc>, usize),
}

impl Vectors {
    fn pieces(&self, bytes: usize) -> Option<Pieces> {
        match self {
            Self::One(address, count) => Some(Pieces::one(*address, count.checked_mul(bytes)?)),
            Self::Many(iov, count) => Pieces::of_words(iov.array(*count), bytes),
        }
    }
}

fn begin(ep: &EpObject, order: &Order, call: Option<Call>) -> isize {
    let Some((datatype, operator)) = valid(order.datatype, order.op, order.form) else {
        return -(errno::EOPNOTSUPP as isize);
    };
    let bytes = datatype.bytes();
    let pieces = |vectors: &Option<Vectors>| match vectors {
        Some(vectors) => vectors.pieces(bytes),
        None => Some(Pieces::EMPTY),
    };
    let all = (pieces(&order.operand), pieces(&order.compare), pieces(&order.result));
    let (Some(operand), Some(compare), Some(result)) = all else { return INVALID };
    let operand_length = if operator == Operator::Read { 0 } else { operand.length() };
    let words = if operator == Operator::Read { result.length() } else { operand.length() };
    if words > BYTES_MAX || (operator.compares() && compare.length() != words) {
        return INVALID;
    }
    if order.form != Form::Plain && result.length() != words {
        return INVALID;
    }
    let read = |pieces: &Pieces, length: usize| {
        let mut bytes = vec![0; length];
        pieces.read(0, &mut bytes).map(|()| bytes)
    };
    let compare_length = if operator.compares() { words } else { 0 };
    let values = (read(&operand, operand_length), read(&compare, compare_length));
    let (Ok(operand), Ok(compare)) = values else { return INVALID };
    let count = words / bytes;
    let atomic = Atomic { operator, datatype, count, operand: &operand, compare: &compare };
    let mut state = ep.domain.lock();
    let peer = match state.target(ep.number, order.to) {
        Ok(peer) => peer,
        Err(error) => return error,
    };
    let it = state.ep(ep.number);
    let token = match call {
        Some(call) => call.token(it.transmit_flags, it.transmit, result.address()).1,
        None => Token { context: 0, buffer: 0, entry: false, flags: 0 },
    };
    let (flags, result) = match order.form {
        Form::Plain => (flag::WRITE, None),
        Form::Fetch | Form::Compare => (flag::READ, Some(&result)),
    };
    let token = Token { flags, ..token };
    let begun = it.rdm.atomic(peer, (&atomic, order.remote), result, Some(token));
    started(ep, state, begun.map(|()| Begun::UnderWay))
}

type EpRef = Object<EpObject>;

/// An order of a call with a structure.
fn of_message(msg: &MsgAtomic, form: Form) -> Option<Order> {
    let [it] = In::from(msg.rma_iov).array(msg.rma_iov_count) else { return None };
    Some(Order {
        to: msg.address,
        remote: Remote { key: it.key, address: it.address },
        datatype: msg.datatype,
        op: msg.op,
        operand: Some(Vectors::Many(In::from(msg.iov), msg.iov_count)),
        compare: None,
        result: None,
        form,
    })
}

extern "C" fn write(
    ep: EpRef,
    buf: usize,
    count: usize,
    _: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::One(buf, count)));
    let (compare, result, form) = (None, None, Form::Plain);
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn writev(
    ep: EpRef,
    iov: In<Ioc>,
    _: usize,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::Many(iov, count)));
    let (compare, result, form) = (None, None, Form::Plain);
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn writemsg(ep: EpRef, msg: In<MsgAtomic>, flags: u64) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let Some(order) = of_message(msg, Form::Plain) else { return INVALID };
    begin(&ep, &order, Some(Call::with(msg.context.addr(), flags)))
}

extern "C" fn inject(
    ep: EpRef,
    buf: usize,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::One(buf, count)));
    let (compare, result, form) = (None, None, Form::Plain);
    begin(&ep, &Order { to, remote, datatype, op, operand, compare, result, form }, None)
}

extern "C" fn readwrite(
    ep: EpRef,
    buf: usize,
    count: usize,
    _: usize,
    result: usize,
    _: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::One(buf, count)));
    let (compare, result, form) = (None, Some(Vectors::One(result, count)), Form::Fetch);
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn readwritev(
    ep: EpRef,
    iov: In<Ioc>,
    _: usize,
    count: usize,
    results: In<Ioc>,
    _: usize,
    result_count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::Many(iov, count)));
    let (compare, form) = (None, Form::Fetch);
    let result = Some(Vectors::Many(results, result_count));
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn readwritemsg(
    ep: EpRef,
    msg: In<MsgAtomic>,
    results: In<Ioc>,
    _: usize,
    result_count: usize,
    flags: u64,
) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let Some(order) = of_message(msg, Form::Fetch) else { return INVALID };
    let result = Some(Vectors::Many(results, result_count));
    begin(&ep, &Order { result, ..order }, Some(Call::with(msg.context.addr(), flags)))
}

extern "C" fn compwrite(
    ep: EpRef,
    buf: usize,
    count: usize,
    _: usize,
    compare: usize,
    _: usize,
    result: usize,
    _: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::One(buf, count)));
    let (compare, result) = (Vectors::One(compare, count), Vectors::One(result, count));
    let (compare, result, form) = (Some(compare), Some(result), Form::Compare);
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn compwritev(
    ep: EpRef,
    iov: In<Ioc>,
    _: usize,
    count: usize,
    compares: In<Ioc>,
    _: usize,
    compare_count: usize,
    results: In<Ioc>,
    _: usize,
    result_count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: usize,
) -> isize {
    let (remote, operand) = (Remote { key, address }, Some(Vectors::Many(iov, count)));
    let compare = Some(Vectors::Many(compares, compare_count));
    let (result, form) = (Some(Vectors::Many(results, result_count)), Form::Compare);
    let order = Order { to, remote, datatype, op, operand, compare, result, form };
    begin(&ep, &order, Some(Call::plain(context)))
}

extern "C" fn compwritemsg(
    ep: EpRef,
    msg: In<MsgAtomic>,
    compares: In<Ioc>,
    _: usize,
    compare_count: usize,
    results: In<Ioc>,
    _: usize,
    result_count: usize,
    flags: u64,
) -> isize {
    let Some(msg) = msg.get() else { return INVALID };
    let Some(order) = of_message(msg, Form::Compare) else { return INVALID };
    let compare = Some(Vectors::Many(compares, compare_count));
    let result = Some(Vectors::Many(results, result_count));
    begin(&ep, &Order { compare, result, ..order }, Some(Call::with(msg.context.addr(), flags)))
}

fn is_valid(datatype: c_int, op: c_int, form: Form, most: Out<usize>) -> c_int {
    match valid(datatype, op, form) {
        Some((datatype, _)) => {
            most.set(count(datatype));
            0
        }
        None => -errno::EOPNOTSUPP,
    }
}

extern "C" fn writevalid(_: EpRef, datatype: c_int, op: c_int, most: Out<usize>) -> c_int {
    is_valid(datatype, op, Form::Plain, most)
}

extern "C" fn readwritevalid(_: EpRef, datatype: c_int, op: c_int, most: Out<usize>) -> c_int {
    is_valid(datatype, op, Form::Fetch, most)
}

extern "C" fn compwritevalid(_: EpRef, datatype: c_int, op: c_int, most: Out<usize>) -> c_int {
    is_valid(datatype, op, Form::Compare, most)
}
