//! Manual pages of section 3: one for each generic name or function of no type.

use std::fmt::Write as _;

use crate::{Origin, Row, prose, rows};

/// A manual page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Its file name, such as `shmem_put.3`.
    pub file: String,
    /// Its text for roff.
    pub text: String,
}

/// All pages: a page for each name, and one that leads to it for each further function.
#[must_use]
pub fn all() -> Vec<Page> {
    let mut pages: Vec<(String, Vec<Row>)> = Vec::new();
    for row in rows() {
        let name = subject(&row);
        match pages.iter_mut().find(|(of, _)| *of == name) {
            Some((_, rows)) => rows.push(row),
            None => pages.push((name, vec![row])),
        }
    }
    pages.into_iter().flat_map(|(name, rows)| page(&name, &rows)).collect()
}

/// The name under which a row is described.
fn subject(row: &Row) -> String {
    if let Some(generic) = row.generic {
        return format!("shmem_{generic}");
    }
    let name = row.name_without_type();
    match name.strip_prefix('=') {
        Some(whole) => whole.to_owned(),
        None => format!("shmem_{name}"),
    }
}

fn page(name: &str, rows: &[Row]) -> Vec<Page> {
    let sentence = prose::sentence(&rows[0]).unwrap_or_default();
    let short = sentence.split(['.', ':', ';']).next().unwrap_or(sentence);
    let mut text = format!(
        ".TH {} 3 \"\" weft \"OpenSHMEM 1.6\"\n.SH NAME\n{name} \\- {short}\n.SH SYNOPSIS\n.nf\n\
         #include <shmem.h>\n\n",
        name.to_uppercase()
    );
    let mut others = Vec::new();
    for function in rows.iter().flat_map(Row::functions) {
        writeln!(text, "{};", function.prototype(&function.name)).expect("it is a string");
        if function.name != name {
            others.push(function.name);
        }
    }
    write!(text, ".fi\n.SH DESCRIPTION\n{sentence}\n").expect("it is a string");
    if rows.iter().any(|row| row.generic.is_some()) {
        writeln!(text, "In C11 and in C++, {name} chooses the function by the type.")
            .expect("it is a string");
    }
    if rows.iter().all(|row| row.standing == Origin::Deprecated) {
        text.push_str("The specification calls it deprecated.\n");
    }
    text.push_str(".SH SEE ALSO\nThe OpenSHMEM specification, version 1.6.\n");
    let links = others
        .into_iter()
        .map(|other| Page { file: format!("{other}.3"), text: format!(".so man3/{name}.3\n") });
    let own = Page { file: format!("{name}.3"), text };
    std::iter::once(own).chain(links).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_function_has_a_page_and_no_page_is_there_twice() {
        let mut files = BTreeSet::new();
        for page in all() {
            assert!(files.insert(page.file.clone()), "{} is there twice", page.file);
        }
        for function in rows().iter().flat_map(Row::functions) {
            let file = format!("{}.3", function.name);
            assert!(files.contains(&file), "{file}");
        }
    }
}
