//! `weft block ls`: the targets of an iSCSI server, as an initiator sees them.

use std::process::ExitCode;

use weft_block_server::configuration::{addresses, credentials};
use weft_block_server::initiator::discover;

use crate::arguments::block::LsArguments;
use crate::output::{show, show_line};

/// `weft block ls`.
pub fn ls(arguments: &LsArguments) -> anyhow::Result<ExitCode> {
    let known = arguments.chap.as_deref().map(credentials).transpose()?;
    let found = discover(&addresses(&arguments.portal)?, known.as_ref())?;
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(ExitCode::SUCCESS);
    }
    for target in &found {
        show!("{}\n", target.name);
        for lun in &target.luns {
            show!("  {:5}  {:>16} bytes  {}\n", lun.number, lun.bytes, lun.serial);
        }
    }
    Ok(ExitCode::SUCCESS)
}
