//! The line that shows how far a copy is, on a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use weft_copy::Gauge;

/// How often the line is written.
const EVERY: Duration = Duration::from_millis(200);

/// The line.
pub struct Progress {
    bar: ProgressBar,
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    /// Shows the line if standard error is a terminal.
    pub fn start(gauge: &Arc<Gauge>, is_wanted: bool) -> Self {
        let is_shown = is_wanted && std::io::stderr().is_terminal();
        let target =
            if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let form = "{bytes:>10} of {total_bytes} · {msg} · {bytes_per_sec} · {eta} left";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = is_shown.then(|| {
            let (bar, gauge, is_over) = (bar.clone(), Arc::clone(gauge), Arc::clone(&is_over));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    show(&bar, &gauge);
                    std::thread::sleep(EVERY);
                }
            })
        });
        Self { bar, is_over, thread: Mutex::new(thread) }
    }

    /// Writes a line to standard error, above the line of progress.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Hides the line while something else is written.
    pub fn hide(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }

    /// Removes the line.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

fn show(bar: &ProgressBar, gauge: &Gauge) {
    let found = gauge.files_found.load(Ordering::Relaxed);
    let over = gauge.files_over.load(Ordering::Relaxed).min(found);
    let more = if gauge.is_walked.load(Ordering::Relaxed) { "" } else { "+" };
    bar.set_length(gauge.bytes_found.load(Ordering::Relaxed));
    bar.set_position(gauge.bytes_moved.load(Ordering::Relaxed));
    bar.set_message(format!("{over} of {found}{more} files"));
}
