//! The compiler's calls of the build, kept so that clippy and rustdoc make them once more.
//!
//! For `cargo clippy` and `cargo doc` cargo would compile the metadata of all packages that weft
//! uses, which takes longer than to look at weft. So the build has this program around the compiler
//! (cargo's `RUSTC_WORKSPACE_WRAPPER`): it writes each call down, then makes it. The tools get the
//! same calls, with the libraries that the build made.
//!
//! # Invariants
//! - A call is repeated unless it passed since the build made it.
//! - Of two calls for the same target the later one counts: the earlier had other dependencies.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, ensure};

use crate::cargo::{root, target};
use crate::stages::Outcome;

/// The variable that names the folder of the calls, set for the wrapper alone.
const FOLDER: &str = "WEFT_COMPILES";
/// The variables by which cargo shares its processors with the compiler. They name descriptors of a
/// cargo that has ended.
const SHARES: [&str; 3] = ["CARGO_MAKEFLAGS", "MAKEFLAGS", "MFLAGS"];
/// How the file of a call ends.
const CALL: &str = "call";

/// A tool that takes the arguments of the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// The lints of clippy, for all targets.
    Clippy,
    /// The documentation of libraries and programs.
    Rustdoc,
}

/// Has the build keep its calls.
pub fn keep(build: &mut Command) -> anyhow::Result<()> {
    let folder = target().join("compiles");
    std::fs::create_dir_all(&folder)?;
    // A build replaces the program that runs now, so its own path leads nowhere then.
    let own = std::fs::read("/proc/self/exe")?;
    let wrapper = folder.join("wrapper");
    if std::fs::read(&wrapper).ok().as_ref() != Some(&own) {
        let new = folder.join("wrapper.new");
        std::fs::write(&new, own)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(&new, &wrapper)?;
    }
    build.env("RUSTC_WORKSPACE_WRAPPER", &wrapper).env(FOLDER, &folder);
    Ok(())
}

/// Where this program is the wrapper: writes the call down and makes it. `None` elsewhere.
pub fn as_wrapper() -> Option<ExitCode> {
    let folder = PathBuf::from(std::env::var_os(FOLDER)?);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (compiler, rest) = arguments.split_first()?;
    let kept = Call::of_this_process(rest).map_or(Ok(()), |call| call.write(&folder));
    if let Err(error) = kept {
        eprintln!("xtask: cannot write a call of the compiler to {}: {error}", folder.display());
        return Some(ExitCode::FAILURE);
    }
    let error = Command::new(compiler).args(rest).env_remove(FOLDER).exec();
    eprintln!("xtask: cannot run {compiler}: {error}");
    Some(ExitCode::FAILURE)
}

