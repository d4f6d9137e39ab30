//! `weft daemon`, `weft down`, and starting a daemon in the background.
//!
//! A daemon is started in the background in two steps, each a process of this program. `detach`
//! leaves the session, the terminal and inherited descriptors, starts `serve`, and ends. The daemon
//! is then no child of the first process, which `weft run` replaces by the user's program: that
//! program must not have a child that it did not start.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use weft_options::Options;
use weft_options::runtime_path::{ControlSocket, NODE_DEFAULT, Scope};
use weftd::DeviceSpec;
use weftd::client::OtherRelease;

use crate::arguments::{DaemonArguments, NodeArguments, Step};
use crate::configuration::{Configuration, hand_on};
use crate::output::show_line;

/// How long a new daemon may take until it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a new daemon may take that makes devices first. They may have to meet those of other
/// daemons.
const DEVICES_WITHIN: Duration = Duration::from_secs(10);
/// How long a daemon may take until it has ended. It gives its devices back to the kernel.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How long this command waits for the socket of a daemon that was started at the same time by
/// another command.
const RIVAL_WITHIN: Duration = Duration::from_millis(250);
/// How long a daemon that was killed may take until it has ended.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// The time between two questions to a daemon.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// How much of the end of a log is searched for the reason why a daemon ended.
const LOG_TAIL_BYTES: usize = 4096;

