//! The server against clients of both versions, and against hostile ones.

use proptest::prelude::*;

use super::*;

fn server(size: u32) -> Server {
    let processes = (0..size).map(|rank| Membership { host: rank % 2, program: 0 }).collect();
    let mapping = "(vector,(0,2,1))".to_owned();
    Server::new(Description { name: "job".to_owned(), mapping, processes })
}

/// The answers, as text, to what a process sends.
fn ask(server: &mut Server, rank: u32, bytes: &str) -> Vec<String> {
    server.receive(rank, bytes.as_bytes());
    let mut answers = Vec::new();
    while let Some(action) = server.next_action() {
        answers.push(match action {
            Action::Send { rank, bytes } => {
                format!("{rank}: {}", String::from_utf8_lossy(&bytes).trim_end())
            }
            other => format!("{other:?}"),
        });
    }
    answers
}

fn frame(body: &str) -> String {
    format!("{:<6}{body}", body.len())
}

#[test]
fn lines_are_answered_as_others_launchers_do() {
    let mut server = server(1);
    for (request, answer) in [
        ("init pmi_version=1 pmi_subversion=1", "response_to_init pmi_version=1 pmi_subversion=1"),
        ("get_maxes", "maxes kvsname_max=256 keylen_max=64 vallen_max=1024"),
        ("get_appnum", "appnum appnum=0"),
        ("get_universe_size", "universe_size size=1"),
        ("get_my_kvsname", "my_kvsname kvsname=job"),
        ("put kvsname=job key=a value=b=c", "put_result"),
        ("barrier_in", "barrier_out"),
        ("get kvsname=job key=a", "get_result rc=0 msg=success value=b=c"),
        ("get kvsname=job key=PMI_process_mapping", "get_result rc=0 msg=success value=(vector,"),
        ("get kvsname=job key=x", "get_result rc=-1 msg=key_not_found"),
        ("get kvsname=other key=a", "get_result rc=-1"),
        ("put kvsname=job key=PMI_a value=1", "put_result rc=-1"),
        ("publish_name service=s port=p", "publish_result rc=0"),
        ("lookup_name service=s", "lookup_result rc=0 port=p"),
        ("unpublish_name service=s", "unpublish_result rc=0"),
        ("lookup_name service=s", "lookup_result rc=-1"),
        ("dance", "dance_result rc=-1"),
        ("finalize", "finalize_ack"),
    ] {
        let answers = ask(&mut server, 0, &format!("cmd={request}\n"));
        assert_eq!(answers.len(), 1, "{request}: {answers:?}");
        assert!(answers[0].starts_with(&format!("0: cmd={answer}")), "{request}: {answers:?}");
    }
    assert_eq!(server.standing(0), Standing::Finalized);
}

#[test]
fn frames_are_answered_with_the_thread_that_asked() {
    let mut server = server(1);
    let answer = ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0\n");
    assert_eq!(answer, ["0: cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0"]);
    for (request, answer) in [
        ("fullinit;pmirank=0;threaded=FALSE;", "cmd=fullinit-response;pmi-version=2;"),
        ("job-getid;thrid=7;", "cmd=job-getid-response;thrid=7;jobid=job;rc=0;"),
        ("kvs-put;key=a;value=1;;2;", "cmd=kvs-put-response;rc=0;"),
        ("kvs-fence;thrid=9;", "cmd=kvs-fence-response;thrid=9;rc=0;"),
        ("kvs-get;jobid=job;srcid=-1;key=a;", "cmd=kvs-get-response;found=TRUE;value=1;;2;rc=0;"),
        ("kvs-get;jobid=job;srcid=-1;key=x;", "cmd=kvs-get-response;found=FALSE;rc=0;"),
        ("info-getjobattr;key=universeSize;", "cmd=info-getjobattr-response;found=TRUE;value=1;"),
        ("dance;", "cmd=dance-response;rc=1;errmsg="),
        ("finalize;", "cmd=finalize-response;rc=0;"),
    ] {
        let answers = ask(&mut server, 0, &frame(&format!("cmd={request}")));
        assert_eq!(answers.len(), 1, "{request}");
        assert!(answers[0][9..].starts_with(answer), "{request}: {answers:?}");
    }
}

#[test]
fn a_barrier_ends_when_all_are_there_whatever_they_speak() {
    let mut server = server(3);
    assert!(ask(&mut server, 0, "cmd=barrier_in\n").is_empty());
    assert!(ask(&mut server, 2, &frame("cmd=kvs-fence;")).is_empty());
    assert_eq!(server.standing(2), Standing::AtBarrier);
    assert!(server.is_awaited());
    let answers = ask(&mut server, 1, "cmd=barrier_in\n");
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0], "0: cmd=barrier_out rc=0");
    assert!(answers[2].ends_with("cmd=kvs-fence-response;rc=0;"), "{answers:?}");
    assert!(!server.is_awaited());
}