/// A call of the compiler.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Call {
    folder: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Call {
    /// The call that this process is to make; `None` if that compiles nothing.
    fn of_this_process(arguments: &[String]) -> Option<Self> {
        let call = Self {
            folder: std::env::current_dir().ok()?,
            arguments: arguments.to_vec(),
            variables: std::env::vars().filter(|(name, _)| name != FOLDER).collect(),
        };
        call.source().is_some().then_some(call)
    }

    /// The value of an option that is an argument of its own.
    fn value(&self, option: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == option)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// The file that is compiled.
    fn source(&self) -> Option<&str> {
        self.value("--crate-name")?;
        self.arguments.iter().map(String::as_str).find(|argument| argument.ends_with(".rs"))
    }

    fn is_test(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--test")
    }

    /// Two calls with the same key are for the same target.
    fn key(&self) -> String {
        let [name, kind] = ["--crate-name", "--crate-type"].map(|option| self.value(option));
        let kind = if self.is_test() { Some("test") } else { kind };
        let source = self.folder.join(self.source().unwrap_or_default());
        format!("{name:?} {kind:?} {}", source.display())
    }

    /// Writes the call, with the name that the compiler gives to its results.
    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let extra = self.arguments.iter().find_map(|one| one.strip_prefix("extra-filename="));
        let name = self.value("--crate-name").unwrap_or_default();
        let path = folder.join(format!("{name}{}.{CALL}", extra.unwrap_or_default()));
        let mut lines = vec![self.folder.display().to_string(), self.arguments.len().to_string()];
        lines.extend(self.arguments.iter().cloned());
        lines.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        std::fs::write(path, lines.join("\0"))
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('\0').map(str::to_owned);
        let folder = PathBuf::from(parts.next()?);
        let count = parts.next()?.parse().ok()?;
        let arguments: Vec<String> = parts.by_ref().take(count).collect();
        let variables = parts
            .map(|part| part.split_once('=').map(|(name, value)| (name.into(), value.into())))
            .collect::<Option<_>>()?;
        (arguments.len() == count).then_some(Self { folder, arguments, variables })
    }

    /// The same call for a tool, whose results go to `results`. `None` if it is not for that tool.
    fn repeated(&self, tool: Tool, results: &Path) -> Option<Command> {
        let mut command = match tool {
            Tool::Clippy => {
                let mut command = Command::new("clippy-driver");
                // Its wrapper's form, in which it takes the arguments of the variable, too.
                command.arg("rustc").args(self.without(&["--emit", "--out-dir", "--json"]));
                command.arg("--emit=metadata");
                command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
                command
            }
            Tool::Rustdoc => {
                let is_build = self.value("--crate-name") == Some("build_script_build");
                let is_example =
                    self.value("--out-dir").is_some_and(|to| to.ends_with("/examples"));
                if self.is_test() || is_build || is_example {
                    return None;
                }
                let mut command = Command::new("rustdoc");
                let others = ["--emit", "--out-dir", "--json", "-C", "--cap-lints"];
                command.args(self.without(&others)).args(["-D", "warnings"]);
                if self.value("--crate-type") == Some("bin") {
                    // As cargo does: nobody reads the documentation of a program from outside.
                    command.args(["--document-private-items", "-A"]);
                    command.arg("rustdoc::private-intra-doc-links");
                }
                command
            }
        };
        command.arg("--out-dir").arg(results).current_dir(&self.folder);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        for name in SHARES {
            command.env_remove(name);
        }
        Some(command)
    }

    /// The arguments without some options, in either of their forms, and without those that make
    /// messages for cargo.
    fn without(&self, options: &[&str]) -> Vec<&str> {
        let mut kept = Vec::new();
        let mut arguments = self.arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            let name = argument.split_once('=').map_or(argument, |(name, _)| name);
            if options.contains(&argument) {
                arguments.next();
            } else if !options.contains(&name)
                && !["--error-format", "--diagnostic-width"].contains(&name)
            {
                kept.push(argument);
            }
        }
        kept
    }
}

/// The calls that count, and the file of each.
fn calls(folder: &Path) -> anyhow::Result<Vec<(PathBuf, Call)>> {
    let mut latest: HashMap<String, (SystemTime, PathBuf, Call)> = HashMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != CALL) {
            continue;
        }
        let call = Call::read(&std::fs::read_to_string(&path)?);
        let call = call.with_context(|| format!("{} is damaged: remove it", path.display()))?;
        let source = call.folder.join(call.source().unwrap_or_default());
        let made = std::fs::metadata(&path)?.modified()?;
        let is_later = latest.get(&call.key()).is_none_or(|(other, ..)| *other < made);
        if source.is_file() && is_later {
            latest.insert(call.key(), (made, path, call));
        }
    }
    let mut all: Vec<_> = latest.into_values().map(|(_, path, call)| (path, call)).collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

