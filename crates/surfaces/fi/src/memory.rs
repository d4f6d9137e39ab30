//! Memory of the program, as the protocol sees it; copies by the kernel from other processes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use weft_fabric::{Endpoint, HostMemory};
use weft_open::AnyEndpoint;
use weft_rdm::atomics::Call;
use weft_rdm::{Fault, Introduction, Memory, Span, Surface};

use crate::state::Token;
use weft_libfabric::abi::Ioc;

/// Pieces of memory of one operation at most.
pub const PIECES_MAX: usize = 4;
/// A registration that is longer is one of all addresses, of which most are not there: they are
/// reached by the kernel, which says so.
const PRESENT_BYTES_MAX: usize = 1 << 44;
/// Bytes that the kernel copies at a time then.
const GUARDED_BYTES: usize = 4096;

/// Pieces of memory that the program passed.
///
/// It keeps them as they are until the operation ends; that is the contract of fi_msg(3).
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The first address, and the bytes of all pieces.
    whole: (usize, usize),
    /// Each receive that waits keeps this structure, so it is small for the usual one, which is one
    /// piece of the program.
    beside: Option<Arc<Beside>>,
    /// Only a part of it may be there.
    is_guarded: bool,
}

/// Registers memory of the program where it is, so that a peer of another host can be allowed to
/// read it. `None` for several pieces, and for memory that may not be there.
pub fn lend(
    endpoint: &mut AnyEndpoint,
    memory: &Pieces,
) -> Option<<AnyEndpoint as Endpoint>::Region> {
    let (address, length) = memory.whole;
    if memory.is_guarded || memory.beside.is_some() {
        return None;
    }
    let base = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
    // SAFETY: the program keeps the memory until the operation ends (fi_msg(3)), and then the peer
    // has got all that it wanted, or has ended. Nobody is allowed to write by this. If the program
    // gives the memory back before the revocation is over, then a peer that breaks the rules gets
    // what is there by then, or the kernel refuses to send it.
    let memory = unsafe { weft_memory::Memory::in_place(base, length) }.ok()?;
    endpoint.register_memory(&memory).ok()
}

/// The properties of memory beside its first address and its bytes.
#[derive(Debug)]
enum Beside {
    /// The pieces, which are more than one.
    Several(Vec<(usize, usize)>),
    /// The bytes themselves: a copy, which nobody writes to, and which is here as long as this is.
    Copy(#[expect(dead_code, reason = "it is read by its address")] Vec<u8>),
}

impl Pieces {
    pub const EMPTY: Self = Self::one(0, 0);

    /// One piece.
    #[inline]
    pub const fn one(address: usize, length: usize) -> Self {
        let is_guarded = length > PRESENT_BYTES_MAX;
        Self { whole: (address, length), beside: None, is_guarded }
    }

    /// Several pieces; `None` if they are too many, or too long for one memory.
    pub fn of(vectors: &[libc::iovec]) -> Option<Self> {
        Self::collect(vectors.iter().map(|it| (it.iov_base.addr(), it.iov_len)))
    }

    /// The same of words of `bytes` each.
    pub fn of_words(vectors: &[Ioc], bytes: usize) -> Option<Self> {
        Self::collect(vectors.iter().map(|it| (it.address, it.count.saturating_mul(bytes))))
    }

    fn collect(mut pieces: impl ExactSizeIterator<Item = (usize, usize)>) -> Option<Self> {
        if pieces.len() > PIECES_MAX {
            return None;
        }
        if pieces.len() <= 1 {
            return Some(pieces.next().map_or(Self::EMPTY, |(at, length)| Self::one(at, length)));
        }
        let several: Vec<(usize, usize)> = pieces.collect();
        let mut lengths = several.iter().map(|(_, length)| *length);
        let length = lengths.try_fold(0_usize, usize::checked_add)?;
        let is_guarded = length > PRESENT_BYTES_MAX;
        let first = several[0].0;
        let beside = Some(Arc::new(Beside::Several(several)));
        Some(Self { whole: (first, length), beside, is_guarded })
    }

    /// The address of the first byte.
    pub const fn address(&self) -> usize {
        self.whole.0
    }

    fn pieces(&self) -> &[(usize, usize)] {
        match self.beside.as_deref() {
            Some(Beside::Several(several)) => several,
            Some(Beside::Copy(_)) | None => std::slice::from_ref(&self.whole),
        }
    }

