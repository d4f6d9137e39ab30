//! Endpoints.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::MutexGuard;
use weft_open::{Driver, Opening};
use weft_rdm::{Begun, PeerId, Rdm, Refusal};

use crate::atomic::ATOMIC;
use crate::av::AvObject;
use crate::cntr::CntrObject;
use crate::cq::CqObject;
use crate::domain::DomainObject;
use crate::memory::{Host, lend};
use crate::message::{MSG, TAGGED};
use crate::pointers::{In, Object, Out, Table, head, table};
use crate::rest::rest;
use crate::rma::RMA;
use crate::state::{Bound, Counted, Datagrams, Domain, Ep, State, Token, insert};
use crate::{host, info, name, unsupported};
use weft_libfabric::abi::{self, ADDRESS_UNSPECIFIED, Fid, Info, class, errno, flag};

#[repr(C)]
pub struct EpObject {
    pub fid: Fid,
    ops: &'static Table<8>,
    cm: &'static Table<9>,
    msg: &'static Table<9>,
    rma: &'static Table<9>,
    tagged: &'static Table<9>,
    atomic: &'static Table<13>,
    collective: Option<&'static Table<1>>,
    pub domain: Arc<Domain>,
    pub number: usize,
}

table!(EP_FID: 6 = close, bind, control, unsupported, unsupported, unsupported);
table!(EP: 8 = cancel, getopt, setopt, unsupported, unsupported, receives_left, sends_left,
    unsupported);
table!(CM: 9 = unsupported, getname, unsupported, unsupported, unsupported, unsupported,
    unsupported, unsupported, unsupported);

/// Operations that a program may begin, as far as it is told: there is room until EAGAIN.
const ROOM: isize = 4096;

/// Opens the endpoint of weft, and a daemon if there is none.
fn datagrams() -> Result<Datagrams, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name());
    let title = format!("fi {}", program.unwrap_or_default().to_string_lossy());
    let opening = Opening::named(&title).map_err(|error| words(&error))?;
    let opening = opening.starting_daemon_by(&weft_command()).driven_by(Driver::Alternating);
    let endpoint = opening.without_signals().open().map_err(|error| words(&error))?;
    let mut random = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut random, flags).map_err(|error| words(&error))?;
    let (birth, word) = random.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let memory = Host::new(number(word));
    host::log(&info::options().to_string());
    let rdm = Rdm::new(endpoint, memory, info::options().clone(), number(birth));
    rdm.map(|rdm| rdm.lending(lend)).map_err(|error| words(&error))
}

/// The command that starts a daemon: the one that was built or installed with this library, else
/// the one on the PATH.
fn weft_command() -> PathBuf {
    let beside = |directory: PathBuf| {
        let places = [directory.join("weft"), directory.join("../../bin/weft")];
        places.into_iter().find(|path| path.is_file())
    };
    host::own_directory().and_then(beside).unwrap_or_else(|| PathBuf::from("weft"))
}

pub extern "C" fn open(
    domain: Object<DomainObject>,
    info: In<Info>,
    ep: Out<Object<EpObject>>,
    context: usize,
) -> c_int {
    let Some(info) = info.get() else { return -errno::EINVAL };
    if Out::from(info.ep).get().is_some_and(|it| it.kind != 0 && it.kind != abi::EP_RDM) {
        return -errno::EINVAL;
    }
    let rdm = match datagrams() {
        Ok(rdm) => rdm,
        Err(reason) => {
            // Libraries pass on a number alone.
            eprintln!("weft: libfabric's provider weft cannot open an endpoint: {reason}");
            return -errno::ENODATA;
        }
    };
    let mut state = Ep::new(rdm);
    state.is_directed = info.caps & flag::DIRECTED_RECV != 0;
    state.transmit_flags = Out::from(info.tx).get().map_or(0, |it| it.op_flags);
    state.receive_flags = Out::from(info.rx).get().map_or(0, |it| it.op_flags);
    let mut all = domain.domain.lock();
    for mr in all.mrs.values() {
        state.rdm.register(mr.key, mr.registration.clone());
        if mr.writes.is_some() || mr.reads.is_some() {
            state.rdm.report_remote(true);
        }
    }
    let number = insert(&mut all.endpoints, state);
    drop(all);
    let fid = head(class::EP, context, &EP_FID);
    ep.set(Object::new(EpObject {
        fid,
        ops: &EP,
        cm: &CM,
        msg: &MSG,
        rma: &RMA,
        tagged: &TAGGED,
        atomic: &ATOMIC,
        collective: None,
        domain: Arc::clone(&domain.domain),
        number,
    }));
    0
}

