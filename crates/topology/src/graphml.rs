//! Graphs in GraphML, as other programs export them.
//!
//! A `node` is a host unless its data with the name `kind` or `type` is `switch`. Its name is its
//! `id`. An `edge` is a link; `sourceport` and `targetport` are numbers if they are there. Data of
//! an edge with the names `bandwidth_mbit`, `latency_ns` and `weight` have the meaning that they
//! have in [`crate::file`]; other data are left out. Links go both ways, so directed edges are
//! refused.

use std::collections::HashMap;

use roxmltree::{Document, Node};

use crate::file::{Collector, Described, FileError};
use crate::graph::{Kind, LinkClass, Port};

/// Reads the first graph of a document.
///
/// # Errors
/// [`FileError`] names the line of the first fault.
pub fn parse(text: &str) -> Result<Described, FileError> {
    let document =
        Document::parse(text).map_err(|error| FileError::new(error.pos().row as usize, error))?;
    let line = |node: &Node| document.text_pos_at(node.range().start).row as usize;
    let mut names = HashMap::new();
    for key in document.descendants().filter(|node| node.has_tag_name("key")) {
        names.extend(key.attribute("id").zip(key.attribute("attr.name")));
    }
    let is_graph = |node: &Node| node.tag_name().name() == "graph";
    let graph = document
        .descendants()
        .find(is_graph)
        .ok_or_else(|| FileError::new(1, "there is no element `graph`; give a file in GraphML"))?;
    let is_directed = graph.attribute("edgedefault") == Some("directed");
    let mut collector = Collector::default();
    for node in graph.children().filter(|node| node.tag_name().name() == "node") {
        let kind = match value(&names, &node, &["kind", "type"]) {
            Some("switch") => Kind::Switch,
            _ => Kind::Host,
        };
        collector.vertex(line(&node), kind, attribute(&node, "id", line(&node))?)?;
    }
    for edge in graph.children().filter(|node| node.tag_name().name() == "edge") {
        let line = line(&edge);
        let directed = edge.attribute("directed").map_or(is_directed, |value| value == "true");
        if directed {
            let reason = "the edge is directed, and links go both ways; export an undirected graph";
            return Err(FileError::new(line, reason));
        }
        let ends = [
            (attribute(&edge, "source", line)?, port(&edge, "sourceport", line)?),
            (attribute(&edge, "target", line)?, port(&edge, "targetport", line)?),
        ];
        let number = |name: &str| {
            let wrong = |text: &str| {
                FileError::new(line, format!("{name} is {text:?}, not a number; correct it"))
            };
            let text = value(&names, &edge, &[name]);
            text.map_or(Ok(0), |text| text.trim().parse::<u32>().map_err(|_| wrong(text)))
        };
        let class = LinkClass {
            bandwidth: u64::from(number("bandwidth_mbit")?) * 1_000_000,
            latency: number("latency_ns")?.into(),
            weight: number("weight")?,
        };
        collector.link(line, ends, class)?;
    }
    collector.graph()
}

fn attribute<'a>(node: &Node<'a, '_>, name: &str, line: usize) -> Result<&'a str, FileError> {
    node.attribute(name).ok_or_else(|| {
        let element = node.tag_name().name();
        FileError::new(line, format!("the element `{element}` has no `{name}`; add it"))
    })
}

fn port(edge: &Node, name: &str, line: usize) -> Result<Option<Port>, FileError> {
    let wrong =
        |text| FileError::new(line, format!("{name} is {text:?}, not the number of a port"));
    let text = edge.attribute(name);
    text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

/// The data of an element under the first of `wanted` that it has.
fn value<'a>(
    names: &HashMap<&str, &str>,
    element: &Node<'a, '_>,
    wanted: &[&str],
) -> Option<&'a str> {
    let data = || element.children().filter(|child| child.tag_name().name() == "data");
    wanted.iter().find_map(|name| {
        let has_name = |child: &Node| {
            let key = child.attribute("key").unwrap_or_default();
            names.get(key).copied().unwrap_or(key) == *name
        };
        data().find(has_name).and_then(|child| child.text())
    })
}

#[cfg(test)]
mod tests {
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
            ("<edge source=\"a\" target=\"b\" directed=\"true\"/>", 7, "directed"),
            ("<edge source=\"a\" target=\"b\" sourceport=\"up\"/>", 7, "sourceport"),
            (
                "<edge source=\"a\" target=\"b\"><data key=\"d1\">soon</data></edge>",
                7,
                "latency_ns",
            ),
            ("<node id=\"a\"/>", 7, "twice"),
            ("\n\n<edge", 9, ""),
        ];
        for (edges, line, word) in line_and_word {
            let error = with(edges).expect_err(edges);
            assert_eq!(error.line, line, "{edges}: {error}");
            assert!(error.reason.contains(word), "{edges}: {error}");
        }
        assert!(parse("<a/>").is_err_and(|error| error.reason.contains("graph")));
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
}
