//! Scenarios from their text to their report.

use std::io;

use weft_scenario::{Level, Report, Scenario};

/// No other file is there.
fn nothing(path: &str) -> io::Result<String> {
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no {path}")))
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, nothing).expect("a scenario")
}

fn report(text: &str) -> Report {
    Report::run(&scenario(text), &mut |_| ()).expect("it runs")
}

/// The scenario of this number in the page for users.
fn of_the_docs(number: usize) -> &'static str {
    let page = include_str!("../../../../docs/simulator.md");
    let rest = page.split("```toml\n").nth(number + 1).expect("a scenario");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_scenario_of_the_docs_gives_the_same_report_each_time() {
    let mut told = 0;
    let scenario = scenario(of_the_docs(0));
    let once = Report::run(&scenario, &mut |_| told += 1).expect("it runs");
    assert!(told > once.points.len(), "progress is told");
    let again = report(of_the_docs(0));
    assert_eq!(once.json(), again.json());
    assert_eq!(once.html(), again.html());
    for point in &once.points {
        let messages = point.messages;
        assert_eq!(messages.delivered, messages.sent, "{messages:?}");
        assert!(point.latency.min_ns >= 140, "one hop and the packet: {:?}", point.latency);
    }
    let resent: u64 = once.points.iter().map(|point| point.messages.resent).sum();
    assert!(resent > 0, "the cut loses some");
    // Below saturation, hosts get what they offer.
    let first = &once.points[0];
    let offered = first.offered_bytes_per_second.expect("a load");
    assert!(first.delivered_bytes_per_second.abs_diff(offered) < offered / 10);
    let mut other = scenario.clone();
    other.set_seed(2);
    let other = Report::run(&other, &mut |_| ()).expect("it runs");
    assert_ne!(other.json(), once.json());
}

#[test]
fn the_page_loads_nothing_and_has_its_plots() {
    let page = report(of_the_docs(0)).html();
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("class=\"link h").count(), 256, "each link of the torus, both ways");
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("width=device-width"));
}

#[test]
fn each_way_of_sending_ends_with_every_message() {
    for traffic in [
        "pattern = \"all-to-all\"\nmessages = 15\nbarrier = true",
        "pattern = \"incast\"\nhost = \"n5\"\nmessages = 4\nwindow = 2",
        "pattern = \"transpose\"\nmessages = 3\nmessage_bytes = 10_000",
        "pattern = \"hotspot\"\nhost = \"n1\"\npercent = 50\nmessages = 5",
        "pattern = \"neighbour\"\nloads = [30]",
        "pattern = \"tornado\"\nloads = [10, 20]",
    ] {
        let text = format!("topology = \"mesh:4x4\"\n[traffic]\n{traffic}\n");
        for point in report(&text).points {
            assert!(point.messages.sent > 0, "{traffic}");
            assert_eq!(point.messages.delivered, point.messages.sent, "{traffic}");
        }
    }
}

#[test]
fn a_trace_is_sent_at_its_times() {
    let text = "topology = \"mesh:3\"\n[traffic]\npattern = \"trace\"\nfile = \"t\"\n";
    let trace = "# two messages\n100 n0 n2 496\n\n0 n1 n0 8 0\n";
    let scenario = Scenario::parse(text, |_| Ok(trace.to_owned())).expect("a scenario");
    let report = Report::run(&scenario, &mut |_| ()).expect("it runs");
    let point = &report.points[0];
    assert_eq!(point.messages.delivered, 2);
    // The second one is over 2 links: 3 routers, 2 links, 512 bytes of 80 ps.
    assert_eq!(point.latency.max_ns, 3 * 40 + 2 * 20 + 40);
    assert_eq!(point.ended_ns, 300);
    let wrong = Scenario::parse(text, |_| Ok("0 n0 n1 8\n5 n0 n9 8\n".to_owned()));
    let wrong = wrong.expect_err("n9 is not there").to_string();
    assert!(wrong.contains("line 2 is \"5 n0 n9 8\""), "{wrong}");
}

