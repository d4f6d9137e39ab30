//! `weft kv`: a key-value store that clients of Redis use.

mod admin;
mod bench;
mod check;
mod serve;
mod up;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::arguments::kv::{AdminCommand, KvCommand};
use crate::configuration::Configuration;

/// `weft kv`.
pub fn kv(
    command: &KvCommand,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    match command {
        KvCommand::Serve(arguments) => serve::serve(arguments, configuration),
        KvCommand::Up(arguments) => up::up(arguments),
        KvCommand::Bench(arguments) => bench::bench(arguments, configuration),
        KvCommand::Admin(AdminCommand::Check(arguments)) => check::check(arguments),
        KvCommand::Admin(AdminCommand::Status(arguments)) => admin::status(arguments),
        KvCommand::Admin(AdminCommand::Backup(arguments)) => admin::backup(arguments),
    }
}

/// The first line of a file with a password.
fn password(file: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(file) = file else { return Ok(None) };
    let text = fs::read(file).with_context(|| {
        format!("the file with the password, {}, cannot be read", file.display())
    })?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        bail!("the first line of {} is empty; write the password there", file.display());
    }
    Ok(Some(line.to_vec()))
}
