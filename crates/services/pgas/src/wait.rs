//! Waiting for and testing words of this PE, which other PEs change.

use std::cell::Cell;
use std::ffi::{c_int, c_long};

use crate::amo::Atom;
use crate::control;
use crate::fault::{Fault, raise};
use crate::space;
use crate::waiting;

/// `SHMEM_CMP_…`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Comparison {
    #[inline(always)]
    fn new(call: &str, cmp: c_int) -> Self {
        match cmp {
            1 => Self::Equal,
            2 => Self::NotEqual,
            3 => Self::Greater,
            4 => Self::GreaterOrEqual,
            5 => Self::Less,
            6 => Self::LessOrEqual,
            value => raise(call, &Fault::Constant { what: "comparison", value }),
        }
    }

    #[inline(always)]
    fn holds<T: PartialOrd>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
        }
    }
}

/// A type of words that are waited for.
pub trait Word: Atom + PartialOrd {}
impl<T: Atom + PartialOrd> Word for T {}

/// Loads a word of the program.
///
/// # Safety
/// The word must be a variable of the program. It is checked to be aligned.
#[inline(always)]
unsafe fn load<T: Word>(call: &str, word: *const T) -> T {
    if !word.is_aligned() {
        raise(call, &Fault::Misaligned { address: word.addr(), bytes: size_of::<T>() });
    }
    // SAFETY: the caller's promise, and the check.
    unsafe { T::load(word) }
}

/// A PE that has ended, when all other PEs have: nobody changes a word then.
fn deserted() -> Option<usize> {
    let mut others = (0..space::pes()).filter(|pe| *pe != space::me());
    let first = others.next().filter(|pe| control::has_ended(*pe))?;
    others.all(control::has_ended).then_some(first)
}

#[inline(always)]
fn wait(call: &str, ready: impl FnMut() -> bool) {
    space::expect_started(call);
    waiting::until(call, ready, deserted);
}

/// Waits until a word meets a condition.
///
/// # Safety
/// `ivar` must be a variable of the program.
#[inline(always)]
pub unsafe fn until<T: Word>(call: &str, ivar: *mut T, cmp: c_int, cmp_value: T) {
    let comparison = Comparison::new(call, cmp);
    // SAFETY: the caller's promise.
    wait(call, || comparison.holds(&unsafe { load(call, ivar) }, &cmp_value));
}

/// Whether a word meets a condition.
///
/// # Safety
/// As [`until`].
#[inline(always)]
pub unsafe fn test<T: Word>(call: &str, ivar: *mut T, cmp: c_int, cmp_value: T) -> c_int {
    space::expect_started(call);
    // SAFETY: the caller's promise.
    let holds = Comparison::new(call, cmp).holds(&unsafe { load(call, ivar) }, &cmp_value);
    if !holds {
        waiting::in_vain();
    }
    c_int::from(holds)
}

/// The value that each word of an array is compared with.
#[derive(Clone, Copy)]
enum Values<T> {
    One(T),
    Each(*const T),
}

/// Words of an array, without those that a status excludes.
#[derive(Clone, Copy)]
struct Words<'a, T> {
    call: &'a str,
    words: *const T,
    count: usize,
    status: *const c_int,
    comparison: Comparison,
    values: Values<T>,
}

