//! Whether a process is stopped, as the kernel tells: by a signal (Ctrl-Z, a batch system that
//! suspends its job), by a debugger, or by a freezer of control groups (`docker pause`).
//!
//! The state of the first thread stands for the process. Where the kernel does not tell, the
//! process counts as one that runs.

use std::path::Path;

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Whether the process with this number is stopped.
pub fn is_stopped(pid: u32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    if pid == 0 {
        return false;
    }
    let is_held = read("stat").is_ok_and(|stat| matches!(state(&stat), Some('T' | 't')));
    is_held || read("cgroup").is_ok_and(|groups| is_frozen(Path::new(GROUPS), &groups))
}

/// The state in the text of `/proc/PID/stat`. The name before it may hold anything.
fn state(stat: &str) -> Option<char> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.trim_start().chars().next()
}

/// Whether a group is frozen that the text of `/proc/PID/cgroup` names.
fn is_frozen(mount: &Path, groups: &str) -> bool {
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        let group = group.trim_start_matches('/');
        let says = |file: std::path::PathBuf, word: &str| {
            std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| line == word))
        };
        match controllers {
            "" => says(mount.join(group).join("cgroup.events"), "frozen 1"),
            "freezer" => says(mount.join("freezer").join(group).join("freezer.state"), "FROZEN"),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_process_is_stopped_between_two_signals() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("coreutils");
        let pid = Pid::from_child(&child);
        let becomes = |wanted| {
            for _ in 0..10_000 {
                if is_stopped(child.id()) == wanted {
                    return true;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            false
        };
        assert!(becomes(false));
        for (signal, wanted) in [(Signal::STOP, true), (Signal::CONT, false)] {
            kill_process(pid, signal).expect("our own child");
            assert!(becomes(wanted), "{wanted}");
        }
        let _ = child.kill();
        let _ = child.wait();
        assert!(!is_stopped(child.id()), "it is gone");
        assert!(!is_stopped(0));
    }

    #[test]
    fn the_state_is_behind_the_last_bracket() {
        assert_eq!(state("12 (a) T 1 (x) S 1 2"), Some('S'));
        assert_eq!(state("12 (sleep) t 1 2"), Some('t'));
        assert_eq!(state("12 (sleep"), None);
        assert_eq!(state(""), None);
    }

    #[test]
    fn a_group_of_either_version_can_be_frozen() {
        let mount = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = mount.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below")).expect("our own");
            std::fs::write(path, text).expect("our own");
        };
        write("a/b/cgroup.events", "populated 1\nfrozen 1\n");
        write("a/cgroup.events", "populated 1\nfrozen 0\n");
        write("freezer/c/freezer.state", "FROZEN\n");
        write("freezer/d/freezer.state", "THAWED\n");
        let frozen = |groups| is_frozen(mount.path(), groups);
        assert!(frozen("0::/a/b\n"));
        assert!(!frozen("0::/a\n"));
        assert!(frozen("3:memory:/x\n2:freezer:/c\n0::/a\n"));
        assert!(!frozen("2:freezer:/d\n"));
        assert!(!frozen("nonsense\n\n"));
    }
}
