//! Compares the links that were found with those that were expected.

use std::collections::BTreeMap;
use std::fmt;

use crate::graph::{End, Graph, Port};

/// An end of a link by name, and its port if ports are compared.
pub type NamedEnd = (String, Option<Port>);

/// One difference.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Difference {
    /// A host or switch that was expected is not there.
    MissingVertex(String),
    /// A host or switch is there that was not expected.
    ExtraVertex(String),
    /// A link that was expected is not there.
    Missing(NamedEnd, NamedEnd),
    /// A link is there that was not expected.
    Extra(NamedEnd, NamedEnd),
    /// A link leads from an end to another one than expected.
    Miswired {
        /// The end that is as expected.
        end: NamedEnd,
        /// The other end that was expected.
        expected: NamedEnd,
        /// The other end that was found.
        found: NamedEnd,
    },
}

fn shown(end: &NamedEnd) -> String {
    match end {
        (name, Some(port)) => format!("{name}:{port}"),
        (name, None) => name.clone(),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingVertex(name) => write!(f, "missing: {name}"),
            Self::ExtraVertex(name) => write!(f, "extra: {name}"),
            Self::Missing(a, b) => write!(f, "missing: link {} to {}", shown(a), shown(b)),
            Self::Extra(a, b) => write!(f, "extra: link {} to {}", shown(a), shown(b)),
            Self::Miswired { end, expected, found } => {
                let (end, expected, found) = (shown(end), shown(expected), shown(found));
                write!(f, "miswired: {end} leads to {found}, not to {expected}")
            }
        }
    }
}

/// The links of a graph that are not cut, by name, with the number of each.
fn links(graph: &Graph, has_ports: bool) -> BTreeMap<(NamedEnd, NamedEnd), u32> {
    let named = |end: End| (graph.name(end.0), has_ports.then_some(end.1));
    let mut links = BTreeMap::new();
    for (a, b, _) in graph.links().filter(|(_, _, is_cut)| !is_cut) {
        let (a, b) = (named(a), named(b));
        let link = if a < b { (a, b) } else { (b, a) };
        *links.entry(link).or_insert(0) += 1;
    }
    links
}

/// The differences between `found` and `expected`, whose vertices are matched by name. With
/// `has_ports` a link at another port is another link.
#[must_use]
pub fn differences(expected: &Graph, found: &Graph, has_ports: bool) -> Vec<Difference> {
    let names = |graph: &Graph| -> std::collections::BTreeSet<String> {
        (0..graph.vertices()).map(|vertex| graph.name(vertex)).collect()
    };
    let (expected_names, found_names) = (names(expected), names(found));
    let missing = expected_names.difference(&found_names).cloned();
    let extra = found_names.difference(&expected_names).cloned();
    let mut all: Vec<Difference> = missing.map(Difference::MissingVertex).collect();
    all.extend(extra.map(Difference::ExtraVertex));

    let (expected, found) = (links(expected, has_ports), links(found, has_ports));
    let surplus = |of: &BTreeMap<(NamedEnd, NamedEnd), u32>, over: &BTreeMap<_, u32>| {
        let mut more = Vec::new();
        for (link, count) in of {
            let others = over.get(link).copied().unwrap_or(0);
            more.extend(std::iter::repeat_n(link.clone(), count.saturating_sub(others) as usize));
        }
        more
    };
    let mut extra = surplus(&found, &expected);
    for (a, b) in surplus(&expected, &found) {
        // A missing link and an extra one with the same end are one that leads elsewhere.
        let shares = |link: &(NamedEnd, NamedEnd)| {
            [&link.0, &link.1].iter().any(|end| **end == a || **end == b)
        };
        let Some(place) = extra.iter().position(shares) else {
            all.push(Difference::Missing(a, b));
            continue;
        };
        let other = extra.remove(place);
        let (end, expected) = if other.0 == a || other.1 == a { (a, b) } else { (b, a) };
        let found = if other.0 == end { other.1 } else { other.0 };
        all.push(Difference::Miswired { end, expected, found });
    }
    all.extend(extra.into_iter().map(|(a, b)| Difference::Extra(a, b)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    fn graph(links: &str) -> Graph {
        let text = format!("hosts = [\"a\", \"b\", \"c\", \"d\"]\nlinks = [{links}]");
        file::parse(&text).expect("a graph").graph
    }

    fn told(expected: &str, found: &str, has_ports: bool) -> Vec<String> {
        let all = differences(&graph(expected), &graph(found), has_ports);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn missing_extra_and_miswired_links_are_told_apart() {
        let (ab, cd) = ("{ ends = [\"a:0\", \"b:0\"] }", "{ ends = [\"c:0\", \"d:0\"] }");
        let (ac, ab1) = ("{ ends = [\"a:0\", \"c:0\"] }", "{ ends = [\"a:1\", \"b:0\"] }");
        assert!(told(ab, ab, true).is_empty());
        assert_eq!(told(ab, "", true), ["missing: link a:0 to b:0"]);
        assert_eq!(told("", ab, false), ["extra: link a to b"]);
        assert_eq!(told(ab, ac, true), ["miswired: a:0 leads to c:0, not to b:0"]);
        assert_eq!(told(ab, ab1, true), ["miswired: b:0 leads to a:1, not to a:0"]);
        assert!(told(ab, ab1, false).is_empty());
        assert_eq!(told(ab, cd, false), ["missing: link a to b", "extra: link c to d"]);
        let twice = format!("{ab}, {{ ends = [\"a:1\", \"b:1\"] }}");
        assert_eq!(told(&twice, ab, false), ["missing: link a to b"]);
    }

    #[test]
    fn vertices_are_matched_by_name() {
        let other = file::parse("hosts = [\"a\", \"b\", \"c\", \"e\"]").expect("a graph").graph;
        let all = differences(&graph(""), &other, true);
        let told: Vec<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["missing: d", "extra: e"]);
    }
}
