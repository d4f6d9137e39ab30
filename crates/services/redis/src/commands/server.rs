//! The server: its clock, role, end and replicas.

use std::net::SocketAddr;
use std::time::Duration;

use weft_kv::node::{Durability, Failover, Member, View};

use super::{help, integer, is};
use crate::call::Call;
use crate::client::Wait;
use crate::fault::{Done, Fault, SYNTAX};
use crate::server::Server;

pub(crate) fn time(call: &mut Call<'_, '_>) -> Done {
    let now = call.server.clock.wall();
    call.reply.array(2);
    call.reply.bulk(now.as_secs().to_string().as_bytes());
    call.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// The number that stands for the replication offset: those of the newest batches of all regions.
pub(crate) fn offset(server: &Server) -> i64 {
    let sum: u64 = server.view.regions.iter().map(|region| server.node.lsn(region.id).0).sum();
    i64::try_from(sum).unwrap_or(i64::MAX)
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
    let wish = wish(call.words)?;
    let (node, view) = (&call.server.node, &call.server.view);
    match (wish, node.is_failing_over()) {
        (None, true) => drop(node.abort_failover()),
        (None, false) => return Err("ERR No failover in progress.".into()),
        (Some(_), true) => return Err("ERR FAILOVER already in progress.".into()),
        (Some(_), _) if !call.server.is_primary() => {
            return Err("ERR FAILOVER is not valid when server is a replica.".into());
        }
        (Some(_), _) if replicas(view).is_empty() => {
            return Err("ERR FAILOVER requires connected replicas.".into());
        }
        (Some(wish), false) => {
            if wish.is_forced && (wish.within.is_none() || wish.to.is_none()) {
                return Err("ERR FAILOVER with force option requires both a timeout and target \
                            HOST and IP."
                    .into());
            }
            let to = wish.to.map(|to| heir(view, to)).transpose()?;
            let Wish { within, is_forced, .. } = wish;
            let how = Failover { to, within, is_forced };
            node.failover(how).map_err(|why| format!("ERR {why}"))?;
        }
    }
    call.reply.ok();
    Ok(())
}

/// The arguments of FAILOVER.
#[derive(Default)]
struct Wish<'w> {
    to: Option<(&'w [u8], i64)>,
    within: Option<Duration>,
    is_forced: bool,
}

/// `None` for ABORT.
fn wish<'w>(words: &[&'w [u8]]) -> Result<Option<Wish<'w>>, Fault> {
    let mut wish = Wish::default();
    let mut rest = &words[1..];
    while let [option, others @ ..] = rest {
        rest = match others {
            [time, others @ ..] if is(option, "TIMEOUT") && wish.within.is_none() => {
                let time = u64::try_from(integer(time)?).ok().filter(|time| *time > 0);
                let time = time.ok_or("ERR FAILOVER timeout must be greater than 0")?;
                wish.within = Some(Duration::from_millis(time));
                others
            }
            [] if is(option, "ABORT") && words.len() == 2 => return Ok(None),
            [host, port, others @ ..] if is(option, "TO") && wish.to.is_none() => {
                wish.to = Some((host, integer(port)?));
                others
            }
            others if is(option, "FORCE") && !wish.is_forced => {
                wish.is_forced = true;
                others
            }
            _ => return Err(SYNTAX),
        };
    }
    Ok(Some(wish))
}

/// The place of the node that FAILOVER names.
fn heir(view: &View, (host, port): (&[u8], i64)) -> Result<usize, Fault> {
    let is_it = |it: &Member| it.host.as_bytes() == host && i64::from(it.port) == port;
    let place = view.members.iter().position(is_it).filter(|place| *place != view.myself);
    let place = place.ok_or("ERR FAILOVER target HOST and PORT is not a replica.")?;
    if !replicas(view).contains(&place) {
        return Err("ERR FAILOVER target replica is not online.".into());
    }
    Ok(place)
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

pub(crate) fn wait(call: &mut Call<'_, '_>) -> Done {
    if !call.server.is_primary() {
        return Err("ERR WAIT cannot be used with replica instances. Please also note that since \
                    Redis 4.0 if a replica is configured to be writable (which is not recommended) \
                    writes to replicas are just local and are not propagated."
            .into());
    }
    let wanted = integer(call.words[1]).map_err(|_| crate::fault::NOT_INTEGER)?;
    let most = timeout(call.words[2])?;
    let upto = call.server.node.newest();
    let count = call.server.node.replicas_with(upto);
    let replicas = usize::try_from(wanted).unwrap_or(0);
    if count >= replicas || call.server.is_in_exec {
        call.reply.size(count);
        return Ok(());
    }
    let until = (!most.is_zero()).then(|| call.server.clock.monotonic() + most);
    call.server.client(call.client)?.wait = Some(Wait { upto, replicas, until });
    Ok(())
}

/// The longest time of a command that waits; none is for ever.
fn timeout(word: &[u8]) -> Result<Duration, Fault> {
    let time = integer(word).map_err(|_| "ERR timeout is not an integer or out of range")?;
    let time = u64::try_from(time).map_err(|_| "ERR timeout is negative")?;
    Ok(Duration::from_millis(time))
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
