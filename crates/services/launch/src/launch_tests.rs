//! The launcher and its proxies, driven by hand and by chance.

use proptest::prelude::*;

use super::*;
use crate::frame::{Binding, Process};
use crate::proxy::{Proxy, Work};

const START: Duration = Duration::from_secs(100);
const GRACE: Duration = Duration::from_millis(500);

fn process(rank: u32) -> Process {
    Process {
        rank,
        program: b"program".to_vec(),
        arguments: Vec::new(),
        variables: Vec::new(),
        directory: b"/".to_vec(),
        binding: Binding::None,
    }
}

fn layout(size: u32, hosts: u32) -> Layout {
    let plan = |host| Plan {
        size,
        grace_ms: 500,
        processes: (0..size).filter(|rank| rank % hosts == host).map(process).collect(),
    };
    Layout {
        name: "job".to_owned(),
        version: "1".to_owned(),
        hosts: (0..hosts).map(|host| format!("n{host}")).collect(),
        plans: (0..hosts).map(plan).collect(),
        members: (0..size).map(|rank| Member { host: rank % hosts, program: 0 }).collect(),
        mapping: "(vector,(0,1,1))".to_owned(),
        has_prefix: false,
        kept: Vec::new(),
        grace: GRACE,
        timeout: None,
    }
}

/// A launcher, its proxies and processes that do what a test says.
struct World {
    launch: Launch,
    proxies: Vec<Option<Proxy>>,
    now: Duration,
    said: Vec<String>,
    written: String,
    code: Option<u8>,
    /// Signals that each process got; it ends by SIGTERM and SIGKILL unless it is stubborn.
    signals: Vec<Vec<i32>>,
    alive: Vec<bool>,
    stubborn: Vec<bool>,
}

impl World {
    fn new(layout: Layout) -> Self {
        let size = layout.members.len();
        let proxies = layout.hosts.iter().map(|_| None).collect();
        let mut world = Self {
            launch: Launch::new(layout, START),
            proxies,
            now: START,
            said: Vec::new(),
            written: String::new(),
            code: None,
            signals: vec![Vec::new(); size],
            alive: vec![true; size],
            stubborn: vec![false; size],
        };
        world.run();
        world
    }

