//! Connections: greeting, password, protocol.

use weft_resp::Protocol;

use super::{integer, is, shown};
use crate::call::Call;
use crate::client::{Client, ReplyMode};
use crate::fault::{Done, Fault, SYNTAX};
use crate::server::REDIS_VERSION;

pub(crate) fn ping(call: &mut Call<'_, '_>) -> Done {
    match call.words {
        [_] => call.reply.simple("PONG"),
        [_, message] => call.reply.bulk(message),
        _ => return Err("ERR wrong number of arguments for 'ping' command".into()),
    }
    Ok(())
}

pub(crate) fn echo(call: &mut Call<'_, '_>) -> Done {
    call.reply.bulk(call.words[1]);
    Ok(())
}

/// Checks a password. The time that it takes says nothing about it but its length.
fn check(call: &Call<'_, '_>, user: &[u8], password: &[u8]) -> Done {
    let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
    if user != b"default" {
        return Err(wrong.into());
    }
    let Some(wanted) = &call.server.settings.password else { return Ok(()) };
    let differences = wanted.iter().zip(password).fold(0, |sum, (one, other)| sum | (one ^ other));
    if wanted.len() == password.len() && differences == 0 { Ok(()) } else { Err(wrong.into()) }
}

pub(crate) fn auth(call: &mut Call<'_, '_>) -> Done {
    let (user, password) = match call.words {
        [_, password] => {
            if call.server.settings.password.is_none() {
                return Err("ERR AUTH <password> called without any password configured for the \
                            default user. Are you sure your configuration is correct?"
                    .into());
            }
            (&b"default"[..], *password)
        }
        [_, user, password] => (*user, *password),
        _ => return Err(SYNTAX),
    };
    check(call, user, password)?;
    call.server.client(call.client)?.is_trusted = true;
    call.reply.ok();
    Ok(())
}

/// Whether a name has no spaces and nothing that is not shown.
fn check_name(name: &[u8], what: &str) -> Done {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(());
    }
    let text = format!("ERR {what} cannot contain spaces, newlines or special characters.");
    Err(text.into())
}

/// Names the connection.
pub(crate) fn set_name(call: &mut Call<'_, '_>, name: &[u8]) -> Done {
    check_name(name, "Client names")?;
    call.server.client(call.client)?.name = name.to_vec();
    Ok(())
}

pub(crate) fn set_library(call: &mut Call<'_, '_>, option: &[u8], value: &[u8]) -> Done {
    let what = String::from_utf8_lossy(option).to_ascii_lowercase();
    check_name(value, &what)?;
    let client = call.server.client(call.client)?;
    match what.as_str() {
        "lib-name" => client.library = value.to_vec(),
        "lib-ver" => client.library_version = value.to_vec(),
        _ => return Err(format!("ERR Unrecognized option '{}'", shown(option)).into()),
    }
    Ok(())
}

pub(crate) fn hello(call: &mut Call<'_, '_>) -> Done {
    let mut protocol = None;
    if let Some(version) = call.words.get(1) {
        protocol = Some(match integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err("NOPROTO unsupported protocol version".into()),
            Err(_) => {
                return Err("ERR Protocol version is not an integer or out of range".into());
            }
        });
    }
    let (mut name, mut is_trusted) = (None, false);
    let mut at = 2;
    while let Some(option) = call.words.get(at) {
        let rest = &call.words[at + 1..];
        if let (true, [user, password, ..]) = (is(option, "AUTH"), rest) {
            check(call, user, password)?;
            is_trusted = true;
            at += 3;
        } else if let (true, [wanted, ..]) = (is(option, "SETNAME"), rest) {
            check_name(wanted, "Client names")?;
            name = Some(wanted.to_vec());
            at += 2;
        } else {
            let option = shown(option);
            return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
        }
    }
    let client = call.server.client(call.client)?;
    client.is_trusted |= is_trusted;
    if !client.is_trusted {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    client.protocol = protocol.unwrap_or(client.protocol);
    client.name = name.unwrap_or_else(|| std::mem::take(&mut client.name));
    let (id, protocol) = (client.id, client.protocol);
    greet(call, id, protocol);
    Ok(())
}

fn greet(call: &mut Call<'_, '_>, id: u64, protocol: Protocol) {
    let mode = if call.server.view.is_cluster { "cluster" } else { "standalone" };
    let role = if call.server.is_primary() { "master" } else { "replica" };
    let reply = &mut *call.reply;
    reply.protocol = protocol;
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(i64::try_from(id).unwrap_or(i64::MAX));
    for (name, value) in [("mode", mode), ("role", role)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

pub(crate) fn select(call: &mut Call<'_, '_>) -> Done {
    match integer(call.words[1])? {
        0 => call.reply.ok(),
        _ if call.server.view.is_cluster => {
            return Err("ERR SELECT is not allowed in cluster mode".into());
        }
        _ => return Err("ERR DB index is out of range".into()),
    }
    Ok(())
}

pub(crate) fn quit(call: &mut Call<'_, '_>) -> Done {
    call.server.client(call.client)?.is_closing = true;
    call.reply.ok();
    Ok(())
}

pub(crate) fn reset(call: &mut Call<'_, '_>) -> Done {
    call.server.unwatch(call.client);
    let needs_password = call.server.settings.password.is_some();
    let client: &mut Client = call.server.client(call.client)?;
    client.queue = None;
    client.name = Vec::new();
    client.protocol = Protocol::Resp2;
    client.may_read_replica = false;
    client.reply_mode = ReplyMode::On;
    client.is_spared = false;
    client.is_trusted = !needs_password;
    call.reply.protocol = Protocol::Resp2;
    call.reply.simple("RESET");
    Ok(())
}

/// A word that must be `yes` or `no`, in the sense of the words given.
pub(crate) fn choice(word: &[u8], yes: &str, no: &str) -> Result<bool, Fault> {
    match (is(word, yes), is(word, no)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(SYNTAX),
    }
}
