//! CLUSTER: slots and nodes.

use weft_kv::node::{Member, Region, View};
use weft_resp::Reply;

use super::{help as answer_help, integer};
use crate::call::Call;
use crate::fault::{Done, Fault};
use crate::slot::{SLOTS, slot};
use crate::transaction::Transaction;

pub(crate) fn keyslot(call: &mut Call<'_, '_>) -> Done {
    call.reply.integer(slot(call.words[2]).into());
    Ok(())
}

pub(crate) fn myid(call: &mut Call<'_, '_>) -> Done {
    let view = &call.server.view;
    let id = view.members.get(view.myself).map_or("", |it| it.id.as_str());
    call.reply.bulk(id.as_bytes());
    Ok(())
}

/// The nodes of a region, its primary first. A node that is the primary of another region is not
/// named: clients take a node for a master or for a replica, not for both.
fn nodes_of<'v>(view: &'v View, region: &Region) -> Vec<&'v Member> {
    let leads = |place: usize| view.regions.iter().any(|it| it.primary == Some(place));
    let others = region.in_sync.iter().filter(|it| !leads(**it));
    region.primary.iter().chain(others).filter_map(|it| view.members.get(*it)).collect()
}

pub(crate) fn slots(call: &mut Call<'_, '_>) -> Done {
    let view = &call.server.view;
    let served: Vec<_> = view.regions.iter().filter(|it| it.primary.is_some()).collect();
    call.reply.array(served.len());
    for region in served {
        let nodes = nodes_of(view, region);
        call.reply.array(2 + nodes.len());
        call.reply.integer(region.first.into());
        call.reply.integer(region.last.into());
        for node in nodes {
            call.reply.array(4);
            call.reply.bulk(node.host.as_bytes());
            call.reply.integer(node.port.into());
            call.reply.bulk(node.id.as_bytes());
            call.reply.array(0);
        }
    }
    Ok(())
}

pub(crate) fn shards(call: &mut Call<'_, '_>) -> Done {
    let offset = super::server::offset(call.server);
    let view = &call.server.view;
    // A shard is a primary with its slots.
    let primaries: Vec<usize> = (0..view.members.len())
        .filter(|it| view.regions.iter().any(|region| region.primary == Some(*it)))
        .collect();
    call.reply.array(primaries.len());
    for primary in primaries {
        let own: Vec<_> = view.regions.iter().filter(|it| it.primary == Some(primary)).collect();
        call.reply.map(2);
        call.reply.bulk(b"slots");
        call.reply.array(own.len() * 2);
        for region in &own {
            call.reply.integer(region.first.into());
            call.reply.integer(region.last.into());
        }
        let nodes = own.first().map(|region| nodes_of(view, region)).unwrap_or_default();
        call.reply.bulk(b"nodes");
        call.reply.array(nodes.len());
        for (place, node) in nodes.into_iter().enumerate() {
            node_of_shard(call.reply, node, if place == 0 { "master" } else { "replica" }, offset);
        }
    }
    Ok(())
}

fn node_of_shard(reply: &mut Reply<'_>, node: &Member, role: &str, offset: i64) {
    reply.map(7);
    reply.bulk(b"id");
    reply.bulk(node.id.as_bytes());
    reply.bulk(b"port");
    reply.integer(node.port.into());
    for (name, text) in [("ip", node.host.as_str()), ("endpoint", &node.host), ("role", role)] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    reply.bulk(b"replication-offset");
    reply.integer(offset);
    reply.bulk(b"health");
    reply.bulk(if node.is_up { b"online" } else { b"fail" });
}

