//! Shows the daemon what a server or a tool of weft counts, while it runs.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_open::Counting;
use weft_wire::stats::Work;

use crate::configuration::Configuration;

/// How often the totals are shown.
const EVERY: Duration = Duration::from_millis(250);

/// The totals are shown until this is dropped, and once more then.
pub struct Shown {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Shows what `totals` tells to the daemon of this node, if there is one or when one comes.
pub fn show(
    configuration: &Configuration,
    name: &str,
    totals: impl Fn() -> Vec<(Work, u64)> + Send + 'static,
) -> Shown {
    let socket: Option<PathBuf> = configuration.control_socket(None).ok().map(|found| found.path);
    let counting = socket.and_then(|socket| Counting::new(&socket, name).ok());
    let (ends, ended) = channel::<()>();
    let begin = |mut counting: Counting| {
        let run = move || loop {
            counting.look();
            let is_over =
                ended.recv_timeout(EVERY) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            totals().into_iter().for_each(|(what, total)| counting.set(what, total));
            if is_over {
                return;
            }
        };
        // Nothing but the view is lost without it.
        std::thread::Builder::new().name("weft-counting".to_owned()).spawn(run).ok()
    };
    Shown { ends: Some(ends), thread: counting.and_then(begin) }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
