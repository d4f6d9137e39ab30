//! Everything that a command gets to run.

use weft_resp::Reply;

use crate::fault::Done;
use crate::server::Server;
use crate::transaction::Transaction;

/// Carries out a command about data: its words, with its name.
pub(crate) type DataRun = fn(&mut Transaction<'_>, &[&[u8]], &mut Reply<'_>) -> Done;

/// Carries out a command about the connection or the server.
pub(crate) type ServerRun = fn(&mut Call<'_, '_>) -> Done;

/// A command about the connection or the server.
pub(crate) struct Call<'a, 'o> {
    /// The server.
    pub server: &'a mut Server,
    /// The client that sent it.
    pub client: u64,
    /// Its words, with its name; a subcommand is the second word.
    pub words: &'a [&'a [u8]],
    /// Where to answer.
    pub reply: &'a mut Reply<'o>,
}