#[test]
fn hosts_that_share_processors_take_them_for_each_message() {
    let latency = |times: &str| {
        let text = format!(
            "topology = \"full:2\"\n[network]\nprocessors = 2\nprocessor_send_ns = 100\n\
             processor_receive_ns = 200\n{times}[traffic]\npattern = \"trace\"\n\
             file = \"t\"\n"
        );
        let scenario = Scenario::parse(&text, |_| Ok("0 n0 n1 496\n".to_owned()));
        let report = Report::run(&scenario.expect("a scenario"), &mut |_| ()).expect("it runs");
        report.points[0].latency.max_ns
    };
    // Two routers, a link, and 512 bytes of 80 ps.
    let way = 2 * 40 + 20 + 40;
    assert_eq!(latency(""), way + 300);
    let across = "processor_send_across_ns = 500\nprocessor_receive_across_ns = 1_000\n";
    assert_eq!(latency(across), way + 1_500);
}

#[test]
fn flows_share_links_fairly() {
    let text = "topology = \"full:5\"\nlevel = \"flows\"\n[traffic]\npattern = \"incast\"\n\
                host = \"n0\"\nmessages = 1\nmessage_bytes = 12_109_375\n";
    assert_eq!(scenario(text).level, Level::Flows);
    let report = report(text);
    // Four hosts send a millisecond's worth each through the one way to the host.
    let ended = report.points[0].ended_ns;
    assert!((4_000_000..4_001_000).contains(&ended), "{ended}");
    assert!(report.points[0].busiest.is_empty(), "flows count no packets");
}

#[test]
fn endpoints_put_over_the_network() {
    let base = "topology = \"torus:4x4\"\nlevel = \"endpoints\"\n[traffic]\n\
                pattern = \"all-to-all\"\nmessages = 30\nmessage_bytes = 2_000\nwindow = 2\n";
    let healthy = report(base);
    let point = &healthy.points[0];
    assert_eq!((point.messages.sent, point.messages.delivered), (480, 480));
    // A put of five packets over one link at least; its answer is no part of it.
    assert!(point.latency.min_ns >= 2 * 40 + 20 + 160, "{:?}", point.latency);
    assert_eq!(healthy.json(), report(base).json());
    let cut = format!("{base}[[fault]]\nkind = \"cut\"\nlink = [\"n0\", \"n1\"]\nat_ns = 2_000\n");
    let point = report(&cut).points[0].clone();
    assert_eq!(point.messages.delivered, 480, "{:?}", point.messages);
    assert!(point.latency.max_ns > 20_000, "a put waits until it is sent again");
    // The heat map has the links.
    assert!(point.busiest.iter().any(|link| link.bytes > 0), "links are counted");
    assert_eq!(healthy.points[0].busiest.len(), 64, "each link of the torus, both ways");
}

#[test]
fn endpoints_send_messages_get_and_add() {
    for (operation, bytes) in [
        ("message", 100),
        ("get", 3_000),
        ("atomic", 8),
        ("long-message", 3_000),
        ("lane", 3_000),
        ("frame", 400),
    ] {
        let text = format!(
            "topology = \"torus:3x3\"\nlevel = \"endpoints\"\n[traffic]\n\
             pattern = \"all-to-all\"\noperation = \"{operation}\"\nmessages = 16\n\
             message_bytes = {bytes}\nwindow = 3\n"
        );
        let healthy = report(&text);
        let messages = healthy.points[0].messages;
        assert_eq!((messages.sent, messages.delivered), (144, 144), "{operation}");
        // A get and an atomic go there and back, and so does a message that its receiver gets.
        let ways = if matches!(operation, "get" | "atomic") { 2 } else { 1 };
        let least = ways * (2 * 40 + 20) + bytes * 80 / 1_000;
        let latency = healthy.points[0].latency;
        assert!(latency.min_ns >= least, "{operation}: {latency:?}, {least}");
        assert_eq!(healthy.json(), report(&text).json(), "{operation}");
        for fault in [
            "kind = \"slow\"\nlink = [\"n0\", \"n1\"]\nmbit = 500\nat_ns = 0",
            "kind = \"lossy\"\nlink = [\"n0\", \"n1\"]\ndamaged_per_million = 500_000\nat_ns = 0",
            "kind = \"pressure\"\nnode = \"n4\"\nat_ns = 500\nfor_ns = 20_000",
        ] {
            let point = report(&format!("{text}[[fault]]\n{fault}\n")).points[0].clone();
            if operation == "lane" && fault.contains("pressure") {
                // There is no lane without memory for it.
                assert!(point.messages.given_up > 0, "{:?}", point.messages);
                continue;
            }
            assert_eq!(point.messages.delivered, 144, "{operation}, {fault}: {:?}", point.messages);
            assert!(point.latency.max_ns > latency.max_ns, "{operation}, {fault}");
        }
    }
}

