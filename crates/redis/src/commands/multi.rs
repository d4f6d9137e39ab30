//! Transactions: all commands of one as one batch of the store.

use crate::call::Call;
use crate::fault::Done;

pub(crate) fn multi(call: &mut Call<'_, '_>) -> Done {
    call.server.begin_queue(call.client)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn exec(call: &mut Call<'_, '_>) -> Done {
    let queue = call.server.client(call.client)?.queue.take().ok_or("ERR EXEC without MULTI")?;
    let is_broken = call.server.watches_are_broken(call.client);
    call.server.unwatch(call.client);
    if queue.is_broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    if is_broken? {
        call.reply.null_array();
        return Ok(());
    }
    call.server.execute_all(call.client, &queue.commands, call.reply)
}

pub(crate) fn discard(call: &mut Call<'_, '_>) -> Done {
    call.server.client(call.client)?.queue.take().ok_or("ERR DISCARD without MULTI")?;
    call.server.unwatch(call.client);
    call.reply.ok();
    Ok(())
}

pub(crate) fn watch(call: &mut Call<'_, '_>) -> Done {
    if call.server.client(call.client)?.queue.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    for key in &call.words[1..] {
        call.server.watch(call.client, key)?;
    }
    call.reply.ok();
    Ok(())
}

pub(crate) fn unwatch(call: &mut Call<'_, '_>) -> Done {
    call.server.unwatch(call.client);
    call.reply.ok();
    Ok(())
}
