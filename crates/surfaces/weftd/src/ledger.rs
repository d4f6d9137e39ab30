//! The sums of what programs counted, which never go back: those of programs that ended stay.
//!
//! Sums are kept for each name of a program and each user. A user has [`NAMES_OF_USER`] names, and
//! all together have [`NAMES_MAX`]; the programs of further names are summed as [`OTHER`]. So
//! neither the daemon's memory nor what an exporter tells grows with what programs do.

use std::collections::{BTreeMap, HashMap, VecDeque};

use weft_fabric::Register;
use weft_metrics::Snapshot;
use weft_wire::stats::Stats;

use crate::status::{EndpointStatus, ProcessStatus, Status, TimesStatus, TotalStatus};
use crate::watching::{streams, turns, work};

/// The name of all programs that have none of their own.
const OTHER: &str = "other";
const NAMES_MAX: usize = 512;
const NAMES_OF_USER: usize = 64;
/// Further places, of the programs of further names of each user.
const OTHERS_MAX: usize = 128;
/// Programs that ended last, for the status.
const ENDED_MAX: usize = 32;

/// The name of a program, and its user; no user for all of whom nobody is told apart.
type Key = (String, Option<u32>);

/// The registers of an endpoint, or their sums.
#[derive(Clone, Default, Debug)]
struct Registers {
    values: [u64; Register::COUNT],
    times: BTreeMap<String, Snapshot>,
}

impl Registers {
    fn of(endpoint: &EndpointStatus) -> Self {
        let value = |one: Register| endpoint.registers.get(one.name()).copied().unwrap_or(0);
        let times = endpoint.times.iter().map(|(name, times)| (name.clone(), times.snapshot()));
        Self { values: Register::ALL.map(value), times: times.collect() }
    }

    fn add(&mut self, more: &Self) {
        for (sum, more) in self.values.iter_mut().zip(&more.values) {
            *sum = sum.saturating_add(*more);
        }
        for (name, more) in &more.times {
            self.times.entry(name.clone()).or_default().add(more);
        }
    }

    /// Whether these are not of the endpoint that had `former`: counters only grow.
    fn is_of_another(&self, former: &Self) -> bool {
        former.values.iter().zip(&self.values).any(|(before, now)| before > now)
    }
}

#[derive(Clone, Default)]
struct Sum {
    programs: u64,
    streams: Stats,
    endpoints: u64,
    registers: Registers,
}

/// A program that is connected.
pub struct Live {
    /// Its process, as the status tells it.
    pub process: ProcessStatus,
    /// Its counters, if it shows some.
    pub stats: Option<Stats>,
}

/// The sums.
#[derive(Default)]
pub struct Ledger {
    /// Of programs and endpoints that are gone.
    past: BTreeMap<Key, Sum>,
    ended: VecDeque<ProcessStatus>,
    /// The endpoints of the last collection, by process and number.
    endpoints: HashMap<(u32, u16), (Key, Registers)>,
    /// The last of the closed endpoints that was added.
    closed: u64,
}

impl Ledger {
    /// Keeps what a program counted that is gone.
    pub fn close(&mut self, mut process: ProcessStatus, stats: Option<&Stats>, now_ms: u64) {
        if let Some(stats) = stats {
            self.past_of(&process.name, process.uid).streams.add(stats);
        }
        process.ended_ms = Some(now_ms);
        self.ended.push_front(process);
        self.ended.truncate(ENDED_MAX);
    }

    /// Adds the sums to a status, whose endpoints are known.
    pub fn total(&mut self, live: &[Live], status: &mut Status) {
        self.note_endpoints(live, status);
        let mut sums = self.past.clone();
        for Live { process, stats } in live {
            let key = self.key(&process.name, process.uid);
            let sum = sums.entry(key).or_default();
            sum.programs += 1;
            if let Some(stats) = stats {
                sum.streams.add(stats);
            }
        }
        for (key, registers) in self.endpoints.values() {
            let sum = sums.entry(key.clone()).or_default();
            sum.endpoints += 1;
            sum.registers.add(registers);
        }
        status.ended = self.ended.iter().cloned().collect();
        status.totals = sums.into_iter().map(|(key, sum)| total(key, &sum)).collect();
    }

    /// Adds the registers of endpoints that are gone to the sums.
    fn note_endpoints(&mut self, live: &[Live], status: &Status) {
        for (number, endpoint) in &status.closed_endpoints {
            if *number > self.closed {
                self.closed = *number;
                let last = Registers::of(endpoint);
                let known = self.endpoints.remove(&(endpoint.pid, endpoint.vpid));
                let key = known.map_or_else(|| self.owner(live, endpoint.pid), |(key, _)| key);
                self.past.entry(key).or_default().registers.add(&last);
            }
        }
        let mut former = std::mem::take(&mut self.endpoints);
        for endpoint in &status.endpoints {
            let (place, now) = ((endpoint.pid, endpoint.vpid), Registers::of(endpoint));
            let known = former.remove(&place);
            let key = match &known {
                Some((key, _)) => key.clone(),
                None => self.owner(live, endpoint.pid),
            };
            // Another endpoint of the program may have got the number.
            if let Some((key, before)) = known
                && now.is_of_another(&before)
            {
                self.past.entry(key).or_default().registers.add(&before);
            }
            self.endpoints.insert(place, (key, now));
        }
        for (key, last) in former.into_values() {
            self.past.entry(key).or_default().registers.add(&last);
        }
    }

