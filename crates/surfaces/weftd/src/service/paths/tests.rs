//! Two daemons that try the path between them, with programs that a test plays.

use std::collections::VecDeque;

use super::*;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

/// A program that says what the test wants.
#[derive(Clone, Default)]
struct Played(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    runs: bool,
    tried: Vec<NodeId>,
    says: VecDeque<Said>,
}

impl Played {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }
}

impl Prober for Played {
    fn begin(&mut self) -> Result<(), String> {
        self.state().runs = true;
        Ok(())
    }

    fn attempt(&mut self, node: NodeId, _: &[u8]) {
        self.state().tried.push(node);
    }

    fn said(&mut self) -> Option<Said> {
        self.state().says.pop_front()
    }

    fn end(&mut self) {
        self.state().runs = false;
    }
}

struct Daemon {
    service: PathsService,
    program: Played,
}

struct Both {
    daemons: [Daemon; 2],
    now: Instant,
}

impl Both {
    fn new() -> Self {
        let daemon = || {
            let program = Played::default();
            let paths = SharedPaths::default();
            Daemon { service: PathsService::new(paths, Box::new(program.clone()), false), program }
        };
        let mut both = Self { daemons: [daemon(), daemon()], now: Instant::now() };
        // No message of a host comes before it is up.
        let outs = [(0, B), (1, A)].map(|(place, other): (usize, NodeId)| {
            let mut out = Outbox::default();
            let service = &mut both.daemons[place].service;
            service.handle_node(NodeEvent::Up(other), both.now, &mut out);
            out
        });
        outs.into_iter().enumerate().for_each(|(place, out)| both.pass(place, out));
        both
    }

    fn hear(&mut self, place: usize, event: NodeEvent) {
        let mut out = Outbox::default();
        self.daemons[place].service.handle_node(event, self.now, &mut out);
        self.pass(place, out);
    }

    fn pass(&mut self, place: usize, mut out: Outbox) {
        for (to, bytes) in out.to_nodes.drain(..) {
            let from = if place == 0 { A } else { B };
            assert_ne!(to, from);
            self.hear(1 - place, NodeEvent::Message(from, bytes));
        }
    }

    /// The program of a daemon says something.
    fn say(&mut self, place: usize, said: Said) {
        self.daemons[place].program.state().says.push_back(said);
        self.look();
    }

    fn look(&mut self) {
        for place in 0..2 {
            let mut out = Outbox::default();
            self.daemons[place].service.handle_timeout(self.now, &mut out);
            self.pass(place, out);
        }
    }

    fn after(&mut self, time: Duration) {
        self.now += time;
        self.look();
    }

    fn open(&mut self, provider: &str) {
        self.say(0, at("net"));
        self.say(1, at(provider));
    }

    fn paths(&self) -> [Path; 2] {
        [self.daemons[0].service.paths.of(B), self.daemons[1].service.paths.of(A)]
    }

    fn tried(&self) -> [usize; 2] {
        [0, 1].map(|place| self.daemons[place].program.state().tried.len())
    }

    fn assert_quiet(&self) {
        for daemon in &self.daemons {
            assert!(!daemon.program.state().runs, "the program is not needed any more");
        }
    }
}

fn at(provider: &str) -> Said {
    Said::At { provider: provider.to_owned(), name: vec![1, 2] }
}

fn tried(node: NodeId, reason: &str) -> Said {
    Said::Tried(node, reason.to_owned())
}

#[test]
fn a_path_is_open_when_both_hosts_have_tried_it() {
    let mut both = Both::new();
    assert_eq!(both.paths(), [Path::Tried, Path::Tried]);
    both.open("net");
    assert_eq!(both.tried(), [1, 1]);
    both.say(0, tried(B, ""));
    assert_eq!(both.paths(), [Path::Tried, Path::Tried], "the other direction is not known");
    both.say(1, tried(A, ""));
    assert_eq!(both.paths(), [Path::Open, Path::Open]);
    both.assert_quiet();
    both.after(STILL_OPEN_AFTER);
    both.open("net");
    assert_eq!(both.tried(), [2, 2], "it is tried again");
    assert_eq!(both.paths(), [Path::Open, Path::Open], "and is open meanwhile");
}