/// A line of CLUSTER NODES for each node.
fn lines(view: &View) -> String {
    let mut lines = String::new();
    for (place, node) in view.members.iter().enumerate() {
        let own: Vec<_> = view.regions.iter().filter(|it| it.primary == Some(place)).collect();
        let of = view.regions.iter().find(|it| own.is_empty() && it.in_sync.contains(&place));
        let primary = of.and_then(|region| view.members.get(region.primary?));
        let mut flags = if place == view.myself { "myself," } else { "" }.to_owned();
        flags += if primary.is_some() { "slave" } else { "master" };
        if !node.is_up {
            flags += ",fail";
        }
        let epoch = own.iter().chain(of.iter()).map(|it| it.epoch).max().unwrap_or(0);
        let address = super::server::shown_address(&node.host, node.port);
        let link = if node.is_up { "connected" } else { "disconnected" };
        lines += &format!(
            "{} {address}@{} {flags} {} 0 0 {epoch} {link}",
            node.id,
            node.port.wrapping_add(10_000),
            primary.map_or("-", |it| it.id.as_str()),
        );
        for region in own {
            lines += &match region.first == region.last {
                true => format!(" {}", region.first),
                false => format!(" {}-{}", region.first, region.last),
            };
        }
        lines.push('\n');
    }
    lines
}

pub(crate) fn nodes(call: &mut Call<'_, '_>) -> Done {
    let lines = lines(&call.server.view);
    call.reply.verbatim(&lines);
    Ok(())
}

pub(crate) fn info(call: &mut Call<'_, '_>) -> Done {
    let view = &call.server.view;
    let count = |region: &Region| u32::from(region.last - region.first) + 1;
    let assigned: u32 = view.regions.iter().filter(|it| it.primary.is_some()).map(count).sum();
    let primaries: std::collections::BTreeSet<_> =
        view.regions.iter().filter_map(|it| it.primary).collect();
    let epoch = view.regions.iter().map(|it| it.epoch).max().unwrap_or(0);
    let state = if assigned == u32::from(SLOTS) { "ok" } else { "fail" };
    let text = format!(
        "cluster_enabled:{}\r\ncluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\n\
         cluster_slots_ok:{assigned}\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\n\
         cluster_known_nodes:{}\r\ncluster_size:{}\r\ncluster_current_epoch:{epoch}\r\n\
         cluster_my_epoch:{epoch}\r\n",
        u8::from(view.is_cluster),
        u32::from(SLOTS) - assigned,
        view.members.len(),
        primaries.len(),
    );
    call.reply.verbatim(&text);
    Ok(())
}

fn slot_of(word: &[u8]) -> Result<u16, Fault> {
    let slot = u16::try_from(integer(word)?).ok().filter(|it| *it < SLOTS);
    slot.ok_or_else(|| "ERR Invalid slot".into())
}

pub(crate) fn countkeysinslot(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    let record = tx.record(slot_of(words[2])?)?;
    reply.integer(i64::try_from(record.count).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn getkeysinslot(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    let slot = slot_of(words[2])?;
    let count = usize::try_from(integer(words[3])?).map_err(|_| "ERR Invalid number of keys")?;
    let keys = super::scan::keys_of_slot(tx, slot, count)?;
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

pub(crate) fn readonly(call: &mut Call<'_, '_>) -> Done {
    call.server.client(call.client)?.may_read_replica = true;
    call.reply.ok();
    Ok(())
}

pub(crate) fn readwrite(call: &mut Call<'_, '_>) -> Done {
    call.server.client(call.client)?.may_read_replica = false;
    call.reply.ok();
    Ok(())
}

/// A region moves as a whole and at once, so that there is nothing to ask for.
pub(crate) fn asking(call: &mut Call<'_, '_>) -> Done {
    call.reply.ok();
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "CLUSTER",
        &[
            "COUNTKEYSINSLOT <slot>",
            "    How many keys a slot has.",
            "GETKEYSINSLOT <slot> <count>",
            "    Keys of a slot.",
            "INFO | MYID | NODES | SHARDS | SLOTS",
            "    The cluster as this node sees it.",
            "KEYSLOT <key>",
            "    The slot of a key.",
        ],
    )
}
