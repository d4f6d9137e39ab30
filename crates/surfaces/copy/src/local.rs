//! A copy on one host: both ends in this process, which pass blocks by handing buffers over.

use std::sync::Arc;

use weft_transfer::Terms;

use crate::assembly::{self, Settings};
use crate::destination::Destination;
use crate::error::CopyError;
use crate::inbox::Inbox;
use crate::link::Direct;
use crate::report::{Gauge, Outcome, Quiet, Reporter, Way};
use crate::shortcut::Shortcut;
use crate::space::Supply;
use crate::tops::Tops;

/// Copies local sources to a local destination.
///
/// # Errors
/// [`CopyError`].
pub fn copy(
    sources: &[Vec<u8>],
    destination: &[u8],
    terms: &Terms,
    settings: &Settings,
    reporter: &Arc<dyn Reporter>,
    gauge: &Arc<Gauge>,
) -> Result<Outcome, CopyError> {
    let tops = Arc::new(Tops::of_user(sources, !terms.is_recursive)?);
    let destination = Destination { place: destination.to_vec(), within: None };
    refuse_itself(&tops, &destination)?;
    let pool = assembly::pool(terms, settings)?;
    let blocks = pool.count();
    let (to_source, to_target) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
    let there = destination.identity();
    let mut source = assembly::source(
        (&tops, assembly::identity(sources), there.map(|(id, _)| id)),
        terms,
        settings,
        (Supply::Own(pool), Arc::clone(&to_source), Arc::new(Direct(Arc::clone(&to_target)))),
        (Arc::new(Quiet), Arc::clone(gauge)),
    )?;
    source.counts = false;
    let mut target = assembly::target(
        destination,
        terms,
        settings,
        (blocks, to_target, Arc::new(Direct(to_source))),
        (Arc::clone(reporter), Arc::clone(gauge)),
    );
    target.shortcut = Some(Arc::new(Shortcut::new(tops, !terms.verifies)));
    let (read, written) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| source.run());
        let written = target.run();
        (reading.join(), written)
    });
    let read = read.map_err(|_| CopyError::Lost("the reading end failed".to_owned()))?;
    let written = match (written, read) {
        (Ok(written), Ok(_)) => written,
        // The end that saw the cause says more than the one that heard of it.
        (Err(CopyError::Refused(_)), Err(error)) | (Err(error), _) | (Ok(_), Err(error)) => {
            return Err(error);
        }
    };
    Ok(Outcome {
        summary: written.summary,
        way: Way::Local,
        why: "both places are on this host".to_owned(),
        window: written.window,
        block_bytes: terms.block_bytes,
        streams: 1,
    })
}

/// Refuses to copy something onto itself.
fn refuse_itself(tops: &Tops, destination: &Destination) -> Result<(), CopyError> {
    let Some((there, _)) = destination.identity() else { return Ok(()) };
    for top in &tops.0 {
        let name = if top.name.is_empty() { &b"."[..] } else { &top.name };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let Ok(stat) = rustix::fs::statat(&**top.root.top(), name, flags) else { continue };
        if there == (stat.st_dev, stat.st_ino) {
            let name = weft_transfer::shown(&top.shown);
            return Err(CopyError::place(name, "is the destination itself"));
        }
    }
    Ok(())
}
