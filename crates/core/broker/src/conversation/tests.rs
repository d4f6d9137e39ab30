//! A broker that a test plays: it answers late, wrongly or never, and is restarted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use weft_fabric::{NodeId, PartitionId, ServiceName};
use weft_wire::endpoint_control::{
    AskAllMembers, AskMembers, Connect, GroupsChanged, Held, Meet, Members, MembersOf,
    Opened as OpenedElsewhere, Reply, Secret, VPID_WORDS,
};

use super::*;
use crate::answers::{Connected, OpenedHere, PortKnown};

const OWN: EndpointAddress = EndpointAddress::new(NodeId(7), Vpid(3));
const NOW: Duration = Duration::from_secs(100);

/// The broker's side.
struct Stage {
    connection: Connection,
    restarted: bool,
    /// Requests cannot be sent.
    refuses: bool,
    sent: Vec<(EndpointControl, usize)>,
    coming: VecDeque<Received>,
}

#[derive(Clone)]
struct Play(Arc<Mutex<Stage>>);

impl Play {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Stage {
            connection: Connection::Open,
            restarted: false,
            refuses: false,
            sent: Vec::new(),
            coming: VecDeque::new(),
        })))
    }

    fn says(&self, message: impl Into<EndpointControl>) {
        let message = message.into();
        self.0.lock().coming.push_back(Received { message, files: Vec::new() });
    }

    fn replies(&self, ticket: u32, status: u16, (first, second): (u64, u64)) {
        self.says(Reply { ticket, status, first, second });
    }

    fn restart(&self) {
        let mut stage = self.0.lock();
        (stage.connection, stage.restarted) = (Connection::Open, true);
    }

    fn is(&self, connection: Connection) {
        self.0.lock().connection = connection;
    }

    fn sent(&self) -> Vec<(EndpointControl, usize)> {
        std::mem::take(&mut self.0.lock().sent)
    }
}

impl Client for Play {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        let words = match &request {
            EndpointControl::Open(open) if open.flags & flags::PORT != 0 => {
                let (node, vpid, partition) = (OWN.node.0, OWN.vpid.0, 5);
                let (host_node, host) = (0, weft_wire::endpoint_control::NO_VPID);
                let opened = OpenedElsewhere { ticket, node, vpid, partition, host_node, host };
                return Ok(Received { message: opened.into(), files: Vec::new() });
            }
            EndpointControl::Open(_) => opened_here(OWN),
            EndpointControl::Port(_) | EndpointControl::Attach(_) => port_known(OWN),
            _ => (0, 0),
        };
        self.0.lock().sent.push((request, files.len()));
        let (first, second) = words;
        let message = Reply { ticket, status: status::DONE, first, second }.into();
        Ok(Received { message, files: Vec::new() })
    }

    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        let mut stage = self.0.lock();
        if stage.refuses || stage.connection != Connection::Open {
            return Err(BrokerError::Unreachable { reason: "gone".to_owned() });
        }
        stage.sent.push((request, files.len()));
        Ok(())
    }

    fn next(&mut self) -> Option<Received> {
        self.0.lock().coming.pop_front()
    }

    fn reconnected(&mut self) -> bool {
        std::mem::take(&mut self.0.lock().restarted)
    }

    fn connection(&self) -> Connection {
        self.0.lock().connection
    }
}

fn opened_here(address: EndpointAddress) -> (u64, u64) {
    OpenedHere { address, partition: PartitionId(5), host: None }.words()
}

fn port_known(address: EndpointAddress) -> (u64, u64) {
    PortKnown { address, silence_ms: 250 }.words()
}

fn opening(partition: Partition) -> Opening {
    let flags = flags::PORT_LATER | flags::FULL_FENCES;
    Opening { partition, vpid: Vpid::ANY, birth: 77, flags, slots: 64, peers_max: 9 }
}

fn name() -> ServiceName {
    ServiceName::new("files").expect("a name")
}

fn port() -> PortOffer {
    PortOffer { depth: 4, name: PortName::of(b"there").expect("short") }
}

fn opened() -> Opened {
    Opened { address: OWN, partition: PartitionId(5), host: None }
}

