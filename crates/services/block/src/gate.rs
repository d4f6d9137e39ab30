//! A lock that many hold shared, or one alone, and that is held without a borrow: by work that
//! begins in one call and ends in another.
//!
//! Those who want it alone go before those who want it shared later.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    shared: usize,
    is_alone: bool,
    wanted_alone: usize,
}

/// A lock that is held shared or alone. The module says in which order.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    news: Condvar,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Held {
    gate: Arc<Gate>,
    is_alone: bool,
}

impl Gate {
    /// Waits until nobody holds it alone or wants it so, and holds it shared.
    #[must_use]
    pub fn shared(self: &Arc<Self>) -> Held {
        let mut state = self.state.lock();
        while state.is_alone || state.wanted_alone > 0 {
            self.news.wait(&mut state);
        }
        state.shared += 1;
        Held { gate: Arc::clone(self), is_alone: false }
    }

    /// Holds it shared, if that needs no waiting.
    #[must_use]
    pub fn try_shared(self: &Arc<Self>) -> Option<Held> {
        let mut state = self.state.lock();
        if state.is_alone || state.wanted_alone > 0 {
            return None;
        }
        state.shared += 1;
        Some(Held { gate: Arc::clone(self), is_alone: false })
    }

    /// Waits until nobody holds it, and holds it alone.
    #[must_use]
    pub fn alone(self: &Arc<Self>) -> Held {
        let mut state = self.state.lock();
        state.wanted_alone += 1;
        while state.is_alone || state.shared > 0 {
            self.news.wait(&mut state);
        }
        state.wanted_alone -= 1;
        state.is_alone = true;
        Held { gate: Arc::clone(self), is_alone: true }
    }

    /// Whether nobody holds it.
    #[must_use]
    pub fn is_free(&self) -> bool {
        let state = self.state.lock();
        !state.is_alone && state.shared == 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if self.is_alone {
            state.is_alone = false;
        } else {
            state.shared -= 1;
        }
        if state.shared == 0 {
            drop(state);
            self.gate.news.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the holders are two threads")]
    fn who_wants_it_alone_waits_for_all_and_goes_before_later_ones() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.shared(), gate.try_shared().expect("it is shared"));
        let other = Arc::clone(&gate);
        let alone = std::thread::spawn(move || drop(other.alone()));
        while gate.try_shared().is_some() {
            std::thread::yield_now();
        }
        assert!(!alone.is_finished() && !gate.is_free());
        drop((one, two));
        alone.join().expect("it gets it");
        assert!(gate.is_free() && gate.try_shared().is_some());
    }
}
