//! The launcher of a job: what it does when a process, a proxy, the user or the clock says a thing.
//!
//! # Invariants
//! - The job is told to end once, with the exit code and the message of what happened first.
//! - While it ends there is a deadline, after which [`Action::Finish`] comes whatever hosts do.
//! - Nothing follows [`Action::Finish`].

use std::collections::VecDeque;
use std::time::Duration;

use weft_pmi::server::{Action as PmiAction, Description, Membership, Server, Standing};

use crate::frame::{Ending, FromProxy, PIECE_BYTES_MAX, Plan, Stream, ToProxy};
use crate::lines::Lines;
use crate::signals;

/// Exit code when the job ran longer than it may, as `timeout` has it.
const CODE_TIMEOUT: u8 = 124;
/// Exit code when weft itself failed, as `weft run` has it.
const CODE_WEFT: u8 = 125;
/// Shells add this to the number of a signal.
const CODE_SIGNAL: u8 = 128;
/// A proxy says its first message within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(60);
/// Beyond the grace, hosts have this time to end what they run.
const END_WITHIN: Duration = Duration::from_secs(5);
/// A process that left others behind at a barrier has this time to end, which tells more.
const REASON_WITHIN: Duration = Duration::from_millis(300);
/// Most bytes of standard input that a process has not taken yet.
const INPUT_BYTES_MAX: usize = 128 * 1024;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// Where a rank belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The number of its host in [`Layout::hosts`].
    pub host: u32,
    /// The number of its program on the command line.
    pub program: u32,
}

/// A job that is to be launched.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its name: visible ASCII.
    pub name: String,
    /// The version of weft, which its proxies have to have.
    pub version: String,
    /// The names of the hosts.
    pub hosts: Vec<String>,
    /// The processes that each host starts.
    pub plans: Vec<Plan>,
    /// The processes by rank.
    pub members: Vec<Member>,
    /// `PMI_process_mapping`.
    pub mapping: String,
    /// Lines of output begin with the rank.
    pub has_prefix: bool,
    /// Streams whose bytes are kept by rank instead of being written.
    pub kept: Vec<Stream>,
    /// The time between SIGTERM and SIGKILL when the job is ended.
    pub grace: Duration,
    /// The job may run for this long.
    pub timeout: Option<Duration>,
}