pub extern "C" fn open2(
    domain: Object<DomainObject>,
    info: In<Info>,
    ep: Out<Object<EpObject>>,
    _flags: u64,
    context: usize,
) -> c_int {
    open(domain, info, ep, context)
}

extern "C" fn close(ep: Object<EpObject>) -> c_int {
    let mut state = ep.domain.lock();
    let Some(mut closed) = state.endpoints[ep.number].take() else { return -errno::EINVAL };
    // Operations that were accepted for peers leave first, as far as the peers take them.
    closed.leave();
    if let Some(av) = closed.av {
        state.av(av).uses -= 1;
    }
    let mut queues: Vec<usize> =
        [closed.transmit, closed.receive].into_iter().flatten().map(|bound| bound.cq).collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        let queue = state.cq(queue);
        queue.uses -= 1;
        queue.endpoints.retain(|number| *number != ep.number);
        if let Some(waits) = &queue.waits {
            waits.remove(closed.descriptor());
        }
    }
    let mut counters: Vec<usize> = closed.counters.into_iter().flatten().collect();
    counters.sort_unstable();
    counters.dedup();
    for counter in counters {
        let counter = state.counter(counter);
        counter.uses -= 1;
        counter.endpoints.retain(|number| *number != ep.number);
    }
    drop(state);
    drop(closed);
    ep.destroy();
    0
}

extern "C" fn bind(ep: Object<EpObject>, other: Object<Fid>, flags: u64) -> c_int {
    let mut state = ep.domain.lock();
    match other.class {
        class::AV => {
            let av: Object<AvObject> = other.cast();
            if !Arc::ptr_eq(&av.domain, &ep.domain) || state.ep(ep.number).av.is_some() {
                return -errno::EINVAL;
            }
            state.av(av.number).uses += 1;
            state.ep(ep.number).av = Some(av.number);
            state.learn(ep.number);
            0
        }
        class::CQ => bind_cq(&mut state, &ep, other.cast(), flags),
        class::CNTR => bind_counter(&mut state, &ep, other.cast(), flags),
        class::EQ => 0,
        _ => -errno::ENOSYS,
    }
}

fn bind_cq(state: &mut State, ep: &EpObject, cq: Object<CqObject>, flags: u64) -> c_int {
    let (transmit, receive) = (flags & flag::SEND != 0, flags & flag::RECV != 0);
    if !Arc::ptr_eq(&cq.domain, &ep.domain) || !(transmit || receive) {
        return -errno::EBADFLAGS;
    }
    let is_selective = flags & flag::SELECTIVE_COMPLETION != 0;
    let bound = Some(Bound { cq: cq.number, is_selective });
    let it = state.ep(ep.number);
    if (transmit && it.transmit.is_some()) || (receive && it.receive.is_some()) {
        return -errno::EINVAL;
    }
    if transmit {
        it.transmit = bound;
    }
    if receive {
        it.receive = bound;
    }
    if state.cq(cq.number).endpoints.contains(&ep.number) {
        return 0;
    }
    let State { endpoints, cqs, .. } = state;
    let (Some(it), Some(queue)) = (&endpoints[ep.number], &mut cqs[cq.number]) else {
        return -errno::EINVAL;
    };
    if let Some(waits) = &queue.waits
        && let Err(error) = waits.add(it.descriptor())
    {
        return -error.raw_os_error();
    }
    queue.endpoints.push(ep.number);
    queue.uses += 1;
    0
}

fn bind_counter(state: &mut State, ep: &EpObject, cntr: Object<CntrObject>, flags: u64) -> c_int {
    if !Arc::ptr_eq(&cntr.domain, &ep.domain) {
        return -errno::EINVAL;
    }
    for (counted, bit) in Counted::ALL {
        if flags & bit != 0 {
            let it = state.ep(ep.number);
            it.counters[counted as usize] = Some(cntr.number);
            if matches!(counted, Counted::RemoteRead | Counted::RemoteWrite) {
                it.rdm.report_remote(true);
            }
        }
    }
    let counter = state.counter(cntr.number);
    if !counter.endpoints.contains(&ep.number) {
        counter.endpoints.push(ep.number);
        counter.uses += 1;
    }
    0
}

extern "C" fn control(ep: Object<EpObject>, command: c_int, _value: usize) -> c_int {
    if command != abi::CONTROL_ENABLE {
        return -errno::ENOSYS;
    }
    let mut state = ep.domain.lock();
    let it = state.ep(ep.number);
    if it.av.is_none() {
        return -errno::ENOAV;
    }
    let counts = |it: &Ep| it.counters.iter().any(Option::is_some);
    if it.transmit.is_none() && it.receive.is_none() && !counts(it) {
        return -errno::ENOCQ;
    }
    it.is_enabled = true;
    0
}

