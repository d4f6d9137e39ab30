//! WEFT STATUS: the node as one JSON object, for `weft kv admin status`.

use serde_json::json;
use weft_kv::node::{Backup, Durability};

use super::help as answer_help;
use super::server::shown_address;
use crate::call::Call;
use crate::fault::Done;

/// The name of a durability, as `--durability` takes it.
pub(crate) fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Replicated => "replicated",
        Durability::Durable => "durable",
        Durability::DurableAll => "durable-all",
    }
}

pub(crate) fn status(call: &mut Call<'_, '_>) -> Done {
    let server = &call.server;
    let (view, report) = (&server.view, server.node.report());
    let name = |place: usize| {
        view.members.get(place).map(|it| shown_address(&it.host, it.port)).unwrap_or_default()
    };
    let regions: Vec<_> = view
        .regions
        .iter()
        .map(|it| {
            let in_sync: Vec<_> = it.in_sync.iter().map(|place| name(*place)).collect();
            json!({
                "id": it.id,
                "slots": [it.first, it.last],
                "epoch": it.epoch,
                "primary": it.primary.map(name),
                "in_sync": in_sync,
                "lsn": server.node.lsn(it.id).0,
            })
        })
        .collect();
    let status = json!({
        "addr": name(view.myself),
        "role": if server.is_primary() { "primary" } else { "replica" },
        "durability": durability(server.node.durability()),
        "epoch": view.regions.iter().map(|it| it.epoch).max().unwrap_or(0),
        "lease_ms": server.node.lease_ms(),
        "data_bytes": report.data_bytes,
        "damage": report.damage,
        "backup": match &report.backup {
            Backup::None => "none",
            Backup::Running => "running",
            Backup::Done => "done",
            Backup::Failed(why) => why,
        },
        "regions": regions,
        "replication": {
            "sent_bytes": report.sent_bytes,
            "received_bytes": report.received_bytes,
            "catch_up_bytes": report.catch_up_bytes,
        },
    });
    call.reply.bulk(status.to_string().as_bytes());
    Ok(())
}

/// Begins a copy of the store into a directory of the server's host; STATUS says how it goes.
pub(crate) fn backup(call: &mut Call<'_, '_>) -> Done {
    let path = std::str::from_utf8(call.words[2]).unwrap_or_default();
    let path = std::path::Path::new(path);
    if !path.is_absolute() {
        return Err("ERR the directory of the copy must be an absolute path".into());
    }
    call.server.node.backup(path).map_err(|why| format!("ERR {why}"))?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "WEFT",
        &[
            "STATUS",
            "    The state of the node as JSON.",
            "BACKUP <directory>",
            "    Begins a copy of the store on the host of the server.",
        ],
    )
}