#[test]
fn endpoints_of_a_host_that_crashes_lose_what_is_under_way_and_come_back() {
    for (operation, bytes) in [
        ("put", 2_000),
        ("message", 60),
        ("get", 2_000),
        ("atomic", 8),
        ("long-message", 3_000),
        ("lane", 3_000),
        ("frame", 1_500),
    ] {
        let text = format!(
            "topology = \"torus:3x3\"\nlevel = \"endpoints\"\n[traffic]\n\
             pattern = \"incast\"\nhost = \"n4\"\noperation = \"{operation}\"\nmessages = 200\n\
             message_bytes = {bytes}\nwindow = 2\n[run]\nresend_after_ns = 2_000\n\
             resends_max = 4\n[[fault]]\nkind = \"crash\"\nnode = \"n4\"\nat_ns = 3_000\n\
             for_ns = 1_000\n"
        );
        let messages = report(&text).points[0].messages;
        let ended = messages.delivered + messages.given_up;
        assert_eq!((messages.sent, messages.unfinished), (ended, 0), "{operation}: {messages:?}");
        assert!(messages.given_up > 0, "{operation}: {messages:?}");
        assert!(messages.delivered > 0, "{operation}: {messages:?}");
    }
}

#[test]
fn groups_of_hosts_have_protocols_of_their_own() {
    // Storage nodes that are put to, and compute nodes that send each other messages meanwhile.
    let text = of_the_docs(1);
    let report = report(text);
    assert_eq!(report.pattern, "compute, storage");
    let point = &report.points[0];
    let [compute, storage] = &point.groups[..] else { panic!("{:?}", point.groups) };
    assert_eq!((compute.messages.sent, compute.messages.delivered), (600, 600));
    assert_eq!((storage.messages.sent, storage.messages.delivered), (96, 96));
    assert_eq!((storage.hosts, point.messages.sent), (12, 696));
    assert!(storage.latency.min_ns > compute.latency.min_ns);
    // The puts are in the way of the messages.
    let alone = text.split_once("[[traffic]]\nname = \"storage\"").expect("two groups").0;
    let alone = &self::report(alone).points[0];
    assert!(alone.groups.is_empty(), "one group is all");
    assert!(alone.latency.mean_ns < compute.latency.mean_ns, "{:?}", alone.latency);
    assert_eq!(report.json(), self::report(text).json());
    let page = report.html();
    assert!(page.contains("<h2>Groups</h2>") && page.contains("<td>storage</td>"));
}

#[test]
fn every_protocol_of_groups_ends_all_its_messages_amid_faults() {
    let mut text = "topology = \"torus:4x4\"\nlevel = \"endpoints\"\n".to_owned();
    for (number, (operation, bytes)) in [
        ("put", 5_000),
        ("message", 100),
        ("get", 5_000),
        ("atomic", 8),
        ("long-message", 5_000),
        ("lane", 5_000),
        ("frame", 5_000),
    ]
    .into_iter()
    .enumerate()
    {
        let (first, last) = (number, number + 6);
        text += &format!(
            "[[traffic]]\nname = \"{operation}\"\nhosts = [\"n{first}..n{last}\"]\n\
             pattern = \"uniform\"\noperation = \"{operation}\"\nmessage_bytes = {bytes}\n\
             messages = 30\nwindow = 4\n"
        );
    }
    let healthy = report(&text).points[0].clone();
    for group in &healthy.groups {
        assert_eq!((group.messages.sent, group.messages.delivered), (210, 210), "{}", group.name);
    }
    text += "[[fault]]\nkind = \"cut\"\nlink = [\"n5\", \"n6\"]\nat_ns = 2_000\n\
             [[fault]]\nkind = \"crash\"\nnode = \"n6\"\nat_ns = 6_000\nfor_ns = 20_000\n\
             [run]\nresend_after_ns = 2_000\nresends_max = 4\n";
    for group in &report(&text).points[0].groups {
        let messages = group.messages;
        let ended = messages.delivered + messages.given_up;
        assert_eq!(
            (messages.sent, messages.unfinished),
            (ended, 0),
            "{}: {messages:?}",
            group.name
        );
        assert!(messages.delivered > 100, "{}: {messages:?}", group.name);
    }
}

