//! Which processors a process of a host is bound to.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity};
use weft_launch::frame::Binding;

const CPUS: &str = "/sys/devices/system/cpu";

/// Reads `-bind-to`: a unit, or `user:` and sets of processors.
pub fn parse(text: &str) -> Result<Binding, String> {
    match text {
        "none" => Ok(Binding::None),
        "hwthread" | "rr" => Ok(Binding::Thread),
        "core" => Ok(Binding::Core),
        "socket" | "package" => Ok(Binding::Package),
        "numa" => Ok(Binding::Numa),
        _ => {
            let sets = text.strip_prefix("user:").unwrap_or_default().split(',');
            let set = |set: &str| set.split('+').map(|number| number.parse().ok()).collect();
            sets.map(set).collect::<Option<_>>().map(Binding::Listed).ok_or_else(|| {
                format!(
                    "-bind-to {text:?} is not known; write none, hwthread, core, socket, numa, or \
                     user:0,1,2+3"
                )
            })
        }
    }
}

/// The processors of the process with that number on its host; `None` for all.
pub fn choose(binding: &Binding, number: usize) -> Option<Vec<u16>> {
    let units = match binding {
        Binding::None => return None,
        Binding::Listed(sets) => sets.clone(),
        Binding::Thread => group(&allowed(), |cpu| Some(cpu.to_string())),
        Binding::Core => group(&allowed(), |cpu| of_topology(cpu, "core_cpus_list")),
        Binding::Package => group(&allowed(), |cpu| of_topology(cpu, "physical_package_id")),
        Binding::Numa => group(&allowed(), numa_node),
    };
    if units.is_empty() { None } else { units.get(number % units.len()).cloned() }
}

/// The processors that this process may use.
fn allowed() -> Vec<u16> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number));
    numbers.filter_map(|number| u16::try_from(number).ok()).collect()
}

/// Processors with the same key together, in the order of their first ones.
fn group(cpus: &[u16], key: impl Fn(u16) -> Option<String>) -> Vec<Vec<u16>> {
    let mut groups: Vec<(Option<String>, Vec<u16>)> = Vec::new();
    for &cpu in cpus {
        let key = key(cpu);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(cpu),
            None => groups.push((key, vec![cpu])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn of_topology(cpu: u16, file: &str) -> Option<String> {
    fs::read_to_string(format!("{CPUS}/cpu{cpu}/topology/{file}")).ok()
}

fn numa_node(cpu: u16) -> Option<String> {
    let entries = fs::read_dir(format!("{CPUS}/cpu{cpu}")).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("node")).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_sets_are_read() {
        assert_eq!(parse("core"), Ok(Binding::Core));
        assert_eq!(parse("user:0,1+2"), Ok(Binding::Listed(vec![vec![0], vec![1, 2]])));
        for bad in ["cores", "user:", "user:a", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn processes_take_the_units_in_turn() {
        let sets = Binding::Listed(vec![vec![0], vec![1, 2]]);
        assert_eq!(choose(&sets, 3), Some(vec![1, 2]));
        assert_eq!(choose(&Binding::None, 3), None);
        let allowed = allowed();
        assert_eq!(choose(&Binding::Thread, allowed.len()), Some(vec![allowed[0]]));
        let core = choose(&Binding::Core, 0).expect("there is a core");
        assert!(core.contains(&allowed[0]));
    }

    #[test]
    fn processors_with_one_key_are_one_unit() {
        let units = group(&[0, 1, 2, 3], |cpu| Some((cpu % 2).to_string()));
        assert_eq!(units, [[0, 2], [1, 3]]);
    }
}
