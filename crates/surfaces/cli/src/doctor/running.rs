//! The daemon and the programs that run.

use weft_options::runtime_path::ControlSocket;
use weftd::Status;

use super::{Check, Kernel, State};
use crate::daemon::absence;

pub fn checks(kernel: &Kernel, socket: &ControlSocket) -> Vec<Check> {
    if let Some(other) = weftd::client::other_release(&socket.path) {
        let found = format!(
            "process {} speaks version {} of the control protocol, this one {}",
            other.pid,
            other.version,
            weft_wire::control::VERSION
        );
        let check = Check::new("daemon", State::Broken, found);
        return vec![
            check.change("`weft down`, and start it again", "programs of this release use it"),
        ];
    }
    if !weftd::client::answers(&socket.path) {
        return vec![Check::note("daemon", absence(socket))];
    }
    match weftd::client::status(&socket.path) {
        Ok(status) => vec![daemon(&status), programs(kernel, &status), on_tcp(&status)],
        Err(error) => vec![Check::new("daemon", State::Broken, format!("{error:#}"))],
    }
}

fn daemon(status: &Status) -> Check {
    let own = crate::release::VERSION;
    let found = format!("release {}, process {}", status.version, status.pid);
    let panics: u64 = status.services.iter().map(|service| service.panics).sum();
    if panics > 0 {
        let found = format!("{found}; its services failed {panics} times");
        return Check::new("daemon", State::Broken, found)
            .change("Report it with the daemon's log", "a bug of weft is found");
    }
    if status.version != own {
        return Check::note("daemon", format!("{found}; this command is of {own}"))
            .change("`weft down`, and start it again", "both are of one release");
    }
    let full = status.daemon.quotas.iter().find(|quota| quota.used * 10 > quota.maximum * 9);
    match full {
        Some(quota) => {
            let found = format!("{} of {} {} are taken", quota.used, quota.maximum, quota.name);
            Check::new("daemon", State::Slow, found).change(
                "Raise the limit of open files of the daemon",
                "further programs and connections are served",
            )
        }
        None => Check::good("daemon", found),
    }
}

/// Programs whose library was replaced since they started.
fn programs(kernel: &Kernel, status: &Status) -> Check {
    let has_old = |pid: &u32| {
        let maps = kernel.read(&format!("proc/{pid}/maps")).unwrap_or_default();
        let of_weft = |line: &str| line.contains("libweft") && line.ends_with("(deleted)");
        maps.lines().any(of_weft)
    };
    let mut pids: Vec<u32> = status.processes.iter().map(|process| process.pid).collect();
    pids.dedup();
    let old: Vec<_> = pids.iter().filter(|pid| has_old(pid)).map(u32::to_string).collect();
    match old.is_empty() {
        true => Check::good("programs", format!("{} run, none with an old library", pids.len())),
        false => Check::note("programs", format!("an old library is in {}", old.join(", ")))
            .change("Start them again", "they have what this release mends"),
    }
}

/// Reasons that an administrator can do something about.
fn on_tcp(status: &Status) -> Check {
    let counts = status.totals.iter().flat_map(|total| &total.streams.reasons);
    let mut all = 0_u64;
    let mut curable = std::collections::BTreeMap::<&str, u64>::new();
    for (reason, count) in counts {
        all = all.saturating_add(*count);
        if let Some(change) = cure(reason) {
            let sum = curable.entry(change).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    let worst = curable.into_iter().max_by_key(|(_, count)| *count);
    match worst {
        Some((change, count)) => {
            let found = format!("{all} ends of connections; {count} need not have");
            Check::new("stayed on TCP", State::Slow, found)
                .change(change, "those connections are on the fabric")
        }
        None => Check::good("stayed on TCP", format!("{all} ends of connections, none in vain")),
    }
}

fn cure(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "daemon_refused" => "See the daemon's log for why it refused",
        "limit_reached" => "Raise socket.lanes_max or daemon.connections_max",
        "out_of_memory" => "Give the programs more memory",
        "out_of_descriptors" => "`ulimit -n 65536` for the programs",
        "daemon_not_trusted" => "Set daemon.trust_uid to the user of the daemon",
        "other_user" => "`sudo weft daemon`, which serves all users",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::kernel;
    use super::*;
    use weftd::{ProcessStatus, StreamCounts, TotalStatus};

    #[test]
    fn old_libraries_and_curable_reasons_are_told() {
        let line = "7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libweft_preload.so (deleted)\n";
        let (_place, machine) = kernel(&[("proc/7/maps", line), ("proc/8/maps", "x\n")]);
        let process = |pid| ProcessStatus { pid, name: "p".into(), ..ProcessStatus::default() };
        let reasons = [("out_of_descriptors".into(), 4), ("peer_not_weft".into(), 9)].into();
        let total = TotalStatus {
            name: "p".into(),
            uid: Some(0),
            programs: 1,
            streams: StreamCounts { reasons, ..StreamCounts::default() },
            ..TotalStatus::default()
        };
        let status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            processes: vec![process(7), process(8)],
            totals: vec![total],
            ..Status::default()
        };
        assert_eq!(programs(&machine, &status).found, "an old library is in 7");
        let told = on_tcp(&status);
        assert_eq!(told.state, State::Slow);
        assert!(told.found.contains("13 ends") && told.found.contains("4 need not"), "{told:?}");
        assert_eq!(daemon(&status).state, State::Good);
    }
}