#[test]
fn groups_offer_loads_of_their_own_at_each_level() {
    let text = "topology = \"torus:4x4\"\n[[traffic]]\npattern = \"uniform\"\n\
                hosts = [\"n0..n7\"]\nloads = [10, 20]\n[[traffic]]\nname = \"back\"\n\
                pattern = \"incast\"\nhost = \"n3\"\nhosts = [\"n8..n15\"]\n\
                to = [\"n0..n7\"]\nloads = [1, 5]\nclass = 0\n[run]\nwarmup_ns = 5_000\n\
                measure_ns = 20_000\n";
    let report = report(text);
    let loads: Vec<_> = report
        .points
        .iter()
        .map(|point| {
            let offered = point.offered_bytes_per_second.expect("it has loads");
            let rates = point.groups.iter().map(|group| group.delivered_bytes_per_second);
            assert!(point.delivered_bytes_per_second.abs_diff(offered) < offered / 5, "{point:?}");
            assert!(rates.sum::<u64>().abs_diff(2 * offered) < offered / 2, "{point:?}");
            (point.load_percent, point.groups.iter().map(|it| it.load_percent).collect::<Vec<_>>())
        })
        .collect();
    let wanted = [(Some(10), vec![Some(10), Some(1)]), (Some(20), vec![Some(20), Some(5)])];
    assert_eq!(loads, wanted);
    assert_eq!(report.points[0].groups[0].name, "group 1");
    let flows =
        text.replace("loads = [10, 20]", "messages = 3").replace("loads = [1, 5]", "messages = 2");
    let point = &self::report(&format!("level = \"flows\"\n{flows}")).points[0];
    let counts: Vec<u64> = point.groups.iter().map(|group| group.messages.delivered).collect();
    assert_eq!(counts, [24, 16]);
}

#[test]
fn flows_go_around_a_cut_and_are_sent_again_after_a_crash() {
    let base = "topology = \"torus:4x4\"\nlevel = \"flows\"\n[traffic]\n\
                pattern = \"all-to-all\"\nmessages = 15\nmessage_bytes = 100_000\n";
    let healthy = report(base).points[0].clone();
    assert_eq!((healthy.messages.delivered, healthy.messages.resent), (240, 0));
    for (fault, loses) in [
        ("kind = \"cut\"\nlink = [\"n0\", \"n1\"]\nat_ns = 20_000", false),
        ("kind = \"slow\"\nlink = [\"n0\", \"n1\"]\nmbit = 10_000\nat_ns = 20_000", false),
        ("kind = \"crash\"\nnode = \"n5\"\nat_ns = 20_000\nfor_ns = 30_000", true),
    ] {
        let point = report(&format!("{base}[[fault]]\n{fault}\n")).points[0].clone();
        let messages = point.messages;
        assert_eq!(messages.delivered + messages.given_up, messages.sent, "{fault}: {messages:?}");
        assert_eq!(messages.resent > 0, loses, "{fault}: {messages:?}");
        assert_eq!(messages.given_up > 0, loses, "the host's own: {fault}: {messages:?}");
        assert!(point.ended_ns > healthy.ended_ns, "{fault}");
    }
}

#[test]
fn a_manager_leads_around_a_fault_and_so_does_the_one_that_follows_it() {
    for level in ["messages", "endpoints", "flows"] {
        let base = format!(
            "topology = \"torus:4x4\"\nlevel = \"{level}\"\n[manager]\n[traffic]\n\
             pattern = \"all-to-all\"\nmessages = 60\nmessage_bytes = 4_000\nwindow = 2\n\
             [run]\nresends_max = 100\n"
        );
        let cut = "[[fault]]\nkind = \"cut\"\nlink = [\"n0\", \"n1\"]\nat_ns = 5_000\n";
        let dies = "[[fault]]\nkind = \"manager\"\nat_ns = 4_000\n";
        let skew = "[[fault]]\nkind = \"skew\"\nnode = \"n0\"\nrate_per_mille = 500\nat_ns = 0\n";
        let ended = |text: &str| {
            let point = report(text).points[0].clone();
            assert_eq!(point.messages.delivered, 960, "{level}: {:?}", point.messages);
            point.ended_ns
        };
        let healthy = ended(&base);
        let led = ended(&format!("{base}{cut}"));
        assert!(led > healthy, "{level}");
        // The lease has to run out before the next one leads around the cut.
        let followed = ended(&format!("{base}{dies}{cut}"));
        assert!(followed > led + 400_000, "{level}: {followed} {led}");
        assert!(ended(&format!("{base}{skew}{cut}")) > healthy, "{level}");
        let alone = base.replace("[manager]\n", "[manager]\nfollowed = false\n");
        let messages = report(&format!("{alone}{dies}{cut}")).points[0].messages;
        assert!(messages.delivered < 960, "{level}: nobody leads around it: {messages:?}");
    }
}

