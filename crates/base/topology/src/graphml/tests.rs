//! Documents that are understood, and those that are refused with their line.

use super::*;

const HEAD: &str = "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n\
    <key id=\"d0\" for=\"node\" attr.name=\"kind\" attr.type=\"string\"/>\n\
    <key id=\"d1\" for=\"edge\" attr.name=\"latency_ns\" attr.type=\"int\"/>\n\
    <graph edgedefault=\"undirected\">\n<node id=\"a\"/><node id=\"b\"/>\n\
    <node id=\"s\"><data key=\"d0\">switch</data></node>\n";

fn with(edges: &str) -> Result<Described, FileError> {
    parse(&format!("{HEAD}{edges}</graph></graphml>"))
}

#[test]
fn nodes_and_edges_are_read() {
    let described = with(
        "<edge source=\"a\" target=\"s\" sourceport=\"1\"><data key=\"d1\">9</data></edge>\n\
         <edge source=\"b\" target=\"s\"/>",
    );
    let graph = described.expect("a graph").graph;
    assert_eq!((graph.far(0, 1), graph.far(1, 0)), (Some((2, 0)), Some((2, 1))));
    assert_eq!((graph.class(0, 1).latency, graph.class(1, 0).latency), (9, 0));
    assert_eq!(graph.kind(2), Some(Kind::Switch));
}

#[test]
fn errors_name_the_line() {
    let line_and_word = [
        ("<edge source=\"a\"/>", 7, "target"),
        ("\n<edge source=\"a\" target=\"x\"/>", 8, "\"x\""),
        ("<edge source=\"a\" target=\"b\" directed=\"yes\"/>", 7, "directed"),
        ("<edge source=\"a\" target=\"b\" sourcePort=\"1\"/>", 7, "`sourcePort`"),
        ("<edge source=\"a\" target=\"b\"><graph/></edge>", 7, "`graph`"),
        ("<node id=\"n\">\n<graph><node id=\"m\"/></graph></node>", 8, "group"),
        ("<node id=\"n\"><port name=\"up\"/></node>", 7, "\"up\""),
        ("<node id=\"n\"><data key=\"d0\">router</data></node>", 7, "router"),
        ("<node id=\"n\"><data key=\"dO\">switch</data></node>", 7, "\"dO\""),
        ("<node id=\"n\"><data key=\"d0\"><b/></data></node>", 7, "text"),
        ("<hyperedge><endpoint node=\"a\"/></hyperedge>", 7, "hyperedge"),
        ("<vertex id=\"n\"/>", 7, "`vertex`"),
        ("</graph>\n<graph>", 8, "second"),
        ("<edge source=\"a\" target=\"b\"><data key=\"d1\">-1</data></edge>", 7, "latency_ns"),
        ("<edge source=\"a\" target=\"b\"><data key=\"d1\">0</data></edge>", 7, "from 1"),
        ("<edge source=\"a\" target=\"b\"><data key=\"d1\">1.5</data></edge>", 7, "whole"),
        (
            "<edge source=\"a\" target=\"b\"><data key=\"weight\">4294967296</data></edge>",
            7,
            "4294967295",
        ),
        (
            "<edge source=\"a\" target=\"b\"><data key=\"d1\">1</data>\n<data key=\"d1\">2</data>\
             </edge>",
            8,
            "twice",
        ),
        ("<edge source=\"a\" target=\"b\" sourceport=\"up\"/>", 7, "sourceport"),
        ("<edge source=\"a\" target=\"b\"><data key=\"d1\">soon</data></edge>", 7, "latency_ns"),
        ("<node id=\"a\"/>", 7, "twice"),
        ("\n\n<edge", 9, ""),
    ];
    for (edges, line, word) in line_and_word {
        let error = with(edges).expect_err(edges);
        assert_eq!(error.line, line, "{edges}: {error}");
        assert!(error.reason.contains(word), "{edges}: {error}");
    }
    assert!(parse("<a/>").is_err_and(|error| error.reason.contains("graphml")));
}