impl<T: Word> Words<'_, T> {
    /// # Safety
    /// The maker of the value promised arrays of `count`, of which `index` is one.
    unsafe fn is_included(&self, index: usize) -> bool {
        // SAFETY: the caller's promise.
        self.status.is_null() || unsafe { *self.status.add(index) } == 0
    }

    /// # Safety
    /// As [`Words::is_included`].
    unsafe fn holds(&self, index: usize) -> bool {
        let value = match self.values {
            Values::One(value) => value,
            // SAFETY: the caller's promise.
            Values::Each(values) => unsafe { *values.add(index) },
        };
        // SAFETY: the caller's promise.
        let word = unsafe { load(self.call, self.words.add(index)) };
        self.comparison.holds(&word, &value)
    }

    /// The indices that are included.
    fn included(&self) -> impl Iterator<Item = usize> {
        // SAFETY: the maker of the value promised arrays of `count`.
        (0..self.count).filter(|index| unsafe { self.is_included(*index) })
    }

    /// The indices that meet the condition.
    fn met(&self) -> impl Iterator<Item = usize> {
        // SAFETY: as above.
        self.included().filter(|index| unsafe { self.holds(*index) })
    }

    /// One of the indices that meet the condition. The search begins anywhere, so that a program
    /// that takes one at a time comes to each of them.
    fn any_from(&self, start: usize) -> Option<usize> {
        let meets = |index: &usize| {
            // SAFETY: the maker of the value promised arrays of `count`.
            unsafe { self.is_included(*index) && self.holds(*index) }
        };
        (start..self.count).chain(0..start).find(meets)
    }

    /// An index to begin with.
    fn start(&self) -> usize {
        thread_local! {
            static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
        }
        let mut state = STATE.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        STATE.set(state);
        usize::try_from(state >> 32).unwrap_or(0) % self.count.max(1)
    }

    fn are_all_met(&self) -> bool {
        // SAFETY: as above.
        self.included().all(|index| unsafe { self.holds(index) })
    }

    fn is_empty(&self) -> bool {
        self.included().next().is_none()
    }

    fn until_all(&self) {
        wait(self.call, || self.are_all_met());
    }

    fn until_any(&self) -> usize {
        let mut found = usize::MAX;
        if !self.is_empty() {
            let start = self.start();
            wait(self.call, || self.any_from(start).inspect(|index| found = *index).is_some());
        }
        found
    }

    /// # Safety
    /// `indices` must have room for all indices.
    unsafe fn some(&self, indices: *mut usize) -> usize {
        let mut count = 0;
        for index in self.met() {
            // SAFETY: the caller's promise.
            unsafe { indices.add(count).write(index) };
            count += 1;
        }
        count
    }

    /// # Safety
    /// As [`Words::some`].
    unsafe fn until_some(&self, indices: *mut usize) -> usize {
        let mut found = 0;
        if !self.is_empty() {
            wait(self.call, || {
                // SAFETY: the caller's promise.
                found = unsafe { self.some(indices) };
                found > 0
            });
        }
        found
    }

    /// A result of a test; `false` for one that found nothing.
    fn tested<R>(&self, found: bool, result: R) -> R {
        space::expect_started(self.call);
        if !found {
            waiting::in_vain();
        }
        result
    }

    fn test_all(&self) -> c_int {
        let all = self.are_all_met();
        self.tested(all, c_int::from(all))
    }

    fn test_any(&self) -> usize {
        let any = self.any_from(self.start());
        self.tested(any.is_some(), any.unwrap_or(usize::MAX))
    }

    /// # Safety
    /// As [`Words::some`].
    unsafe fn test_some(&self, indices: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        let some = unsafe { self.some(indices) };
        self.tested(some > 0, some)
    }
}

/// # Safety
/// The arrays must have `count` entries; the status may be null.
unsafe fn words<'a, T: Word>(
    call: &'a str,
    words: *const T,
    count: usize,
    status: *const c_int,
    cmp: c_int,
    values: Values<T>,
) -> Words<'a, T> {
    Words { call, words, count, status, comparison: Comparison::new(call, cmp), values }
}

