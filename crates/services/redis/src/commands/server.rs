//! The server: its clock, role, end and replicas.

use std::net::SocketAddr;

use weft_kv::node::{Durability, View};

use super::{help, integer, is};
use crate::call::Call;
use crate::fault::{Done, SYNTAX};
use crate::server::Server;

pub(crate) fn time(call: &mut Call<'_, '_>) -> Done {
    let now = call.server.clock.wall();
    call.reply.array(2);
    call.reply.bulk(now.as_secs().to_string().as_bytes());
    call.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// The number that stands for the replication offset: that of the newest batch.
pub(crate) fn offset(server: &Server) -> i64 {
    i64::try_from(server.node.lsn().0).unwrap_or(i64::MAX)
}

/// The backups in sync with all regions of this node.
pub(crate) fn replicas(view: &View) -> Vec<usize> {
    let mut own = view.regions.iter().filter(|region| region.primary == Some(view.myself));
    let Some(first) = own.next() else { return Vec::new() };
    let mut replicas = first.in_sync.clone();
    own.for_each(|region| replicas.retain(|it| region.in_sync.contains(it)));
    replicas.retain(|it| *it != view.myself);
    replicas
}

pub(crate) fn role(call: &mut Call<'_, '_>) -> Done {
    let offset = offset(call.server);
    let view = &call.server.view;
    if call.server.is_primary() {
        let replicas: Vec<_> =
            replicas(view).into_iter().filter_map(|it| view.members.get(it)).collect();
        call.reply.array(3);
        call.reply.bulk(b"master");
        call.reply.integer(offset);
        call.reply.array(replicas.len());
        for replica in replicas {
            call.reply.array(3);
            call.reply.bulk(replica.host.as_bytes());
            call.reply.bulk(replica.port.to_string().as_bytes());
            call.reply.bulk(offset.to_string().as_bytes());
        }
        return Ok(());
    }
    let primary = view.regions.iter().find_map(|region| view.members.get(region.primary?));
    call.reply.array(5);
    call.reply.bulk(b"slave");
    call.reply.bulk(primary.map_or(&b""[..], |it| it.host.as_bytes()));
    call.reply.integer(primary.map_or(0, |it| it.port.into()));
    call.reply.bulk(if primary.is_some() { b"connected" } else { b"connect" });
    call.reply.integer(offset);
    Ok(())
}

pub(crate) fn shutdown(call: &mut Call<'_, '_>) -> Done {
    for option in &call.words[1..] {
        match option.to_ascii_uppercase().as_slice() {
            b"SAVE" | b"NOSAVE" | b"NOW" | b"FORCE" => {}
            b"ABORT" => return Err("ERR No shutdown in progress.".into()),
            _ => return Err(SYNTAX),
        }
    }
    call.server.is_ending = true;
    call.server.client(call.client)?.is_closing = true;
    Ok(())
}

pub(crate) fn failover(call: &mut Call<'_, '_>) -> Done {
    let mut at = 1;
    while let Some(option) = call.words.get(at) {
        if is(option, "ABORT") {
            return Err("ERR No failover in progress.".into());
        }
        let count = match (is(option, "TO"), is(option, "TIMEOUT"), is(option, "FORCE")) {
            (true, ..) => 3,
            (_, true, _) => 2,
            (.., true) => 1,
            _ => return Err(SYNTAX),
        };
        if call.words.len() < at + count {
            return Err(SYNTAX);
        }
        at += count;
    }
    if replicas(&call.server.view).is_empty() {
        return Err("ERR FAILOVER requires connected replicas.".into());
    }
    call.server.node.failover().map_err(|why| format!("ERR {why}"))?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn memory_help(
    _: &mut crate::transaction::Transaction<'_>,
    _: &[&[u8]],
    reply: &mut weft_resp::Reply<'_>,
) -> Done {
    help(
        reply,
        "MEMORY",
        &["USAGE <key> [SAMPLES <count>]", "    Bytes that a key and its value take in the store."],
    )
}

pub(crate) fn lastsave(call: &mut Call<'_, '_>) -> Done {
    // All that was answered is safe: the last time is now.
    let now = call.server.clock.wall().as_secs();
    call.reply.integer(i64::try_from(now).unwrap_or(i64::MAX));
    Ok(())
}

/// The answer is sent when all writes before it are safe on all replicas in sync, as every answer
/// is, so that their number is the true one at once.
pub(crate) fn wait(call: &mut Call<'_, '_>) -> Done {
    if !call.server.is_primary() {
        return Err("ERR WAIT cannot be used with replica instances. Please also note that since \
                    Redis 4.0 if a replica is configured to be writable (which is not recommended) \
                    writes to replicas are just local and are not propagated."
            .into());
    }
    if integer(call.words[1]).is_err() {
        return Err(crate::fault::NOT_INTEGER);
    }
    timeout(call.words[2])?;
    call.reply.size(replicas(&call.server.view).len());
    Ok(())
}

fn timeout(word: &[u8]) -> Done {
    match integer(word).map_err(|_| "ERR timeout is not an integer or out of range")? {
        ..0 => Err("ERR timeout is negative".into()),
        _ => Ok(()),
    }
}

pub(crate) fn waitaof(call: &mut Call<'_, '_>) -> Done {
    if !matches!(integer(call.words[1])?, 0 | 1) {
        return Err("ERR value is out of range, must be between 0 and 1".into());
    }
    if integer(call.words[2])? < 0 {
        return Err("ERR value is out of range, must be positive".into());
    }
    timeout(call.words[3])?;
    if !call.server.is_primary() {
        return Err("ERR WAITAOF cannot be used with replica instances.".into());
    }
    let replicas = replicas(&call.server.view).len();
    let (local, remote) = match call.server.node.durability() {
        Durability::Replicated => (0, 0),
        Durability::Durable => (1, 0),
        Durability::DurableAll => (1, replicas),
    };
    call.reply.array(2);
    call.reply.size(local);
    call.reply.size(remote);
    Ok(())
}

/// The address that a node is reached at, with brackets around one of IPv6.
pub(crate) fn shown_address(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}
