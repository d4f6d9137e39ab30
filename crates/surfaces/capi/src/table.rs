//! Handles: numbers in the form of pointers, by which objects are found.
//!
//! A handle has the kind of its object, a place in the table of that kind, and how often that place
//! was given before. Whatever a program passes is a number of these, or it is refused.
//!
//! # Invariants
//! - No handle is good twice: the count of a place goes up when its object is taken out.
//! - An object of the process before fork(2) is never touched in the child: its peers take the
//!   parent for it.
//! - An object in whose call there was a panic is never touched again, but taken out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::status::Failure;
use crate::types::weft_status::{WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL, WEFT_ERROR_LIMIT};

/// Places of a chunk, and chunks of a table.
const CHUNK: usize = 256;
const INDEX_BITS: u32 = 16;
const COUNT_BITS: u32 = 32;

/// A table of objects of one kind.
pub struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNK],
    free: Mutex<Free>,
}

/// The thing that a handle names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Endpoint = 1,
    Memory = 2,
    Options = 3,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Memory => "memory",
            Self::Options => "options",
        }
    }
}

/// The places without an object: those that had one, and those from `next` on.
struct Free {
    used: Vec<usize>,
    next: usize,
}

type Slot<T> = RwLock<State<T>>;

/// A place of the table.
struct State<T> {
    /// How often the place was given.
    count: u32,
    content: Content<T>,
}

enum Content<T> {
    Nothing,
    /// An object, and the number of forks before it.
    Object(T, u32),
    /// Something that a panic left. It is dropped when the program closes it.
    Broken(T),
}

impl<T> Table<T> {
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNK],
            free: Mutex::new(Free { used: Vec::new(), next: 0 }),
        }
    }

    /// Puts an object into the table, and returns its handle.
    pub fn insert(&self, object: T) -> Result<usize, Failure> {
        know_forks();
        let index = self.place()?;
        let mut state = self.chunks[index / CHUNK].get_or_init(chunk)[index % CHUNK].write();
        state.content = Content::Object(object, FORKS.load(Ordering::Relaxed));
        Ok(self.handle(index, state.count))
    }

    fn place(&self) -> Result<usize, Failure> {
        let mut free = self.free.lock();
        if let Some(index) = free.used.pop() {
            return Ok(index);
        }
        if free.next == CHUNK * CHUNK {
            let text = format!("this process has {} open, the maximum", self.kind.name());
            return Err(Failure::new(WEFT_ERROR_LIMIT, text));
        }
        free.next += 1;
        Ok(free.next - 1)
    }

    const fn handle(&self, index: usize, count: u32) -> usize {
        ((self.kind as usize) << (INDEX_BITS + COUNT_BITS))
            | ((count as usize) << INDEX_BITS)
            | index
    }

    /// The place of a handle of this kind, and its count.
    fn slot(&self, handle: usize) -> Option<(&Slot<T>, usize)> {
        let index = handle & ((1 << INDEX_BITS) - 1);
        let count = (handle >> INDEX_BITS) & ((1 << COUNT_BITS) - 1);
        if handle >> (INDEX_BITS + COUNT_BITS) != self.kind as usize {
            return None;
        }
        Some((self.chunks[index / CHUNK].get()?.get(index % CHUNK)?, count))
    }

    fn invalid(&self, handle: usize) -> Failure {
        let kind = self.kind.name();
        let text = match handle {
            0 => format!("the handle of the {kind} is null"),
            _ => format!("{handle:#x} is no open handle of {kind}: closed, or never one"),
        };
        Failure::new(WEFT_ERROR_HANDLE, text)
    }

    /// Calls with the object alone. Another thread that is in a call of it is an error.
    #[inline]
    pub fn alone<R>(
        &self,
        handle: usize,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let Some((slot, count)) = self.slot(handle) else { return Err(self.invalid(handle)) };
        let Some(mut state) = slot.try_write() else { return Err(self.in_call()) };
        let mut watch = Watch(&mut state);
        body(watch.object(count).ok_or_else(|| self.invalid(handle))?)
    }

    #[cold]
    fn in_call(&self) -> Failure {
        let kind = self.kind.name();
        let text = format!(
            "another thread is in a call of this {kind}; use it from one at a time, \
                     with a lock of your own, or open one for each thread"
        );
        Failure::new(WEFT_ERROR_IN_CALL, text)
    }

    /// Calls with the object, beside other threads that do so.
    #[inline]
    pub fn shared<R>(
        &self,
        handle: usize,
        body: impl FnOnce(&T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let Some((slot, count)) = self.slot(handle) else { return Err(self.invalid(handle)) };
        let state = slot.read();
        match &state.content {
            Content::Object(object, forks) if state.count as usize == count && is_own(*forks) => {
                body(object)
            }
            _ => Err(self.invalid(handle)),
        }
    }

    /// Takes an object out. The handle is good for nothing from then on.
    pub fn remove(&self, handle: usize) -> Result<T, Failure> {
        let Some((slot, count)) = self.slot(handle) else { return Err(self.invalid(handle)) };
        let Some(mut state) = slot.try_write() else { return Err(self.in_call()) };
        if state.count as usize != count || !state.is_own() {
            return Err(self.invalid(handle));
        }
        let content = std::mem::replace(&mut state.content, Content::Nothing);
        let (Content::Object(object, _) | Content::Broken(object)) = content else {
            return Err(self.invalid(handle));
        };
        state.count = state.count.wrapping_add(1);
        drop(state);
        self.free.lock().used.push(handle & ((1 << INDEX_BITS) - 1));
        Ok(object)
    }
}