fn file() -> OwnedFd {
    let (one, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
    one.into()
}

/// An endpoint with memory. Questions are numbers.
fn with_memory(partition: Partition) -> (Play, Conversation<u8>) {
    let play = Play::new();
    let client = Box::new(play.clone());
    let conversation = Conversation::open(client, opening(partition), &[]).expect("opened");
    play.sent();
    (play, conversation)
}

fn attached() -> (Play, Conversation<u8>) {
    let (play, counts) = (Play::new(), file());
    let client = Box::new(play.clone());
    let conversation = Conversation::attach(client, opened(), 77, port(), counts.as_fd());
    play.sent();
    (play, conversation.expect("known"))
}

/// Everything that is heard, shortly said.
fn all(of: &mut Conversation<u8>, now: Duration) -> Vec<String> {
    let one = file();
    let shown = [one.as_fd(), one.as_fd(), one.as_fd()];
    let mut heard = Vec::new();
    while let Some(one) = of.hear(now, &shown) {
        heard.push(match one {
            Heard::Answer { question, answer, .. } => match answer {
                Answer::Reply(reply, _) => format!("{question}: reply {}", reply.status),
                Answer::Group(result, ..) => format!("{question}: {result:?}"),
                Answer::Invited(result) => format!("{question}: {result:?}"),
                Answer::Met(met) => format!("{question}: met {}", met.peer),
                Answer::Members(members) => format!("{question}: {members:?}"),
            },
            Heard::Unanswered { question, why, .. } => format!("{question}: {why}"),
            Heard::Told(told) => format!("{told:?}"),
            Heard::Restarted => "restarted".to_owned(),
            Heard::KnownAgain => "known again".to_owned(),
            Heard::Replaced => "replaced".to_owned(),
        });
    }
    heard
}

fn connect(of: &mut Conversation<u8>, question: u8) -> Result<u32, BrokerError> {
    let (ticket, vpid) = (of.next_ticket(), of.vpid());
    let request = Connect { ticket, vpid, node: 7, peer: 9 };
    of.ask(ticket, request, &[], question, NOW).map(|()| ticket)
}

#[test]
fn a_question_ends_once_with_its_answer_with_the_connection_or_with_its_time() {
    let (play, mut own) = with_memory(Partition::OfUser);
    let answered = connect(&mut own, 1).expect("asked");
    connect(&mut own, 2).expect("asked");
    play.replies(answered, status::DONE, (0, 0));
    play.replies(answered, status::DONE, (0, 0));
    play.replies(answered + 90, status::DONE, (0, 0));
    assert_eq!(all(&mut own, NOW), ["1: reply 0"]);
    assert_eq!(own.next_late(), Some(NOW + ANSWER_WITHIN));
    assert!(own.waits() && all(&mut own, NOW + ANSWER_WITHIN / 2).is_empty());
    assert_eq!(all(&mut own, NOW + ANSWER_WITHIN), ["2: no answer within 5s"]);
    connect(&mut own, 3).expect("asked");
    play.is(Connection::Lost);
    assert_eq!(all(&mut own, NOW), ["3: the node daemon is gone"]);
    assert!(!own.waits() && own.is_lost());
    assert!(connect(&mut own, 4).is_err() && !own.waits(), "nobody hears it");
}

#[test]
fn answers_before_the_end_of_a_broker_are_heard() {
    let (play, mut own) = with_memory(Partition::OfUser);
    let first = connect(&mut own, 1).expect("asked");
    connect(&mut own, 2).expect("asked");
    play.replies(first, status::DONE, (0, 0));
    play.is(Connection::Lost);
    assert_eq!(all(&mut own, NOW), ["1: reply 0", "2: the node daemon is gone"]);
}

#[test]
fn a_question_that_is_put_off_ends_by_its_time_alone() {
    let (play, mut own) = with_memory(Partition::OfUser);
    for question in [1, 2] {
        let ticket = own.next_ticket();
        own.put_off(ticket, question, NOW + ANSWER_WITHIN);
        // Nobody was asked, so that this is no answer.
        play.replies(ticket, status::DONE, (0, 0));
    }
    play.is(Connection::Lost);
    assert!(all(&mut own, NOW).is_empty());
    let now = own.take_put_off(|question| *question == 1);
    assert!(matches!(now[..], [(_, 1, until)] if until == NOW + ANSWER_WITHIN), "{now:?}");
    assert_eq!(all(&mut own, NOW + ANSWER_WITHIN), ["2: no answer within 5s"]);
}

#[test]
fn groups_and_invitations_have_answers_of_their_own() {
    let (play, mut own) = with_memory(Partition::OfUser);
    let group = Group::new(5).expect("a group");
    let reason = "it found the request not valid; open a new endpoint".to_owned();
    for (status, result) in [
        (status::DONE, Ok(())),
        (status::NOT_FOUND, Err(GroupError::UnknownEndpoint)),
        (status::INVALID, Err(GroupError::Broker { reason })),
        (99, Err(BrokerError::InvalidAnswer.into())),
    ] {
        let ticket = own.change_group(group, false, 1, NOW).expect("asked");
        play.replies(ticket, status, (0, 0));
        assert_eq!(all(&mut own, NOW), [format!("1: {result:?}")]);
    }
    let all_of_them = own.change_group(Group::BROADCAST, true, 1, NOW);
    assert_eq!(all_of_them, Err(GroupError::Broadcast));
    let (ticket, too_long) = (Ticket([1; 16]), Ticket::WITHIN_MAX + Duration::from_secs(1));
    for within in [Duration::ZERO, too_long] {
        assert_eq!(own.invite(ticket, within, 1, NOW), Err(InviteError::InvalidTime));
    }
    let asked = own.invite(ticket, Duration::from_micros(1), 2, NOW).expect("asked");
    let invite = play.sent().pop().expect("sent").0;
    assert!(matches!(invite, EndpointControl::Invite(Invite { within_ms: 1, .. })));
    play.replies(asked, status::FORBIDDEN, (0, 0));
    assert_eq!(all(&mut own, NOW), ["2: Err(Forbidden)"]);
}

#[test]
fn members_come_in_parts_and_without_the_endpoint_itself() {
    let (play, mut own) = with_memory(Partition::OfUser);
    let (ticket, vpid) = (own.next_ticket(), own.vpid());
    own.ask(ticket, AskAllMembers { ticket, vpid, group: 5 }, &[], 1, NOW).expect("asked");
    let mut vpids = [0; VPID_WORDS];
    (vpids[0], vpids[1]) = (1 << 3, 1 << 2);
    play.says(MembersOf { ticket, node: 7, further: 1, vpids });
    assert!(all(&mut own, NOW).is_empty(), "more is to come");
    play.says(MembersOf { ticket, node: 8, further: 0, vpids });
    let at = |node, vpid| EndpointAddress::new(NodeId(node), Vpid(vpid));
    assert_eq!(all(&mut own, NOW), [format!("1: {:?}", [at(7, 66), at(8, 3), at(8, 66)])]);
    let ticket = own.next_ticket();
    own.ask(ticket, AskMembers { ticket, vpid, group: 5 }, &[], 2, NOW).expect("asked");
    play.says(Members { ticket, vpids });
    assert_eq!(all(&mut own, NOW), [format!("2: {:?}", [at(7, 66)])]);
}

#[test]
fn a_message_that_is_no_answer_to_its_question_leaves_it_open() {
    let (play, mut own) = with_memory(Partition::OfUser);
    let ticket = connect(&mut own, 1).expect("asked");
    play.says(Members { ticket, vpids: [1; VPID_WORDS] });
    assert!(all(&mut own, NOW).is_empty() && own.waits());
    play.replies(ticket, status::DONE, (0, 0));
    assert_eq!(all(&mut own, NOW), ["1: reply 0"]);
}

fn met(ticket: u32, vpid: u16) -> Met {
    let (secret, name) = (Secret([6; 16]), port().name);
    Met { ticket, vpid, node: 8, peer: 9, depth: 4, greets_first: 1, secret, name }
}

#[test]
fn a_meeting_that_nobody_waits_for_is_ended() {
    let (play, mut own) = attached();
    let (ticket, vpid) = (own.next_ticket(), own.vpid());
    let ask = Meet { ticket, vpid, node: 8, peer: 9, secret: Secret([6; 16]) };
    own.ask(ticket, ask, &[], 1, NOW).expect("asked");
    play.sent();
    play.says(met(ticket, 3));
    play.says(met(ticket, 3));
    assert_eq!(all(&mut own, NOW), ["1: met 9"]);
    let sent = play.sent();
    let part = Part { vpid: 3, node: 8, peer: 9, secret: Secret([6; 16]) };
    assert_eq!(sent, [(part.into(), 0)], "the second");
    // One that a peer asked for is news.
    play.says(met(0, 3));
    let heard = all(&mut own, NOW);
    assert!(heard.len() == 1 && heard[0].starts_with("Met("), "{heard:?}");
}

#[test]
fn news_for_another_endpoint_is_not_heard() {
    let (play, mut own) = with_memory(Partition::OfUser);
    for vpid in [4, 3] {
        play.says(GroupsChanged { vpid, groups: vpid.into() });
        play.says(Held { vpid, node: 7, peer: 9, is_held: 1 });
        play.says(met(0, vpid));
    }
    let heard = all(&mut own, NOW);
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard[0] == "Groups(3)" && heard[1].starts_with("Held {"), "{heard:?}");
}

