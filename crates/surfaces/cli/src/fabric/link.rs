//! `weft fabric fail` and `heal`, and the names of links.

use anyhow::{Context, bail};
use weft_topology::{End, Graph};

use super::network::vertex;
use super::running;
use crate::arguments::network::LinkArguments;
use crate::configuration::Configuration;

/// The port of the link that `text` names: `n0:2` by a port, or `n0-n1` by its two nodes.
///
/// # Errors
/// There is no such link, or there are several of this name.
pub fn find(graph: &Graph, text: &str) -> anyhow::Result<End> {
    if let Some((name, port)) = text.split_once(':') {
        let node = vertex(graph, name)?;
        let port = port.parse().ok().filter(|port| graph.wired(node, *port).is_some());
        let port = port.with_context(|| {
            format!(
                "there is no link {text:?}; name a port with a link, below {}",
                graph.ports(node)
            )
        })?;
        return Ok((node, port));
    }
    // A name of a host may have the sign between two names in it.
    let halves = text
        .match_indices('-')
        .filter_map(|(at, _)| Some((graph.find(&text[..at])?, graph.find(&text[at + 1..])?)));
    let pairs: Vec<_> = halves.collect();
    let ends = pairs.iter().flat_map(|(a, b)| {
        (0..graph.ports(*a))
            .filter(|port| graph.wired(*a, *port).is_some_and(|(far, _)| far == *b))
            .map(|port| (*a, port))
    });
    let ends: Vec<End> = ends.collect();
    match (ends.as_slice(), pairs.as_slice()) {
        ([end], _) => Ok(*end),
        ([], [(a, b), ..]) => bail!(
            "there is no link between {} and {}; `weft fabric show` lists the links",
            graph.name(*a),
            graph.name(*b)
        ),
        ([], []) => bail!(
            "{text:?} names no link; name one by its two nodes as {}-{}, or by a port as {0}:0",
            graph.name(0),
            graph.name(graph.vertices().saturating_sub(1))
        ),
        (several, _) => {
            let names: Vec<_> =
                several.iter().map(|(a, p)| format!("{}:{p}", graph.name(*a))).collect();
            bail!("there are several links {text:?}; name one by its port: {}", names.join(", "))
        }
    }
}

/// `weft fabric fail` and `weft fabric heal`.
pub fn set(
    arguments: &LinkArguments,
    is_cut: bool,
    configuration: &Configuration,
) -> anyhow::Result<()> {
    let (socket, network) = running::ask(arguments.daemon.node.as_deref(), configuration)?;
    let graph = running::graph(&network)?;
    let end = find(&graph, &arguments.link)?;
    crate::lab::set_link(&socket, &graph, end, is_cut)
}

#[cfg(test)]
mod tests {
    use weft_topology::{GraphBuilder, Kind, Layout, LinkClass, Shape};

    use super::*;

    #[test]
    fn links_have_names_by_port_and_by_node() {
        let ring = "torus:4".parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a ring");
        assert_eq!(find(&ring, "n1:0").expect("a link"), (1, 0));
        let (node, port) = find(&ring, "n3-n0").expect("a link");
        assert_eq!((node, ring.far(node, port).map(|(far, _)| far)), (3, Some(0)));
        for (wrong, told) in [
            ("n0-n2", "no link between n0 and n2"),
            ("n0:7", "below 2"),
            ("n0:x", "below 2"),
            ("n9:0", "n0 to n3"),
            ("n0", "names no link"),
            ("n0-x", "names no link"),
            ("", "names no link"),
        ] {
            let error = find(&ring, wrong).expect_err(wrong).to_string();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn two_links_of_one_name_are_named_by_their_ports() {
        let mut builder = GraphBuilder::new();
        let [a, b] = ["rack-1", "rack-2"].map(|name| builder.named(Kind::Host, name).expect("new"));
        for port in [3, 5] {
            builder.link((a, port), (b, port), LinkClass::default()).expect("free");
        }
        let graph = builder.build(Layout::Irregular).expect("a graph");
        let error = find(&graph, "rack-1-rack-2").expect_err("two").to_string();
        assert!(error.contains("rack-1:3, rack-1:5"), "{error}");
        assert_eq!(find(&graph, "rack-2:5").expect("one"), (b, 5));
    }
}