impl<T> State<T> {
    fn is_own(&self) -> bool {
        match &self.content {
            Content::Object(_, forks) => is_own(*forks),
            Content::Broken(_) | Content::Nothing => true,
        }
    }
}

/// A place in whose object a call is; a panic leaves it broken.
struct Watch<'a, 'b, T>(&'a mut RwLockWriteGuard<'b, State<T>>);

impl<T> Watch<'_, '_, T> {
    #[inline]
    fn object(&mut self, count: usize) -> Option<&mut T> {
        if self.0.count as usize != count {
            return None;
        }
        match &mut self.0.content {
            Content::Object(object, forks) if is_own(*forks) => Some(object),
            _ => None,
        }
    }
}

impl<T> Drop for Watch<'_, '_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Content::Object(object, _) =
                std::mem::replace(&mut self.0.content, Content::Nothing)
        {
            self.0.content = Content::Broken(object);
        }
    }
}

fn chunk<T>() -> Box<[Slot<T>]> {
    let empty = |_| RwLock::new(State { count: 0, content: Content::Nothing });
    (0..CHUNK).map(empty).collect()
}

/// How often this process was made by fork(2) since the first object.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[inline]
fn is_own(forks: u32) -> bool {
    FORKS.load(Ordering::Relaxed) == forks
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has children of fork(2) know that they are some.
fn know_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function changes one number, which is allowed in a child of fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table<u32> = Table::new(Kind::Memory);

    fn value(handle: usize) -> Result<u32, crate::types::weft_status> {
        TABLE.shared(handle, |value| Ok(*value)).map_err(|failure| failure.status)
    }

    #[test]
    fn a_handle_is_good_until_it_is_closed_and_never_again() {
        let first = TABLE.insert(7).expect("room");
        assert_eq!((value(first), TABLE.remove(first)), (Ok(7), Ok(7)));
        let second = TABLE.insert(8).expect("room");
        assert_ne!(first, second);
        for wrong in [0, first, 1, usize::MAX, second + 1, second ^ (1 << 50), second << 4] {
            assert_eq!(value(wrong), Err(WEFT_ERROR_HANDLE), "{wrong:#x}");
            assert!(TABLE.remove(wrong).is_err() && TABLE.alone(wrong, |_| Ok(())).is_err());
        }
        assert_eq!(value(second), Ok(8));
    }

    #[test]
    fn a_second_thread_in_a_call_is_told_so() {
        let table = Table::new(Kind::Endpoint);
        let handle = table.insert(0).expect("room");
        let inner = table.alone(handle, |value| {
            *value += 1;
            Ok(table.alone(handle, |_| Ok(())).expect_err("one is in").status)
        });
        assert_eq!(inner, Ok(WEFT_ERROR_IN_CALL));
    }

    #[test]
    fn an_object_with_a_panic_is_closed_and_no_more() {
        let table = Table::new(Kind::Endpoint);
        let handle = table.insert(5).expect("room");
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            table.alone(handle, |_| -> Result<(), Failure> { panic!("planted") })
        }));
        assert!(end.is_err());
        assert_eq!(table.alone(handle, |_| Ok(())).map_err(|it| it.status), Err(WEFT_ERROR_HANDLE));
        assert_eq!(table.remove(handle), Ok(5));
    }
}