/// The ticket with which the endpoint was announced, and what went with it.
fn announced(play: &Play) -> (u32, Vec<(EndpointControl, usize)>) {
    let sent = play.sent();
    let ticket = match &sent.first().expect("an announcement").0 {
        EndpointControl::Open(open) => open.ticket,
        EndpointControl::Attach(attach) => attach.ticket,
        other => panic!("{other:?}"),
    };
    (ticket, sent)
}

#[test]
fn a_restarted_broker_hears_of_the_endpoint_and_its_groups_before_anything_else() {
    let (play, mut own) = with_memory(Partition::Offered(PartitionId(5), name()));
    let group = Group::new(5).expect("a group");
    let ticket = own.change_group(group, true, 1, NOW).expect("asked");
    play.replies(ticket, status::DONE, (0, 0));
    own.refuse_port();
    assert_eq!(all(&mut own, NOW), ["1: Ok(())"]);
    connect(&mut own, 2).expect("asked");
    play.sent();
    play.restart();
    assert_eq!(all(&mut own, NOW), ["restarted", "2: the node daemon is gone"]);
    let (ticket, sent) = announced(&play);
    let [(EndpointControl::Open(open), 3), (EndpointControl::Join(join), 0)] = sent[..] else {
        panic!("{sent:?}")
    };
    let way = flags::PARTITION | flags::OFFER;
    assert_eq!(open.flags, way | flags::AGAIN | flags::FULL_FENCES, "and no port");
    assert_eq!((open.vpid, open.birth, open.partition), (3, 77, 5));
    assert_eq!((open.name, open.slots, open.peers_max), (name().padded(), 64, 9));
    assert_eq!((join.vpid, join.group), (3, 5));
    // The broker handles requests in order.
    connect(&mut own, 3).expect("asked");
    assert!(own.is_announcing(|| NOW) && !own.has_steps());
    play.replies(ticket, status::DONE, opened_here(OWN));
    assert_eq!(all(&mut own, NOW), ["known again"]);
    assert!(own.has_steps(), "the pairs are to be named");
    own.named_all();
    assert_eq!(own.announcement(), Announcement::Known);
}