    /// The program with a process number.
    fn owner(&mut self, live: &[Live], pid: u32) -> Key {
        let live = live.iter().map(|live| &live.process);
        let owner = live.chain(&self.ended).find(|process| process.pid == pid);
        match owner.map(|process| (process.name.clone(), process.uid)) {
            Some((name, uid)) => self.key(&name, uid),
            None => (OTHER.to_owned(), None),
        }
    }

    fn past_of(&mut self, name: &str, uid: u32) -> &mut Sum {
        let key = self.key(name, uid);
        self.past.entry(key).or_default()
    }

    /// The key of a program, which has a place in `past` from here on.
    fn key(&mut self, name: &str, uid: u32) -> Key {
        let name: String =
            name.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
        let key = (name, Some(uid));
        let of_user = self.past.keys().filter(|(_, user)| *user == Some(uid)).count();
        let has_room = of_user < NAMES_OF_USER && self.past.len() < NAMES_MAX;
        let others = (OTHER.to_owned(), Some(uid));
        let key = if has_room || self.past.contains_key(&key) {
            key
        } else if self.past.len() < NAMES_MAX + OTHERS_MAX || self.past.contains_key(&others) {
            others
        } else {
            (OTHER.to_owned(), None)
        };
        self.past.entry(key.clone()).or_default();
        key
    }
}

fn total((name, uid): Key, sum: &Sum) -> TotalStatus {
    let registers = Register::ALL.iter().map(|one| (*one, sum.registers.values[one.index()]));
    let times = sum.registers.times.iter();
    TotalStatus {
        name,
        uid,
        programs: sum.programs,
        streams: streams(&sum.streams),
        endpoints: sum.endpoints,
        registers: registers
            .filter(|(_, value)| *value > 0)
            .map(|(register, value)| (register.name().to_owned(), value))
            .collect(),
        times: times.map(|(name, seen)| (name.clone(), TimesStatus::of(seen))).collect(),
        turns: TimesStatus::of(&turns(&sum.streams)),
        work: work(&sum.streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::stats;

    fn process(pid: u32, uid: u32, name: &str) -> ProcessStatus {
        ProcessStatus { pid, uid, name: name.into(), ..ProcessStatus::default() }
    }

    fn counted(bytes: u64) -> Stats {
        let mut block = vec![0; stats::BYTES];
        block[..16].copy_from_slice(&Stats::header());
        let place = stats::place(0, stats::BYTES_FABRIC_SENT);
        block[place..place + 8].copy_from_slice(&bytes.to_ne_bytes());
        Stats::parse(&block).expect("a block")
    }

    fn endpoint(pid: u32, vpid: u16, puts: u64) -> EndpointStatus {
        let registers = [("puts".to_owned(), puts)].into();
        EndpointStatus { vpid, pid, registers, ..EndpointStatus::default() }
    }

    fn of<'a>(status: &'a Status, name: &str) -> &'a TotalStatus {
        status.totals.iter().find(|total| total.name == name).expect("it counted")
    }

    #[test]
    fn sums_of_programs_that_ended_stay() {
        let mut ledger = Ledger::default();
        ledger.close(process(7, 5, "redis"), Some(&counted(10)), 1);
        let live = [Live { process: process(8, 5, "redis"), stats: Some(counted(5)) }];
        let mut status = Status::default();
        ledger.total(&live, &mut status);
        let total = of(&status, "redis");
        assert_eq!((total.programs, total.streams.fabric_sent, total.uid), (1, 15, Some(5)));
        assert_eq!(status.ended[0].ended_ms, Some(1));
        ledger.close(process(8, 5, "redis"), Some(&counted(6)), 2);
        ledger.total(&[], &mut status);
        assert_eq!(
            (of(&status, "redis").programs, of(&status, "redis").streams.fabric_sent),
            (0, 16)
        );
    }

    #[test]
    fn registers_of_endpoints_that_are_gone_are_added_once() {
        let mut ledger = Ledger::default();
        let live = [Live { process: process(7, 5, "pe"), stats: None }];
        let endpoints = vec![endpoint(7, 1, 10), endpoint(7, 2, 1)];
        let mut status = Status { endpoints, ..Status::default() };
        ledger.total(&live, &mut status);
        assert_eq!((of(&status, "pe").registers["puts"], of(&status, "pe").endpoints), (11, 2));
        // The first closed with two more puts, of which the daemon knows; another endpoint has its
        // number. The second closed unseen.
        status.closed_endpoints = vec![(1, endpoint(7, 1, 12))];
        status.endpoints = vec![endpoint(7, 1, 3)];
        for _ in 0..2 {
            ledger.total(&live, &mut status);
            assert_eq!((of(&status, "pe").registers["puts"], of(&status, "pe").endpoints), (16, 1));
        }
        status.endpoints = vec![endpoint(7, 1, 2)];
        ledger.total(&live, &mut status);
        assert_eq!(of(&status, "pe").registers["puts"], 18, "a new one with the same number");
    }

    #[test]
    fn one_user_takes_no_names_from_others_and_all_are_bounded() {
        let mut ledger = Ledger::default();
        for user in 0..2000 {
            for name in 0..(if user == 3 { 500 } else { 1 }) {
                ledger.close(process(1, user, &format!("n{name}\n")), Some(&counted(1)), 0);
            }
        }
        let mut status = Status::default();
        ledger.total(&[], &mut status);
        let own = status.totals.iter().filter(|total| total.uid == Some(3)).count();
        assert_eq!(own, NAMES_OF_USER + 1);
        assert!(status.totals.len() <= NAMES_MAX + OTHERS_MAX + 1);
        let all: u64 = status.totals.iter().map(|total| total.streams.fabric_sent).sum();
        assert_eq!(all, 2499);
        assert!(status.totals.iter().all(|total| !total.name.contains('\n')));
    }
}