#[test]
fn values_of_a_host_are_waited_for_by_its_processes_alone() {
    let mut server = server(3);
    let wait = frame("cmd=info-getnodeattr;key=shared;wait=TRUE;thrid=5;");
    assert!(ask(&mut server, 2, &wait).is_empty());
    assert!(ask(&mut server, 1, &wait).is_empty());
    let answers = ask(&mut server, 0, &frame("cmd=info-putnodeattr;key=shared;value=v;"));
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers[0].starts_with("2: ") && answers[0].contains("thrid=5;found=TRUE;value=v;"));
    let now = frame("cmd=info-getnodeattr;key=shared;wait=FALSE;");
    assert!(ask(&mut server, 1, &now)[0].contains("found=FALSE"));
}

#[test]
fn an_abort_names_its_rank_code_and_reason() {
    let mut server = server(2);
    server.receive(1, b"cmd=abort exitcode=5 message=no luck\ncmd=get_maxes\n");
    let message = "no luck".to_owned();
    assert_eq!(server.next_action(), Some(Action::Abort { rank: 1, code: 5, message }));
    assert_eq!(server.next_action(), None);
}

#[test]
fn what_is_no_message_is_an_offence_once() {
    let mut server = server(2);
    server.receive(1, b"GET / HTTP/1.0\n");
    server.receive(1, b"GET / HTTP/1.0\n");
    let problem = Malformed::NoCommand;
    assert_eq!(server.next_action(), Some(Action::Offence { rank: 1, problem }));
    assert_eq!(server.next_action(), None);
}

#[test]
fn a_process_that_hangs_up_is_lost_unless_it_finalized() {
    let mut server = server(3);
    ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
    ask(&mut server, 1, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=finalize\n");
    for rank in 0..3 {
        server.hang_up(rank);
    }
    let standings: Vec<Standing> = (0..3).map(|rank| server.standing(rank)).collect();
    assert_eq!(standings, [Standing::Lost, Standing::Finalized, Standing::Silent]);
}

#[test]
fn a_job_keeps_a_bounded_number_of_values() {
    let mut server = server(1);
    let value = "v".repeat(VALUE_BYTES_MAX);
    let mut refused = 0;
    for number in 0..200 {
        let put = format!("cmd=put kvsname=job key=k{number} value={value}\n");
        refused += usize::from(ask(&mut server, 0, &put)[0].contains("rc=-1"));
    }
    assert!((100..200).contains(&refused), "{refused}");
    for _ in 0..200 {
        let put = format!("cmd=put kvsname=job key=k0 value={value}\n");
        assert!(ask(&mut server, 0, &put)[0].contains("rc=0"), "a key may get another value");
    }
    assert!(server.value_bytes <= VALUE_BYTES_PER_PROCESS);
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "cmd=",
        "mcmd=spawn\n",
        "endcmd\n",
        "init",
        "put",
        "get",
        "barrier_in",
        "finalize",
        "abort",
        " key=a",
        " value=b",
        " kvsname=job",
        "\n",
        ";",
        "key=a;",
        "12    ",
        "kvs-put;",
        "26    cmd=kvs-fence;thrid=12345;",
        "info-getnodeattr;wait=TRUE;",
        "=",
        " ",
        "9999999",
    ]);
    prop_oneof![
        4 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_of_any_process_are_answered_or_refused(
        pieces in prop::collection::vec((0..4_u32, piece(), any::<bool>()), 0..60)
    ) {
        let mut server = server(3);
        let mut offences = 0;
        for (rank, bytes, hangs_up) in &pieces {
            server.receive(*rank, bytes);
            if *hangs_up && bytes.len() == 1 {
                server.hang_up(*rank);
            }
            while let Some(action) = server.next_action() {
                match action {
                    Action::Send { rank, bytes } => {
                        prop_assert!(rank < 3);
                        // Each answer is a message that a client can read.
                        let mut decoder = Decoder::default();
                        decoder.push(&bytes);
                        prop_assert!(decoder.next_message().is_ok_and(|told| told.is_some()));
                    }
                    Action::Abort { rank, .. } => prop_assert!(rank < 3),
                    Action::Offence { .. } => offences += 1,
                }
            }
        }
        prop_assert!(offences <= 3);
        prop_assert!(server.waiting_for_values.len() <= 3 * WAITING_MAX);
    }
}