#[test]
fn an_endpoint_with_a_port_says_it_again() {
    let (play, counts) = (Play::new(), file());
    let client = Box::new(play.clone());
    let own =
        Conversation::open_with_port(client, opening(Partition::OfUser), port(), counts.as_fd());
    let mut own: Conversation<u8> = own.expect("opened");
    assert_eq!((own.opened(), own.silence()), (opened(), Some(Duration::from_millis(250))));
    play.sent();
    play.restart();
    assert_eq!(all(&mut own, NOW), ["restarted"]);
    let (ticket, sent) = announced(&play);
    assert!(
        matches!(sent[..], [(EndpointControl::Open(_), 0), (EndpointControl::Port(_), 3)]),
        "the files go with the port: {sent:?}"
    );
    let (node, vpid, partition, host_node, host) = (7, 3, 5, 0, 0);
    play.says(OpenedElsewhere { ticket, node, vpid, partition, host_node, host });
    assert_eq!(all(&mut own, NOW), ["known again"]);
}

#[test]
fn an_endpoint_whose_name_is_taken_comes_back_without_it() {
    let (play, mut own) = with_memory(Partition::Offered(PartitionId(5), name()));
    play.restart();
    all(&mut own, NOW);
    let (ticket, _) = announced(&play);
    play.replies(ticket, status::NAME_TAKEN, (0, 0));
    assert!(all(&mut own, NOW).is_empty());
    let (second, sent) = announced(&play);
    let EndpointControl::Open(open) = sent[0].0 else { panic!("{sent:?}") };
    assert_eq!(open.flags & (flags::PARTITION | flags::OFFER), flags::PARTITION);
    play.replies(second, status::NAME_TAKEN, (0, 0));
    assert_eq!(all(&mut own, NOW), ["replaced"], "it has none that could be taken");
}

