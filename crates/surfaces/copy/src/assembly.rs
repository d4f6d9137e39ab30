//! How the ends of a transfer are put together.

use std::sync::Arc;

use weft_file_io::Pool;
use weft_transfer::{Excludes, Terms, hash};

use crate::destination::Destination;
use crate::error::CopyError;
use crate::inbox::Inbox;
use crate::link::Outlet;
use crate::report::{Gauge, Reporter};
use crate::source_end::{self, SourceEnd};
use crate::space::Supply;
use crate::target_end::{self, TargetEnd};
use crate::tops::Tops;
use crate::walk::Walk;

/// Least blocks of a pool.
const BLOCKS_MIN: usize = 4;
/// Most blocks of a pool.
const BLOCKS_MAX: usize = 4_096;

/// The choices that one end makes for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Threads that read.
    pub readers: usize,
    /// Threads that write.
    pub writers: usize,
    /// Most bytes of blocks that are on their way or wait, at each end.
    pub window_bytes: usize,
    /// The mask of modes of new files, where they are not kept.
    pub umask: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { readers: 2, writers: 2, window_bytes: 64 << 20, umask: umask() }
    }
}

/// The mask of this process. It is read off the kernel's report, as the call that returns it also
/// changes it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

/// How many blocks of this size one end has.
pub(crate) fn block_count(settings: &Settings, block_bytes: usize) -> usize {
    (settings.window_bytes / block_bytes).clamp(BLOCKS_MIN, BLOCKS_MAX)
}

/// Buffers for the blocks of one end.
pub(crate) fn pool(terms: &Terms, settings: &Settings) -> Result<Pool, CopyError> {
    let block_bytes = usize::try_from(terms.block_bytes).expect("a block fits memory");
    Pool::new(block_bytes, block_count(settings, block_bytes))
        .map_err(|why| CopyError::system("memory for blocks", &why))
}

/// Names sources, so that a journal of other ones is not taken up: the host and the absolute
/// places.
pub(crate) fn identity(places: &[Vec<u8>]) -> u128 {
    let mut all = std::fs::read("/etc/machine-id").unwrap_or_default();
    all.extend_from_slice(rustix::system::uname().nodename().to_bytes());
    let here = std::env::current_dir().unwrap_or_default();
    for place in places {
        let path = here.join(crate::root::path_of(place));
        all.push(0);
        all.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
    }
    hash(&all)
}

/// The reading end: of sources with their identity, out of a directory that is the destination.
pub(crate) fn source(
    (tops, identity, stays_out_of): (&Arc<Tops>, u128, Option<(u64, u64)>),
    terms: &Terms,
    settings: &Settings,
    (supply, inbox, outlet): (Supply, Arc<Inbox<source_end::Input>>, Arc<dyn Outlet>),
    (reporter, gauge): (Arc<dyn Reporter>, Arc<Gauge>),
) -> Result<SourceEnd, CopyError> {
    let excludes = Excludes::new(&terms.excludes)?.bare(tops.is_bare());
    let walk = Walk {
        is_recursive: terms.is_recursive,
        keeps_all: terms.keeps_all,
        excludes,
        stays_out_of,
    };
    Ok(SourceEnd {
        tops: Arc::clone(tops),
        walk,
        terms: terms.clone(),
        identity,
        readers: settings.readers,
        supply,
        inbox,
        outlet,
        reporter,
        gauge,
        counts: true,
    })
}

/// The writing end.
pub(crate) fn target(
    destination: Destination,
    terms: &Terms,
    settings: &Settings,
    (blocks, inbox, outlet): (usize, Arc<Inbox<target_end::Input>>, Arc<dyn Outlet>),
    (reporter, gauge): (Arc<dyn Reporter>, Arc<Gauge>),
) -> TargetEnd {
    TargetEnd {
        destination,
        terms: terms.clone(),
        writers: settings.writers,
        umask: settings.umask,
        blocks,
        shortcut: None,
        inbox,
        outlet,
        reporter,
        gauge,
    }
}
