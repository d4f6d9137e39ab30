//! The thread that sleeps on the endpoint's descriptor, and the reasons to wake the driving thread.
//!
//! One thread at a time has the *watch*: it sleeps on the descriptor, and takes what arrives. A
//! thread of the program that sleeps alone watches for itself, so that an arrival wakes no other
//! thread. Where several sleep, the driving thread watches for all of them. While no thread of the
//! program sleeps, their calls take what arrives, and the driving thread looks now and then whether
//! they still do.
//!
//! # Invariants
//! - A thread that sleeps without the watch is woken by the program when its word was rung; so is
//!   the one that has it, if another thread polls.
//! - While a thread sleeps, somebody watches, or the driving thread is about to.

/// Wakes the thread that drives a carrier.
pub type Alarm = Box<dyn Fn() + Send + Sync>;

/// The state of the driving thread, which says for which reasons it is woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driving {
    /// It is about to look by itself.
    Awake,
    /// It looks again soon.
    Resting,
    /// It looks again late, since a thread of the program watches.
    Idle,
    /// It has the watch, and sleeps on the descriptor.
    Watching,
    /// It has the watch, and looks every so often, since the descriptor tells nothing.
    Peering,
}

/// Whether a thread that takes the watch sleeps on the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Descriptor,
    Nothing,
}

/// A sleep of a thread of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleep(u64);

/// A thread of the program that has the watch.
#[derive(Clone, Copy, Debug)]
struct Watcher {
    sleep: Sleep,
    thread: u64,
    on: On,
}

pub(crate) struct Watch {
    pub driving: Driving,
    pub alarm: Option<Alarm>,
    watcher: Option<Watcher>,
    /// Threads of the program that sleep.
    sleepers: u32,
    sleeps: u64,
}

impl Watch {
    pub fn new() -> Self {
        Self { driving: Driving::Awake, alarm: None, watcher: None, sleepers: 0, sleeps: 0 }
    }

    /// Whether a thread may take the watch: nobody else sleeps. A signal handler that interrupted
    /// the sleep of its thread takes the watch over, since that sleep cannot go on before it ends.
    pub fn may_watch(&self, thread: u64) -> bool {
        match self.watcher {
            Some(watcher) => watcher.thread == thread,
            None => self.sleepers == 0,
        }
    }

    /// A thread falls asleep, and takes the watch or not.
    pub fn begin(&mut self, thread: u64, watches: Option<On>) -> Sleep {
        self.sleeps += 1;
        self.sleepers += 1;
        let sleep = Sleep(self.sleeps);
        if let Some(on) = watches {
            self.watcher = Some(Watcher { sleep, thread, on });
        }
        sleep
    }

    /// A sleep is over. True if it had the watch.
    pub fn end(&mut self, sleep: Sleep) -> bool {
        self.sleepers = self.sleepers.saturating_sub(1);
        let watched = self.watcher.is_some_and(|watcher| watcher.sleep == sleep);
        if watched {
            self.watcher = None;
        }
        watched
    }

    /// The thread that has the watch did not take what arrived: it never will.
    pub fn dismiss(&mut self) {
        self.watcher = None;
    }

    /// Whether a thread of the program has the watch.
    pub const fn is_kept(&self) -> bool {
        self.watcher.is_some()
    }

    /// Whether the driving thread has to watch: somebody sleeps, and no such thread watches.
    pub const fn is_wanted(&self) -> bool {
        self.sleepers > 0 && self.watcher.is_none()
    }

    /// Whether a thread of the program sleeps on the descriptor.
    pub const fn needs_arming(&self) -> bool {
        matches!(self.watcher, Some(Watcher { on: On::Descriptor, .. }))
    }

    /// Whether the driving thread must be woken. `has_news` for the program, `is_armed` if the
    /// descriptor becomes readable with the next event.
    pub const fn is_alarm_due(&self, has_news: bool, is_armed: bool) -> bool {
        let is_deaf = self.needs_arming() && !is_armed;
        match self.driving {
            Driving::Awake => false,
            Driving::Resting => has_news || is_deaf || self.is_wanted(),
            Driving::Idle => has_news || is_deaf || !self.is_kept(),
            Driving::Watching => has_news || !is_armed,
            Driving::Peering => has_news,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(driving: Driving) -> Watch {
        Watch { driving, ..Watch::new() }
    }

    #[test]
    fn a_thread_that_sleeps_alone_watches_and_wakes_nobody() {
        let mut watch = watch(Driving::Resting);
        assert!(watch.may_watch(1));
        let sleep = watch.begin(1, Some(On::Descriptor));
        assert!(watch.is_kept() && !watch.is_wanted());
        assert!(!watch.is_alarm_due(false, true));
        assert!(watch.is_alarm_due(true, true), "news that another thread found");
        assert!(watch.is_alarm_due(false, false), "another thread ended the arming");
        assert!(watch.end(sleep));
        assert!(!watch.is_alarm_due(false, false), "the driving thread looks soon by itself");
    }

    #[test]
    fn the_driving_thread_watches_for_several_and_when_the_watcher_leaves_others() {
        let mut watch = watch(Driving::Resting);
        let first = watch.begin(1, Some(On::Nothing));
        assert!(!watch.may_watch(2));
        let second = watch.begin(2, None);
        assert!(!watch.is_wanted(), "the first watches for both");
        assert!(watch.end(first));
        assert!(watch.is_wanted() && watch.is_alarm_due(false, false));
        assert!(!watch.may_watch(1), "not alone");
        assert!(!watch.end(second));
        assert!(!watch.is_wanted() && watch.may_watch(1));
    }

    #[test]
    fn a_handler_takes_the_watch_of_the_sleep_that_it_interrupted() {
        let mut watch = watch(Driving::Resting);
        let outer = watch.begin(1, Some(On::Descriptor));
        assert!(watch.may_watch(1) && !watch.may_watch(2));
        let inner = watch.begin(1, Some(On::Descriptor));
        assert!(watch.end(inner));
        assert!(watch.is_wanted(), "the outer sleep goes on, unwatched");
        assert!(!watch.end(outer));
        assert!(!watch.is_wanted());
    }

    #[test]
    fn a_driving_thread_that_looks_late_is_woken_when_the_watch_is_left() {
        let mut watch = watch(Driving::Idle);
        let sleep = watch.begin(1, Some(On::Descriptor));
        assert!(!watch.is_alarm_due(false, true));
        watch.end(sleep);
        assert!(watch.is_alarm_due(false, true));
    }

    #[test]
    fn a_watcher_that_never_wakes_is_dismissed() {
        let mut watch = watch(Driving::Idle);
        watch.begin(1, Some(On::Descriptor));
        watch.dismiss();
        assert!(watch.is_wanted() && watch.is_alarm_due(false, true));
    }

    #[test]
    fn a_driving_thread_that_watches_is_woken_for_news_and_when_it_is_not_armed() {
        let watching = watch(Driving::Watching);
        assert!(!watching.is_alarm_due(false, true));
        assert!(watching.is_alarm_due(true, true) && watching.is_alarm_due(false, false));
        let peering = watch(Driving::Peering);
        assert!(peering.is_alarm_due(true, false) && !peering.is_alarm_due(false, false));
    }
}
