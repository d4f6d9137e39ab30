//! CLIENT: the connections.

use super::connection::{choice, set_library, set_name};
use super::{help as answer_help, integer, is, shown};
use crate::call::Call;
use crate::client::{Client, ReplyMode};
use crate::fault::{Done, Fault, SYNTAX};

pub(crate) fn id(call: &mut Call<'_, '_>) -> Done {
    call.reply.integer(i64::try_from(call.client).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn setname(call: &mut Call<'_, '_>) -> Done {
    set_name(call, call.words[2])?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn getname(call: &mut Call<'_, '_>) -> Done {
    let name = call.server.client(call.client)?.name.clone();
    call.reply.bulk_or_null(Some(&name[..]).filter(|name| !name.is_empty()));
    Ok(())
}

pub(crate) fn setinfo(call: &mut Call<'_, '_>) -> Done {
    set_library(call, call.words[2], call.words[3])?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn info(call: &mut Call<'_, '_>) -> Done {
    let now = call.server.clock.monotonic();
    let line = call.server.client(call.client)?.line(now) + "\n";
    call.reply.verbatim(&line);
    Ok(())
}

/// Whether clients of this type are here: all are normal ones.
fn is_normal(name: &[u8]) -> Result<bool, Fault> {
    match name.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"master" | b"slave" | b"replica" | b"pubsub" => Ok(false),
        _ => Err(format!("ERR Unknown client type '{}'", shown(name)).into()),
    }
}

fn client_id(word: &[u8]) -> Result<u64, Fault> {
    let id = integer(word).ok().and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
    id.ok_or_else(|| "ERR Invalid client ID".into())
}

pub(crate) fn list(call: &mut Call<'_, '_>) -> Done {
    let now = call.server.clock.monotonic();
    let wanted: Box<dyn Fn(&Client) -> bool> = match &call.words[2..] {
        [] => Box::new(|_| true),
        [option, name] if is(option, "TYPE") => {
            let all = is_normal(name)?;
            Box::new(move |_| all)
        }
        [option, ids @ ..] if is(option, "ID") && !ids.is_empty() => {
            let ids: Vec<u64> = ids.iter().map(|id| client_id(id)).collect::<Result<_, _>>()?;
            Box::new(move |client| ids.contains(&client.id))
        }
        _ => return Err(SYNTAX),
    };
    let mut lines = String::new();
    for client in call.server.clients.values().filter(|client| wanted(client)) {
        lines += &client.line(now);
        lines.push('\n');
    }
    call.reply.verbatim(&lines);
    Ok(())
}

/// Which connections CLIENT KILL ends.
#[derive(Default)]
struct Filter<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    is_other_type: bool,
    spares_me: bool,
}

pub(crate) fn kill(call: &mut Call<'_, '_>) -> Done {
    if let [_, _, address] = call.words {
        let fits = |it: &&Client| it.peer.address.as_bytes() == *address;
        let id = call.server.clients.values().find(fits).map(|it| it.id);
        let id = id.ok_or("ERR No such client")?;
        call.server.kill(id, call.client);
        call.reply.ok();
        return Ok(());
    }
    let mut filter = Filter { spares_me: true, ..Filter::default() };
    let (options, rest) = call.words[2..].as_chunks::<2>();
    for [option, value] in options {
        match option.to_ascii_uppercase().as_slice() {
            b"ID" => {
                let id = client_id(value);
                filter.id = Some(id.map_err(|_| "ERR client-id should be greater than 0")?);
            }
            b"ADDR" => filter.address = Some(value),
            b"LADDR" => filter.local_address = Some(value),
            b"TYPE" => filter.is_other_type = !is_normal(value)?,
            b"USER" if *value == b"default" => {}
            b"USER" => return Err(format!("ERR No such user '{}'", shown(value)).into()),
            b"SKIPME" => filter.spares_me = choice(value, "yes", "no")?,
            _ => return Err(SYNTAX),
        }
    }
    if !rest.is_empty() {
        return Err(SYNTAX);
    }
    let me = call.client;
    let fits = |it: &&Client| {
        !filter.is_other_type
            && filter.id.is_none_or(|id| id == it.id)
            && filter.address.is_none_or(|address| address == it.peer.address.as_bytes())
            && filter.local_address.is_none_or(|at| at == it.peer.local_address.as_bytes())
            && !(filter.spares_me && it.id == me)
    };
    let ids: Vec<u64> = call.server.clients.values().filter(fits).map(|it| it.id).collect();
    for id in &ids {
        call.server.kill(*id, me);
    }
    call.reply.size(ids.len());
    Ok(())
}

pub(crate) fn reply_mode(call: &mut Call<'_, '_>) -> Done {
    let client = call.server.client(call.client)?;
    match call.words[2].to_ascii_uppercase().as_slice() {
        b"ON" => {
            client.reply_mode = ReplyMode::On;
            call.reply.ok();
        }
        b"OFF" => client.reply_mode = ReplyMode::Off,
        b"SKIP" if client.reply_mode == ReplyMode::On => client.reply_mode = ReplyMode::SkipNext,
        b"SKIP" => {}
        _ => return Err(SYNTAX),
    }
    Ok(())
}

pub(crate) fn no_evict(call: &mut Call<'_, '_>) -> Done {
    let is_spared = choice(call.words[2], "on", "off")?;
    call.server.client(call.client)?.is_spared = is_spared;
    call.reply.ok();
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "CLIENT",
        &[
            "GETNAME | SETNAME <name> | ID | INFO",
            "    About this connection.",
            "KILL <ip:port> | KILL <option> <value> [...]",
            "    Ends connections. Options: ADDR, LADDR, TYPE, USER, SKIPME, ID.",
            "LIST [TYPE <type> | ID <id> ...]",
            "    Lists connections.",
            "NO-EVICT (ON|OFF)",
            "    Spares this connection when clients take too much memory.",
            "REPLY (ON|OFF|SKIP)",
            "    Whether answers are sent.",
            "SETINFO <LIB-NAME|LIB-VER> <value>",
            "    Names the client library.",
        ],
    )
}