/// Two hosts and two switches, as other programs write them.
const OTHERS: &str = include_str!("others.graphml");

#[test]
fn defaults_of_keys_hold_and_whole_numbers_may_have_a_point() {
    let described = parse(OTHERS).expect("a graph");
    let graph = &described.graph;
    let kinds: Vec<_> = (0..4).map(|vertex| graph.kind(vertex)).collect();
    let (host, switch) = (Some(Kind::Host), Some(Kind::Switch));
    assert_eq!(kinds, [switch, switch, host, host]);
    let [s1, s2, h1] = ["s1", "s2", "h1"].map(|name| graph.find(name).expect("it is there"));
    let weights: Vec<_> =
        [h1, s1, s2].map(|vertex| graph.class(vertex, 0).weight).into_iter().collect();
    assert_eq!(weights, [2, 2, 1]);
    assert_eq!(described.left_out, ["colour", "label"]);
}

#[test]
fn directed_edges_are_links_unless_two_may_be_one() {
    let of = |edges: &str| {
        parse(&format!(
            "<graphml><graph edgedefault=\"directed\"><node id=\"a\"/><node id=\"b\"/>\n{edges}\
         </graph></graphml>"
        ))
    };
    let links = |edges: &str| of(edges).map(|described| described.graph.links().count());
    let there = "<edge source=\"a\" target=\"b\"/>";
    assert_eq!(links(there), Ok(1));
    assert_eq!(links(&there.repeat(2)), Ok(2));
    let back = "\n<edge source=\"b\" target=\"a\"/>";
    let error = links(&format!("{there}{back}")).expect_err("it may be the same link");
    assert_eq!(error.line, 3);
    assert!(error.reason.contains("line 2"), "{error}");
    let undirected = "<edge source=\"b\" target=\"a\" directed=\"false\"/>";
    assert_eq!(links(&format!("{there}{undirected}")), Ok(2));
    let ported = |from, to, ports: [u8; 2], rest: &str| {
        let [one, other] = ports;
        format!(
            "<edge source=\"{from}\" target=\"{to}\" sourceport=\"{one}\" \
             targetport=\"{other}\">{rest}</edge>\n"
        )
    };
    let there = ported("a", "b", [0, 3], "");
    assert_eq!(links(&format!("{there}{}", ported("b", "a", [3, 0], ""))), Ok(1));
    assert_eq!(links(&format!("{there}{}", ported("b", "a", [1, 1], ""))), Ok(2));
    let heavy = ported("b", "a", [3, 0], "<data key=\"weight\">7</data>");
    assert!(links(&format!("{there}{heavy}")).is_err_and(|error| error.line == 3));
}

#[test]
fn two_defaults_for_one_element_are_refused() {
    let of = |keys: [(&str, &str); 2]| {
        let key = |(domain, text): (&str, &str)| {
            format!(
                "<key id=\"{domain}{text}\" for=\"{domain}\" attr.name=\"weight\">\
                 <default>{text}</default></key>\n"
            )
        };
        let keys = keys.map(key).concat();
        parse(&format!("<graphml>{keys}<graph><node id=\"a\"/></graph></graphml>"))
    };
    assert!(of([("edge", "2"), ("node", "3")]).is_ok());
    // NetworkX declares whole numbers and others, each with the default of both.
    assert!(of([("edge", "2"), ("all", "2")]).is_ok());
    for (first, second) in [("edge", "edge"), ("all", "edge"), ("edge", "all")] {
        let error = of([(first, "2"), (second, "3")]).expect_err("which holds?");
        assert!(error.line == 2 && error.reason.contains("weight"), "{error}");
    }
}

proptest::proptest! {
    #[test]
    fn any_edges_are_links_or_an_error(
        edges in "(<edge (source|sourceport)='[a-c1]{1,3}' ?(target='[ab]')?/>|<|&|\n){0,6}",
    ) {
        if let Err(error) = with(&edges) {
            proptest::prop_assert!(error.line >= 1, "{error}");
        }
    }
}
