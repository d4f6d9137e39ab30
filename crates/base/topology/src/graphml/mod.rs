//! Graphs in GraphML, as other programs export them.
//!
//! A `node` is a host unless its data with the name `kind` (or `type`, if it has no `kind`) is
//! `switch`. Its name is its `id`. An `edge` is a link; `sourceport` and `targetport` are numbers
//! if they are there. Data of an edge with the names `bandwidth_mbit`, `latency_ns` and `weight`
//! have the meaning that they have in [`crate::file`]; a whole number may be written as `2.0`. The
//! `default` of a key holds for each node or edge without data of that key.
//!
//! A directed edge is a link, too, since yEd writes no others. Two in opposite directions may be
//! one link or two. So they are refused, unless they name their ports.
//!
//! Other data are left out, and [`Described::left_out`] names them. Anything else that a document
//! may say is refused: a second graph, a graph in a node, a hyperedge, an element or an attribute
//! that has no meaning in GraphML.

mod element;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use roxmltree::Document;

use self::element::{Element, Elements, elements};
use crate::file::{Collector, Described, FileError, Lines};
use crate::graph::{Kind, LinkClass, Port};

const BANDWIDTH: &str = "bandwidth_mbit";
const LATENCY: &str = "latency_ns";
const WEIGHT: &str = "weight";
/// The names of data of a node, the first of which holds, and of an edge.
const OF_NODES: [&str; 2] = ["kind", "type"];
const OF_EDGES: [&str; 3] = [BANDWIDTH, LATENCY, WEIGHT];
/// Data that yEd gives to every node and edge. They say nothing about a network.
const OF_EDITORS: [&str; 2] = ["url", "description"];

/// Reads the graph of a document.
///
/// # Errors
/// [`FileError`] names the line of the first fault.
pub fn parse(text: &str) -> Result<Described, FileError> {
    let document =
        Document::parse(text).map_err(|error| FileError::new(error.pos().row as usize, error))?;
    let mut reader = Reader::of(text);
    let root = document.root_element();
    if root.tag_name().name() != "graphml" {
        let reason = format!(
            "the file has an element `{}` in place of `graphml`; give a file in GraphML",
            root.tag_name().name()
        );
        return Err(reader.elements.error(root, reason));
    }
    let mut graph = None;
    for child in elements(root) {
        match reader.elements.name(child)? {
            "key" => reader.key(child)?,
            "data" | "desc" => {}
            "graph" if graph.is_none() => graph = Some(child),
            "graph" => {
                let reason = "this is a second graph, and a network is one; give each a file of \
                              its own";
                return Err(reader.elements.error(child, reason));
            }
            _ => return Err(reader.elements.unknown(child)),
        }
    }
    match graph {
        Some(graph) => reader.graph(graph),
        None => Err(reader.elements.error(root, "there is no element `graph`; add it")),
    }
}

/// A kind of data, as a `key` declares it.
struct Key<'a> {
    /// Its name in lower case; that of the declaration if it means nothing here.
    name: String,
    /// The elements that have it: `node`, `edge`, `all` or others.
    domain: &'a str,
    /// True if a person gave it its name, unlike the drawings of an editor.
    is_named: bool,
}

/// The value of a key for elements without data of it.
struct Default<'a> {
    name: String,
    domain: &'a str,
    text: String,
}

/// Whether a key for `domain` is for this element.
fn is_for(domain: &str, element: Element) -> bool {
    [element.tag_name().name(), "all"].contains(&domain)
}

/// The data of a node or an edge that have a meaning, by name.
type Data = HashMap<String, String>;

/// A directed edge.
struct Directed<'a> {
    line: usize,
    ends: [(&'a str, Option<Port>); 2],
    class: LinkClass,
}

/// The known parts of a document, while it is read.
struct Reader<'a> {
    elements: Elements<'a>,
    keys: HashMap<&'a str, Key<'a>>,
    defaults: Vec<Default<'a>>,
    /// Directed edges by the names of their ends.
    directed: HashMap<(&'a str, &'a str), Vec<Directed<'a>>>,
    left_out: BTreeSet<String>,
    collector: Collector,
}

