//! The smallest front end: a service that answers, and a client that asks it, on any two hosts.
//!
//! ```text
//! ping serve          offers the service `ping` on this host, until it is ended
//! ping [@HOST]        asks it once, on this host or on that one
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use weft_open::{Client, Opening, Service, now};

fn main() -> ExitCode {
    weft_examples::ended(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let opening = Opening::named("ping")?;
    let place = std::env::args().nth(1).unwrap_or_default();
    if place == "serve" {
        let mut service = Service::offer(&opening, "ping", &(1..=1))?;
        println!("serving ping at {}", service.address());
        while let Some(asked) = service.next(None) {
            // A client that is gone needs no answer.
            let _ = service.answer(&asked, 0, b"", &[&asked.body]);
        }
    }
    let mut client = Client::connect(&opening, &place, "ping", &(1..=1))?;
    let begun = now();
    let answer = client.ask(b"", &[b"are you there?"], Duration::from_secs(5))?;
    println!("{} bytes came back after {:?}", answer.body.len(), now() - begun);
    Ok(())
}
