//! `weft cp`: copies files and trees between places.

mod progress;

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use weft_copy::{CopyError, Gauge, Outcome, Place, Reach, Reporter, Settings, Stage, Transport};
use weft_transfer::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Code, SERVICES_MAX, Terms, Trouble};
use weft_wire::stats::Work;

use crate::arguments::transfer::{CpArguments, TransportWord};
use crate::configuration::Configuration;
use crate::counting;
use crate::output::show_line;
use crate::transports::of_transfers;
use progress::Progress;

/// Some files failed.
const EXIT_FILES: u8 = 1;
/// It could not start, or was stopped.
const EXIT_START: u8 = 2;
/// A source changed while it was read.
const EXIT_CHANGED: u8 = 3;
/// Connections that carry bytes to a server, unless a user says how many.
const STREAMS: u16 = 2;
/// The same of sessions over the fabric.
const SESSIONS: u16 = 1;
/// Most of those.
#[allow(clippy::cast_possible_truncation, reason = "there are few")]
const SESSIONS_MAX: u16 = SERVICES_MAX as u16;
/// Most troubles that are kept for `--json`.
const TROUBLES_MAX: usize = 10_000;

/// The fault, as it is told.
struct Notes {
    is_json: bool,
    is_dry: bool,
    progress: Progress,
    troubles: Mutex<Vec<Value>>,
    gauge: Arc<Gauge>,
    count: AtomicU64,
    has_failed: AtomicBool,
    has_changed: AtomicBool,
}

impl Reporter for Notes {
    fn trouble(&self, trouble: &Trouble) {
        let flag = match trouble.code {
            Code::Changed => &self.has_changed,
            _ => &self.has_failed,
        };
        flag.store(true, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.gauge.troubles.fetch_add(1, Ordering::Relaxed);
        if self.is_json {
            let mut troubles = self.troubles.lock();
            if troubles.len() < TROUBLES_MAX {
                troubles.push(json!({
                    "path": trouble.path.to_string(),
                    "code": code_name(trouble.code),
                    "text": trouble.text,
                }));
            }
        } else {
            let line = format!(
                "weft: {}: {}",
                trouble.path,
                weft_transfer::shown(trouble.text.as_bytes())
            );
            self.progress.say(&line);
        }
    }

    fn would(&self, text: &str) {
        if self.is_dry && !self.is_json {
            self.progress.hide(|| show_line!("{text}"));
        }
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Read => "read",
        Code::Write => "write",
        Code::Permission => "permission",
        Code::Vanished => "vanished",
        Code::Full => "full",
        Code::Changed => "changed",
        Code::Verification => "verification",
        Code::Unsupported => "unsupported",
        Code::Refused => "refused",
    }
}

/// Copies, says how it went, and returns the exit status.
pub fn cp(arguments: &CpArguments, configuration: &Configuration) -> ExitCode {
    match prepared(arguments, configuration) {
        Ok((places, terms, settings, reach)) => {
            let gauge = Arc::new(Gauge::default());
            let of_gauge = Arc::clone(&gauge);
            // The daemon shows how far the copy is.
            let _shown = counting::show(configuration, "weft cp", move || {
                let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
                vec![
                    (Work::CopyEntries, of(&of_gauge.files_over)),
                    (Work::CopyBytes, of(&of_gauge.bytes_moved)),
                    (Work::CopyTroubles, of(&of_gauge.troubles)),
                ]
            });
            copy(arguments, &places, &(terms, settings, reach), &gauge)
        }
        Err(why) => {
            fail(arguments, &why);
            ExitCode::from(EXIT_START)
        }
    }
}

fn fail(arguments: &CpArguments, why: &str) {
    if arguments.json {
        show_line!("{}", json!({ "status": EXIT_START, "error": why }));
    } else {
        eprintln!("weft: {why}");
    }
}

type Prepared = (Vec<Place>, Terms, Settings, Reach);

fn prepared(arguments: &CpArguments, configuration: &Configuration) -> Result<Prepared, String> {
    let places = arguments.places.iter().map(|place| Place::parse(place.as_bytes()));
    let places = places.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let block_bytes = u32::try_from(arguments.block_size).unwrap_or(u32::MAX);
    let is_whole = block_bytes.is_multiple_of(BLOCK_BYTES_MIN);
    if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) || !is_whole {
        return Err("the size of blocks is 4K to 64M, in steps of 4K".to_owned());
    }
    if arguments.delete && !(arguments.archive || arguments.recursive) {
        return Err("--delete is about directories; it needs -a or -r".to_owned());
    }
    let terms = Terms {
        block_bytes,
        streams: arguments.streams.unwrap_or(STREAMS),
        is_recursive: arguments.archive || arguments.recursive,
        keeps_all: arguments.archive,
        verifies: !arguments.no_verify,
        resumes: !arguments.no_resume,
        is_dry: arguments.dry_run,
        deletes: arguments.delete,
        is_direct: arguments.direct,
        bytes_per_second: arguments.bwlimit.unwrap_or(0),
        excludes: arguments.exclude.clone(),
    };
    let settings = Settings {
        readers: arguments.threads.into(),
        writers: arguments.threads.into(),
        window_bytes: usize::try_from(arguments.window).unwrap_or(usize::MAX),
        ..Settings::default()
    };
    let key = arguments.key.as_ref().map(|file| {
        std::fs::read_to_string(file)
            .map_err(|why| format!("the key file {} cannot be read: {why}", file.display()))
    });
    let for_rails = u16::try_from(arguments.rails.len()).unwrap_or(SESSIONS_MAX).max(SESSIONS);
    let reach = Reach {
        transport: match arguments.transport {
            TransportWord::Auto => Transport::Auto,
            TransportWord::Fabric => Transport::Fabric,
            TransportWord::Tcp => Transport::Tcp,
        },
        opening: of_transfers("weft cp", &configuration.options),
        sessions: arguments.streams.unwrap_or(for_rails).min(SESSIONS_MAX),
        rails: arguments.rails.clone(),
        shell: arguments.rsh.split_whitespace().map(str::to_owned).collect(),
        weft_path: arguments.weft_path.clone(),
        key: key.transpose()?,
    };
    Ok((places, terms, settings, reach))
}

