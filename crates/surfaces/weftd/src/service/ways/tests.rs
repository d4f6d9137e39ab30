//! Two daemons that measure the way between them, with programs that a test plays.

use super::*;
use crate::networks::Origin;
use crate::service::{Peer, ProcessId};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);

/// Programs that end when the test says so.
#[derive(Clone, Default)]
struct Played(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    serves: bool,
    ports: Option<Result<[u16; 2], String>>,
    measures: Option<(NodeId, [u16; 2])>,
    figures: Option<Result<Measured, String>>,
}

impl Played {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }
}

impl Runner for Played {
    fn serve(&mut self) -> Result<(), String> {
        self.state().serves = true;
        Ok(())
    }

    fn ports(&mut self) -> Option<Result<[u16; 2], String>> {
        self.state().ports.take()
    }

    fn end_servers(&mut self) {
        self.state().serves = false;
    }

    fn measure(&mut self, node: NodeId, ports: [u16; 2]) -> Result<(), String> {
        self.state().measures = Some((node, ports));
        Ok(())
    }

    fn figures(&mut self) -> Option<Result<Measured, String>> {
        self.state().figures.take()
    }

    fn end_clients(&mut self) {
        self.state().measures = None;
    }
}

struct Daemon {
    service: WaysService,
    programs: Played,
    now: Instant,
}

impl Daemon {
    fn new(others: &[NodeId]) -> Self {
        let (programs, now) = (Played::default(), Instant::now());
        let service = WaysService::new(
            SharedWays::new(now),
            SharedPaths::default(),
            Box::new(programs.clone()),
        );
        let mut daemon = Self { service, programs, now };
        for node in others {
            daemon.hears(NodeEvent::Up(*node));
        }
        daemon
    }

    fn hears(&mut self, event: NodeEvent) -> Vec<(NodeId, Measuring)> {
        let mut out = Outbox::default();
        self.service.handle_node(event, self.now, &mut out);
        told(out)
    }

    fn says(&mut self, from: NodeId, message: &Measuring) -> Vec<(NodeId, Measuring)> {
        self.hears(NodeEvent::Message(from, message.emit()))
    }

    /// A program asks. Returns whether the fabric is faster to any host, and the messages.
    fn asked(&mut self) -> (bool, Vec<(NodeId, Measuring)>) {
        let process = ProcessId(1);
        let from = Peer {
            process,
            pid: 1,
            uid: 1,
            is_numbered_here: true,
            may_command: false,
            origin: Origin::Home,
            site: None,
        };
        let (bytes, shown) = (Control::AskWays.emit(), Vec::new());
        let mut out = Outbox::default();
        let event = Event::Packet(Request { from, bytes, shown });
        self.service.handle_event(event, self.now, &mut out);
        let answer = Control::parse(&out.packets[0].bytes);
        let Ok(Control::Ways { any_over_fabric }) = answer else { panic!("{answer:?}") };
        (any_over_fabric, told(out))
    }

    /// Lets time pass until the timer is due, and so much more.
    fn waits(&mut self, more: Duration) -> Vec<(NodeId, Measuring)> {
        self.now = self.service.poll_timeout().expect("something is under way") + more;
        let mut out = Outbox::default();
        self.service.handle_timeout(self.now, &mut out);
        told(out)
    }
}

fn told(out: Outbox) -> Vec<(NodeId, Measuring)> {
    let parsed = |bytes: &[u8]| Measuring::parse(bytes).expect("a message");
    out.to_nodes.iter().map(|(node, bytes)| (*node, parsed(bytes))).collect()
}

fn faster() -> Measured {
    let figures = |round_trip_ns, bytes_per_s| Figures { round_trip_ns, bytes_per_s };
    Measured { tcp: figures(20_000, 1_000_000_000), fabric: figures(2_000, 9_000_000_000) }
}

