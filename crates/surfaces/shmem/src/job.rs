//! The part of this process in a job: its start, its end, and its launcher.
//!
//! # Invariants
//! - Starts and ends nest: the first start and the last end count. After the end the memory stays
//!   mapped, so that destructors of the program still find its variables, and a later start uses it
//!   again.
//! - PEs of other hosts are served from before the space is opened for the first time until the
//!   process ends.
//! - The launcher's connection has a lock of its own, which no call waits for while it ends a job.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_pgas::control::{self, Standing};
use weft_pgas::space::Layout;
use weft_pgas::{collective, context, memory, space, team, waiting};

use crate::card::{Card, Way};
use crate::far::opening::{self, FarCard, Opened};
use crate::far::{self, station};
use crate::fork;
use crate::mapping::Mapping;
use crate::settings::Settings;
use crate::statics::{self, Image, Statics};

/// The exit code of a job that ends because of a mistake.
const FAILED: c_int = 1;
/// The time within which all PEs of a job start the library.
const START_WITHIN: Duration = Duration::from_secs(600);

/// Where the library stands in this process.
#[derive(Debug)]
enum State {
    /// Never started.
    Fresh,
    /// Started so many times more than ended.
    Running { starts: usize, layout: Layout },
    /// Ended; the memory is still there.
    Ended { layout: Layout },
}

static STATE: Mutex<State> = Mutex::new(State::Fresh);
/// The memory stays mapped as long as the process. A program that looks for leaks finds it here.
static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());
static LAUNCHER: Mutex<Option<weft_pmi::Job>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the library, or counts one start more.
pub fn start(call: &str) {
    let mut state = lock(&STATE);
    let layout = match &mut *state {
        State::Running { starts, .. } => {
            *starts += 1;
            return;
        }
        State::Fresh => match meet() {
            Ok(layout) => layout,
            Err(message) => {
                drop(state);
                fail(&format!("{call}: {message}"));
            }
        },
        State::Ended { layout } => {
            let layout = *layout;
            // SAFETY: as in `meet`.
            unsafe { space::open(&layout) };
            layout
        }
    };
    *state = State::Running { starts: 1, layout };
    drop(state);
    control::stand(Standing::Running);
    let times = control::count_start();
    for pe in 0..layout.pes {
        waiting::until(call, || control::is_started(pe, times), || None);
    }
    team::begin();
    context::begin();
    memory::begin();
}

/// Meets the other PEs: their memory is mapped when it returns.
fn meet() -> Result<Layout, String> {
    if fork::is_child() {
        return Err("this process is a child of a PE; only processes that the launcher started \
                    are PEs"
            .to_owned());
    }
    crate::edges::note_exit_status();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let settings = Settings::of_process().map_err(|error| text(&error))?;
    let job = weft_pmi::Job::join().map_err(|error| text(&error))?;
    let (me, pes) = (job.rank() as usize, job.size() as usize);
    *lock(&LAUNCHER) = Some(job);
    let statics = statics::of_process();
    let mapping = Mapping::make(me, pes, settings.heap_bytes, statics);
    let mut mapping = mapping.map_err(|error| format!("PE {me}: {error}"))?;
    let mut across = None;
    if pes == 1 {
        if let (Statics::Private(_), Ok(range)) = (statics, Image::of_process().range()) {
            mapping.with_own_variables(range);
        }
    } else {
        if let Statics::Private(why) = statics {
            space::without_statics(why);
        }
        across = join_others(&mut mapping, me, pes).map_err(|error| format!("PE {me}: {error}"))?;
    }
    if settings.debug {
        collective::compare_calls();
    }
    let layout = *mapping.layout();
    if me == 0 {
        crate::setup::print(&settings, &layout, statics, across.is_some());
    }
    let hosts = across.as_ref().map(|across| across.hosts.clone());
    if let Some(hosts) = hosts {
        space::is_across_hosts(hosts.into());
    }
    // SAFETY: all slots of the PEs of this host are mapped, and a control area in those of others.
    // They stay until the process ends. Control areas are fresh memory.
    unsafe { space::open(&layout) };
    if let Some(across) = across {
        let begun =
            meet_far(&mapping, statics, &across).map_err(|error| format!("PE {me}: {error}"));
        if let Err(error) = begun {
            space::close();
            return Err(error);
        }
    }
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner).push(mapping);
    Ok(layout)
}

/// A job on several hosts.
struct Across {
    /// The number of the host of each PE.
    hosts: Vec<u32>,
}

/// Tells the other PEs of this one's memory, and maps theirs.
fn join_others(mapping: &mut Mapping, me: usize, pes: usize) -> Result<Option<Across>, String> {
    let mut launcher = lock(&LAUNCHER);
    let job = launcher.as_mut().expect("the job was joined just before");
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (heap, statics) = mapping.files().map_err(|error| text(&error))?;
    let own = own_card(mapping, heap, statics);
    let key = |pe: usize| format!("weft-shmem-{pe}");
    let rank = |pe: usize| u32::try_from(pe).expect("the launcher's ranks have 32 bits");
    job.put(&key(me), &own.to_string()).map_err(|error| text(&error))?;
    job.barrier(START_WITHIN).map_err(|error| text(&error))?;
    let mut cards = Vec::new();
    for pe in 0..pes {
        let card = job.get(rank(pe), &key(pe)).map_err(|error| text(&error))?;
        cards.push(card.parse::<Card>().map_err(|error| format!("PE {pe}: {error}"))?);
    }
    let is_one_host = cards.iter().all(|card| card.is_of_host(&own));
    for (pe, card) in cards.iter().enumerate().filter(|(pe, _)| *pe != me) {
        match own.compare(me, card, pe).map_err(|error| text(&error))? {
            Way::Memory => mapping.join(pe, card).map_err(|error| text(&error))?,
            Way::Fabric => mapping.show(pe).map_err(|error| text(&error))?,
        }
    }
    // No PE goes on, and so none ends, before all have opened its memory.
    job.barrier(START_WITHIN).map_err(|error| text(&error))?;
    // A host has the number of its first PE.
    let first = |card: &Card| cards.iter().position(|other| other.is_of_host(card));
    let number = |card| u32::try_from(first(card).unwrap_or(0)).unwrap_or(0);
    Ok((!is_one_host).then(|| Across { hosts: cards.iter().map(number).collect() }))
}

