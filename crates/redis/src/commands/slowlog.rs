//! SLOWLOG: commands that took long.

use super::{help as answer_help, integer};
use crate::call::Call;
use crate::fault::Done;

pub(crate) fn get(call: &mut Call<'_, '_>) -> Done {
    let count = match call.words {
        [_, _, count] => match integer(count) {
            Ok(-1) => usize::MAX,
            Ok(count @ 0..) => usize::try_from(count).unwrap_or(usize::MAX),
            _ => return Err("ERR count should be greater than or equal to -1".into()),
        },
        _ => 10,
    };
    let (server, reply) = (&call.server, &mut *call.reply);
    let number = |it: u128| i64::try_from(it).unwrap_or(i64::MAX);
    reply.array(server.slow.len().min(count));
    for slow in server.slow.iter().take(count) {
        reply.array(6);
        reply.integer(number(slow.number.into()));
        reply.integer(number(slow.at.as_secs().into()));
        reply.integer(number(slow.took.as_micros()));
        reply.array(slow.words.len());
        slow.words.iter().for_each(|word| reply.bulk(word));
        reply.bulk(slow.address.as_bytes());
        reply.bulk(&slow.name);
    }
    Ok(())
}

pub(crate) fn len(call: &mut Call<'_, '_>) -> Done {
    call.reply.size(call.server.slow.len());
    Ok(())
}

pub(crate) fn reset(call: &mut Call<'_, '_>) -> Done {
    call.server.slow.clear();
    call.reply.ok();
    Ok(())
}

pub(crate) fn help(call: &mut Call<'_, '_>) -> Done {
    answer_help(
        call.reply,
        "SLOWLOG",
        &[
            "GET [<count>]",
            "    The newest slow commands (default: 10, -1 is all): number, time, microseconds,",
            "    words, address and name of the client.",
            "LEN",
            "    How many are kept.",
            "RESET",
            "    Forgets them.",
        ],
    )
}