#[test]
fn a_host_is_measured_when_a_program_asks_and_both_know_the_way() {
    let (mut a, mut b) = (Daemon::new(&[B]), Daemon::new(&[A]));
    let (any, asks) = a.asked();
    assert_eq!((any, &asks[..]), (false, &[(B, Measuring::Ask)][..]));
    assert_eq!(a.asked(), (false, vec![]), "it is under way");
    assert_eq!(b.says(A, &Measuring::Ask), []);
    assert!(b.programs.state().serves);
    assert_eq!(b.waits(Duration::ZERO), [], "the servers do not listen yet");
    b.programs.state().ports = Some(Ok([1, 2]));
    let serves = Measuring::Serves { plain: 1, fabric: 2 };
    assert_eq!(b.waits(Duration::ZERO), [(A, serves.clone())]);
    assert_eq!(a.says(B, &serves), []);
    assert_eq!(a.programs.state().measures, Some((B, [1, 2])));
    a.programs.state().figures = Some(Ok(faster()));
    let figures = a.waits(Duration::ZERO);
    let [(B, figures)] = &figures[..] else { panic!("{figures:?}") };
    assert_eq!(b.says(A, figures), []);
    assert!(!b.programs.state().serves, "the servers have ended");
    assert!(a.asked().0 && b.asked().0);
    assert_eq!((a.service.poll_timeout(), b.service.poll_timeout()), (None, None));
}

#[test]
fn a_host_that_does_not_answer_is_given_up_and_the_next_one_is_measured() {
    let mut a = Daemon::new(&[B, C]);
    a.asked();
    let told = a.waits(SERVED_WITHIN);
    assert!(matches!(&told[..], [(B, Measuring::Failed { .. }), (C, Measuring::Ask)]), "{told:?}");
    let refused = Measuring::Failed { reason: "no".to_owned() };
    assert_eq!(a.says(C, &refused), []);
    let at = a.service.ways.at(a.now);
    let report = format!("{:?}", a.service.ways.lock().report(C.0, at));
    assert!(report.contains("the other host says: no"), "{report}");
    assert_eq!(a.service.poll_timeout(), None);
}

#[test]
fn programs_that_take_too_long_are_ended_on_both_sides() {
    let (mut a, mut b) = (Daemon::new(&[B]), Daemon::new(&[A]));
    a.asked();
    a.says(B, &Measuring::Serves { plain: 1, fabric: 2 });
    let told = a.waits(MEASURED_WITHIN);
    assert!(matches!(&told[..], [(B, Measuring::Failed { .. })]), "{told:?}");
    assert_eq!(a.programs.state().measures, None);
    b.says(A, &Measuring::Ask);
    assert_eq!(b.waits(SERVED_WITHIN + MEASURED_WITHIN), []);
    assert!(!b.programs.state().serves);
}

#[test]
fn what_a_host_says_out_of_turn_changes_nothing() {
    let mut a = Daemon::new(&[B, C]);
    let Measured { tcp, fabric } = faster();
    let figures = Measuring::Figures {
        round_trip_ns: [tcp.round_trip_ns, fabric.round_trip_ns],
        bytes_per_s: [tcp.bytes_per_s, fabric.bytes_per_s],
    };
    a.says(B, &figures);
    a.says(B, &Measuring::Serves { plain: 1, fabric: 2 });
    assert!(!a.asked().0 && a.programs.state().measures.is_none());
    a.says(C, &Measuring::Serves { plain: 1, fabric: 2 });
    assert_eq!(a.programs.state().measures, None, "another one was asked");
    a.says(B, &Measuring::Ask);
    let told = a.says(C, &Measuring::Ask);
    assert!(matches!(&told[..], [(C, Measuring::Failed { .. })]), "one at a time: {told:?}");
    a.says(C, &figures);
    assert!(!a.service.ways.lock().any_over_fabric(a.service.ways.at(a.now)));
    a.hears(NodeEvent::Message(B, vec![255, 0, 1]));
    assert!(a.programs.state().serves, "the first is still served");
}

#[test]
fn figures_of_a_host_that_cannot_be_leave_the_way_on_tcp() {
    let mut b = Daemon::new(&[A]);
    b.says(A, &Measuring::Ask);
    b.says(A, &Measuring::Figures { round_trip_ns: [u64::MAX, 0], bytes_per_s: [0, u64::MAX] });
    assert!(!b.asked().0);
}

#[test]
fn a_host_that_goes_away_ends_its_measurements() {
    let mut a = Daemon::new(&[B, C]);
    a.asked();
    a.says(B, &Measuring::Serves { plain: 1, fabric: 2 });
    a.says(B, &Measuring::Ask);
    let told = a.hears(NodeEvent::Down(B));
    assert_eq!(told, [(C, Measuring::Ask)]);
    let state = a.programs.state();
    assert!(state.measures.is_none() && !state.serves);
}
