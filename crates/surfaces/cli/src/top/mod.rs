//! `weft top`: the node, live, on a terminal, or as one object a line for scripts.
//!
//! The daemon is asked for its status once each interval, as `weft status` does; what is shown a
//! second is the difference of two. The screen needs 80 columns and 24 lines.

mod history;
mod screen;
mod sheet;
mod state;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ratatui::crossterm::event::{self, Event};
use weftd::{Status, Users};

use crate::arguments::TopArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use state::{Next, State};

/// How long keys may wait for the screen.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// `weft top`.
pub fn top(arguments: &TopArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    ensure!(weftd::client::answers(&socket.path), "{}", absence(&socket));
    let every = Duration::from_millis(arguments.every);
    if arguments.json {
        return stream(&socket.path, every, arguments.count);
    }
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "weft top needs a terminal; `weft top --json` is for scripts"
    );
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let result = run(&mut terminal, &socket.path, every);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

/// One status a line.
fn stream(socket: &Path, every: Duration, count: Option<u64>) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    for number in 0.. {
        if number > 0 {
            std::thread::sleep(every);
        }
        let status = weftd::client::status(socket)?;
        let line = serde_json::to_string(&status)?;
        // A reader that has enough closes its end.
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
        if count.is_some_and(|count| number + 1 >= count) {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    socket: &Path,
    every: Duration,
) -> anyhow::Result<()> {
    let mut state = State::new(Users::read());
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            due = Instant::now() + every;
            let status = weftd::client::status(socket).map_err(|error| format!("{error:#}"));
            state.take(status);
        }
        terminal.draw(|frame| screen::draw(frame, &mut state))?;
        let wait = due.saturating_duration_since(Instant::now()).min(KEYS_EVERY);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && state.key(key) == Next::Quit
        {
            return Ok(());
        }
    }
}

/// The status of now and the one before, and the seconds between.
struct Pair<'a> {
    before: Option<&'a Status>,
    now: &'a Status,
}

impl Pair<'_> {
    /// How fast a count grows, in a second. `of` finds it in a status; 0 where it is new.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn rate(&self, of: impl Fn(&Status) -> Option<u64>) -> f64 {
        let Some(before) = self.before else { return 0.0 };
        let milliseconds = self.now.at_ms.saturating_sub(before.at_ms);
        let (Some(then), Some(now)) = (of(before), of(self.now)) else { return 0.0 };
        match milliseconds {
            0 => 0.0,
            _ => now.saturating_sub(then) as f64 * 1000.0 / milliseconds as f64,
        }
    }
}
