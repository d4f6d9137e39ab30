//! Each example ends well over each transport.

#[allow(dead_code, reason = "the program's main is not called here")]
#[path = "../examples/file_server.rs"]
mod file_server;
#[allow(dead_code, reason = "the program's main is not called here")]
#[path = "../examples/hash_table.rs"]
mod hash_table;
#[allow(dead_code, reason = "the program's main is not called here")]
#[path = "../examples/message_server.rs"]
mod message_server;
#[allow(dead_code, reason = "the program's main is not called here")]
#[path = "../examples/ping_pong.rs"]
mod ping_pong;

use weft_examples::over;
use weft_examples::service::Together;

const TRANSPORTS: [&str; 2] = ["shm", "sim"];

#[test]
fn ping_pong_ends() {
    for transport in TRANSPORTS {
        over(transport, 2, ping_pong::PingPong);
    }
}

#[test]
fn the_hash_table_has_what_was_written() {
    for transport in TRANSPORTS {
        over(transport, 4, hash_table::HashTable);
    }
}

#[test]
fn the_message_server_answers_every_client() {
    for transport in TRANSPORTS {
        over(transport, 4, message_server::MessageServer);
    }
}

#[test]
fn the_file_server_serves_every_client() {
    for transport in TRANSPORTS {
        over(transport, 4, Together(file_server::FileServer));
    }
}