#[test]
fn faults_delay_messages_and_lose_none() {
    let base = "topology = \"torus:4x4\"\n[traffic]\n\
                pattern = \"all-to-all\"\nmessages = 60\nmessage_bytes = 4_000\nwindow = 4\n";
    let healthy = report(base).points[0].clone();
    assert_eq!((healthy.messages.sent, healthy.messages.resent), (960, 0));
    for (fault, loses) in [
        ("kind = \"cut\"\nlink = [\"n0\", \"n1\"]\nat_ns = 5_000", true),
        (
            "kind = \"cut\"\nlink = [\"n0\", \"n1\"]\nat_ns = 2_000\nfor_ns = 2_000\n\
             every_ns = 5_000\n\
          times = 5",
            true,
        ),
        ("kind = \"slow\"\nlink = [\"n0\", \"n1\"]\nmbit = 5_000\nat_ns = 0", false),
        (
            "kind = \"lossy\"\nlink = [\"n0\", \"n1\"]\ndamaged_per_million = 200_000\nat_ns = 0",
            false,
        ),
    ] {
        let point = report(&format!("{base}[[fault]]\n{fault}\n")).points[0].clone();
        assert_eq!(point.messages.delivered, 960, "{fault}: {:?}", point.messages);
        assert_eq!(point.messages.resent > 0, loses, "{fault}: {:?}", point.messages);
        assert!(point.latency.mean_ns > healthy.latency.mean_ns, "{fault}");
    }
    // Messages that a crashed node has not sent are given up, and so are those that nobody gets.
    let crash = format!("{base}[[fault]]\nkind = \"crash\"\nnode = \"n5\"\nat_ns = 5_000\n");
    let messages = report(&crash).points[0].messages;
    assert!(messages.given_up > 0, "{messages:?}");
    assert_eq!(messages.delivered + messages.given_up, messages.sent, "{messages:?}");
    assert_eq!(messages.unfinished, 0);
}