extern "C" fn getname(ep: Object<EpObject>, text: Out<u8>, length: Out<usize>) -> c_int {
    let (address, birth) = ep.domain.lock().ep(ep.number).rdm.name();
    let Some(length) = length.get() else { return -errno::EINVAL };
    let name = name::of(address, birth);
    let bytes = name.as_bytes_with_nul();
    let room = std::mem::replace(length, bytes.len());
    text.put(0, &bytes[..bytes.len().min(room)]);
    if room < bytes.len() { -errno::ETOOSMALL } else { 0 }
}

extern "C" fn cancel(ep: Object<EpObject>, context: usize) -> isize {
    let mut state = ep.domain.lock();
    state.ep(ep.number).rdm.cancel(|token| token.context == context);
    state.settle(ep.number);
    0
}

extern "C" fn getopt(
    ep: Object<EpObject>,
    level: c_int,
    option: c_int,
    value: Out<usize>,
    length: Out<usize>,
) -> c_int {
    if level != abi::LEVEL_ENDPOINT || option != abi::OPTION_MIN_MULTI_RECV {
        return -errno::ENOPROTOOPT;
    }
    let Some(length) = length.get() else { return -errno::EINVAL };
    if *length < size_of::<usize>() {
        return -errno::ETOOSMALL;
    }
    *length = size_of::<usize>();
    value.set(ep.domain.lock().ep(ep.number).least_multi);
    0
}

extern "C" fn setopt(
    ep: Object<EpObject>,
    level: c_int,
    option: c_int,
    value: In<usize>,
    length: usize,
) -> c_int {
    if level != abi::LEVEL_ENDPOINT || option != abi::OPTION_MIN_MULTI_RECV {
        return -errno::ENOPROTOOPT;
    }
    if length < size_of::<usize>() {
        return -errno::EINVAL;
    }
    let Some(value) = value.get() else { return -errno::EINVAL };
    ep.domain.lock().ep(ep.number).least_multi = *value;
    0
}

extern "C" fn receives_left(_ep: Object<EpObject>) -> isize {
    ROOM
}

extern "C" fn sends_left(_ep: Object<EpObject>) -> isize {
    ROOM
}

/// The result of a call for a program.
#[inline]
fn result(result: Result<Begun, Refusal>) -> isize {
    match result {
        Ok(_) => 0,
        Err(Refusal::Busy) => -(errno::EAGAIN as isize),
        Err(Refusal::PeerDown) => -(errno::ECONNRESET as isize),
        Err(Refusal::TooLong) => -(errno::EMSGSIZE as isize),
    }
}

/// Which operation a call is for, beside its memory.
#[derive(Clone, Copy)]
pub struct Call {
    pub context: usize,
    /// The flags of the call; `None` for those of the endpoint.
    pub flags: Option<u64>,
}

impl Call {
    #[inline]
    pub const fn plain(context: usize) -> Self {
        Self { context, flags: None }
    }

    #[inline]
    pub const fn with(context: usize, flags: u64) -> Self {
        Self { context, flags: Some(flags) }
    }

    /// The flags, and the name of the operation, by the rules of fi_endpoint(3).
    #[inline]
    pub fn token(self, flags: u64, bound: Option<Bound>, buffer: usize) -> (u64, Token) {
        let flags = self.flags.unwrap_or(flags);
        let is_selective = bound.is_some_and(|bound| bound.is_selective);
        let entry = !is_selective || flags & flag::COMPLETION != 0;
        (flags, Token { context: self.context, buffer, entry, flags: 0 })
    }
}

/// Ends the start of an operation: what is over already is reported, and a refusal is a reason to
/// make progress.
#[inline]
pub fn started(
    ep: &EpObject,
    mut state: MutexGuard<'_, State>,
    begun: Result<Begun, Refusal>,
) -> isize {
    match begun {
        Ok(_) => {
            if state.ep(ep.number).rdm.outcomes() > 0 {
                state.settle(ep.number);
            }
        }
        Err(Refusal::Busy) => {
            if !state.progress(ep.number) && state.patience.is_over() {
                drop(state);
                rest(&ep.domain);
            }
        }
        Err(_) => {}
    }
    result(begun)
}

impl State {
    /// The peer that an operation is for.
    #[inline]
    pub fn target(&mut self, ep: usize, address: u64) -> Result<PeerId, isize> {
        self.peer(ep, address).ok_or(-(errno::EINVAL as isize))
    }

    /// The peer that a receive is from; `None` stands for any.
    #[inline]
    pub fn origin(&mut self, ep: usize, address: u64) -> Result<Option<PeerId>, isize> {
        if !self.ep(ep).is_directed || address == ADDRESS_UNSPECIFIED {
            return Ok(None);
        }
        self.target(ep, address).map(Some)
    }
}
