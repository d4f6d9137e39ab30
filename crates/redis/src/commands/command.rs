//! COMMAND: the table of commands.

use std::collections::BTreeMap;

use weft_resp::Reply;

use super::{help as answer_help, is, shown};
use crate::call::Call;
use crate::fault::{Done, Fault, SYNTAX};
use crate::glob;
use crate::table::{self, Entry};

/// Commands with their subcommands, in order of their names.
fn tree() -> BTreeMap<&'static str, (&'static Entry, Vec<&'static Entry>)> {
    let mut tree: BTreeMap<_, (_, Vec<_>)> = BTreeMap::new();
    for entry in table::all() {
        match entry.name.split_once('|') {
            None => drop(tree.insert(entry.name, (entry, Vec::new()))),
            Some((container, _)) => {
                if let Some((_, inner)) = tree.get_mut(container) {
                    inner.push(entry);
                }
            }
        }
    }
    tree
}

fn of_tree(name: &[u8]) -> Option<(&'static Entry, Vec<&'static Entry>)> {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    match name.split_once('|') {
        None => tree().remove(name.as_str()),
        Some(_) => table::all().find(|entry| entry.name == name).map(|entry| (entry, Vec::new())),
    }
}

fn describe(reply: &mut Reply<'_>, entry: &Entry, inner: &[&Entry]) {
    let words = |reply: &mut Reply<'_>, text: &str, mark: &str| {
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        reply.set(words.len());
        words.iter().for_each(|word| reply.simple(&format!("{mark}{word}")));
    };
    reply.array(10);
    reply.bulk(entry.name.as_bytes());
    reply.integer(entry.arity.into());
    words(reply, entry.flags, "");
    let (first, last, step) = entry.keys;
    [first, last, step].into_iter().for_each(|place| reply.integer(place.into()));
    words(reply, entry.categories, "@");
    // Hints for clients that send one command to many nodes.
    reply.array(0);
    let specs: Vec<&str> = entry.specs.split(';').filter(|spec| !spec.is_empty()).collect();
    reply.set(specs.len());
    for spec in specs {
        describe_keys(reply, spec, &words);
    }
    reply.array(inner.len());
    inner.iter().for_each(|entry| describe(reply, entry, &[]));
}

/// A range of keys: `FLAGS@FIRST:LAST:STEP`.
fn describe_keys(reply: &mut Reply<'_>, spec: &str, words: &impl Fn(&mut Reply<'_>, &str, &str)) {
    let (flags, places) = spec.split_once('@').unwrap_or((spec, ""));
    let mut places = places.split(':').map(|place| place.parse::<i64>().unwrap_or(0));
    let mut next = || places.next().unwrap_or(0);
    reply.map(3);
    reply.bulk(b"flags");
    words(reply, flags, "");
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(next());
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    for (name, place) in [("lastkey", next()), ("keystep", next()), ("limit", 0)] {
        reply.bulk(name.as_bytes());
        reply.integer(place);
    }
}

pub(crate) fn command(call: &mut Call<'_, '_>) -> Done {
    let tree = tree();
    call.reply.array(tree.len());
    tree.values().for_each(|(entry, inner)| describe(call.reply, entry, inner));
    Ok(())
}

pub(crate) fn count(call: &mut Call<'_, '_>) -> Done {
    call.reply.size(tree().len());
    Ok(())
}

pub(crate) fn info(call: &mut Call<'_, '_>) -> Done {
    if call.words.len() == 2 {
        return command(call);
    }
    call.reply.array(call.words.len() - 2);
    for name in &call.words[2..] {
        match of_tree(name) {
            Some((entry, inner)) => describe(call.reply, entry, &inner),
            None => call.reply.null_array(),
        }
    }
    Ok(())
}

fn document(reply: &mut Reply<'_>, entry: &Entry, inner: &[&Entry]) {
    reply.bulk(entry.name.as_bytes());
    let facts = [
        ("summary", entry.summary),
        ("since", entry.since),
        ("group", entry.group),
        ("complexity", entry.complexity),
    ];
    let known = facts.iter().filter(|(_, text)| !text.is_empty());
    reply.map(known.clone().count() + usize::from(!inner.is_empty()));
    for (name, text) in known {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !inner.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(inner.len());
        inner.iter().for_each(|entry| document(reply, entry, &[]));
    }
}

pub(crate) fn docs(call: &mut Call<'_, '_>) -> Done {
    let found: Vec<_> = match &call.words[2..] {
        [] => tree().into_values().collect(),
        names => names.iter().filter_map(|name| of_tree(name)).collect(),
    };
    call.reply.map(found.len());
    found.iter().for_each(|(entry, inner)| document(call.reply, entry, inner));
    Ok(())
}

pub(crate) fn getkeys(call: &mut Call<'_, '_>) -> Done {
    let words = &call.words[2..];
    let entry = match call.server.entry(words) {
        Ok(entry) => entry,
        Err(Fault::Text(text)) if text.contains("wrong number") => {
            return Err("ERR Invalid number of arguments specified for command".into());
        }
        Err(_) => return Err("ERR Invalid command specified".into()),
    };
    let keys: Vec<&[u8]> = entry.keys_of(words).collect();
    if entry.keys.0 == 0 || keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    call.reply.array(keys.len());
    keys.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

pub(crate) fn list(call: &mut Call<'_, '_>) -> Done {
    let fits: Box<dyn Fn(&Entry) -> bool> = match &call.words[2..] {
        [] => Box::new(|_| true),
        [filter, option, value] if is(filter, "FILTERBY") && is(option, "PATTERN") => {
            let pattern = value.to_ascii_lowercase();
            Box::new(move |entry| glob::fits(&pattern, entry.name.as_bytes()))
        }
        [filter, option, value] if is(filter, "FILTERBY") && is(option, "ACLCAT") => {
            let wanted = shown(value).to_ascii_lowercase();
            Box::new(move |entry| entry.categories.split(' ').any(|it| it == wanted))
        }
        [filter, option, _] if is(filter, "FILTERBY") && is(option, "MODULE") => {
            Box::new(|_| false)
        }
        _ => return Err(SYNTAX),
    };
    let is_all = call.words.len() == 2;
    let names: Vec<&str> = table::all()
        .filter(|entry| fits(entry) && !(is_all && entry.name.contains('|')))
        .map(|entry| entry.name)
        .collect();
    call.reply.set(names.len());
    names.iter().for_each(|name| call.reply.bulk(name.as_bytes()));
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "COMMAND",
        &[
            "(no subcommand)",
            "    Describes all commands.",
            "COUNT",
            "    How many there are.",
            "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
            "    Their names.",
            "INFO [<command-name> ...]",
            "    Describes commands.",
            "DOCS [<command-name> ...]",
            "    Documents commands.",
            "GETKEYS <full-command>",
            "    The keys of a command.",
        ],
    )
}