#[test]
fn a_path_that_is_cut_in_one_direction_is_told_at_both_ends_and_tried_again() {
    let mut both = Both::new();
    both.open("net");
    both.say(0, tried(B, "a firewall"));
    both.say(1, tried(A, ""));
    let [there, back] = both.paths();
    assert!(matches!(&there, Path::Cut(why) if why.contains("no data go there: a firewall")));
    assert!(matches!(&back, Path::Cut(why) if why.contains("to this host: a firewall")));
    both.assert_quiet();
    both.after(AGAIN_AFTER);
    both.open("net");
    assert_eq!(both.tried(), [2, 1]);
    both.say(0, tried(B, ""));
    assert_eq!(both.paths(), [Path::Open, Path::Open]);
    // When the host comes anew, nothing is known.
    both.hear(0, NodeEvent::Down(B));
    both.hear(0, NodeEvent::Up(B));
    assert_eq!(both.paths()[0], Path::Tried);
}

#[test]
fn hosts_without_endpoints_or_with_other_ones_say_so() {
    let mut both = Both::new();
    both.say(0, at("net"));
    both.say(1, Said::Without("no libfabric".to_owned()));
    let [there, here] = both.paths();
    assert!(matches!(&there, Path::Without(why) if why.contains("there: no libfabric")));
    assert!(matches!(&here, Path::Without(why) if why.contains("here: no libfabric")));
    let mut both = Both::new();
    both.open("net");
    both.say(1, tried(A, ""));
    both.say(0, Said::Busy(B, "all ports are in use".to_owned()));
    assert!(both.paths().iter().all(|path| matches!(path, Path::Without(why)
        if why.contains("all ports are in use"))));
    both.after(AGAIN_AFTER_MAX);
    both.open("net");
    both.say(0, tried(B, ""));
    assert_eq!(both.paths(), [Path::Open, Path::Open]);
    let mut both = Both::new();
    both.open("tcp;ofi_rxm");
    assert_eq!(both.tried(), [0, 0]);
    assert!(matches!(&both.paths()[0], Path::Cut(why) if why.contains("fabric.provider")));
}

#[test]
fn each_wait_has_an_end() {
    // The other host never answers.
    let mut both = Both::new();
    both.say(0, at("net"));
    both.after(ANSWERED_WITHIN);
    assert!(matches!(&both.paths()[0], Path::Cut(why) if why.contains("opened no endpoint")));
    // The program hangs, and then it dies.
    let mut both = Both::new();
    both.open("net");
    both.after(ANSWERED_WITHIN);
    assert!(matches!(&both.paths()[0], Path::Cut(why) if why.contains("hangs")));
    both.after(AGAIN_AFTER);
    both.open("net");
    both.say(0, Said::Ended);
    assert!(matches!(&both.paths()[0], Path::Cut(why) if why.contains("ended")));
    for round in 0..40 {
        both.after(AGAIN_AFTER_MAX);
        assert!(both.tried()[0] < 10 + round, "not too often");
    }
}

#[test]
fn anything_that_another_host_says_breaks_nothing() {
    let mut both = Both::new();
    for bytes in [vec![], vec![1], vec![2, 0, 1], vec![3], vec![4], vec![4, b'x'], vec![9; 600]] {
        for _ in 0..3 {
            both.hear(0, NodeEvent::Message(B, bytes.clone()));
            both.hear(0, NodeEvent::Message(NodeId(7), bytes.clone()));
        }
    }
    both.look();
    assert_eq!(both.daemons[0].service.hosts.len(), 1);
}
