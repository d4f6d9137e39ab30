//! Graphs as text: for Graphviz, as JSON, and as TOML that [`crate::file`] reads.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::graph::{End, Graph, Kind, LinkClass};

/// The graph in the language of Graphviz. Cut links are dashed.
#[must_use]
pub fn graphviz(graph: &Graph) -> String {
    let mut text = String::from("graph fabric {\n");
    for vertex in 0..graph.vertices() {
        let shape = match graph.kind(vertex) {
            Some(Kind::Switch) => "box",
            _ => "ellipse",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "  \"{}\" [shape={shape}];", graph.name(vertex));
    }
    for (a, b, is_cut) in graph.links() {
        let style = if is_cut { ", style=dashed" } else { "" };
        let (name_a, name_b) = (graph.name(a.0), graph.name(b.0));
        let ports = format!("taillabel=\"{}\", headlabel=\"{}\"", a.1, b.1);
        let _ = writeln!(text, "  \"{name_a}\" -- \"{name_b}\" [{ports}{style}];");
    }
    text.push_str("}\n");
    text
}

/// The graph as JSON: `hosts`, `switches`, and `links` with name and port of both ends.
#[must_use]
pub fn json(graph: &Graph) -> Value {
    let names = |kind: Kind| -> Vec<String> {
        let vertices = (0..graph.vertices()).filter(|vertex| graph.kind(*vertex) == Some(kind));
        vertices.map(|vertex| graph.name(vertex)).collect()
    };
    let end = |end: End| json!({ "vertex": graph.name(end.0), "port": end.1 });
    let links: Vec<Value> = (graph.links())
        .map(|(a, b, is_cut)| {
            let mut link = json!({ "ends": [end(a), end(b)], "cut": is_cut });
            let LinkClass { bandwidth, latency, weight } = graph.class(a.0, a.1);
            for (key, value) in
                [("bandwidth_bit", bandwidth), ("latency_ns", latency), ("weight", weight.into())]
            {
                if value > 0 {
                    link[key] = value.into();
                }
            }
            link
        })
        .collect();
    json!({ "hosts": names(Kind::Host), "switches": names(Kind::Switch), "links": links })
}

/// The graph as a file of [`crate::file`], with all ports. Cut links are left out.
#[must_use]
pub fn toml(graph: &Graph) -> String {
    let names = |kind: Kind| {
        let vertices = (0..graph.vertices()).filter(|vertex| graph.kind(*vertex) == Some(kind));
        let quoted: Vec<_> = vertices.map(|vertex| format!("{:?}", graph.name(vertex))).collect();
        quoted.join(", ")
    };
    let mut text = format!("hosts = [{}]\n", names(Kind::Host));
    let _ = writeln!(text, "switches = [{}]\nlinks = [", names(Kind::Switch));
    for (a, b, _) in graph.links().filter(|(_, _, is_cut)| !is_cut) {
        let end = |end: End| format!("\"{}:{}\"", graph.name(end.0), end.1);
        let _ = write!(text, "  {{ ends = [{}, {}]", end(a), end(b));
        let LinkClass { bandwidth, latency, weight } = graph.class(a.0, a.1);
        for (key, value) in [
            ("bandwidth_mbit", bandwidth / 1_000_000),
            ("latency_ns", latency),
            ("weight", weight.into()),
        ] {
            if value > 0 {
                let _ = write!(text, ", {key} = {value}");
            }
        }
        text.push_str(" },\n");
    }
    text.push_str("]\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use crate::shape::Shape;

    fn tree() -> Graph {
        "fattree:2x2".parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
    }

    #[test]
    fn a_graph_in_toml_is_read_as_the_same_links() {
        let graph = tree();
        let text = toml(&graph).replacen(" },", ", latency_ns = 5 },", 1);
        let read = file::parse(&text).expect("a graph");
        assert!(read.has_ports);
        assert_eq!(read.graph.links().collect::<Vec<_>>(), graph.links().collect::<Vec<_>>());
        assert_eq!(toml(&read.graph), text);
    }

    #[test]
    fn graphviz_and_json_have_every_vertex_and_link() {
        let mut graph = tree();
        graph.set_cut(0, 0, true);
        let dot = graphviz(&graph);
        assert_eq!(dot.matches(" -- ").count(), 8, "{dot}");
        assert_eq!(dot.matches("dashed").count(), 1, "{dot}");
        assert!(dot.contains("\"n3\" [shape=ellipse]") && dot.contains("\"s4\" [shape=box]"));
        let json = json(&graph);
        assert_eq!(json["hosts"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["switches"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["links"][0]["ends"][1]["vertex"], "s4");
        assert_eq!(json["links"][0]["cut"], true);
    }
}