macro_rules! array_functions {
    ($($name:ident, $method:ident, $value:ty, $values:ident, $result:ty, $says:literal;)*) => {$(
        #[doc = $says]
        ///
        /// # Safety
        /// The arrays must have `nelems` entries; the status may be null.
        pub unsafe fn $name<T: Word>(
            call: &str,
            ivars: *mut T,
            nelems: usize,
            status: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> $result {
            // SAFETY: the caller's promise.
            let words = unsafe { words(call, ivars, nelems, status, cmp, Values::$values(value)) };
            words.$method()
        }
    )*};
}

array_functions! {
    until_all, until_all, T, One, (), "Waits until all words meet a condition.";
    until_all_vector, until_all, *const T, Each, (), "As [`until_all`], each with its own value.";
    until_any, until_any, T, One, usize, "Waits until a word meets a condition.";
    until_any_vector, until_any, *const T, Each, usize, "As [`until_any`], with a value each.";
    test_all, test_all, T, One, c_int, "Whether all words meet a condition.";
    test_all_vector, test_all, *const T, Each, c_int, "As [`test_all`], each with its own value.";
    test_any, test_any, T, One, usize, "The index of a word that meets a condition.";
    test_any_vector, test_any, *const T, Each, usize, "As [`test_any`], each with its own value.";
}

macro_rules! some_functions {
    ($($name:ident, $method:ident, $value:ty, $values:ident, $says:literal;)*) => {$(
        #[doc = $says]
        ///
        /// # Safety
        /// The arrays must have `nelems` entries; the status may be null.
        pub unsafe fn $name<T: Word>(
            call: &str,
            ivars: *mut T,
            nelems: usize,
            indices: *mut usize,
            status: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            // SAFETY: the caller's promise.
            unsafe {
                words(call, ivars, nelems, status, cmp, Values::$values(value)).$method(indices)
            }
        }
    )*};
}

some_functions! {
    until_some, until_some, T, One, "Waits until words meet a condition, and gives their indices.";
    until_some_vector, until_some, *const T, Each, "As [`until_some`], each with its own value.";
    test_some, test_some, T, One, "Gives the indices of the words that meet a condition.";
    test_some_vector, test_some, *const T, Each, "As [`test_some`], each with its own value.";
}

/// Loads a signal of this PE.
///
/// # Safety
/// `sig_addr` must be a variable of the program.
pub unsafe fn signal_fetch(call: &str, sig_addr: *const u64) -> u64 {
    space::expect_started(call);
    // SAFETY: the caller's promise.
    unsafe { load(call, sig_addr) }
}

/// Waits until a signal meets a condition, and gives it.
///
/// # Safety
/// As [`signal_fetch`].
#[inline(always)]
pub unsafe fn signal_until(call: &str, sig_addr: *mut u64, cmp: c_int, cmp_value: u64) -> u64 {
    let comparison = Comparison::new(call, cmp);
    let mut seen = 0;
    wait(call, || {
        // SAFETY: the caller's promise.
        seen = unsafe { load(call, sig_addr) };
        comparison.holds(&seen, &cmp_value)
    });
    seen
}

/// Waits until a word has another value.
///
/// # Safety
/// As [`until`].
pub unsafe fn changed<T: Word>(call: &str, ivar: *mut T, cmp_value: T) {
    // SAFETY: the caller's promise.
    wait(call, || unsafe { load(call, ivar) } != cmp_value);
}

/// As [`changed`].
///
/// # Safety
/// As [`until`].
pub unsafe fn changed_long(call: &str, ivar: *mut c_long, cmp_value: c_long) {
    // SAFETY: the caller's promise.
    unsafe { changed(call, ivar, cmp_value) };
}

/// As [`until`].
///
/// # Safety
/// As [`until`].
pub unsafe fn until_long(call: &str, ivar: *mut c_long, cmp: c_int, cmp_value: c_long) {
    // SAFETY: the caller's promise.
    unsafe { until(call, ivar, cmp, cmp_value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_those_of_the_constants() {
        for (cmp, expected) in [
            (1, [false, true, false]),
            (2, [true, false, true]),
            (3, [false, false, true]),
            (4, [false, true, true]),
            (5, [true, false, false]),
            (6, [true, true, false]),
        ] {
            let comparison = Comparison::new("test", cmp);
            assert_eq!([1, 2, 3].map(|value| comparison.holds(&value, &2)), expected, "{cmp}");
        }
    }

    #[test]
    fn words_that_a_status_excludes_do_not_count() {
        let (words_of, status) = ([5_i32, 0, 5, 7], [0, 1, 0, 1]);
        let with = |status: &[c_int], value| {
            let status = if status.is_empty() { std::ptr::null() } else { status.as_ptr() };
            // SAFETY: the arrays have 4 entries, or there is no status.
            unsafe { words("test", words_of.as_ptr(), 4, status, 1, Values::One(value)) }
        };
        assert!(with(&status, 5).are_all_met());
        assert!(!with(&[], 5).are_all_met());
        assert_eq!(with(&status, 5).met().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(with(&status, 7).any_from(1), None);
        let found: Vec<_> = (0..4).map(|start| with(&[], 5).any_from(start)).collect();
        assert_eq!(found, [Some(0), Some(2), Some(2), Some(0)]);
        let starts: std::collections::BTreeSet<_> =
            (0..200).map(|_| with(&[], 5).start()).collect();
        assert_eq!(starts.len(), 4, "a search begins anywhere");
        assert!(with(&[1; 4], 5).is_empty());
        assert_eq!(with(&[1; 4], 5).until_any(), usize::MAX);
    }
}
