//! `weft kv admin status`: what a server says of itself.

use std::net::ToSocketAddrs;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::password;
use crate::arguments::kv::KvStatusArguments;
use crate::output::{show, show_line};
use crate::table::Table;

pub fn status(arguments: &KvStatusArguments) -> anyhow::Result<ExitCode> {
    let password = password(arguments.password_file.as_deref())?;
    let at = &arguments.addr;
    let address = at
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(|| anyhow!("{at} is no address; it has the form HOST:PORT"))?;
    let answer = weft_kv_server::ask(address, password.as_deref(), &[b"WEFT", b"STATUS"])
        .with_context(|| format!("{at} does not tell its status"))?;
    let weft_resp::Value::Bulk(text) = answer else {
        return Err(anyhow!("{at} is no server of weft kv"));
    };
    let status: Value =
        serde_json::from_slice(&text).with_context(|| format!("{at} is no server of weft kv"))?;
    if arguments.json {
        show_line!("{status}");
    } else {
        show!("{}", text_of(&status));
    }
    Ok(ExitCode::SUCCESS)
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
