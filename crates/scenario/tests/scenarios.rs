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

/// The scenario in the page for users.
fn of_the_docs() -> &'static str {
    let page = include_str!("../../../docs/simulator.md");
    let (_, rest) = page.split_once("```toml\n").expect("a scenario");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_scenario_of_the_docs_gives_the_same_report_each_time() {
    let mut told = 0;
    let scenario = scenario(of_the_docs());
    let once = Report::run(&scenario, &mut |_| told += 1).expect("it runs");
    assert!(told > once.points.len(), "progress is told");
    let again = report(of_the_docs());
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
    let page = report(of_the_docs()).html();
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
    let crash = format!("{base}[[fault]]\nkind = \"crash\"\nnode = \"n5\"\nat_ns = 5_000\n");
    let error = Scenario::parse(&crash, nothing).expect_err("no crashes here");
    assert_eq!((error.line, error.reason.contains("cuts of links alone")), (8, true), "{error}");
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
fn errors_name_the_line() {
    let traffic = "[traffic]\npattern = \"uniform\"\nloads = [10]\n";
    for (text, line, part) in [
        ("topology = 7\n".to_owned(), 1, "expected a string"),
        (format!("topology = \"torus:0\"\n{traffic}"), 1, "a torus, mesh or hypercube has"),
        (format!("\n\ntopology = \"a.toml\"\n{traffic}"), 3, "cannot be read"),
        (
            format!("topology = \"torus:4\"\nrouting = \"best\"\n{traffic}"),
            2,
            "no routing algorithm",
        ),
        (format!("topology = \"torus:4\"\n{traffic}color = 1\n"), 5, "unknown field"),
        (
            "topology = \"torus:4\"\n\n[traffic]\npattern = \"what\"\nloads = [1]\n".to_owned(),
            3,
            "is no pattern",
        ),
        ("topology = \"torus:4\"\n[traffic]\npattern = \"uniform\"\n".to_owned(), 2, "give either"),
        (
            format!("topology = \"torus:4\"\n[network]\nbuffer_bytes = 9\n{traffic}"),
            2,
            "holds no packet",
        ),
        (
            format!("topology = \"torus:4\"\n{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\n"),
            5,
            "needs its `link`",
        ),
        (
            format!(
                "topology = \"torus:4\"\n{traffic}[[fault]]\nkind = \"cut\"\nat_ns = 1\n\
                  link = [\"n0\", \"n2\"]\n"
            ),
            5,
            "no link between n0 and n2",
        ),
        (format!("topology = \"torus:4\"\nlevel = \"flows\"\n{traffic}"), 3, "flows have no loads"),
        (
            "topology = \"torus:4\"\n[traffic]\npattern = \"incast\"\nhost = \"x\"\nmessages = 1\n"
                .to_owned(),
            2,
            "no host \"x\"",
        ),
    ] {
        let error = Scenario::parse(&text, nothing).expect_err(&text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.reason.contains(part), "{text}: {error}");
    }
}