fn copy(
    arguments: &CpArguments,
    places: &[Place],
    (terms, settings, reach): &(Terms, Settings, Reach),
    gauge: &Arc<Gauge>,
) -> ExitCode {
    let Some((destination, sources)) = places.split_last() else {
        fail(arguments, "there is no destination");
        return ExitCode::from(EXIT_START);
    };
    stop_on_signals(gauge);
    let notes = Arc::new(Notes {
        is_json: arguments.json,
        is_dry: arguments.dry_run,
        progress: Progress::start(gauge, !arguments.json && !arguments.dry_run),
        troubles: Mutex::default(),
        gauge: Arc::clone(gauge),
        count: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
        has_changed: AtomicBool::new(false),
    });
    let reporter: Arc<dyn Reporter> = Arc::clone(&notes) as _;
    let began = Instant::now();
    let result = weft_copy::copy(sources, destination, (reach, terms, settings), &reporter, gauge);
    notes.progress.end();
    let status = match &result {
        Ok(outcome) if outcome.summary.troubled > 0 => EXIT_FILES,
        Ok(_) if notes.has_failed.load(Ordering::Relaxed) => EXIT_FILES,
        Ok(outcome) if outcome.summary.changed > 0 => EXIT_CHANGED,
        Ok(_) if notes.has_changed.load(Ordering::Relaxed) => EXIT_CHANGED,
        Ok(_) => 0,
        Err(_) => EXIT_START,
    };
    tell(arguments, &notes, &result, &Times::of(gauge, began), status);
    ExitCode::from(status)
}

/// How long a copy took, and its parts: until both ends had met, until all was done, until the
/// connections had ended.
struct Times {
    all: Duration,
    parts: [Duration; 3],
}

impl Times {
    fn of(gauge: &Gauge, began: Instant) -> Self {
        let ended = Instant::now();
        let ready = gauge.ready.get().copied().unwrap_or(ended);
        let done = gauge.done.get().copied().unwrap_or(ended).max(ready);
        let parts = [ready - began, done - ready, ended - done];
        Self { all: ended - began, parts }
    }
}