    /// The pieces of a range.
    #[inline]
    fn range(&self, at: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
        let (mut skip, mut rest) = (at, length);
        self.pieces().iter().filter_map(move |&(address, bytes)| {
            let skipped = skip.min(bytes);
            skip -= skipped;
            let taken = (bytes - skipped).min(rest);
            rest -= taken;
            (taken > 0).then_some((address + skipped, taken))
        })
    }
}

/// Memory that the program passed.
#[inline]
fn present<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    let start: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: the program passed this memory and does not change it before the operation ends; a
    // registration is there as long as it is registered, a copy as long as what names it.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// The same, to be written.
#[inline]
fn present_mut<'a>(address: usize, length: usize) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: as above, and it leaves this memory to the operation.
    unsafe { std::slice::from_raw_parts_mut(start, length) }
}

impl Pieces {
    #[inline(never)]
    fn pour_pieces(
        &self,
        at: usize,
        length: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Fault> {
        for (address, length) in self.range(at, length) {
            if !self.is_guarded {
                take(present(address, length));
                continue;
            }
            guarded(address, length, |bytes, address| {
                copy_by_kernel(libc::process_vm_readv, own(), bytes, address)?;
                take(bytes);
                Ok(())
            })?;
        }
        Ok(())
    }

    #[inline(never)]
    fn fill_pieces(
        &self,
        at: usize,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Fault> {
        for (address, length) in self.range(at, length) {
            if !self.is_guarded {
                fill(present_mut(address, length));
                continue;
            }
            guarded(address, length, |bytes, address| {
                fill(bytes);
                copy_by_kernel(libc::process_vm_writev, own(), bytes, address)
            })?;
        }
        Ok(())
    }
}

impl Memory for Pieces {
    #[inline]
    fn length(&self) -> usize {
        self.whole.1
    }

    fn part(&self, at: usize, length: usize) -> Self {
        if !matches!(self.beside.as_deref(), Some(Beside::Several(_))) {
            return Self { whole: (self.whole.0 + at, length), ..self.clone() };
        }
        let several: Vec<(usize, usize)> = self.range(at, length).collect();
        let first = several.first().map_or(self.whole.0, |(address, _)| *address);
        let beside = Some(Arc::new(Beside::Several(several)));
        Self { whole: (first, length), beside, is_guarded: self.is_guarded }
    }

    fn copy(&self) -> Result<Self, Fault> {
        let mut bytes = Vec::with_capacity(self.length());
        self.pour(0, self.length(), &mut |piece| bytes.extend_from_slice(piece))?;
        let whole = (bytes.as_ptr().expose_provenance(), bytes.len());
        Ok(Self { whole, beside: Some(Arc::new(Beside::Copy(bytes))), is_guarded: false })
    }

    #[inline]
    fn pour(&self, at: usize, length: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        if self.is_guarded || self.beside.is_some() {
            return self.pour_pieces(at, length, take);
        }
        take(present(self.whole.0 + at, length));
        Ok(())
    }

    #[inline]
    fn fill(&self, at: usize, length: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Fault> {
        if self.is_guarded || self.beside.is_some() {
            return self.fill_pieces(at, length, fill);
        }
        fill(present_mut(self.whole.0 + at, length));
        Ok(())
    }

    fn spans(&self) -> Option<Vec<Span>> {
        let span = |(address, length)| Span { address: address as u64, length: length as u64 };
        Some(self.range(0, self.length()).map(span).collect())
    }

    fn change(&self, at: usize, call: &Call<'_>) -> Result<Vec<u8>, Fault> {
        let bytes = call.datatype.bytes();
        let mut old = Vec::with_capacity(call.count * bytes);
        for index in 0..call.count {
            let mut words = self.range(at + index * bytes, bytes);
            // A word that lies in two pieces has no address.
            let (address, _) = words.next().filter(|(_, length)| *length == bytes).ok_or(Fault)?;
            if self.is_guarded {
                // It is there if the kernel can copy it.
                copy_by_kernel(libc::process_vm_readv, own(), &mut [0; 16][..bytes], address)?;
            }
            change(address, index, call, &mut old)?;
        }
        Ok(old)
    }
}

/// Changes one word as a whole, and adds its former value to `all`.
fn change(address: usize, index: usize, call: &Call<'_>, all: &mut Vec<u8>) -> Result<(), Fault> {
    macro_rules! swap {
        ($atomic:ty, $word:ty) => {{
            if address % align_of::<$atomic>() != 0 {
                return Err(Fault);
            }
            let place = std::ptr::with_exposed_provenance_mut::<$word>(address);
            // SAFETY: the word is registered memory, aligned as was checked.
            let word = unsafe { <$atomic>::from_ptr(place) };
            let mut old = word.load(Ordering::Acquire);
            loop {
                let new = call.new_value(index, &old.to_ne_bytes()).ok_or(Fault)?;
                let new = <$word>::from_ne_bytes(new.bytes().try_into().map_err(|_| Fault)?);
                if new == old {
                    break;
                }
                match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(seen) => old = seen,
                }
            }
            all.extend_from_slice(&old.to_ne_bytes());
        }};
    }
    match call.datatype.bytes() {
        1 => swap!(AtomicU8, u8),
        2 => swap!(AtomicU16, u16),
        4 => swap!(AtomicU32, u32),
        8 => swap!(AtomicU64, u64),
        // No instruction changes 16 bytes on all processors: the lock of the domain does, for all
        // that go through this process.
        _ => {
            let place = Pieces::one(address, 16);
            let mut old = [0; 16];
            place.read(0, &mut old)?;
            let new = call.new_value(index, &old).ok_or(Fault)?;
            place.write(0, new.bytes())?;
            all.extend_from_slice(&old);
        }
    }
    Ok(())
}

/// Goes through memory that may not be there, by pages of the own.
fn guarded(
    mut address: usize,
    mut length: usize,
    mut each: impl FnMut(&mut [u8], usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut page = [0; GUARDED_BYTES];
    while length > 0 {
        let part = length.min(GUARDED_BYTES);
        each(&mut page[..part], address)?;
        address = address.checked_add(part).ok_or(Fault)?;
        length -= part;
    }
    Ok(())
}

type CopyCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn own() -> libc::pid_t {
    libc::pid_t::try_from(std::process::id()).unwrap_or(0)
}

fn vector(address: usize, length: usize) -> libc::iovec {
    let base = std::ptr::with_exposed_provenance_mut(address);
    libc::iovec { iov_base: base, iov_len: length }
}

/// Has the kernel copy between bytes of this program and an address of a process.
fn copy_by_kernel(
    call: CopyCall,
    process: libc::pid_t,
    bytes: &mut [u8],
    address: usize,
) -> Result<(), Fault> {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = vector(address, bytes.len());
    // SAFETY: the bytes are borrowed; the address is only a number here, which the kernel checks.
    let copied = unsafe { call(process, &raw const here, 1, &raw const there, 1, 0) };
    if usize::try_from(copied) == Ok(bytes.len()) { Ok(()) } else { Err(Fault) }
}

/// Another process, that showed that it is the one that a peer says.
#[derive(Debug)]
pub struct Process {
    number: libc::pid_t,
    /// Readable when it has ended: its number may then be that of another.
    held: std::os::fd::OwnedFd,
}

impl Process {
    fn lives(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut ended = [PollFd::new(&self.held, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

/// The surroundings of the protocol in this process.
#[derive(Debug)]
pub struct Host {
    /// A random word, which peers that may copy from this process find.
    word: Box<u64>,
}

impl Host {
    pub fn new(word: u64) -> Self {
        Self { word: Box::new(word) }
    }
}

impl Surface for Host {
    type Memory = Pieces;
    type Token = Token;
    type Process = Process;

    fn introduction(&self) -> Introduction {
        let address = (&raw const *self.word).expose_provenance() as u64;
        Introduction { process: std::process::id(), address, word: *self.word }
    }

    fn find(&self, introduction: &Introduction) -> Option<Process> {
        let number = i32::try_from(introduction.process).ok()?;
        let pid = rustix::process::Pid::from_raw(number)?;
        let flags = rustix::process::PidfdFlags::empty();
        let process = Process { number, held: rustix::process::pidfd_open(pid, flags).ok()? };
        let mut word = [0; 8];
        let address = usize::try_from(introduction.address).ok()?;
        copy_by_kernel(libc::process_vm_readv, number, &mut word, address).ok()?;
        (u64::from_ne_bytes(word) == introduction.word && process.lives()).then_some(process)
    }

    fn fetch(
        &self,
        from: &Process,
        spans: &[Span],
        mut skip: u64,
        target: &Pieces,
    ) -> Result<(), Fault> {
        let mut rest = target.length();
        let mut there = Vec::with_capacity(spans.len());
        for span in spans {
            let skipped = skip.min(span.length);
            skip -= skipped;
            let length = usize::try_from(span.length - skipped).map_err(|_| Fault)?.min(rest);
            let address = span.address.checked_add(skipped).ok_or(Fault)?;
            if length > 0 {
                there.push(vector(usize::try_from(address).map_err(|_| Fault)?, length));
            }
            rest -= length;
        }
        let here: Vec<libc::iovec> =
            target.range(0, target.length()).map(|(at, length)| vector(at, length)).collect();
        // SAFETY: the local pieces are memory that the program left to this operation; the others
        // are only numbers here, which the kernel checks.
        let copied = unsafe {
            libc::process_vm_readv(
                from.number,
                here.as_ptr(),
                here.len() as libc::c_ulong,
                there.as_ptr(),
                there.len() as libc::c_ulong,
                0,
            )
        };
        if usize::try_from(copied) != Ok(target.length()) || !from.lives() {
            return Err(Fault);
        }
        Ok(())
    }
}