/// Meets the PEs of other hosts: they are connected when it returns.
fn meet_far(mapping: &Mapping, statics: &Statics, across: &Across) -> Result<(), String> {
    let mut launcher = lock(&LAUNCHER);
    let job = launcher.as_mut().expect("the job was joined just before");
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let me = mapping.layout().me;
    let is_far = |pe: usize| across.hosts[pe] != across.hosts[me];
    let far: Vec<usize> = (0..across.hosts.len()).filter(|pe| is_far(*pe)).collect();
    let variables = match statics {
        Statics::Shared(shared) => Some(&shared.memory),
        Statics::Private(_) => None,
    };
    let heap = (mapping.heap(), mapping.layout().heap_bytes);
    let opened = opening::open(far.len(), heap, variables).map_err(|error| {
        let (one, other) = (far[0].min(me), far[0].max(me));
        format!("PE {one} and PE {other} are on different hosts, and meet by the fabric: {error}")
    })?;
    let Opened { mut endpoint, regions, card } = opened;
    let key = |pe: usize| format!("weft-shmem-far-{pe}");
    job.put(&key(me), &card.to_string()).map_err(|error| text(&error))?;
    job.barrier(START_WITHIN).map_err(|error| text(&error))?;
    let mut cards = Vec::new();
    for pe in &far {
        let rank = u32::try_from(*pe).expect("the launcher's ranks have 32 bits");
        let card = job.get(rank, &key(*pe)).map_err(|error| text(&error))?;
        cards.push(card.parse::<FarCard>().map_err(|error| format!("PE {pe}: {error}"))?);
    }
    let addresses: Vec<_> = far.iter().zip(&cards).map(|(pe, card)| (*pe, card.address)).collect();
    let peers = opening::connect(&mut endpoint, &addresses)?;
    let mut all = vec![None; across.hosts.len()];
    for ((pe, peer), card) in far.iter().zip(peers).zip(&cards) {
        let FarCard { heap, statics, .. } = *card;
        all[*pe] = Some(weft_pgas::far::Far { peer, heap, statics });
    }
    far::begin(endpoint, all, regions)?;
    // No PE says anything before all can hear it.
    job.barrier(START_WITHIN).map_err(|error| text(&error))
}

fn own_card(
    mapping: &Mapping,
    heap: crate::card::File,
    statics: Option<crate::card::File>,
) -> Card {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    Card {
        machine: crate::card::name(&read("/proc/sys/kernel/random/boot_id")),
        host: crate::card::name(&read("/proc/sys/kernel/hostname")),
        named: crate::card::name(&crate::settings::host_name()),
        processes: crate::card::name(&namespace.to_string_lossy()),
        process: std::process::id(),
        heap,
        heap_bytes: mapping.layout().heap_bytes,
        statics,
        program: Image::of_process().program(),
    }
}

/// Ends the library when it was ended as often as it was started. Another end does nothing.
pub fn finish(call: &str) {
    let mut state = lock(&STATE);
    let State::Running { starts, layout } = &mut *state else { return };
    let (is_last, layout) = (*starts == 1, *layout);
    *starts -= 1;
    if is_last {
        *state = State::Ended { layout };
    }
    drop(state);
    // SAFETY: the space is open.
    unsafe { collective::barrier_all(call) };
    if is_last {
        context::end();
        team::end();
        control::stand(Standing::Ended);
        if let Some(station) = station() {
            station.settle();
        }
        space::close();
        leave_launcher();
    }
}

/// Tells the launcher that this process may end. If it cannot be told, it has ended.
fn leave_launcher() {
    if let Some(job) = lock(&LAUNCHER).take() {
        let _ = job.finalize();
    }
}

/// Whether the library is started.
pub fn is_running() -> bool {
    matches!(*lock(&STATE), State::Running { .. })
}

/// The process ends. If it did not end the library, that is done now; no PE is waited for, since
/// others may be about to end without a last meeting, and the memory is theirs, too.
pub fn at_exit(status: c_int) {
    if fork::is_child() || !is_running() {
        return;
    }
    control::stand(Standing::Ended);
    if let Some(station) = station() {
        station.settle();
    }
    space::close();
    if status == 0 {
        leave_launcher();
    }
    // After a failure the connection closes without a word, and the launcher ends the job.
}

/// Prints a message and ends the job.
pub fn fail(message: &str) -> ! {
    eprintln!("weft-shmem: {message}");
    exit_all(FAILED, message)
}

/// Ends all processes of the job with an exit code.
pub fn exit_all(code: c_int, message: &str) -> ! {
    // SAFETY: it writes what the program's streams hold, and no stream of it is in use by this
    // thread.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // Another thread that holds the lock talks to the launcher itself, which sees the end.
    if let Ok(mut launcher) = LAUNCHER.try_lock()
        && let Some(job) = launcher.as_mut()
    {
        let _ = job.abort(code, message);
    }
    // SAFETY: it ends the process.
    unsafe { libc::_exit(code) }
}
