//! CONFIG: parameters.

use std::collections::BTreeMap;

use weft_kv::node::Durability;

use super::{help as answer_help, shown};
use crate::call::Call;
use crate::fault::Done;
use crate::glob;
use crate::server::Server;

/// All parameters with their values; those that cannot be set are as they are for good.
fn all(server: &Server) -> BTreeMap<&'static str, String> {
    let settings = &server.settings;
    let fsync = match server.node.durability() {
        Durability::Replicated => "no",
        Durability::Durable | Durability::DurableAll => "always",
    };
    let yes_no = |it: bool| if it { "yes" } else { "no" }.to_owned();
    let mut all: BTreeMap<_, _> = server.parameters.all().into_iter().collect();
    all.extend([
        ("appendfsync", fsync.to_owned()),
        ("appendonly", yes_no(true)),
        ("bind", settings.bind.clone()),
        ("cluster-enabled", yes_no(server.view.is_cluster)),
        ("daemonize", yes_no(false)),
        ("databases", "1".to_owned()),
        ("dir", settings.directory.clone()),
        ("hz", "10".to_owned()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", settings.port.to_string()),
        ("protected-mode", yes_no(settings.password.is_none())),
        ("requirepass", String::new()),
        ("save", String::new()),
        ("tcp-backlog", "511".to_owned()),
    ]);
    all
}

pub(crate) fn get(call: &mut Call<'_, '_>) -> Done {
    let mut found = all(call.server);
    found.retain(|name, _| {
        let fits = |pattern: &&[u8]| glob::fits(&pattern.to_ascii_lowercase(), name.as_bytes());
        call.words[2..].iter().any(fits)
    });
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

pub(crate) fn set(call: &mut Call<'_, '_>) -> Done {
    let (pairs, rest) = call.words[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(crate::fault::SYNTAX);
    }
    let fixed = all(call.server);
    let mut parameters = call.server.parameters.clone();
    for [name, value] in pairs {
        let shown = shown(name);
        let failed = |why: &str| {
            format!("ERR CONFIG SET failed (possibly related to argument '{shown}') - {why}")
        };
        match parameters.set(name, value) {
            Some(Some(())) => {}
            Some(None) => return Err(failed("argument is no number, or out of range").into()),
            None => match fixed.get(shown.to_ascii_lowercase().as_str()) {
                // The value in force can be set again.
                Some(now) if now.as_bytes() == *value => {}
                Some(_) => return Err(failed("can't set immutable config").into()),
                None => {
                    let what = "Unknown option or number of arguments for CONFIG SET";
                    return Err(format!("ERR {what} - '{shown}'").into());
                }
            },
        }
    }
    call.server.parameters = parameters;
    call.reply.ok();
    Ok(())
}

pub(crate) fn resetstat(call: &mut Call<'_, '_>) -> Done {
    call.server.counters = crate::server::Counters::default();
    call.reply.ok();
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "CONFIG",
        &[
            "GET <pattern> [<pattern> ...]",
            "    Parameters that fit, with their values.",
            "SET <parameter> <value> [<parameter> <value> ...]",
            "    Sets parameters until the server ends.",
            "RESETSTAT",
            "    Sets the counters of INFO to zero.",
        ],
    )
}