/// Lets the first Ctrl-C, or a wish to end, stop the transfer so that it can be resumed. The next
/// one ends the process.
fn stop_on_signals(gauge: &Arc<Gauge>) {
    let gauge = Arc::clone(gauge);
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    let Ok(mut signals) = signal_hook::iterator::Signals::new(signals) else { return };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if gauge.stop.swap(true, Ordering::Relaxed) {
                // The default of the signal.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    });
}

fn tell(
    arguments: &CpArguments,
    notes: &Notes,
    result: &Result<Outcome, CopyError>,
    took: &Times,
    status: u8,
) {
    if arguments.json {
        let mut shown = match result {
            Ok(outcome) => numbers(outcome, &notes.gauge, took),
            Err(error) => json!({ "error": error.to_string() }),
        };
        shown["status"] = status.into();
        shown["troubles"] = Value::Array(std::mem::take(&mut *notes.troubles.lock()));
        shown["troubles_in_all"] = notes.count.load(Ordering::Relaxed).into();
        show_line!("{shown}");
        return;
    }
    match result {
        Ok(outcome) => {
            if arguments.stats {
                show_stats(outcome, &notes.gauge, took);
            }
        }
        Err(error) => eprintln!("weft: {error}"),
    }
}

fn numbers(outcome: &Outcome, gauge: &Gauge, took: &Times) -> Value {
    let summary = outcome.summary;
    let [meeting, moving, ending] = took.parts.map(|part| part.as_secs_f64());
    json!({
        "files": summary.files,
        "others": summary.others,
        "bytes": summary.bytes,
        "received": summary.received,
        "resumed": summary.resumed,
        "by_system": summary.by_system,
        "direct": gauge.files_direct.load(Ordering::Relaxed),
        "repaired": summary.repaired,
        "deleted": summary.deleted,
        "troubled": summary.troubled,
        "changed": summary.changed,
        "seconds": took.all.as_secs_f64(),
        "seconds_meeting": meeting,
        "seconds_moving": moving,
        "seconds_ending": ending,
        "stages": stages(gauge).map(|(name, stage)| json!({
            "name": name,
            "times": stage.times(),
            "seconds": stage.took().as_secs_f64(),
        })),
        "near": near(gauge).map(|(name, near)| json!({ "name": name, "node": near })),
        "transport": outcome.way.name(),
        "why": outcome.why,
        "streams": outcome.streams,
        "block_bytes": outcome.block_bytes,
        "window_blocks": outcome.window,
    })
}

/// The work of this end's threads.
fn stages(gauge: &Gauge) -> [(&'static str, &Stage); 3] {
    [("load", &gauge.loading), ("store", &gauge.storing), ("finish", &gauge.finishing)]
}

/// The threads of this end that are bound to a memory node, and where.
fn near(gauge: &Gauge) -> [(&'static str, Option<&str>); 3] {
    let fabric = gauge.fabric_near.get().map(String::as_str);
    [("load", gauge.loading.near()), ("store", gauge.storing.near()), ("fabric", fabric)]
}

/// The same in words.
fn near_in_words(gauge: &Gauge) -> String {
    let bound: Vec<String> = near(gauge)
        .into_iter()
        .filter_map(|(name, near)| near.map(|near| format!("{name} at {near}")))
        .collect();
    if bound.is_empty() { "no thread of this end is bound".to_owned() } else { bound.join(", ") }
}

/// A stage in words: how long it took, and each time.
fn in_words(stage: &Stage) -> String {
    let (took, times) = (stage.took(), stage.times());
    let each = took / u32::try_from(times.max(1)).unwrap_or(u32::MAX);
    format!("{times} times, {} us each, {:.3} s in all", each.as_micros(), took.as_secs_f64())
}

fn show_stats(outcome: &Outcome, gauge: &Gauge, took: &Times) {
    let summary = outcome.summary;
    let seconds = took.all.as_secs_f64();
    let [meeting, moving, ending] = took.parts.map(|part| part.as_secs_f64());
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = summary.bytes as f64 / seconds.max(1e-9) / 1e6;
    let direct = gauge.files_direct.load(Ordering::Relaxed);
    let lines = [
        ("files", summary.files.to_string()),
        ("directories, links, …", summary.others.to_string()),
        ("bytes", summary.bytes.to_string()),
        ("bytes in blocks", summary.received.to_string()),
        ("bytes that were there", summary.resumed.to_string()),
        ("files by the system", summary.by_system.to_string()),
        ("opened for O_DIRECT", format!("{direct} at this end")),
        ("pieces repaired", summary.repaired.to_string()),
        ("removed", summary.deleted.to_string()),
        ("failed", summary.troubled.to_string()),
        ("changed meanwhile", summary.changed.to_string()),
        ("time", format!("{seconds:.3} s, {rate:.1} MB/s")),
        ("of it", format!("{meeting:.3} s to meet, {moving:.3} s moving, {ending:.3} s to end")),
        ("way", format!("{} ({})", outcome.way.name(), outcome.why)),
        ("streams", outcome.streams.to_string()),
        ("memory nodes", near_in_words(gauge)),
        ("blocks", format!("{} bytes, {} at a time", outcome.block_bytes, outcome.window)),
    ];
    for (name, value) in lines {
        show_line!("{name:<22} {value}");
    }
    for (name, stage) in stages(gauge).into_iter().filter(|(_, stage)| stage.times() > 0) {
        let name = format!("{name} at this end");
        show_line!("{name:<22} {}", in_words(stage));
    }
}
