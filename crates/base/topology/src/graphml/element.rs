//! Elements of a document, and the errors that name their lines.

use roxmltree::Node;

use crate::file::{FileError, Lines};
use crate::graph::Port;

/// An element of a document.
pub type Element<'a> = Node<'a, 'a>;

/// The elements in an element.
pub fn elements<'a>(of: Element<'a>) -> impl Iterator<Item = Element<'a>> {
    of.children().filter(Node::is_element)
}

/// Reads elements of the document of these lines.
pub struct Elements<'a>(pub Lines<'a>);

impl<'a> Elements<'a> {
    /// The line of an element.
    pub fn line(&self, element: Element) -> usize {
        self.0.at(element.range().start)
    }

    /// An error at an element.
    pub fn error(&self, element: Element, reason: impl ToString) -> FileError {
        FileError::new(self.line(element), reason)
    }

    /// The error for an element that says something of which nothing is known.
    pub fn unknown(&self, element: Element) -> FileError {
        let name = element.tag_name().name();
        self.error(element, format!("an element `{name}` has no meaning here; remove it"))
    }

    /// The name of an element of GraphML.
    ///
    /// # Errors
    /// It is of another language, which may be in `data` alone.
    pub fn name(&self, element: Element<'a>) -> Result<&'a str, FileError> {
        let language = |element: Element<'a>| element.tag_name().namespace();
        if element.parent_element().and_then(language) != language(element) {
            return Err(self.unknown(element));
        }
        Ok(element.tag_name().name())
    }

    /// Refuses elements in an element, but data and descriptions.
    pub fn only_data_in(&self, element: Element<'a>) -> Result<(), FileError> {
        for child in elements(element) {
            if !["data", "desc"].contains(&self.name(child)?) {
                return Err(self.unknown(child));
            }
        }
        Ok(())
    }

    /// Refuses attributes, but those that are known, those of other languages, and extensions,
    /// which have a point in their names.
    pub fn only_attributes(&self, element: Element, known: &[&str]) -> Result<(), FileError> {
        let is_known = |name: &str| known.contains(&name) || name.contains('.');
        let mut own = element.attributes().filter(|attribute| attribute.namespace().is_none());
        let Some(odd) = own.find(|attribute| !is_known(attribute.name())) else { return Ok(()) };
        let (element_name, name) = (element.tag_name().name(), odd.name());
        let reason = format!(
            "`{name}` has no meaning at an element `{element_name}`; correct it, or remove it"
        );
        Err(self.error(element, reason))
    }

    /// The value of an attribute that has to be there.
    pub fn attribute(&self, element: Element<'a>, name: &str) -> Result<&'a str, FileError> {
        element.attribute(name).ok_or_else(|| {
            let element_name = element.tag_name().name();
            self.error(element, format!("the element `{element_name}` has no `{name}`; add it"))
        })
    }

    /// Whether edges are directed, as an attribute says with one of these words.
    pub fn is_directed(
        &self,
        element: Element,
        name: &str,
        (yes, no): (&[&str], &[&str]),
    ) -> Result<Option<bool>, FileError> {
        match element.attribute(name) {
            None => Ok(None),
            Some(text) if yes.contains(&text) => Ok(Some(true)),
            Some(text) if no.contains(&text) => Ok(Some(false)),
            Some(text) => {
                let reason =
                    format!("{name} is {text:?}, neither {} nor {}; correct it", yes[0], no[0]);
                Err(self.error(element, reason))
            }
        }
    }

    /// The number of a port, as an attribute says.
    pub fn port(&self, element: Element, name: &str) -> Result<Option<Port>, FileError> {
        let Some(text) = element.attribute(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            self.error(element, format!("{name} is {text:?}, not the number of a port; correct it"))
        })
    }

    /// The text in an element; `None` if there is none.
    pub fn text(&self, of: Element) -> Result<Option<String>, FileError> {
        if let Some(child) = elements(of).next() {
            return Err(self.error(child, "this value is a text, without elements; correct it"));
        }
        // A comment parts a text.
        let parts = of.children().filter(Node::is_text).filter_map(|part| part.text());
        let text: String = parts.collect();
        let text = text.trim();
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}
