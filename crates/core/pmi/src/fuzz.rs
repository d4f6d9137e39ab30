//! The fuzz targets: what three processes send to the launcher, and what a launcher answers to a
//! process, read off the input.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};

use crate::Client;
use crate::message::Decoder;
use crate::server::{Action, Description, Membership, Server};

const SIZE: u32 = 3;
/// A piece of 255 bytes has fewer answers, also to those that wait.
const ACTIONS_MAX: usize = 4096;

/// Each piece of the input has a byte that chooses a process and whether it hangs up afterwards, a
/// byte with the length, and so many bytes that the process sends.
///
/// # Panics
/// When an answer is no message, or is for nobody.
pub fn fuzz_server(input: &[u8]) {
    let processes = (0..SIZE).map(|rank| Membership { host: rank % 2, program: 0 }).collect();
    let mapping = "(vector,(0,2,1),(0,1,1))".to_owned();
    let mut server = Server::new(Description { name: "job".to_owned(), mapping, processes });
    let mut rest = input;
    while let [chosen, length, bytes @ ..] = rest {
        let (sent, after) = bytes.split_at(bytes.len().min(usize::from(*length)));
        let rank = u32::from(*chosen & 3);
        server.receive(rank, sent);
        if *chosen & 0x80 != 0 {
            server.hang_up(rank);
        }
        take_actions(&mut server);
        rest = after;
    }
}

fn take_actions(server: &mut Server) {
    let mut count = 0;
    while let Some(action) = server.next_action() {
        count += 1;
        assert!(count < ACTIONS_MAX, "a piece has few answers");
        match action {
            Action::Send { rank, bytes } => {
                assert!(rank < SIZE);
                let mut decoder = Decoder::default();
                decoder.push(&bytes);
                let message = decoder.next_message();
                assert!(matches!(message, Ok(Some(_))), "a client can read each answer");
            }
            Action::Abort { rank, .. } | Action::Offence { rank, .. } => assert!(rank < SIZE),
        }
    }
}

/// The input is all that a launcher says, whatever it is asked; then it is gone.
///
/// # Panics
/// When the client believes what cannot be.
pub fn fuzz_client(input: &[u8]) {
    const SOON: Duration = Duration::from_secs(1);
    let Some((ours, theirs)) = pair() else { return };
    // More than the socket takes is cut off.
    let _ = send(&ours, input, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    if shutdown(&ours, Shutdown::Write).is_err() {
        return;
    }
    let Ok(mut client) = Client::over(theirs, 1, SIZE) else { return };
    assert_eq!((client.rank(), client.size()), (1, SIZE), "the variables told them");
    for _ in 0..3 {
        let _ = client.put("key", "value");
        let _ = client.barrier(SOON);
        let _ = client.get(2, "key");
        let _ = client.attribute("PMI_process_mapping");
    }
    let _ = client.finalize();
}

fn pair() -> Option<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
}