#[test]
fn an_endpoint_that_was_replaced_asks_nothing_and_may_come_back_at_the_next_broker() {
    let elsewhere = EndpointAddress { vpid: Vpid(4), ..OWN };
    for (status, words) in
        [(status::IN_USE, (0, 0)), (status::DONE, opened_here(elsewhere)), (99, (0, 0))]
    {
        let (play, mut own) = with_memory(Partition::OfUser);
        play.restart();
        all(&mut own, NOW);
        play.replies(announced(&play).0, status, words);
        assert_eq!(all(&mut own, NOW), ["replaced"], "status {status}");
        let error = connect(&mut own, 1).expect_err("it is not known");
        assert!(error.to_string().ends_with("open a new one"), "{error}");
        play.is(Connection::Lost);
        assert!(all(&mut own, NOW).is_empty());
        assert_eq!(own.announcement(), Announcement::Replaced);
        play.restart();
        assert_eq!(all(&mut own, NOW), ["restarted"]);
        play.replies(announced(&play).0, status::DONE, opened_here(OWN));
        assert_eq!(all(&mut own, NOW), ["known again"]);
    }
}

#[test]
fn a_broker_that_does_not_answer_is_told_once_and_the_next_one_anew() {
    let (play, mut own) = with_memory(Partition::OfUser);
    play.is(Connection::Greeting);
    assert!(all(&mut own, NOW).is_empty());
    assert_eq!(own.announcement(), Announcement::Expected);
    play.restart();
    play.0.lock().refuses = true;
    assert_eq!(all(&mut own, NOW), ["restarted"]);
    assert!(matches!(own.announcement(), Announcement::Due(_)), "it could not be sent");
    assert!(connect(&mut own, 1).is_err(), "the broker does not know the endpoint");
    play.0.lock().refuses = false;
    assert!(all(&mut own, NOW).is_empty());
    let (first, _) = announced(&play);
    assert!(all(&mut own, NOW + ANSWER_WITHIN).is_empty() && play.sent().is_empty());
    assert!(!own.is_announcing(|| NOW + ANSWER_WITHIN), "polls need not look for it");
    play.restart();
    assert_eq!(all(&mut own, NOW + ANSWER_WITHIN), ["restarted"]);
    let (second, _) = announced(&play);
    assert_ne!(first, second);
    // The answer is taken, however late.
    play.replies(second, status::DONE, opened_here(OWN));
    assert_eq!(all(&mut own, NOW + 9 * ANSWER_WITHIN), ["known again"]);
    play.is(Connection::Lost);
    assert!(all(&mut own, NOW).is_empty() && !own.is_announcing(|| NOW));
}

#[test]
fn a_port_waits_until_another_connection_has_announced_its_endpoint() {
    let (play, mut own) = attached();
    assert_eq!(own.silence(), Some(Duration::from_millis(250)));
    play.restart();
    assert_eq!(all(&mut own, NOW), ["restarted"]);
    let (ticket, sent) = announced(&play);
    assert!(matches!(sent[..], [(EndpointControl::Attach(_), 3)]), "{sent:?}");
    assert!(own.awaits_other() && connect(&mut own, 1).is_err());
    play.replies(ticket, status::NOT_FOUND, (0, 0));
    assert!(all(&mut own, NOW).is_empty() && play.sent().is_empty());
    assert!(own.awaits_other() && connect(&mut own, 1).is_err());
    let later = NOW + AGAIN_AFTER;
    assert!(all(&mut own, later).is_empty());
    let (ticket, _) = announced(&play);
    play.replies(ticket, status::DONE, port_known(OWN));
    assert_eq!(all(&mut own, later), ["known again"]);
    own.named_all();
    assert!(!own.awaits_other() && connect(&mut own, 1).is_ok());
    // A reply of another form is none to an announcement that is over.
    play.replies(ticket, status::DONE, Connected { flags: 0, slots: 0, birth: 0 }.words());
    assert!(all(&mut own, later).is_empty());
}

#[test]
fn tickets_are_never_zero() {
    let (_, mut own) = with_memory(Partition::OfUser);
    own.ticket = u32::MAX - 1;
    assert_eq!((own.next_ticket(), own.next_ticket()), (u32::MAX, 1));
}
