//! `weft kv admin`: what a server says of itself, and a copy of what it serves.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

use super::password;
use crate::arguments::kv::{KvBackupArguments, KvStatusArguments};
use crate::output::{show, show_line};
use crate::table::Table;

/// How often the state of a copy is asked for.
const PAUSE: Duration = Duration::from_millis(100);

pub fn status(arguments: &KvStatusArguments) -> anyhow::Result<ExitCode> {
    let server = Server::find(&arguments.addr, arguments.password_file.as_deref())?;
    let status = server.status()?;
    if arguments.json {
        show_line!("{status}");
    } else {
        show!("{}", text_of(&status));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn backup(arguments: &KvBackupArguments) -> anyhow::Result<ExitCode> {
    let server = Server::find(&arguments.addr, arguments.password_file.as_deref())?;
    let to = std::path::absolute(&arguments.to)?;
    let to = to.to_str().ok_or_else(|| anyhow!("the name of the directory is no text"))?;
    server.ask(&[b"WEFT", b"BACKUP", to.as_bytes()])?;
    loop {
        let status = server.status()?;
        match status["backup"].as_str() {
            Some("running") => std::thread::sleep(PAUSE),
            Some("done") => return Ok(ExitCode::SUCCESS),
            why => bail!("{to} is no copy: {}", why.unwrap_or("the server did not say why")),
        }
    }
}

/// A server that is asked.
struct Server {
    name: String,
    address: SocketAddr,
    password: Option<Vec<u8>>,
}

impl Server {
    fn find(name: &str, password_file: Option<&Path>) -> anyhow::Result<Self> {
        let address = name
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(|| anyhow!("{name} is no address; it has the form HOST:PORT"))?;
        Ok(Self { name: name.to_owned(), address, password: password(password_file)? })
    }

    fn ask(&self, request: &[&[u8]]) -> anyhow::Result<weft_resp::Value> {
        weft_kv_server::ask(self.address, self.password.as_deref(), request)
            .with_context(|| format!("{} gives no answer", self.name))
    }

    fn status(&self) -> anyhow::Result<Value> {
        let no_server = || format!("{} is no server of weft kv", self.name);
        match self.ask(&[b"WEFT", b"STATUS"])? {
            weft_resp::Value::Bulk(text) => serde_json::from_slice(&text).with_context(no_server),
            _ => bail!(no_server()),
        }
    }
}

fn text_of(status: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut lines = String::new();
    for name in ["addr", "role", "durability", "epoch", "lease_ms", "data_bytes"] {
        lines += &format!("{name:<12} {}\n", text(&status[name]));
    }
    for damage in status["damage"].as_array().into_iter().flatten() {
        lines += &format!("{:<12} {}\n", "damage", text(damage));
    }
    let mut table = Table::new(["region", "slots", "epoch", "primary", "in sync", "lsn"]);
    for region in status["regions"].as_array().into_iter().flatten() {
        let in_sync: Vec<String> =
            region["in_sync"].as_array().into_iter().flatten().map(text).collect();
        table.line([
            text(&region["id"]),
            format!("{}-{}", text(&region["slots"][0]), text(&region["slots"][1])),
            text(&region["epoch"]),
            region["primary"].as_str().unwrap_or("none").to_owned(),
            in_sync.join(" "),
            text(&region["lsn"]),
        ]);
    }
    lines + &table.render()
}