/// Has a tool make the calls of the build. Prints what it complains of.
pub fn repeat(tool: Tool) -> Outcome {
    match repeat_all(tool) {
        Ok((0, 0, _)) => Outcome::Failed("the build kept no call of the compiler".into()),
        Ok((_, 0, all)) => Outcome::Passed(format!("{all} targets")),
        Ok((_, failed, all)) => {
            Outcome::Failed(format!("{failed} of {all} targets: see the messages above"))
        }
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// How many targets passed now or before, how many failed, and how many there are.
fn repeat_all(tool: Tool) -> anyhow::Result<(usize, usize, usize)> {
    let folder = target().join("compiles");
    let results = folder.join(format!("{tool:?}"));
    std::fs::create_dir_all(&results)?;
    let settings = std::fs::metadata(root().join("clippy.toml"))?.modified()?;
    let mut queue = VecDeque::new();
    let mut all = 0;
    for (path, call) in calls(&folder)? {
        let Some(command) = call.repeated(tool, &results) else { continue };
        all += 1;
        let passed = path.with_extension(format!("{tool:?}"));
        let changed = std::fs::metadata(&path)?.modified()?.max(settings);
        let is_new = |passed: std::fs::Metadata| passed.modified().is_ok_and(|at| at > changed);
        if !std::fs::metadata(&passed).is_ok_and(is_new) {
            queue.push_back((passed, command));
        }
    }
    ensure!(all > 0, "the build kept no call of the compiler");
    let queue = Mutex::new(queue);
    let failed = Mutex::new(0);
    let next = || queue.lock().ok()?.pop_front();
    let work = || {
        while let Some((passed, mut command)) = next() {
            let complaint = match command.output() {
                Ok(output) if output.status.success() => {
                    std::fs::write(&passed, "").err().map(|error| error.to_string())
                }
                Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Some(format!("{tool:?} cannot be run: {error}")),
            };
            if let (Some(complaint), Ok(mut failed)) = (complaint, failed.lock()) {
                *failed += 1;
                eprintln!("{complaint}");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or(all);
    Ok((all - failed, failed, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Call {
        Call {
            folder: PathBuf::from("/somewhere"),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            variables: vec![("CARGO_MAKEFLAGS".into(), "-j".into()), ("A".into(), "b=c".into())],
        }
    }

    const LIBRARY: [&str; 14] = [
        "--crate-name",
        "weft_x",
        "--edition=2024",
        "src/lib.rs",
        "--error-format=json",
        "--json=artifacts",
        "--crate-type",
        "lib",
        "--emit=dep-info,metadata,link",
        "-C",
        "extra-filename=-12ab",
        "--out-dir",
        "/target",
        "--extern=y",
    ];

    #[test]
    fn calls_are_read_as_they_were_written() {
        let folder = std::env::temp_dir().join(format!("weft-compiles-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let call = call(&LIBRARY);
        call.write(&folder).expect("a file");
        let text = std::fs::read_to_string(folder.join("weft_x-12ab.call")).expect("its name");
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(Call::read(&text), Some(call));
        let cut = text.rsplit_once("--extern").expect("the last argument").0;
        assert_eq!(Call::read(cut.trim_end_matches('\0')), None, "an argument is missing");
    }

    #[test]
    fn questions_of_cargo_to_the_compiler_are_not_kept() {
        assert_eq!(call(&["-vV"]).source(), None);
        assert_eq!(call(&["-", "--crate-name", "___", "--print=cfg"]).source(), None);
        assert_eq!(call(&LIBRARY).source(), Some("src/lib.rs"));
    }

    #[test]
    fn tools_get_the_arguments_that_are_for_them() {
        let arguments = |tool| {
            let command = call(&LIBRARY).repeated(tool, Path::new("/out"))?;
            assert_eq!(command.get_current_dir(), Some(Path::new("/somewhere")));
            let variables: HashMap<_, _> = command.get_envs().collect();
            assert_eq!(variables["A".as_ref() as &std::ffi::OsStr], Some("b=c".as_ref()));
            assert_eq!(variables["CARGO_MAKEFLAGS".as_ref() as &std::ffi::OsStr], None);
            let all: Vec<_> = command.get_args().map(|one| one.to_string_lossy().into()).collect();
            Some(all as Vec<String>)
        };
        let clippy = "rustc --crate-name weft_x --edition=2024 src/lib.rs --crate-type lib -C \
                      extra-filename=-12ab --extern=y --emit=metadata --out-dir /out";
        assert_eq!(arguments(Tool::Clippy).expect("it lints").join(" "), clippy);
        let rustdoc = "--crate-name weft_x --edition=2024 src/lib.rs --crate-type lib --extern=y \
                       -D warnings --out-dir /out";
        assert_eq!(arguments(Tool::Rustdoc).expect("it is documented").join(" "), rustdoc);
        let test = call(&[&LIBRARY[..], &["--test"]].concat());
        assert_eq!(test.repeated(Tool::Rustdoc, Path::new("/out")).map(|_| ()), None);
        assert_ne!(test.key(), call(&LIBRARY).key());
    }
}
