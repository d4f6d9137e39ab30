//! `weft transfer`: the far ends of `weft cp`.

mod sim;

use std::process::ExitCode;

use anyhow::Context;
use weft_copy::{ServeOptions, Server, Settings, answer_standard};

use crate::arguments::transfer::{ServeArguments, TransferCommand};

pub fn transfer(command: &TransferCommand) -> anyhow::Result<ExitCode> {
    match command {
        TransferCommand::Serve(arguments) => serve(arguments),
        TransferCommand::Sim(arguments) => sim::sim(arguments),
        TransferCommand::Answer => match answer_standard(&Settings::default()) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // The end that a user started says what went wrong.
            Err(error) => {
                tracing::info!("the transfer ended: {error}");
                Ok(ExitCode::FAILURE)
            }
        },
    }
}

fn serve(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    let key = arguments.key.as_ref().map(|file| {
        std::fs::read_to_string(file).with_context(|| format!("the key file {}", file.display()))
    });
    let options = ServeOptions {
        listen: arguments.listen,
        key: key.transpose()?,
        is_read_only: arguments.read_only,
        settings: Settings::default(),
    };
    let server = Server::new(&arguments.root, options)?;
    eprintln!("weft: serving {} at {}", arguments.root.display(), server.address()?);
    server.serve()
}