/// `weft daemon`.
pub fn daemon(
    arguments: &DaemonArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    match arguments.step {
        Some(Step::Detach) => detach(&socket, &arguments.device, arguments.lab)?,
        Some(Step::Serve) => serve(&socket, &configuration.options, arguments, false)?,
        None if arguments.background => {
            if weftd::client::answers(&socket.path) {
                ensure_same_release(&socket)?;
            } else {
                start(&socket, &configuration.options, &arguments.device, arguments.lab)?;
            }
            show_line!("{}", socket.path.display());
        }
        None => {
            ensure!(
                !weftd::client::answers(&socket.path),
                "a node daemon already answers at {}{}; stop it with `weft down{}`, or give this \
                 one another name with --node",
                socket.path.display(),
                difference(&socket, &configuration.options),
                of_node(&socket)
            );
            prepare_directory(&socket)?;
            serve(&socket, &configuration.options, arguments, true)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The difference that matters between the daemon that answers at `socket` and one with `options`,
/// for people; nothing if none is known.
fn difference(socket: &ControlSocket, options: &Options) -> &'static str {
    let is_alone = || weftd::client::status(&socket.path).is_ok_and(|status| status.serves_alone());
    if options.fabric_listen().is_some() && is_alone() {
        " and serves this host alone, as one does that `weft run` started"
    } else {
        ""
    }
}

fn serve(
    socket: &ControlSocket,
    options: &Options,
    arguments: &DaemonArguments,
    foreground: bool,
) -> anyhow::Result<()> {
    let links = arguments.lab.then(|| crate::lab::links(socket)).transpose()?;
    weftd::serve(weftd::Config {
        socket: socket.path.clone(),
        node: socket.node.clone(),
        options: options.clone(),
        foreground,
        devices: arguments.device.clone(),
        links,
    })
}

/// `weft down`.
pub fn down(arguments: &NodeArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.as_deref())?;
    match weftd::client::look(&socket.path) {
        Ok(()) => {}
        Err(error) if error.is_distrust() => bail!("{}", absence(&socket)),
        Err(_) => {
            eprintln!("weft: no node daemon runs at {}; nothing to stop", socket.path.display());
            return Ok(ExitCode::SUCCESS);
        }
    }
    stop(&socket)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that the daemon that answers at `socket`, if there is one, is of this release.
///
/// # Errors
/// It is of another one; says how to stop it.
pub fn ensure_same_release(socket: &ControlSocket) -> anyhow::Result<()> {
    let Some(OtherRelease { version, pid }) = weftd::client::other_release(&socket.path) else {
        return Ok(());
    };
    bail!(
        "a node daemon of another release answers at {}: process {pid}, with version {version} of \
         the control protocol in place of {}; stop it with `weft down{}`, and start this one then",
        socket.path.display(),
        weft_wire::control::VERSION,
        of_node(socket)
    )
}

/// The flag that names the node of `socket` in a command to type; nothing for the default.
fn of_node(socket: &ControlSocket) -> String {
    match socket.node.as_str() {
        NODE_DEFAULT => String::new(),
        name => format!(" --node {name}"),
    }
}

/// Stops the daemon that answers at `socket`, and waits for the end of its process: until then it
/// holds its lock and its devices, which the next daemon needs.
///
/// # Errors
/// The daemon does not end.
pub fn stop(socket: &ControlSocket) -> anyhow::Result<()> {
    let process = weftd::client::process(&socket.path);
    let has_ended = || process.as_ref().is_none_or(is_readable);
    let is_over = || !weftd::client::answers(&socket.path) && has_ended();
    if let Err(error) = weftd::client::stop(&socket.path) {
        // A daemon that was killed a moment ago still accepts connections, but answers none.
        return if until(KILLED_WITHIN, is_over) { Ok(()) } else { Err(error) };
    }
    ensure!(
        until(END_WITHIN, is_over),
        "the node daemon at {} has not ended after {} s; see its log {}",
        socket.path.display(),
        END_WITHIN.as_secs(),
        socket.log().display()
    );
    Ok(())
}

/// Why nobody answers at `socket`, and what to do.
pub fn absence(socket: &ControlSocket) -> String {
    let path = socket.path.display();
    if let Err(error) = weftd::client::look(&socket.path)
        && error.is_distrust()
    {
        return format!("the node daemon at {path} is not used: {error}");
    }
    let node = of_node(socket);
    match socket.path.symlink_metadata() {
        Ok(_) => format!(
            "no node daemon answers at {path}: the socket is left over from one that died; \
             `weft daemon{node}` or the next `weft run{node}` replaces it"
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "{path} cannot be reached: {error}; it belongs to another user's daemon, use another \
             --node"
        ),
        Err(_) => format!(
            "no node daemon runs at {path}; start one with `weft daemon{node}`, `weft run{node} \
             -- PROGRAM` does so by itself"
        ),
    }
}

/// Starts a daemon in the background and waits until it answers. With `is_lab` it rules the links
/// of the lab whose record is beside the socket.
///
/// # Errors
/// When the directory is not safe to use, or no daemon answers in time; names the log.
pub fn start(
    socket: &ControlSocket,
    options: &Options,
    devices: &[DeviceSpec],
    is_lab: bool,
) -> anyhow::Result<()> {
    prepare_directory(socket)?;
    // On failure the end of the log is quoted, but no line from before this start.
    let log_before = std::fs::metadata(socket.log()).map_or(0, |metadata| metadata.len());
    // The daemon keeps the other end open as its standard output, so that its end is noticed.
    let (ended, alive) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("no pipe")?;
    let mut detach = step(socket, "detach", devices, is_lab)?;
    hand_on(options, &mut detach);
    let status = detach
        .stdout(alive)
        .stderr(open_log(socket)?)
        .status()
        .context("the node daemon cannot be started")?;
    // It keeps the other end of the pipe, too.
    drop(detach);
    let start = Instant::now();
    let within = if devices.is_empty() { ANSWER_WITHIN } else { DEVICES_WITHIN };
    // The daemon has a socket before it has devices. It reports its status when all are there.
    let is_ready = || {
        weftd::client::answers(&socket.path)
            && (devices.is_empty() || weftd::client::status(&socket.path).is_ok())
    };
    let mut over_since = None;
    while status.success() && start.elapsed() < within {
        if is_ready() {
            return Ok(());
        }
        // Another daemon may have been started at the same time. It has a socket first, and is
        // ready when its devices are.
        if is_readable(&ended)
            && over_since.get_or_insert_with(Instant::now).elapsed() >= RIVAL_WITHIN
            && !weftd::client::answers(&socket.path)
        {
            break;
        }
        std::thread::sleep(ASK_EVERY);
    }
    bail!(
        "the node daemon does not answer at {} after {:.1} s{}; see {}, or run `weft daemon` in \
         the foreground",
        socket.path.display(),
        start.elapsed().as_secs_f64(),
        last_line(&socket.log(), log_before).map(|line| format!(" ({line})")).unwrap_or_default(),
        socket.log().display()
    )
}

/// True when a read would not wait: nobody has the other end of a pipe any more, or a process has
/// ended.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut one = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut one, Some(&now)).is_ok_and(|count| count > 0)
}

/// The first step into the background: a session of its own, no inherited descriptors.
fn detach(socket: &ControlSocket, devices: &[DeviceSpec], is_lab: bool) -> anyhow::Result<()> {
    // Fails only for a group leader, which a child of `start` is not.
    rustix::process::setsid().context("setsid failed")?;
    close_fds::set_fds_cloexec(3, &[]);
    step(socket, "serve", devices, is_lab)?
        .stdout(Stdio::inherit())
        .stderr(open_log(socket)?)
        .spawn()
        .context("the node daemon cannot be started")?;
    Ok(())
}

/// This program again, as a step towards the daemon of `socket`.
fn step(
    socket: &ControlSocket,
    step: &str,
    devices: &[DeviceSpec],
    is_lab: bool,
) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("this program's own file cannot be found")?;
    let mut command = Command::new(program);
    command
        .args(["daemon", "--step", step])
        .args(is_lab.then_some("--lab"))
        .args(devices.iter().flat_map(|device| ["--device".to_owned(), device.to_string()]))
        .env("WEFT_SOCKET", &socket.path)
        .env("WEFT_NODE", &socket.node)
        .env_remove("LD_PRELOAD")
        .env_remove("WEFT_STATS")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Ok(command)
}

