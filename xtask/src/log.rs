//! Where the output of a stage goes, and the priority of what it runs.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

/// The output of a stage.
#[derive(Debug, Default)]
pub enum Log {
    /// It is shown at once.
    #[default]
    Shown,
    /// It is kept to be shown at the end of the stage, which runs beside others. What it runs has
    /// a low priority.
    Kept(String),
}

impl Log {
    /// Adds a line.
    pub fn line(&mut self, text: &str) {
        match self {
            Self::Shown => println!("{text}"),
            Self::Kept(lines) => {
                lines.push_str(text);
                lines.push('\n');
            }
        }
    }

    /// Runs a command to its end.
    pub fn run(&mut self, mut command: Command) -> std::io::Result<ExitStatus> {
        match self {
            Self::Shown => command.status(),
            Self::Kept(_) => {
                let output = lowered(&command).output()?;
                self.line(String::from_utf8_lossy(&output.stdout).trim_end());
                self.line(String::from_utf8_lossy(&output.stderr).trim_end());
                Ok(output.status)
            }
        }
    }

    /// Runs a command to its end and passes each line of its standard output to `read`.
    pub fn read(
        &mut self,
        mut command: Command,
        mut read: impl FnMut(&str),
    ) -> std::io::Result<ExitStatus> {
        if let Self::Kept(_) = self {
            command = lowered(&command);
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                self.line(&line);
                read(&line);
            }
        }
        child.wait()
    }
}

/// Of a processor that others want, too, it gets a tenth. With less it would have no end on a
/// machine that others keep busy.
const NICE: &str = "10";

/// The same command with a low priority.
fn lowered(command: &Command) -> Command {
    let mut niced = Command::new("nice");
    niced.args(["-n", NICE]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => niced.env(name, value),
            None => niced.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        niced.current_dir(directory);
    }
    niced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_others_is_kept_and_has_a_low_priority() {
        let mut log = Log::Kept(String::new());
        let mut command = Command::new("sh");
        command.args(["-c", "nice; echo $A$B >&2; pwd; exit 3"]).current_dir("/");
        command.env("A", "x").env_remove("B");
        let status = log.run(command).expect("sh is part of the system");
        assert_eq!(status.code(), Some(3));
        let nice = lines_of(&log).remove(0).parse::<i32>().expect("a number");
        assert!(nice >= 10, "{nice}");
        assert_eq!(lines_of(&log)[1..], ["/", "x"]);
        let mut command = Command::new("nice");
        command.stdin(Stdio::null());
        let mut lines = Vec::new();
        log.read(command, |line| lines.push(line.to_owned())).expect("it is there");
        assert_eq!(lines, [nice.to_string()]);
    }

    fn lines_of(log: &Log) -> Vec<&str> {
        match log {
            Log::Shown => Vec::new(),
            Log::Kept(text) => text.lines().collect(),
        }
    }
}