/// The next thing that the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a message to the proxy of a host.
    Send {
        /// The number of the host.
        host: u32,
        /// The message.
        message: ToProxy,
    },
    /// Write output of the processes.
    Write {
        /// The launcher's own stream.
        stream: Stream,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Keep output of one process.
    Keep {
        /// The rank of the process.
        rank: u32,
        /// Its stream.
        stream: Stream,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Tell the user.
    Say(String),
    /// End with this exit code.
    Finish(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Ending { code: u8, give_up: Duration },
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostState {
    Starting { until: Duration },
    Up,
    Done,
    Lost,
}

/// A launched job.
#[derive(Debug)]
pub struct Launch {
    version: String,
    hosts: Vec<(String, HostState)>,
    members: Vec<Member>,
    ended: Vec<Option<Ending>>,
    server: Server,
    phase: Phase,
    first_failure: Option<u8>,
    output: Lines,
    errors: Lines,
    kept: Vec<Stream>,
    grace: Duration,
    timeout: Option<(Duration, Duration)>,
    stuck_until: Option<Duration>,
    passed_on: Option<i32>,
    is_held: bool,
    /// Bytes of input under way to rank 0; `None` when it reads no more.
    input: Option<usize>,
    actions: VecDeque<Action>,
}

impl Launch {
    /// Launches a job.
    pub fn new(layout: Layout, now: Duration) -> Self {
        let membership =
            |member: &Member| Membership { host: member.host, program: member.program };
        let server = Server::new(Description {
            name: layout.name,
            mapping: layout.mapping,
            processes: layout.members.iter().map(membership).collect(),
        });
        let starting = HostState::Starting { until: now + HELLO_WITHIN };
        let start = |(host, plan)| Action::Send { host, message: ToProxy::Start(plan) };
        Self {
            version: layout.version,
            hosts: layout.hosts.into_iter().map(|name| (name, starting)).collect(),
            ended: vec![None; layout.members.len()],
            members: layout.members,
            server,
            phase: Phase::Running,
            first_failure: None,
            output: Lines::new(layout.has_prefix),
            errors: Lines::new(layout.has_prefix),
            kept: layout.kept,
            grace: layout.grace,
            timeout: layout.timeout.map(|limit| (limit, now + limit)),
            stuck_until: None,
            passed_on: None,
            is_held: false,
            input: Some(0),
            actions: (0..).zip(layout.plans).map(start).collect(),
        }
    }

    /// The next action, in their order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A message of the proxy of a host. Those of a host that is none, or is over, mean nothing.
    pub fn hear(&mut self, host: u32, message: FromProxy, now: Duration) {
        if !self.is_open(host) {
            return;
        }
        match message {
            FromProxy::Hello { version } => self.greeted(host, &version, now),
            FromProxy::NotStarted { rank, code, reason } if self.is_at(rank, host) => {
                self.note_end(rank, Ending::Exit(code));
                let message = format!("{} cannot be started: {reason}", self.title(rank));
                self.end(code, Some(message), now);
            }
            FromProxy::Output { rank, stream, bytes } if self.is_at(rank, host) => {
                self.take_output(rank, stream, bytes, now);
            }
            FromProxy::Pmi { rank, bytes } if self.is_at(rank, host) => {
                self.server.receive(rank, &bytes);
                self.serve(now);
            }
            FromProxy::PmiClosed { rank } if self.is_at(rank, host) => self.server.hang_up(rank),
            FromProxy::Ended { rank, how } if self.is_at(rank, host) => {
                self.process_ended(rank, how, now);
            }
            FromProxy::InputTaken(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.input = self.input.map(|waiting| waiting.saturating_sub(bytes));
            }
            FromProxy::InputClosed => self.input = None,
            FromProxy::Done => self.set_state(host, HostState::Done),
            // A rank that is not of this host.
            _ => {}
        }
        self.look(now);
    }

    /// The proxy of a host cannot be reached any more, for a reason. Its processes end with it.
    pub fn lose(&mut self, host: u32, reason: &str, now: Duration) {
        if !self.is_open(host) {
            return;
        }
        self.set_state(host, HostState::Lost);
        for rank in self.ranks_of(host) {
            self.note_end(rank, Ending::Signal { number: 9, has_core: false });
        }
        let message = format!("host {} is lost: {reason}", self.host_name(host));
        self.end(CODE_WEFT, Some(message), now);
        self.look(now);
    }

    /// The launcher got a signal. SIGINT and others are passed on, and a second SIGINT kills.
    /// SIGTERM and SIGHUP end the job.
    pub fn signal(&mut self, number: i32, now: Duration) {
        let code = CODE_SIGNAL.saturating_add(u8::try_from(number).unwrap_or(0));
        let name = signals::name(number);
        match number {
            SIGTERM | SIGHUP => self.end(code, Some(format!("{name} ends the job")), now),
            SIGINT if self.passed_on == Some(SIGINT) || self.phase != Phase::Running => {
                self.end(code, None, now);
                self.send_all(&ToProxy::Kill);
            }
            _ => {
                if number == SIGINT {
                    let rest = "passed on to the PEs; another one kills them";
                    self.actions.push_back(Action::Say(format!("SIGINT is {rest}")));
                    self.passed_on = Some(number);
                }
                self.send_all(&ToProxy::Signal(number));
            }
        }
        self.look(now);
    }

    /// Ends the job for a reason of the driver.
    pub fn stop(&mut self, code: u8, message: Option<String>, now: Duration) {
        self.end(code, message, now);
        self.look(now);
    }

    /// Bytes of standard input for rank 0; empty is its end.
    pub fn input(&mut self, bytes: &[u8]) {
        let Some(waiting) = self.input.filter(|_| self.phase == Phase::Running) else { return };
        let Some(host) = self.members.first().map(|member| member.host) else { return };
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            self.actions.push_back(Action::Send { host, message: ToProxy::Input(piece.to_vec()) });
        }
        self.input = Some(waiting + bytes.len());
        if bytes.is_empty() {
            self.actions.push_back(Action::Send { host, message: ToProxy::Input(Vec::new()) });
            self.input = None;
        }
    }

    /// Whether rank 0 takes more input now.
    pub fn wants_input(&self) -> bool {
        self.phase == Phase::Running && self.input.is_some_and(|bytes| bytes < INPUT_BYTES_MAX)
    }

    /// Whether rank 0 takes input, now or later.
    pub fn takes_input(&self) -> bool {
        self.phase == Phase::Running && self.input.is_some()
    }

    /// Holds up output of the processes while the launcher's own output is full.
    pub fn hold_output(&mut self, is_full: bool) {
        if self.is_held != is_full {
            self.is_held = is_full;
            self.send_all(if is_full { &ToProxy::Pause } else { &ToProxy::Resume });
        }
    }

    /// The time has come that [`Launch::deadline`] named.
    pub fn tick(&mut self, now: Duration) {
        for (stream, lines) in
            [(Stream::Output, &mut self.output), (Stream::Error, &mut self.errors)]
        {
            let bytes = lines.due(now);
            if !bytes.is_empty() {
                self.actions.push_back(Action::Write { stream, bytes });
            }
        }
        let late = |host: &u32| self.silent_until(*host).is_some_and(|until| until <= now);
        for host in self.host_numbers().filter(late).collect::<Vec<u32>>() {
            let seconds = HELLO_WITHIN.as_secs();
            self.lose(host, &format!("weft did not start there within {seconds} s"), now);
        }
        if let Some((limit, until)) = self.timeout
            && until <= now
        {
            let seconds = limit.as_secs_f64();
            let message = format!("the job did not end within {seconds} s, its limit");
            self.end(CODE_TIMEOUT, Some(message), now);
        }
        if self.stuck_until.is_some_and(|until| until <= now) {
            self.end_stuck(now);
        }
        if let Phase::Ending { code, give_up } = self.phase
            && give_up <= now
        {
            let late = |host: &u32| self.is_open(*host);
            for host in self.host_numbers().filter(late).collect::<Vec<u32>>() {
                let name = self.host_name(host);
                let text = format!("host {name} did not end its PEs in time; look for them there");
                self.actions.push_back(Action::Say(text));
            }
            self.finish(code);
        }
        self.look(now);
    }

    /// When [`Launch::tick`] is wanted.
    pub fn deadline(&self) -> Option<Duration> {
        let hello = self.host_numbers().filter_map(|host| self.silent_until(host));
        let running = matches!(self.phase, Phase::Running);
        let timeout = self.timeout.map(|(_, until)| until).filter(|_| running);
        let give_up = match self.phase {
            Phase::Ending { give_up, .. } => Some(give_up),
            _ => None,
        };
        let tails = [self.output.deadline(), self.errors.deadline()];
        let others = [timeout, give_up, self.stuck_until.filter(|_| running)];
        hello.chain(tails.into_iter().chain(others).flatten()).min()
    }

    fn greeted(&mut self, host: u32, version: &str, now: Duration) {
        if version == self.version {
            self.set_state(host, HostState::Up);
            return;
        }
        let (name, own) = (self.host_name(host), &self.version);
        let shown: String = version.chars().take(40).collect();
        let reason = format!(
            "host {name} has weft {shown:?} and this one {own:?}; install the same on both"
        );
        self.end(CODE_WEFT, Some(reason), now);
    }

    fn take_output(&mut self, rank: u32, stream: Stream, bytes: Vec<u8>, now: Duration) {
        if self.kept.contains(&stream) {
            return self.actions.push_back(Action::Keep { rank, stream, bytes });
        }
        let lines = match stream {
            Stream::Output => &mut self.output,
            Stream::Error => &mut self.errors,
        };
        let bytes = lines.take(rank, &bytes, now);
        if !bytes.is_empty() {
            self.actions.push_back(Action::Write { stream, bytes });
        }
    }

    /// Does what the processes' requests need.
    fn serve(&mut self, now: Duration) {
        while let Some(action) = self.server.next_action() {
            match action {
                PmiAction::Send { rank, bytes } => {
                    let Some(host) = self.host(rank) else { continue };
                    let message = ToProxy::Pmi { rank, bytes };
                    self.actions.push_back(Action::Send { host, message });
                }
                PmiAction::Abort { rank, code, message } => self.abort(rank, code, &message, now),
                PmiAction::Offence { rank, problem } => {
                    let title = self.title(rank);
                    let text = format!("{title} sent what is no message of PMI: {problem}");
                    self.end(1, Some(text), now);
                }
            }
        }
    }

    fn abort(&mut self, rank: u32, code: i32, message: &str, now: Duration) {
        let status = exit_status(code);
        let reason = message.trim();
        let text = match (status, reason) {
            (0, "") => None,
            (status, "") => Some(format!("{} ended the job with {status}", self.title(rank))),
            (status, reason) => {
                let title = self.title(rank);
                Some(format!("{title} ended the job with {status}: {reason}"))
            }
        };
        self.end(status, text, now);
    }

    fn process_ended(&mut self, rank: u32, how: Ending, now: Duration) {
        let standing = self.server.standing(rank);
        if !self.note_end(rank, how) {
            return;
        }
        match how {
            Ending::Exit(0) => {}
            Ending::Exit(code) if standing == Standing::Finalized => {
                self.first_failure.get_or_insert(code);
            }
            Ending::Exit(code) => {
                let text = format!("{} exited with status {code}", self.title(rank));
                self.end(code, Some(self.and_the_others(text)), now);
            }
            Ending::Signal { number, has_core } => {
                let code = CODE_SIGNAL.saturating_add(number);
                let name = signals::name(number.into());
                let core = if has_core { " (core dumped)" } else { "" };
                let text = if self.passed_on == Some(number.into()) {
                    format!("{name} ended the job")
                } else {
                    let text = format!("{} was killed by {name}{core}", self.title(rank));
                    self.and_the_others(text)
                };
                self.end(code, Some(text), now);
            }
        }
    }

    /// Adds to a message that the other processes are ended, if there are any.
    fn and_the_others(&self, text: String) -> String {
        match self.ended.iter().filter(|ended| ended.is_none()).count() {
            0 => text,
            1 => format!("{text}; the other PE is ended"),
            others => format!("{text}; the other {others} PEs are ended"),
        }
    }

    /// Notes that a process is there no more; false if that was known.
    fn note_end(&mut self, rank: u32, how: Ending) -> bool {
        self.server.hang_up(rank);
        let index = usize::try_from(rank).unwrap_or(usize::MAX);
        match self.ended.get_mut(index) {
            Some(ended @ None) => {
                *ended = Some(how);
                true
            }
            _ => false,
        }
    }

    /// Ends the job, unless it is ending already.
    fn end(&mut self, code: u8, message: Option<String>, now: Duration) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Ending { code, give_up: now + self.grace + END_WITHIN };
        self.actions.extend(message.map(Action::Say));
        self.send_all(&ToProxy::End);
    }

    /// Looks whether a barrier can end, and whether the job is over.
    fn look(&mut self, now: Duration) {
        if self.phase == Phase::Running && self.server.is_awaited() && self.absent().is_some() {
            self.stuck_until.get_or_insert(now + REASON_WITHIN);
        } else {
            self.stuck_until = None;
        }
        let is_over =
            |(_, state): &(String, HostState)| matches!(state, HostState::Done | HostState::Lost);
        if !self.hosts.iter().all(is_over) {
            return;
        }
        match self.phase {
            Phase::Running => self.finish(self.first_failure.unwrap_or(0)),
            Phase::Ending { code, .. } => self.finish(code),
            Phase::Over => {}
        }
    }

    /// A process that will never come to a barrier.
    fn absent(&self) -> Option<u32> {
        (0..).zip(&self.ended).find_map(|(rank, ended)| {
            let standing = self.server.standing(rank);
            let is_gone = matches!(standing, Standing::Finalized | Standing::Lost);
            (is_gone || ended.is_some()).then_some(rank)
        })
    }

    fn end_stuck(&mut self, now: Duration) {
        let Some(rank) = self.absent() else { return };
        let ended = usize::try_from(rank).ok().and_then(|rank| self.ended.get(rank).copied());
        let how = match (ended.flatten(), self.server.standing(rank)) {
            (_, Standing::Finalized) => "has finalized",
            (Some(_), _) => "exited without finalize",
            (None, _) => "closed its PMI connection without finalize",
        };
        let text = format!("{} {how} while other PEs wait for it at a barrier", self.title(rank));
        self.end(1, Some(text), now);
    }

    fn finish(&mut self, code: u8) {
        if self.phase == Phase::Over {
            return;
        }
        self.phase = Phase::Over;
        for (stream, bytes) in
            [(Stream::Output, self.output.rest()), (Stream::Error, self.errors.rest())]
        {
            if !bytes.is_empty() {
                self.actions.push_back(Action::Write { stream, bytes });
            }
        }
        self.actions.push_back(Action::Finish(code));
    }

    fn send_all(&mut self, message: &ToProxy) {
        for host in self.host_numbers() {
            if self.is_open(host) {
                self.actions.push_back(Action::Send { host, message: message.clone() });
            }
        }
    }

    fn host_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    fn state(&self, host: u32) -> Option<HostState> {
        let host = usize::try_from(host).ok().and_then(|host| self.hosts.get(host));
        host.map(|(_, state)| *state)
    }

    /// Whether the proxy of a host is expected to say more.
    fn is_open(&self, host: u32) -> bool {
        matches!(self.state(host), Some(HostState::Starting { .. } | HostState::Up))
    }

    /// Until when the proxy of a host may say nothing at all; `None` if it has said something.
    fn silent_until(&self, host: u32) -> Option<Duration> {
        match self.state(host) {
            Some(HostState::Starting { until }) => Some(until),
            _ => None,
        }
    }

    fn set_state(&mut self, host: u32, state: HostState) {
        let host = usize::try_from(host).ok().and_then(|host| self.hosts.get_mut(host));
        if let Some((_, former)) = host {
            *former = state;
        }
    }

    fn host_name(&self, host: u32) -> &str {
        let host = usize::try_from(host).ok().and_then(|host| self.hosts.get(host));
        host.map_or("?", |(name, _)| name)
    }

    fn host(&self, rank: u32) -> Option<u32> {
        let rank = usize::try_from(rank).ok()?;
        self.members.get(rank).map(|member| member.host)
    }

    fn is_at(&self, rank: u32, host: u32) -> bool {
        self.host(rank) == Some(host)
    }

    fn ranks_of(&self, host: u32) -> Vec<u32> {
        let ranks = (0..).zip(&self.members).filter(|(_, member)| member.host == host);
        ranks.map(|(rank, _)| rank).collect()
    }

    /// How messages name a process.
    fn title(&self, rank: u32) -> String {
        let host = self.host(rank).map_or("?", |host| self.host_name(host));
        format!("PE {rank} on host {host}")
    }
}

/// The exit status of a code, as the kernel has it; no code other than 0 becomes success.
fn exit_status(code: i32) -> u8 {
    match (code, u8::try_from(code & 0xff).unwrap_or(u8::MAX)) {
        (0, _) => 0,
        (_, 0) => u8::MAX,
        (_, status) => status,
    }
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