    /// Does all that is to be done now.
    fn run(&mut self) {
        loop {
            let mut is_idle = true;
            while let Some(action) = self.launch.next_action() {
                is_idle = false;
                assert_eq!(self.code, None, "nothing follows the end: {action:?}");
                match action {
                    Action::Send { host, message } => self.deliver(host, message),
                    Action::Write { bytes, .. } => {
                        self.written.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    Action::Keep { .. } => {}
                    Action::Say(text) => self.said.push(text),
                    Action::Finish(code) => self.code = Some(code),
                }
            }
            for host in 0..self.proxies.len() {
                while let Some(work) = self.proxies[host].as_mut().and_then(Proxy::next_work) {
                    is_idle = false;
                    self.work(host, work);
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn deliver(&mut self, host: u32, message: ToProxy) {
        let index = usize::try_from(host).unwrap();
        match (message, &mut self.proxies[index]) {
            (ToProxy::Start(plan), place) => {
                *place = Some(Proxy::new(plan));
                let version = "1".to_owned();
                self.launch.hear(host, FromProxy::Hello { version }, self.now);
            }
            (message, Some(proxy)) => proxy.hear(message, self.now),
            (_, None) => {}
        }
    }

    fn work(&mut self, host: usize, work: Work) {
        match work {
            Work::Send(message) => {
                self.launch.hear(u32::try_from(host).unwrap(), message, self.now);
            }
            Work::Signal { rank, number } => {
                let index = usize::try_from(rank).unwrap();
                self.signals[index].push(number);
                let ends = number == 9 || (matches!(number, 2 | 15) && !self.stubborn[index]);
                if ends {
                    let number = u8::try_from(number).unwrap();
                    self.ends(rank, Ending::Signal { number, has_core: false });
                }
            }
            Work::Finish => self.proxies[host] = None,
            Work::Start(_) | Work::Pmi { .. } | Work::Input(_) | Work::CloseOutputs { .. } => {}
        }
    }

    fn ends(&mut self, rank: u32, how: Ending) {
        let index = usize::try_from(rank).unwrap();
        if !std::mem::replace(&mut self.alive[index], false) {
            return;
        }
        let host = index % self.proxies.len();
        if let Some(proxy) = self.proxies[host].as_mut() {
            proxy.ended(rank, how, self.now);
            proxy.drained(rank);
        }
    }

    fn end(&mut self, rank: u32, how: Ending) {
        self.ends(rank, how);
        self.run();
    }

    fn pmi(&mut self, rank: u32, text: &str) {
        let host = rank % u32::try_from(self.proxies.len()).unwrap();
        let bytes = text.as_bytes().to_vec();
        self.launch.hear(host, FromProxy::Pmi { rank, bytes }, self.now);
        self.run();
    }

    /// Lets time pass to the next deadline; false if there is none.
    fn wait(&mut self) -> bool {
        let proxies = self.proxies.iter().flatten().filter_map(Proxy::deadline);
        let Some(next) = proxies.chain(self.launch.deadline()).min() else { return false };
        self.now = next.max(self.now);
        for proxy in self.proxies.iter_mut().flatten() {
            proxy.tick(self.now);
        }
        self.launch.tick(self.now);
        self.run();
        true
    }
}

const KILLED: Ending = Ending::Signal { number: 11, has_core: false };

#[test]
fn a_job_ends_well_when_all_processes_do() {
    let mut world = World::new(layout(3, 2));
    for rank in 0..3 {
        assert_eq!(world.code, None);
        world.end(rank, Ending::Exit(0));
    }
    assert_eq!((world.code, world.said.len()), (Some(0), 0));
}

#[test]
fn a_killed_process_ends_the_job_and_is_named() {
    let mut world = World::new(layout(4, 2));
    world.end(1, KILLED);
    let text = "PE 1 on host n1 was killed by SIGSEGV; the other 3 PEs are ended";
    assert_eq!(world.said, [text]);
    assert_eq!(world.code, Some(128 + 11));
    assert_eq!(world.signals[0], [15, 18], "asked, and never killed");
}

#[test]
fn a_process_that_does_not_end_is_killed_after_the_grace() {
    let mut world = World::new(layout(2, 1));
    world.stubborn[0] = true;
    world.end(1, Ending::Exit(3));
    assert_eq!(world.code, None);
    assert!(world.wait());
    assert_eq!(world.now, START + GRACE);
    assert_eq!((world.code, &world.signals[0]), (Some(3), &vec![15, 18, 9]));
}

#[test]
fn a_status_after_finalize_is_kept_and_ends_nothing() {
    let mut world = World::new(layout(2, 1));
    for rank in 0..2 {
        world.pmi(rank, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=finalize\n");
    }
    world.end(0, Ending::Exit(9));
    assert_eq!(world.code, None);
    world.end(1, Ending::Exit(4));
    assert_eq!((world.code, world.said.len()), (Some(9), 0));
}

#[test]
fn a_barrier_that_cannot_end_ends_the_job() {
    let mut world = World::new(layout(2, 1));
    world.pmi(0, "cmd=init pmi_version=1 pmi_subversion=1\n");
    world.pmi(1, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n");
    world.end(0, Ending::Exit(0));
    assert_eq!(world.code, None);
    assert!(world.wait());
    assert_eq!(world.code, Some(1));
    let text = "PE 0 on host n0 exited without finalize while other PEs wait for it at a barrier";
    assert_eq!(world.said, [text]);
}

#[test]
fn an_abort_has_its_code_and_success_has_no_message() {
    let mut world = World::new(layout(2, 1));
    world.pmi(1, "cmd=abort exitcode=7 message=no luck\n");
    assert_eq!(world.code, Some(7));
    assert_eq!(world.said, ["PE 1 on host n0 ended the job with 7: no luck"]);
    let mut world = World::new(layout(2, 1));
    world.pmi(0, "cmd=abort exitcode=0\n");
    assert_eq!((world.code, world.said.len()), (Some(0), 0));
    assert_eq!([exit_status(256), exit_status(-1), exit_status(300)], [255, 255, 44]);
}

#[test]
fn a_second_interrupt_kills() {
    let mut world = World::new(layout(2, 1));
    world.stubborn = vec![true, true];
    world.launch.signal(SIGINT, world.now);
    world.run();
    assert_eq!(world.signals[1], [2]);
    world.launch.signal(SIGINT, world.now);
    world.run();
    assert_eq!((world.code, world.now), (Some(130), START));
}

#[test]
fn an_interrupt_that_ends_all_is_told_once() {
    let mut world = World::new(layout(3, 1));
    world.launch.signal(SIGINT, world.now);
    world.run();
    assert_eq!(world.code, Some(130));
    assert_eq!(world.said.len(), 2, "{:?}", world.said);
}

#[test]
fn a_lost_host_ends_the_job() {
    let mut world = World::new(layout(4, 2));
    world.launch.lose(1, "ssh ended", world.now);
    world.run();
    assert_eq!(world.code, Some(CODE_WEFT));
    assert_eq!(world.said, ["host n1 is lost: ssh ended"]);
}

#[test]
fn another_version_and_a_silent_host_end_the_job() {
    let mut launch = Launch::new(layout(2, 2), START);
    launch.hear(0, FromProxy::Hello { version: "2".to_owned() }, START);
    let mut said = Vec::new();
    let mut code = None;
    launch.hear(0, FromProxy::Done, START);
    while let Some(deadline) = launch.deadline().filter(|_| code.is_none()) {
        launch.tick(deadline);
        while let Some(action) = launch.next_action() {
            match action {
                Action::Say(text) => said.push(text),
                Action::Finish(finished) => code = Some(finished),
                _ => {}
            }
        }
    }
    assert_eq!(code, Some(CODE_WEFT));
    assert!(said[0].contains("has weft \"2\" and this one \"1\""), "{said:?}");
    assert!(said[1].contains("host n1 did not end"), "{said:?}");
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let timeout = Some(Duration::from_secs(2));
    let mut world = World::new(Layout { timeout, ..layout(2, 1) });
    assert!(world.wait());
    assert_eq!((world.code, world.now), (Some(CODE_TIMEOUT), START + Duration::from_secs(2)));
}

#[test]
fn input_is_bounded_and_goes_to_rank_0() {
    let mut launch = Launch::new(layout(2, 2), START);
    while launch.next_action().is_some() {}
    launch.hear(0, FromProxy::Hello { version: "1".to_owned() }, START);
    let mut bytes = 0;
    while launch.wants_input() {
        launch.input(&[b'x'; 1000]);
        bytes += 1000;
    }
    assert!((INPUT_BYTES_MAX..INPUT_BYTES_MAX + 1000).contains(&bytes));
    launch.hear(0, FromProxy::InputTaken(5000), START);
    assert!(launch.wants_input());
    launch.input(&[]);
    assert!(!launch.takes_input());
    while let Some(action) = launch.next_action() {
        assert!(matches!(action, Action::Send { host: 0, message: ToProxy::Input(_) }));
    }
}

#[derive(Clone, Debug)]
enum Happening {
    Exit(u32, u8),
    Killed(u32),
    Pmi(u32, &'static str),
    Signal(i32),
    Lost(u32),
    Output(u32),
    Wait,
}

fn happening(size: u32) -> impl Strategy<Value = Happening> {
    let pmi = prop::sample::select(vec![
        "cmd=init pmi_version=1 pmi_subversion=1\n",
        "cmd=barrier_in\n",
        "cmd=finalize\n",
        "cmd=abort exitcode=3\n",
        "nonsense\n",
    ]);
    prop_oneof![
        4 => (0..size, prop::sample::select(vec![0, 0, 0, 5])).prop_map(|(rank, code)| {
            Happening::Exit(rank, code)
        }),
        1 => (0..size).prop_map(Happening::Killed),
        6 => (0..size, pmi).prop_map(|(rank, text)| Happening::Pmi(rank, text)),
        1 => prop::sample::select(vec![2, 10, 15]).prop_map(Happening::Signal),
        1 => (0..2_u32).prop_map(Happening::Lost),
        2 => (0..size).prop_map(Happening::Output),
        2 => Just(Happening::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever happens: once all processes ended or the job is to end, it finishes, and once.
    #[test]
    fn every_job_ends(
        happenings in prop::collection::vec(happening(5), 0..40),
        stubborn in prop::collection::vec(any::<bool>(), 5),
    ) {
        let mut world = World::new(layout(5, 2));
        world.stubborn = stubborn;
        for happening in happenings {
            if world.code.is_some() {
                break;
            }
            match happening {
                Happening::Exit(rank, code) => world.end(rank, Ending::Exit(code)),
                Happening::Killed(rank) => world.end(rank, KILLED),
                Happening::Pmi(rank, text) => world.pmi(rank, text),
                Happening::Signal(number) => {
                    world.launch.signal(number, world.now);
                    world.run();
                }
                Happening::Lost(host) => {
                    world.launch.lose(host, "lost", world.now);
                    world.run();
                }
                Happening::Output(rank) => {
                    let (stream, bytes) = (Stream::Output, b"line\nbegin".to_vec());
                    let output = FromProxy::Output { rank, stream, bytes };
                    world.launch.hear(rank % 2, output, world.now);
                    world.run();
                }
                Happening::Wait => {
                    world.wait();
                }
            }
        }
        // Processes that still run come to their end, as programs do.
        for rank in 0..5 {
            world.end(rank, Ending::Exit(0));
        }
        while world.code.is_none() && world.wait() {}
        prop_assert!(world.code.is_some());
        prop_assert!(world.now < START + HELLO_WITHIN);
        prop_assert_eq!(world.written.matches("line").count(), world.written.lines()
            .filter(|line| line.ends_with("line")).count(), "lines are whole");
    }
}
