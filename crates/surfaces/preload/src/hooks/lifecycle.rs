//! Loads the library, and follows forks and the end of the process.

use libc::c_long;
use weft_options::{Options, Problem};

use crate::deferral::Held;
use crate::log::{debug, warn_user};
use crate::{
    arena, backlog, bells, calls, cancel, carrier, connection, control, decision, ending, epoll,
    handover, lanes, log, other_end, process, provider_files, real, rescue, reserve, stand_in,
    stats, stdio, sys, table,
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

extern "C" fn start() {
    process::begin();
    abort_on_panic();
    real::resolve_all();
    // The environment is read only here, since another thread may change it later.
    let pairs: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("WEFT_"))
        // A value that is not UTF-8 is reported, not dropped.
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    let variable = |wanted: &str| {
        pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    };
    if let Some(filter) = variable("WEFT_LOG") {
        log::set_level(filter);
    }
    let (options, problems) = Options::from_environment(pairs.iter().map(|(n, v)| (n, v)));
    report(&problems, variable("WEFT_WARNED").unwrap_or_default());
    if let Some(path) = variable("WEFT_STATS") {
        stats::open(path);
    }
    let socket = variable("WEFT_SOCKET").map(str::to_owned);
    let enabled = options.socket_enable();
    // The socket was named: `weft run` refuses the option without one.
    weft_channel::trust_user(options.daemon_trust_uid());
    // A library that is switched off only counts, for those who want to read that.
    if !process::configure(options) || !enabled && !stats::are_read() {
        return;
    }
    let Some(socket) = socket else {
        debug!("WEFT_SOCKET is not set, so all connections stay on tcp; use `weft run`");
        return;
    };
    let calls = carrier::Calls {
        arrived: ending::wake,
        arrived_here: ending::wake_others,
        settled: decision::settled,
        go_on: ending::go_on,
        leave: lanes::leave_far,
    };
    carrier::configure(socket.clone().into(), calls);
    control::set_path(socket);
    calls::begin(connection::give_back);
    // SAFETY: the three functions live as long as the library, which is never unloaded.
    let registered =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child)) };
    if registered == 0 && table::init() {
        if let Some(text) = variable(handover::VARIABLE) {
            handover::take_over(text);
        }
        process::set_ready();
    }
}

/// Reports mistakes in the variables `WEFT_*`, except for the names in `warned`: `weft run` has
/// warned of these. It refuses the other mistakes, so that they come from a program that was
/// started without it, or that set the variable later.
fn report(problems: &[Problem], warned: &str) {
    for problem in problems {
        match problem {
            Problem::Unknown { name, .. } if warned.split(' ').any(|one| one == name) => {}
            problem if problem.is_warning() => warn_user!("warning: {problem}"),
            problem => warn_user!("warning: {problem}; the default is in force"),
        }
    }
}

/// Makes a panic abort the process. A panic must not unwind into the program. Hooks still let the C
/// library unwind through them.
fn abort_on_panic() {
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        former(info);
        std::process::abort();
    }));
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = finish;

extern "C" fn finish() {
    stdio::flush();
    end();
}

/// Ends this process's use of its connections. Called before the process exits, possibly by several
/// threads at once.
pub(super) fn end() {
    if process::begin_exit() {
        ending::close_all();
    }
}

extern "C" fn before_fork() {
    // Now, while no child holds the connections: it could not receive the daemon's answers to this
    // process.
    decision::move_answered();
    // And no child has the endpoint of this process.
    lanes::return_far();
    let [forgetting, leaving] = lanes::locks();
    reserve::before_fork();
    // In the order of their ranks.
    forgetting.take();
    reserve::locks().iter().for_each(|lock| lock.take());
    stand_in::lock().take();
    super::started_programs().iter().for_each(|lock| lock.take());
    arena::lock().take();
    calls::lock().take();
    epoll::before_fork();
    control::lock().take();
    other_end::lock().take();
    carrier::lock().take();
    bells::lock().take();
    rescue::lock().take();
    provider_files::lock().take();
    leaving.take();
    backlog::lock().take();
    for_each_connection(|connection| connection.count_heir());
}

/// Makes a child by a call that runs no functions of pthread_atfork(3). Such a call leaves the
/// locks of the allocator as other threads hold them. So with other threads the child is one as by
/// clone(2), in which nothing is done.
pub(super) fn forking(fork: impl FnOnce() -> c_long) -> c_long {
    if !process::ready() || !process::is_itself() {
        return fork();
    }
    if !process::is_single_threaded() {
        let child = cloning(fork);
        if child == 0 {
            in_cloned_child();
        }
        return child;
    }
    before_fork();
    let child = fork();
    match child {
        0 => in_forked_child(),
        1.. => {
            after_fork();
            forked(child);
        }
        _ => {
            let errno = sys::errno();
            after_fork();
            fork_failed();
            sys::set_errno(errno);
        }
    }
    child
}

/// Makes a child that has this process's lanes mapped, and of which the library does not know. The
/// child calls [`in_cloned_child`] first.
pub(super) fn cloning<T>(clone: impl FnOnce() -> T) -> T {
    reserve::around_clone();
    if process::is_itself() {
        carrier::leave();
    }
    let child = clone();
    // Another thread may have taken a lane in between.
    reserve::around_clone();
    child
}

/// In a child by clone(2): it has a copy of the endpoint, which is the parent's. A connection that
/// could not leave its lane is reset for the child.
pub(super) fn in_cloned_child() {
    for_each_connection(|connection| connection.leaves_far_lane_to_parent());
    carrier::cloned();
}

/// Called in the parent when it has forked `child`, which inherited its connections.
pub(super) fn forked(child: c_long) {
    if let Ok(child) = u32::try_from(child) {
        for_each_connection(|connection| connection.name_heir(child));
    }
}

/// Called when fork failed: takes back the references that `before_fork` counted for the child.
pub(super) fn fork_failed() {
    for_each_connection(|connection| connection.uncount_heir());
}

fn for_each_connection(act: impl Fn(arena::Connection)) {
    for (_, entry) in table::walk(0, u32::MAX) {
        if let table::Entry::Connection(place) = entry
            && let Some(connection) = arena::at(place)
        {
            act(connection);
        }
    }
}

extern "C" fn after_fork() {
    let [forgetting, leaving] = lanes::locks();
    backlog::lock().give_back();
    leaving.give_back();
    provider_files::lock().give_back();
    rescue::lock().give_back();
    bells::lock().give_back();
    carrier::lock().give_back();
    other_end::lock().give_back();
    control::lock().give_back();
    epoll::after_fork();
    calls::lock().give_back();
    arena::lock().give_back();
    super::started_programs().iter().for_each(|lock| lock.give_back());
    stand_in::lock().give_back();
    reserve::locks().iter().for_each(|lock| lock.give_back());
    forgetting.give_back();
}

extern "C" fn in_forked_child() {
    // The descriptors closed below are the library's. The hook of `close` would ask the endpoint,
    // whose lock the parent's driving thread may have held.
    let _held = Held::new();
    process::set_pid();
    cancel::forked();
    after_fork();
    arena::forked();
    epoll::forked();
    control::forked();
    stats::forked();
    lanes::forked();
    reserve::forked();
    other_end::forked();
    for_each_connection(|connection| connection.leaves_far_lane_to_parent());
    bells::forked();
    carrier::forked();
    provider_files::forked();
    rescue::forked();
    connection::forked();
}
