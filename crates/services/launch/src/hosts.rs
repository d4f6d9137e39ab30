//! Hosts of a job, and which rank runs where.

use thiserror::Error;

/// Most hosts of a job.
pub const HOSTS_MAX: usize = 4096;
/// Most processes of a job.
pub const SIZE_MAX: u32 = 65_536;

/// A host and how many processes it takes at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Name or address.
    pub name: String,
    /// Processes; at least 1.
    pub slots: u32,
}

/// Why a text names no hosts.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadHosts {
    /// There is none.
    #[error("no host is named; give `-hosts a,b` or a file with a host in each line")]
    None,
    /// An entry cannot be read.
    #[error("{entry:?} is no host; write NAME or NAME:PROCESSES")]
    Entry {
        /// The entry.
        entry: String,
    },
    /// A line of a file cannot be read.
    #[error(
        "line {line}: {entry:?} is no host; write NAME, NAME:PROCESSES or NAME slots=PROCESSES"
    )]
    Line {
        /// The line, from 1.
        line: usize,
        /// Its text.
        entry: String,
    },
    /// There are more than a job may have.
    #[error("more than {HOSTS_MAX} hosts are named")]
    TooMany,
}

/// Reads a list: `a,b:4,c`.
///
/// # Errors
/// [`BadHosts`].
pub fn parse_list(text: &str) -> Result<Vec<Host>, BadHosts> {
    let mut hosts = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, slots) =
            parse(entry).ok_or_else(|| BadHosts::Entry { entry: entry.to_owned() })?;
        add(&mut hosts, Host { name, slots: slots.unwrap_or(1) })?;
    }
    if hosts.is_empty() { Err(BadHosts::None) } else { Ok(hosts) }
}

/// Reads a file: a host in each line, with the number of its processes behind `:` or after
/// `slots=`. Text behind `#` is a comment.
///
/// # Errors
/// [`BadHosts`].
pub fn parse_file(text: &str) -> Result<Vec<Host>, BadHosts> {
    let mut hosts = Vec::new();
    for (index, whole) in text.lines().enumerate() {
        let line = whole.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let bad = || BadHosts::Line { line: index + 1, entry: whole.to_owned() };
        let (name, behind) = parse(name).ok_or_else(bad)?;
        let slots = match (behind, words.next(), words.next()) {
            (_, None, _) => behind.unwrap_or(1),
            (None, Some(word), None) => {
                word.strip_prefix("slots=").and_then(slots_of).ok_or_else(bad)?
            }
            _ => return Err(bad()),
        };
        add(&mut hosts, Host { name, slots })?;
    }
    if hosts.is_empty() { Err(BadHosts::None) } else { Ok(hosts) }
}

/// A name, and the number of processes behind it, if there is one.
fn parse(entry: &str) -> Option<(String, Option<u32>)> {
    // An address of IP version 6 is written in brackets, if it has a number behind it.
    let (name, slots) = match entry.rsplit_once(':') {
        Some((name, slots)) if name.ends_with(']') || !name.contains(':') => {
            (name, Some(slots_of(slots)?))
        }
        _ => (entry, None),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@%".contains(&byte);
    let is_good = !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_name);
    is_good.then(|| (name.to_owned(), slots))
}

fn slots_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|slots| (1..=SIZE_MAX).contains(slots))
}

/// A host that is named again takes more processes.
fn add(hosts: &mut Vec<Host>, host: Host) -> Result<(), BadHosts> {
    if let Some(known) = hosts.iter_mut().find(|known| known.name == host.name) {
        known.slots = known.slots.saturating_add(host.slots).min(SIZE_MAX);
    } else if hosts.len() == HOSTS_MAX {
        return Err(BadHosts::TooMany);
    } else {
        hosts.push(host);
    }
    Ok(())
}

/// The host of each rank: the hosts in their order, each with its slots or with `per_host` ranks,
/// and the first host again where there are more ranks than places.
pub fn place(size: u32, hosts: &[Host], per_host: Option<u32>) -> Vec<u32> {
    let round = (0..).zip(hosts).flat_map(|(number, host)| {
        let ranks = per_host.unwrap_or(host.slots).max(1);
        (0..ranks).map(move |_| number)
    });
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if hosts.is_empty() {
        return vec![0; size];
    }
    round.collect::<Vec<u32>>().into_iter().cycle().take(size).collect()
}

/// `PMI_process_mapping` of ranks on hosts: runs of (first host, hosts, ranks on each).
pub fn mapping(host_of_rank: &[u32]) -> String {
    // Ranks on one host in a row.
    let mut blocks: Vec<(u32, u32)> = Vec::new();
    for &host in host_of_rank {
        match blocks.last_mut() {
            Some((last, ranks)) if *last == host => *ranks += 1,
            _ => blocks.push((host, 1)),
        }
    }
    // Hosts with the same number of ranks in a row.
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for (host, ranks) in blocks {
        match runs.last_mut() {
            Some((first, hosts, each)) if *each == ranks && *first + *hosts == host => *hosts += 1,
            _ => runs.push((host, 1, ranks)),
        }
    }
    let mut text = String::from("(vector");
    for (first, hosts, ranks) in runs {
        text.push_str(&format!(",({first},{hosts},{ranks})"));
    }
    text.push(')');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: u32) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn lists_and_files_name_hosts() {
        let hosts = vec![host("a", 1), host("b", 4)];
        assert_eq!(parse_list("a, b:4"), Ok(hosts.clone()));
        assert_eq!(parse_file("# ours\na\nb:3\n\nb slots=1 # again\n"), Ok(hosts));
        assert_eq!(parse_list("[fe80::1]:2,::1"), Ok(vec![host("fe80::1", 2), host("::1", 1)]));
    }

    #[test]
    fn what_is_no_host_is_named() {
        assert_eq!(parse_list(" ,"), Err(BadHosts::None));
        for entry in ["a:0", "a:x", "-oProxyCommand=x", "a b", "a;b", ":3"] {
            assert_eq!(parse_list(entry), Err(BadHosts::Entry { entry: entry.to_owned() }));
        }
        let lines = ["b slots=no", "b max_slots=4", "b slots=2 c", "b:2 slots=3", "[b"];
        for entry in lines.map(str::to_owned) {
            let text = format!("a\n{entry}");
            assert_eq!(parse_file(&text), Err(BadHosts::Line { line: 2, entry }));
        }
    }

    #[test]
    fn ranks_fill_a_host_before_the_next_one() {
        let hosts = [host("a", 2), host("b", 1)];
        assert_eq!(place(7, &hosts, None), [0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(place(5, &hosts, Some(2)), [0, 0, 1, 1, 0]);
        assert_eq!(place(3, &[], None), [0, 0, 0]);
    }

    #[test]
    fn the_mapping_counts_hosts_with_the_same_number_of_ranks() {
        assert_eq!(mapping(&[0, 0, 0, 0]), "(vector,(0,1,4))");
        assert_eq!(mapping(&[0, 0, 1, 1, 2, 2]), "(vector,(0,3,2))");
        assert_eq!(mapping(&[0, 0, 1, 0]), "(vector,(0,1,2),(1,1,1),(0,1,1))");
        assert_eq!(mapping(&[]), "(vector)");
    }
}
