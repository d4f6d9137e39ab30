//! INFO: facts and counters, in the sections and names of Redis 7.0 where they mean the same.

use std::fmt::Write;

use crate::call::Call;
use crate::fault::{Done, Fault};
use crate::server::{REDIS_VERSION, Server};

/// Sections in their order.
const SECTIONS: &[(&str, Section)] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", processor),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

type Section = fn(&mut Server, &mut Lines) -> Result<(), Fault>;

struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

pub(crate) fn info(call: &mut Call<'_, '_>) -> Done {
    let asked: Vec<String> =
        call.words[1..].iter().map(|it| super::shown(it).to_ascii_lowercase()).collect();
    let wants_all = asked.is_empty()
        || asked.iter().any(|it| ["all", "default", "everything"].contains(&&**it));
    let mut lines = Lines(String::new());
    for (name, section) in SECTIONS {
        if !wants_all && !asked.contains(&name.to_ascii_lowercase()) {
            continue;
        }
        if !lines.0.is_empty() {
            lines.0 += "\r\n";
        }
        let _ = write!(lines.0, "# {name}\r\n");
        section(call.server, &mut lines)?;
    }
    call.reply.verbatim(&lines.0);
    Ok(())
}

fn server(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let uptime = server.clock.monotonic().saturating_sub(server.began).as_secs();
    lines.add("redis_version", REDIS_VERSION);
    lines.add("redis_mode", if server.view.is_cluster { "cluster" } else { "standalone" });
    lines.add("weft_version", env!("CARGO_PKG_VERSION"));
    lines.add("os", &server.settings.system);
    lines.add("arch_bits", usize::BITS);
    lines.add("process_id", server.settings.process);
    lines.add("run_id", &server.settings.run_id);
    lines.add("tcp_port", server.settings.port);
    lines.add("server_time_usec", server.clock.wall().as_micros());
    lines.add("uptime_in_seconds", uptime);
    lines.add("uptime_in_days", uptime / 86_400);
    lines.add("hz", 10);
    Ok(())
}

fn clients(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let held = |of: fn(&crate::client::Held) -> usize| {
        server.clients.values().map(|it| of(&it.held)).max().unwrap_or(0)
    };
    lines.add("connected_clients", server.clients.len());
    lines.add("cluster_connections", 0);
    lines.add("maxclients", server.parameters.clients_max);
    lines.add("client_recent_max_input_buffer", held(|it| it.input));
    lines.add("client_recent_max_output_buffer", held(|it| it.output));
    lines.add("blocked_clients", 0);
    Ok(())
}

fn memory(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let clients: usize = server.clients.values().map(crate::client::Client::memory).sum();
    lines.add("used_memory", server.gauges.resident_bytes);
    lines.add("used_memory_rss", server.gauges.resident_bytes);
    lines.add("mem_clients_normal", clients);
    lines.add("maxmemory", 0);
    lines.add("maxmemory_policy", "noeviction");
    Ok(())
}

fn persistence(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    lines.add("loading", 0);
    lines.add("rdb_bgsave_in_progress", 0);
    lines.add("aof_enabled", 1);
    lines.add("aof_rewrite_in_progress", 0);
    lines.add("weft_durability", super::status::durability(server.node.durability()));
    lines.add("weft_data_bytes", server.node.report().data_bytes);
    Ok(())
}

fn stats(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let (counters, gauges) = (server.counters, server.gauges);
    lines.add("total_connections_received", gauges.connections);
    lines.add("total_commands_processed", counters.commands);
    lines.add("total_net_input_bytes", gauges.input_bytes);
    lines.add("total_net_output_bytes", gauges.output_bytes);
    lines.add("rejected_connections", gauges.refused);
    lines.add("expired_keys", counters.expired);
    lines.add("evicted_keys", 0);
    lines.add("evicted_clients", gauges.evicted);
    lines.add("keyspace_hits", counters.hits);
    lines.add("keyspace_misses", counters.misses);
    lines.add("total_error_replies", counters.errors);
    Ok(())
}

fn replication(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let view = &server.view;
    let offset = super::server::offset(server);
    if server.is_primary() {
        let replicas = super::server::replicas(view);
        lines.add("role", "master");
        lines.add("connected_slaves", replicas.len());
        let members = replicas.iter().filter_map(|it| view.members.get(*it));
        for (number, member) in members.enumerate() {
            let text = format!(
                "ip={},port={},state=online,offset={offset},lag=0",
                member.host, member.port
            );
            lines.add(&format!("slave{number}"), text);
        }
    } else {
        let primary = view.regions.iter().find_map(|region| view.members.get(region.primary?));
        lines.add("role", "slave");
        lines.add("master_host", primary.map_or("", |it| it.host.as_str()));
        lines.add("master_port", primary.map_or(0, |it| it.port));
        lines.add("master_link_status", if primary.is_some() { "up" } else { "down" });
        lines.add("slave_read_only", 1);
        lines.add("connected_slaves", 0);
    }
    let is_failing_over = server.node.is_failing_over();
    let state = if is_failing_over { "failover-in-progress" } else { "no-failover" };
    lines.add("master_failover_state", state);
    lines.add("master_replid", &server.settings.run_id);
    lines.add("master_repl_offset", offset);
    Ok(())
}

fn processor(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    lines.add("used_cpu_sys", format!("{:.6}", server.gauges.system.as_secs_f64()));
    lines.add("used_cpu_user", format!("{:.6}", server.gauges.user.as_secs_f64()));
    Ok(())
}

fn cluster(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    lines.add("cluster_enabled", u8::from(server.view.is_cluster));
    Ok(())
}

fn keyspace(server: &mut Server, lines: &mut Lines) -> Result<(), Fault> {
    let count = server.transact(super::scan::count_keys)?;
    if count > 0 {
        lines.add("db0", format!("keys={count}"));
    }
    Ok(())
}