#[test]
fn errors_name_the_line_of_the_key() {
    let traffic = "[traffic]\npattern = \"uniform\"\nloads = [10]\n";
    let part = "pattern = \"uniform\"\nloads = [10]\n";
    let torus = "topology = \"torus:4\"\n";
    let endpoints = format!("{torus}level = \"endpoints\"\n");
    for (text, line, part) in [
        ("topology = 7\n".to_owned(), 1, "expected a string"),
        (format!("topology = \"torus:0\"\n{traffic}"), 1, "a torus, mesh or hypercube has"),
        (format!("\n\ntopology = \"a.toml\"\n{traffic}"), 3, "cannot be read"),
        (format!("{torus}routing = \"best\"\n{traffic}"), 2, "no routing algorithm"),
        (format!("{torus}{traffic}color = 1\n"), 5, "unknown field"),
        (format!("{torus}\n[traffic]\npattern = \"what\"\nloads = [1]\n"), 4, "is no pattern"),
        (format!("{torus}[traffic]\npattern = \"uniform\"\n"), 2, "give either"),
        (format!("{torus}[traffic]\npattern = \"uniform\"\nloads = [0]\n"), 4, "1 to 1000"),
        (
            format!("{torus}[traffic]\npattern = \"uniform\"\nmessages = 1\n\nwindow = 0\n"),
            6,
            "`window` is 1 or more",
        ),
        (format!("{torus}{traffic}class = 3\n"), 5, "there is no class 3"),
        (format!("traffic = 3\n{torus}"), 1, "a table [traffic], or tables [[traffic]]"),
        (format!("{torus}[[traffic]]\n{part}color = 1\n"), 5, "unknown field"),
        (format!("{torus}[[traffic]]\n{part}hosts = [\"n0..n9\"]\n"), 5, "no host \"n9\""),
        (format!("{torus}[[traffic]]\n{part}to = [\"n3..n1\"]\n"), 5, "comes behind the last"),
        (format!("{torus}[[traffic]]\n{part}hosts = []\n"), 5, "a host that sends"),
        (
            format!("{torus}[[traffic]]\npattern = \"tornado\"\nhosts = [\"n1\"]\nloads = [1]\n"),
            3,
            "patterns of all hosts",
        ),
        (
            format!("{torus}[[traffic]]\n{part}name = \"a\"\n[[traffic]]\n{part}name = \"a\"\n"),
            9,
            "there is a group \"a\"",
        ),
        (
            format!(
                "{torus}[[traffic]]\n{part}[[traffic]]\npattern = \"uniform\"\nloads = [1, 2]\n"
            ),
            7,
            "has 2 loads, and one before it 1",
        ),
        (
            format!(
                "topology = \"torus:9x9\"\nlevel = \"endpoints\"\n{traffic}operation = \"lane\"\n"
            ),
            3,
            "81 hosts are more than the 64",
        ),
        (format!("{torus}{traffic}operation = \"get\"\n"), 5, "need level"),
        (format!("{endpoints}{traffic}message_bytes = 2_000_000\n"), 6, "0 to 1048576"),
        (
            format!("{endpoints}{traffic}message_bytes = 4\noperation = \"message\"\n"),
            6,
            "8 to 120",
        ),
        (
            format!("{torus}[network]\nmtu_bytes = 64\nbuffer_bytes = 9\n{traffic}"),
            4,
            "holds no packet",
        ),
        (format!("{torus}[network]\nlink_mbit = 0\n{traffic}"), 2, "a link moves 0 bit/s"),
        (format!("{torus}{traffic}[run]\nwarmup_ns = 1\nmeasure_ns = 0\n"), 7, "measured"),
        (format!("{torus}{traffic}[run]\nmeasure_ns = 9\ndeadline_ns = 7\n"), 7, "before the end"),
        (format!("{torus}[manager]\ntick_ns = 1\n{traffic}"), 3, "100 ns"),
        (
            format!("{torus}routing = \"valiant\"\n[manager]\n{traffic}"),
            3,
            "a manager gives tables",
        ),
        (format!("{torus}{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\n"), 5, "needs its `link`"),
        (
            format!(
                "{torus}{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\nlink = [\"n0\", \"n2\"]\n"
            ),
            8,
            "no link between n0 and n2",
        ),
        (
            format!(
                "{torus}{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\nlink = [\"n0\", \"n1\"]\n\
                 [[fault]]\nkind = \"slow\"\nat_ns = 1\nlink = [\"n0\", \"n1\"]\nmbit = 0\n"
            ),
            13,
            "a link moves 0 bit/s",
        ),
        (format!("{torus}{traffic}[[fault]]\nat_ns = 1\nkind = \"manager\"\n"), 7, "[manager]"),
        (
            format!("{torus}{traffic}[[fault]]\nat_ns = 1\nkind = \"pressure\"\nnode = \"n0\"\n"),
            7,
            "is for level",
        ),
        (format!("{torus}level = \"flows\"\n{traffic}"), 5, "flows have no loads"),
        (
            format!("{torus}[traffic]\npattern = \"incast\"\nhost = \"x\"\nmessages = 1\n"),
            4,
            "no host \"x\"",
        ),
        (format!("{torus}{traffic}percent = 3\n"), 5, "\"uniform\" has no `percent`"),
        (format!("{torus}{traffic}host = \"n0\"\n"), 5, "has no `host`"),
        (format!("{torus}{traffic}file = \"a\"\n"), 5, "has no `file`"),
        (format!("{torus}{traffic}window = 3\n"), 5, "without `messages` has no `window`"),
        (
            format!("{torus}[traffic]\npattern = \"trace\"\nfile = \"a\"\nclass = 0\n"),
            5,
            "a trace has no `class`",
        ),
        (format!("{torus}[network]\nprocessor_send_ns = 3\n{traffic}"), 3, "`processor_send_ns`"),
        (
            format!(
                "{torus}{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\nlink = [\"n0\", \"n1\"]\n\
                 mbit = 4\n"
            ),
            9,
            "has no `mbit`",
        ),
    ] {
        let error = Scenario::parse(&text, nothing).expect_err(&text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.reason.contains(part), "{text}: {error}");
    }
}
