//! The configuration in force: file, environment, flags; and the control socket that follows.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use weft_options::runtime_path::ControlSocket;
use weft_options::{Builder, Found, Kind, Options, Problem, Spelling};

/// The sum of `weft.toml`, environment and flags.
#[derive(Debug)]
pub struct Configuration {
    /// The options.
    pub options: Options,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Variables `WEFT_*` that nobody knows. The user was warned of them.
    pub unknown_variables: Vec<String>,
}

/// Options that were given as flags: name and value.
pub type Flags = Vec<(&'static str, String)>;

impl Configuration {
    /// Reads file and environment and adds the flags. Warnings go to standard error.
    ///
    /// # Errors
    /// Values that are malformed or out of range, all of them; a file that was asked for and
    /// cannot be read.
    pub fn load(flags: Flags) -> anyhow::Result<Self> {
        let (configuration, errors) = Self::read(flags)?;
        if !errors.is_empty() {
            bail!("{}", errors.join("\nweft: "));
        }
        Ok(configuration)
    }

    /// As [`Configuration::load`], but reports a mistake and leaves its option as it was.
    ///
    /// # Errors
    /// A file that was asked for and cannot be read.
    pub fn load_with_mistakes(flags: Flags) -> anyhow::Result<Self> {
        let (configuration, errors) = Self::read(flags)?;
        for error in errors {
            eprintln!("weft: warning: {error}");
        }
        Ok(configuration)
    }

    /// Reads all sources. Prints the warnings, and returns the mistakes.
    fn read(flags: Flags) -> anyhow::Result<(Self, Vec<String>)> {
        let mut builder = Builder::new();
        let file = find_file()?;
        if let Some((path, text)) = &file {
            builder.file(&path.display().to_string(), text);
        }
        builder.environment(environment().map(|(name, value)| {
            let found = weft_options::find(Spelling::Environment, &name);
            let value = from_here(found, value);
            (name, value)
        }));
        for (name, value) in &flags {
            let found = weft_options::find(Spelling::File, name);
            builder.flag(name, &from_here(found, value.clone()));
        }
        let (options, problems) = builder.finish();
        let (warnings, errors): (Vec<_>, Vec<_>) =
            problems.iter().partition(|problem| problem.is_warning());
        for warning in warnings {
            eprintln!("weft: warning: {warning}");
        }
        let errors = errors.into_iter().map(ToString::to_string).collect();
        let unknown = |problem: &Problem| match problem {
            Problem::Unknown { name, .. } if name.starts_with("WEFT_") => Some(name.clone()),
            _ => None,
        };
        let unknown_variables = problems.iter().filter_map(unknown).collect();
        Ok((Self { options, file: file.map(|(path, _)| path), unknown_variables }, errors))
    }

    /// The control socket of the node that `flag`, environment or default name.
    ///
    /// # Errors
    /// A name that cannot be that of a node; `daemon.trust_uid` for a socket that is not named.
    pub fn control_socket(&self, flag: Option<&str>) -> anyhow::Result<ControlSocket> {
        Ok(weft_open::control_socket(&self.options, flag)?)
    }
}

/// Passes these options to a program in its environment. Removes the variables with old names:
/// their values are under the new names, and this command has warned of them.
pub fn hand_on(options: &Options, command: &mut Command) {
    for old in weft_options::old_variables() {
        command.env_remove(old);
    }
    command.envs(options.to_environment());
}

/// A file that is named from the directory of this command, by its whole path: a daemon in the
/// background runs in another directory.
fn from_here(option: Option<Found>, value: String) -> String {
    let is_file = option.is_some_and(|found| found.entry().kind == Kind::File);
    if !is_file || value.is_empty() {
        return value;
    }
    std::path::absolute(&value).map_or(value, |path| path.to_string_lossy().into_owned())
}

/// A variable that is set to something other than nothing and is UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The environment as far as it is UTF-8; a value of weft's that is not is reported, not dropped.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    })
}

/// The first configuration file that exists. One that `WEFT_CONFIG` names must be readable.
fn find_file() -> anyhow::Result<Option<(PathBuf, String)>> {
    if let Some(path) = variable("WEFT_CONFIG").map(PathBuf::from) {
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("WEFT_CONFIG names {}, which cannot be read", path.display())
        })?;
        return Ok(Some((path, text)));
    }
    let user = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    let candidates = user
        .map(|directory| directory.join("weft/weft.toml"))
        .into_iter()
        .chain([PathBuf::from("/etc/weft/weft.toml")]);
    for path in candidates {
        match std::fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                eprintln!("weft: warning: {} is passed over: {error}", path.display());
            }
        }
    }
    Ok(None)
}