fn open_log(socket: &ControlSocket) -> anyhow::Result<File> {
    let path = socket.log();
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(&path)
        .with_context(|| format!("the log {} cannot be written", path.display()))
}

/// Makes the directory of the socket, or checks that nobody else can put anything into it.
pub fn prepare_directory(socket: &ControlSocket) -> anyhow::Result<()> {
    let (mode, forbidden) = match socket.scope {
        // The daemon makes it. A log in a directory that others could have prepared is not safe.
        Scope::Explicit if !socket.directory().exists() => return Ok(()),
        Scope::Explicit => {
            weft_channel::open_directory(socket.directory())?;
            return Ok(());
        }
        Scope::System => (0o755, 0o022),
        Scope::User => (0o700, 0o077),
    };
    let directory = socket.directory();
    match DirBuilder::new().mode(mode).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "{} cannot be made; choose another place with --daemon-socket",
                    directory.display()
                )
            });
        }
    }
    let metadata = directory
        .symlink_metadata()
        .with_context(|| format!("{} cannot be looked at", directory.display()))?;
    let own = rustix::process::geteuid().as_raw();
    ensure!(
        metadata.is_dir() && metadata.uid() == own && metadata.mode() & forbidden == 0,
        "{} is not safe to use: it must be a directory of user {own} with mode {mode:o}, but is \
         of user {} with mode {:o}; remove it, or choose another place with --daemon-socket",
        directory.display(),
        metadata.uid(),
        metadata.mode() & 0o7777
    );
    weft_channel::open_directory(directory)?;
    Ok(())
}

/// Asks until the answer is yes or the time is over.
fn until(within: Duration, is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// The last line that was written to a log after byte `from`.
fn last_line(log: &Path, from: u64) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let new = bytes.get(usize::try_from(from).ok()?..)?;
    let tail = new.get(new.len().saturating_sub(LOG_TAIL_BYTES)..)?;
    let text = String::from_utf8_lossy(tail);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(directory: &Path, scope: Scope) -> ControlSocket {
        ControlSocket { node: "n".into(), path: directory.join("n.sock"), scope }
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("weft");
        let place = socket(&directory, Scope::User);
        prepare_directory(&place).expect("made");
        assert_eq!(directory.metadata().expect("there").mode() & 0o777, 0o700);
        prepare_directory(&place).expect("checked");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&directory, open).expect("own directory");
        let error = prepare_directory(&place).expect_err("not private");
        assert!(error.to_string().contains("with mode 777"), "{error}");
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let link = root.path().join("weft");
        std::os::unix::fs::symlink("/tmp", &link).expect("a link");
        assert!(prepare_directory(&socket(&link, Scope::User)).is_err());
    }

    #[test]
    fn a_left_over_socket_is_told_from_none() {
        let root = tempfile::tempdir().expect("a directory");
        let mut place = socket(root.path(), Scope::Explicit);
        assert!(absence(&place).contains("start one with `weft daemon --node n`"));
        drop(std::os::unix::net::UnixListener::bind(&place.path).expect("a socket"));
        assert!(absence(&place).contains("left over"));
        place.node = NODE_DEFAULT.into();
        assert!(absence(&place).contains("`weft daemon` or"));
    }

    #[test]
    fn the_last_line_of_a_log_is_one_of_this_start() {
        let root = tempfile::tempdir().expect("a directory");
        let log = root.path().join("log");
        std::fs::write(&log, "old\nnew\n\n").expect("written");
        assert_eq!(last_line(&log, 4).as_deref(), Some("new"));
        assert_eq!(last_line(&log, 9), None);
    }
}