impl<'a> Reader<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            elements: Elements(Lines::of(text)),
            keys: HashMap::new(),
            defaults: Vec::new(),
            directed: HashMap::new(),
            left_out: BTreeSet::new(),
            collector: Collector::default(),
        }
    }

    fn key(&mut self, element: Element<'a>) -> Result<(), FileError> {
        let id = self.elements.attribute(element, "id")?;
        let given = element.attribute("attr.name");
        let name = given.unwrap_or(id);
        let lower = name.to_ascii_lowercase();
        let has_meaning = OF_NODES.iter().chain(&OF_EDGES).any(|known| *known == lower);
        let key = Key {
            name: if has_meaning { lower } else { name.to_owned() },
            domain: element.attribute("for").unwrap_or("all"),
            is_named: given.is_some() && !OF_EDITORS.contains(&name),
        };
        for child in elements(element) {
            match self.elements.name(child)? {
                "default" if has_meaning => self.default(child, &key)?,
                "default" if key.is_named => drop(self.left_out.insert(name.to_owned())),
                "default" | "desc" => {}
                _ => return Err(self.elements.unknown(child)),
            }
        }
        if self.keys.insert(id, key).is_some() {
            let reason = format!("there is a key {id:?} before; give one of them another `id`");
            return Err(self.elements.error(element, reason));
        }
        Ok(())
    }

    fn default(&mut self, element: Element<'a>, key: &Key<'a>) -> Result<(), FileError> {
        let Some(text) = self.elements.text(element)? else { return Ok(()) };
        let (name, domain) = (key.name.clone(), key.domain);
        let overlaps = |other: &Default| {
            let is_same = other.domain == domain || [other.domain, domain].contains(&"all");
            other.name == name && is_same && other.text != text
        };
        if self.defaults.iter().any(overlaps) {
            let reason = format!("{name} has another default before; remove one of them");
            return Err(self.elements.error(element, reason));
        }
        self.defaults.push(Default { name, domain, text });
        Ok(())
    }

    fn graph(mut self, graph: Element<'a>) -> Result<Described, FileError> {
        self.elements.only_attributes(graph, &["id", "edgedefault"])?;
        let words: (&[_], &[_]) = (&["directed"], &["undirected"]);
        let is_directed = self.elements.is_directed(graph, "edgedefault", words)?.unwrap_or(false);
        let mut edges = Vec::new();
        for child in elements(graph) {
            match self.elements.name(child)? {
                "node" => self.node(child)?,
                "edge" => edges.push(child),
                "data" | "desc" => {}
                "hyperedge" => {
                    let reason = "a hyperedge may have more ends than the two of a link; write a \
                                  node that is a switch, and an edge to each end";
                    return Err(self.elements.error(child, reason));
                }
                _ => return Err(self.elements.unknown(child)),
            }
        }
        for edge in edges {
            self.edge(edge, is_directed)?;
        }
        let left_out = self.left_out.into_iter().collect();
        Ok(Described { left_out, ..self.collector.graph()? })
    }

    fn node(&mut self, node: Element<'a>) -> Result<(), FileError> {
        self.elements.only_attributes(node, &["id"])?;
        for child in elements(node) {
            match self.elements.name(child)? {
                "data" | "desc" => {}
                "port" => {
                    // Its number is all that an edge needs of it.
                    self.elements.only_attributes(child, &["name"])?;
                    self.elements.port(child, "name")?;
                    self.elements.only_data_in(child)?;
                }
                "graph" => {
                    let reason = "a node of a network has no graph in it; dissolve the group";
                    return Err(self.elements.error(child, reason));
                }
                _ => return Err(self.elements.unknown(child)),
            }
        }
        let data = self.data(node, &OF_NODES)?;
        let told = OF_NODES.iter().find_map(|name| Some((name, data.get(*name)?)));
        let kind = match told {
            None => Kind::Host,
            Some((_, kind)) if kind.eq_ignore_ascii_case("host") => Kind::Host,
            Some((_, kind)) if kind.eq_ignore_ascii_case("switch") => Kind::Switch,
            Some((name, kind)) => {
                let reason = format!(
                    "the {name} is {kind:?}, neither host nor switch; correct it, or give the \
                     node a `kind`, which comes before `type`"
                );
                return Err(self.elements.error(node, reason));
            }
        };
        let id = self.elements.attribute(node, "id")?;
        self.collector.vertex(self.elements.line(node), kind, id)
    }

    fn edge(&mut self, edge: Element<'a>, is_directed: bool) -> Result<(), FileError> {
        let known = ["id", "source", "target", "sourceport", "targetport", "directed"];
        self.elements.only_attributes(edge, &known)?;
        self.elements.only_data_in(edge)?;
        let words: (&[_], &[_]) = (&["true", "1"], &["false", "0"]);
        let own = self.elements.is_directed(edge, "directed", words)?;
        let [source, target] = ["source", "target"].map(|name| {
            let port = self.elements.port(edge, &format!("{name}port"));
            self.elements.attribute(edge, name).and_then(|name| Ok((name, port?)))
        });
        let ends = [source?, target?];
        let data = self.data(edge, &OF_EDGES)?;
        let number = |name| number(&data, name).map_err(|fault| self.elements.error(edge, fault));
        let class = LinkClass {
            bandwidth: u64::from(number(BANDWIDTH)?) * 1_000_000,
            latency: number(LATENCY)?.into(),
            weight: number(WEIGHT)?,
        };
        let line = self.elements.line(edge);
        let is_directed = own.unwrap_or(is_directed);
        if is_directed && self.is_way_back(Directed { line, ends, class })? {
            return Ok(());
        }
        self.collector.link(line, ends, class)
    }

    /// Notes a directed edge. True if it is the way back of one before it, so that the two are one
    /// link.
    fn is_way_back(&mut self, edge: Directed<'a>) -> Result<bool, FileError> {
        let [from, to] = edge.ends;
        let opposite = self.directed.get(&(to.0, from.0)).map_or(&[][..], Vec::as_slice);
        for other in opposite {
            let all = [edge.ends, other.ends];
            let reason = if all.as_flattened().iter().any(|(_, port)| port.is_none()) {
                format!(
                    "this edge leads back where the one on line {} comes from; write one \
                     undirected edge for each link, or name the ports of both",
                    other.line
                )
            } else if other.ends != [to, from] {
                continue;
            } else if other.class != edge.class {
                format!(
                    "this edge and the one on line {} are one link, whose properties are the same \
                     both ways; correct one of them",
                    other.line
                )
            } else {
                return Ok(true);
            };
            return Err(FileError::new(edge.line, reason));
        }
        self.directed.entry((from.0, to.0)).or_default().push(edge);
        Ok(false)
    }

    /// The data of a node or an edge that are among the `known` ones, with the defaults of keys.
    fn data(&mut self, of: Element<'a>, known: &[&str]) -> Result<Data, FileError> {
        let mut given = Data::new();
        for data in elements(of).filter(|child| child.tag_name().name() == "data") {
            let id = self.elements.attribute(data, "key")?;
            let name = match self.keys.get(id) {
                Some(key) if known.contains(&key.name.as_str()) => {
                    if !is_for(key.domain, of) {
                        let reason =
                            format!("the key {id:?} is for {:?}; correct that", key.domain);
                        return Err(self.elements.error(data, reason));
                    }
                    &key.name
                }
                Some(key) => {
                    if key.is_named && !self.left_out.contains(&key.name) {
                        self.left_out.insert(key.name.clone());
                    }
                    continue;
                }
                None if known.contains(&id) => id,
                None => {
                    let reason = format!("there is no key {id:?}; declare it, or correct the name");
                    return Err(self.elements.error(data, reason));
                }
            };
            let Some(text) = self.elements.text(data)? else { continue };
            if given.insert(name.to_owned(), text).is_some() {
                return Err(self
                    .elements
                    .error(data, format!("{name} is there twice; remove one")));
            }
        }
        for Default { name, domain, text } in &self.defaults {
            if known.contains(&name.as_str()) && is_for(domain, of) && !given.contains_key(name) {
                given.insert(name.clone(), text.clone());
            }
        }
        Ok(given)
    }
}

/// A number of a link; 0 if it is not told.
fn number(data: &Data, name: &str) -> Result<u32, String> {
    let Some(text) = data.get(name) else { return Ok(0) };
    let whole = text
        .parse::<f64>()
        .ok()
        .filter(|number| number.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(number));
    let whole = whole.and_then(|number| format!("{number:.0}").parse::<u32>().ok());
    whole.ok_or_else(|| {
        format!("{name} is {text:?}, not a whole number from 1 to {}; correct it", u32::MAX)
    })
}
