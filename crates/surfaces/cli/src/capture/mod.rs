//! `weft capture`: what goes over the fabric, as a file that Wireshark reads.
//!
//! Nobody does anything for it: it looks at shared memory and at interfaces from beside, every
//! moment. So it may be late; what it missed is counted.
//!
//! | module | what is looked at | in the file |
//! |---|---|---|
//! | [`connections`] | the lanes of connections (by `lane::tap`) | IP packets with TCP |
//! | [`devices`] | the interfaces of Ethernet devices | Ethernet frames |
//! | [`messages`] | the rings of an endpoint (by `pair_tap`) | its own link type |

mod connections;
mod devices;
mod filter;
mod messages;
mod output;
mod segments;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::CaptureArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::show_line;
use connections::Connections;
use devices::Devices;
use filter::Filter;
use messages::Messages;
use output::Output;

/// How often the daemon is asked for new connections, devices and endpoints.
const FIND_EVERY: Duration = Duration::from_millis(20);
/// The pause when nothing was found: short beside the time in which a lane is used once.
const PAUSE: Duration = Duration::from_micros(100);

/// The things that are looked at.
trait Subject {
    /// Begins to look at new ones, and ends it for those that are gone.
    fn find(&mut self, socket: &Path, output: &mut Output) -> anyhow::Result<()>;
    /// Writes what came since. True if there was something.
    fn look(&mut self, output: &mut Output) -> anyhow::Result<bool>;
    /// Counts what is known to be missing at the end.
    fn end(&mut self, output: &mut Output) -> anyhow::Result<()>;
}

/// The subject that `--of` names.
fn subject(of: Option<&str>, output: &mut Output) -> anyhow::Result<Box<dyn Subject>> {
    let number = |text: &str, what: &str| {
        text.parse::<u32>().with_context(|| format!("{what}:N has a number, not {text:?}"))
    };
    Ok(match of.and_then(|of| of.split_once(':')) {
        Some(("device", "all")) => Box::new(Devices::new(None)),
        Some(("device", node)) => Box::new(Devices::new(Some(number(node, "device")?))),
        Some(("endpoint", vpid)) => {
            let vpid = u16::try_from(number(vpid, "endpoint")?).context("there is none so high")?;
            Box::new(Messages::new(vpid, output)?)
        }
        _ => Box::new(Connections::new(of.map(str::to_owned), output)?),
    })
}

/// `weft capture`.
pub fn capture(
    arguments: &CaptureArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    ensure!(weftd::client::answers(&socket.path), "{}", absence(&socket));
    let filter = Filter::read(&arguments.filter)?;
    let is_of_endpoint = arguments.of.as_ref().is_some_and(|of| of.starts_with("endpoint:"));
    ensure!(
        filter.is_none() || !is_of_endpoint,
        "a filter is for packets of connections and devices; messages have no addresses"
    );
    let mut output = Output::create(&arguments.write, filter)?;
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    let until = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut subject = subject(arguments.of.as_deref(), &mut output)?;
    let mut due = Instant::now();
    let mut is_told = false;
    while !ends.load(Ordering::Relaxed)
        && until.is_none_or(|until| Instant::now() < until)
        && output.sums.file_bytes < arguments.bytes
    {
        if Instant::now() >= due {
            due = Instant::now() + FIND_EVERY;
            subject.find(&socket.path, &mut output)?;
        }
        if !std::mem::replace(&mut is_told, true) {
            let file = arguments.write.display();
            eprintln!("weft: capturing to {file}; control-c ends it");
        }
        if !subject.look(&mut output)? {
            output.flush()?;
            std::thread::sleep(PAUSE);
        }
    }
    subject.end(&mut output)?;
    output.flush()?;
    let sums = output.sums;
    if arguments.json {
        show_line!("{}", serde_json::to_string(&sums)?);
    } else {
        eprintln!(
            "weft: {} packets with {} bytes of {}; {} bytes and {} packets were lost, in {} places",
            sums.packets,
            sums.bytes,
            sums.subjects,
            sums.lost_bytes,
            sums.lost_packets,
            sums.losses
        );
    }
    Ok(ExitCode::SUCCESS)
}
