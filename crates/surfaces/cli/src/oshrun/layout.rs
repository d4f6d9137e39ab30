//! From the command line to a job: which program runs where, with which variables.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use weft_launch::frame::{Binding, Plan, Process, Stream};
use weft_launch::hosts::{self, Host};
use weft_launch::{Layout, Member};

use super::{bytes, processors};
use crate::arguments::OshrunArguments;
use crate::configuration::variable;

/// Variables of other launchers, in whose jobs `oshrun` may run. They are for its own process.
const OF_LAUNCHERS: [&str; 3] = ["PMI_", "PMIX_", "MPI_LOCAL"];
/// The host when none is named.
const HERE: &str = "localhost";

/// The job of a command line with its programs.
pub fn layout(programs: &[OshrunArguments]) -> anyhow::Result<Layout> {
    let first = programs.first().context("no program was given")?;
    let sizes: Vec<u32> = programs.iter().map(|program| program.np.unwrap_or(1)).collect();
    let size: u32 = sizes.iter().sum();
    ensure!(
        size <= hosts::SIZE_MAX,
        "{size} PEs are more than {}, the most of a job; lower -np",
        hosts::SIZE_MAX
    );
    let named = named_hosts(first)?;
    let host_of_rank = hosts::place(size, &named, first.ppn);
    let mut used: Vec<u32> = host_of_rank.clone();
    used.sort_unstable();
    used.dedup();
    let binding = processors::parse(&first.bind_to).map_err(anyhow::Error::msg)?;
    let grace_ms = first.grace;
    let mut layout = Layout {
        name: job_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hosts: used.iter().filter_map(|host| name_of(&named, *host)).collect(),
        plans: used.iter().map(|_| Plan { size, grace_ms, processes: Vec::new() }).collect(),
        members: Vec::new(),
        mapping: String::new(),
        has_prefix: first.label,
        kept: kept(first),
        grace: Duration::from_millis(grace_ms.into()),
        timeout: timeout(first)?,
    };
    let program_of_rank =
        (0..).zip(&sizes).flat_map(|(program, size)| (0..*size).map(move |_| program));
    let numbered = |host: u32| used.binary_search(&host).ok().and_then(|at| u32::try_from(at).ok());
    for ((rank, program), host) in (0..).zip(program_of_rank).zip(&host_of_rank) {
        let host = numbered(*host).context("a rank has no host")?;
        layout.members.push(Member { host, program });
        let arguments = programs.get(usize::try_from(program)?).context("no such program")?;
        let process = process(rank, size, first, arguments, &binding)?;
        let plan = layout.plans.get_mut(usize::try_from(host)?).context("no such host")?;
        plan.processes.push(process);
    }
    let placed: Vec<u32> = layout.members.iter().map(|member| member.host).collect();
    layout.mapping = hosts::mapping(&placed);
    layout.plans.iter_mut().for_each(number_locally);
    Ok(layout)
}

/// Tells each process which one of its host it is, as hydra does.
fn number_locally(plan: &mut Plan) {
    let count = plan.processes.len();
    for (number, process) in plan.processes.iter_mut().enumerate() {
        set(&mut process.variables, b"MPI_LOCALNRANKS", count.to_string().into_bytes());
        set(&mut process.variables, b"MPI_LOCALRANKID", number.to_string().into_bytes());
    }
}

fn named_hosts(arguments: &OshrunArguments) -> anyhow::Result<Vec<Host>> {
    if let Some(list) = &arguments.hosts {
        return hosts::parse_list(list).with_context(|| format!("-hosts {list} cannot be used"));
    }
    if let Some(file) = &arguments.hostfile {
        let cannot = || format!("the host file {} cannot be used", file.display());
        let text = std::fs::read_to_string(file).with_context(cannot)?;
        return hosts::parse_file(&text).with_context(cannot);
    }
    Ok(vec![Host { name: HERE.to_owned(), slots: hosts::SIZE_MAX }])
}

fn name_of(hosts: &[Host], number: u32) -> Option<String> {
    hosts.get(usize::try_from(number).ok()?).map(|host| host.name.clone())
}

/// A name that no other job has.
fn job_name() -> String {
    format!("weft-{}-{}", std::process::id(), super::now().as_nanos())
}

fn kept(arguments: &OshrunArguments) -> Vec<Stream> {
    let patterns =
        [(Stream::Output, &arguments.outfile_pattern), (Stream::Error, &arguments.errfile_pattern)];
    let given = patterns.into_iter().filter(|(_, pattern)| pattern.is_some());
    given.map(|(stream, _)| stream).collect()
}

fn timeout(arguments: &OshrunArguments) -> anyhow::Result<Option<Duration>> {
    let seconds = match (arguments.timeout, variable("MPIEXEC_TIMEOUT")) {
        (Some(seconds), _) => seconds,
        (None, Some(text)) => match text.parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds < 1e9 => seconds,
            // Zero and less are hydra's words for never.
            Ok(seconds) if seconds <= 0.0 => return Ok(None),
            _ => bail!("MPIEXEC_TIMEOUT={text} is no number of seconds; set one, or unset it"),
        },
        (None, None) => return Ok(None),
    };
    Ok(Some(Duration::from_secs_f64(seconds)))
}

