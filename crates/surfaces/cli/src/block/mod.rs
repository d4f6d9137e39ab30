//! `weft block`: serves disks, uses those of other hosts, and manages a server that runs.

mod attach;
mod ls;
mod serve;
mod stat;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use weft_block_server::configuration::parse_size;
use weft_block_server::control::{Request, ask, default_socket};

use crate::arguments::block::{BlockCommand, ControlArguments};
use crate::configuration::Configuration;

/// `weft block`.
pub fn block(
    command: &BlockCommand,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    match command {
        BlockCommand::Serve(arguments) => serve::serve(arguments, &configuration()?),
        BlockCommand::Attach(arguments) => attach::attach(arguments, &configuration()?),
        BlockCommand::Ls(arguments) => ls::ls(arguments),
        BlockCommand::Stat(arguments) => stat::stat(arguments),
        BlockCommand::Add(arguments) => {
            let (target, lun) = (arguments.target.clone(), arguments.lun.clone());
            change(&arguments.control, &Request::Add { target, lun })
        }
        BlockCommand::Resize(arguments) => {
            let (target, lun) = unit_of(&arguments.lun)?;
            let bytes = parse_size(&arguments.size)?;
            change(&arguments.control, &Request::Resize { target, lun, bytes })
        }
        BlockCommand::Remove(arguments) => {
            let (target, lun) = unit_of(&arguments.lun)?;
            change(&arguments.control, &Request::Remove { target, lun })
        }
    }
}

fn change(control: &ControlArguments, request: &Request) -> anyhow::Result<ExitCode> {
    ask(&socket_of(control), request)?;
    Ok(ExitCode::SUCCESS)
}

fn socket_of(control: &ControlArguments) -> PathBuf {
    control.control.clone().unwrap_or_else(default_socket)
}

/// The target and the number of IQN/N.
fn unit_of(text: &str) -> anyhow::Result<(String, u64)> {
    let form = || format!("{text:?} is no LUN; use IQN/N, such as iqn.2026-11.com.example:disks/0");
    let (target, number) = text.rsplit_once('/').with_context(form)?;
    Ok((target.to_owned(), number.parse().with_context(form)?))
}
