//! `weft kv serve`: one node without a cluster.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use weft_kv::node::{Durability, Node};
use weft_kv::store::StoreError;
use weft_kv_server::{Alone, Settings};

use super::password;
use crate::arguments::kv::{DurabilityMode, ServeArguments};

pub fn serve(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    let password = password(arguments.password_file.as_deref())?;
    let addresses = addresses(&arguments.bind, arguments.port)?;
    let listener = weft_kv_server::listen(&addresses).with_context(|| {
        format!("{} port {} cannot be listened at", arguments.bind, arguments.port)
    })?;
    // Port 0 is any free one.
    let shown = listener.addresses().first().copied().unwrap_or(addresses[0]);
    let durability = match arguments.durability {
        DurabilityMode::Replicated => Durability::Replicated,
        DurabilityMode::Durable => Durability::Durable,
        DurabilityMode::DurableAll => Durability::DurableAll,
    };
    std::fs::create_dir_all(&arguments.data)
        .with_context(|| format!("the directory {} cannot be made", arguments.data.display()))?;
    let address = (shown.ip().to_string(), shown.port());
    let node = Alone::open(&arguments.data, durability, address)
        .map_err(|error| refusal(&arguments.data, &error))?;
    for text in node.discarded() {
        eprintln!("weft: the recovery of {}: {text}", arguments.data.display());
    }
    let node = Arc::new(node);
    let settings = Settings {
        password,
        directory: arguments.data.display().to_string(),
        ..Settings::default()
    };
    let given: Arc<dyn Node> = Arc::clone(&node) as _;
    weft_kv_server::serve(listener, given, settings)
        .with_context(|| format!("the server of {} ended", arguments.data.display()))?;
    if let Some(node) = Arc::into_inner(node) {
        node.close().with_context(|| {
            format!("{} could not be closed; nothing is lost", arguments.data.display())
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn addresses(bind: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    // An address of IPv6 may be in brackets.
    let host = bind.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(bind);
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("{bind} is no address of this host"))?
        .collect();
    if found.is_empty() { Err(anyhow!("{bind} is no address")) } else { Ok(found) }
}

/// Why a store is not served, in one line.
fn refusal(data: &Path, error: &StoreError) -> anyhow::Error {
    match error {
        // It begins with the directory.
        StoreError::NotServed(text) => anyhow!("{text}"),
        error => anyhow!("{} is not served: {error}", data.display()),
    }
}