fn process(
    rank: u32,
    size: u32,
    job: &OshrunArguments,
    arguments: &OshrunArguments,
    binding: &Binding,
) -> anyhow::Result<Process> {
    let (program, rest) = arguments.program.split_first().context("no program was given")?;
    let mut variables = base_variables(job, arguments)?;
    for pair in job.genv.chunks_exact(2).chain(arguments.env.chunks_exact(2)) {
        let [name, value] = pair else { continue };
        ensure!(is_name(name), "{name:?} is no name of a variable; write -env NAME VALUE");
        set(&mut variables, name.as_encoded_bytes(), bytes(value));
    }
    set(&mut variables, b"PMI_RANK", rank.to_string().into_bytes());
    set(&mut variables, b"PMI_SIZE", size.to_string().into_bytes());
    Ok(Process {
        rank,
        program: bytes(program),
        arguments: rest.iter().map(|word| bytes(word)).collect(),
        variables,
        directory: bytes(directory(arguments.wdir.as_deref())?.as_os_str()),
        binding: binding.clone(),
    })
}

fn directory(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_dir().context("the directory is gone; change to another one")?;
    Ok(wanted.map_or_else(|| own.clone(), |wanted| own.join(wanted)))
}

type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// The variables that are passed on: all, none, or some. Words of the program beat those of the
/// job.
fn base_variables(job: &OshrunArguments, own: &OshrunArguments) -> anyhow::Result<Variables> {
    let (none, list) = if own.envall {
        (false, None)
    } else if own.envnone || own.envlist.is_some() {
        (own.envnone, own.envlist.as_deref())
    } else {
        (job.genvnone, job.genvlist.as_deref())
    };
    if none {
        return Ok(Vec::new());
    }
    let listed: Option<Vec<&str>> = list.map(|list| list.split(',').map(str::trim).collect());
    if let Some(bad) = listed.iter().flatten().find(|name| !is_name(OsStr::new(name))) {
        bail!("{bad:?} is no name of a variable; write -genvlist A,B");
    }
    let is_wanted = |name: &OsString| {
        let text = name.to_string_lossy();
        let is_of_launcher = OF_LAUNCHERS.iter().any(|prefix| text.starts_with(prefix));
        !is_of_launcher && listed.as_ref().is_none_or(|listed| listed.contains(&&*text))
    };
    let own = std::env::vars_os().filter(|(name, _)| is_wanted(name));
    Ok(own.map(|(name, value)| (bytes(&name), bytes(&value))).collect())
}

fn is_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_encoded_bytes().iter().any(|byte| matches!(byte, b'=' | 0))
}

fn set(variables: &mut Variables, name: &[u8], value: Vec<u8>) {
    variables.retain(|(known, _)| known != name);
    variables.push((name.to_vec(), value));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str], np: u32) -> OshrunArguments {
        OshrunArguments {
            np: Some(np),
            bind_to: "none".to_owned(),
            program: words.iter().map(OsString::from).collect(),
            ..OshrunArguments::default()
        }
    }

    fn value<'a>(process: &'a Process, name: &str) -> Option<&'a [u8]> {
        let found = process.variables.iter().find(|(known, _)| known == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    #[test]
    fn programs_and_hosts_become_plans() {
        let mut first = program(&["a", "x"], 1);
        first.hosts = Some("n0,n1:2".to_owned());
        let second = OshrunArguments { env: vec!["A".into(), "-1".into()], ..program(&["b"], 3) };
        let layout = layout(&[first, second]).expect("a good line");
        assert_eq!(layout.hosts, ["n0", "n1"]);
        assert_eq!(layout.mapping, "(vector,(0,1,1),(1,1,2),(0,1,1))");
        let ranks: Vec<Vec<u32>> = layout
            .plans
            .iter()
            .map(|plan| plan.processes.iter().map(|process| process.rank).collect())
            .collect();
        assert_eq!(ranks, [vec![0, 3], vec![1, 2]]);
        let members: Vec<u32> = layout.members.iter().map(|member| member.program).collect();
        assert_eq!(members, [0, 1, 1, 1]);
        let last = &layout.plans[0].processes[1];
        assert_eq!(last.program, b"b");
        assert_eq!(value(last, "A"), Some(&b"-1"[..]));
        assert_eq!(value(last, "PMI_SIZE"), Some(&b"4"[..]));
        assert_eq!(value(last, "MPI_LOCALRANKID"), Some(&b"1"[..]));
        assert_eq!(value(last, "MPI_LOCALNRANKS"), Some(&b"2"[..]));
    }

    #[test]
    fn hosts_without_ranks_are_not_started() {
        let mut arguments = program(&["a"], 1);
        arguments.hosts = Some("n0,n1".to_owned());
        assert_eq!(layout(&[arguments]).expect("a good line").hosts, ["n0"]);
    }

    #[test]
    fn variables_are_passed_on_as_asked() {
        let all = process(0, 1, &program(&["a"], 1), &program(&["a"], 1), &Binding::None);
        assert!(value(&all.expect("good"), "PATH").is_some());
        let job = OshrunArguments { genvnone: true, ..program(&["a"], 1) };
        let none = process(0, 1, &job, &program(&["a"], 1), &Binding::None).expect("good");
        assert_eq!(none.variables.len(), 2, "rank and size");
        let own = OshrunArguments { envlist: Some("PATH".into()), ..program(&["a"], 1) };
        let some = process(0, 1, &job, &own, &Binding::None).expect("good");
        assert_eq!(some.variables.len(), 3);
        let bad = OshrunArguments { genv: vec!["A=".into(), "1".into()], ..program(&["a"], 1) };
        assert!(process(0, 1, &bad, &program(&["a"], 1), &Binding::None).is_err());
    }
}
