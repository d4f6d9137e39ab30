//! A service and its clients: all in this process, or each a process of its own on any host.
//!
//! ```text
//! EXAMPLE [shm|sim]     all in one process
//! EXAMPLE serve         the service, until it is ended
//! EXAMPLE get [@HOST]   a client of the service of this host, or of that one
//! ```

use std::process::ExitCode;

use weft_fabric::{Endpoint, EndpointAddress};
use weft_open::{Opening, OpeningError, ServicePlace, Waiter};
use weft_session::Sessions;

use crate::Program;

/// One end: a service or a client.
pub trait End<E: Endpoint> {
    /// Its sessions.
    fn sessions(&mut self) -> &mut Sessions<E>;

    /// Takes what came. False when it is done.
    fn turn(&mut self) -> bool;
}

/// A service with its clients.
pub trait Pair {
    /// The name of the service.
    const NAME: &str;

    /// The service, at this endpoint.
    fn service<E: Endpoint>(endpoint: E) -> impl End<E>;

    /// A client, at this endpoint, of the service at this address.
    fn client<E: Endpoint>(endpoint: E, service: EndpointAddress) -> impl End<E>;
}

/// All of them in one process: the first endpoint is the service's.
#[derive(Debug)]
pub struct Together<P>(pub P);

impl<P: Pair> Program for Together<P> {
    fn run<E: Endpoint>(self, endpoints: Vec<E>, step: &mut dyn FnMut()) {
        let mut endpoints = endpoints.into_iter();
        let mut service = P::service(endpoints.next().expect("one"));
        let address = service.sessions().endpoint().address();
        let mut clients: Vec<_> = endpoints.map(|one| P::client(one, address)).collect();
        while !clients.is_empty() {
            service.turn();
            clients.retain_mut(End::turn);
            step();
        }
    }
}

/// Runs what the arguments say.
pub fn main<P: Pair>(pair: P) -> ExitCode {
    crate::ended(run(pair))
}

fn run<P: Pair>(pair: P) -> Result<(), OpeningError> {
    let [what, place] = [1, 2].map(|place| std::env::args().nth(place).unwrap_or_default());
    match what.as_str() {
        "serve" => {
            let endpoint = Opening::named(P::NAME)?.offering(P::NAME)?.open()?;
            until_done(P::service(endpoint));
        }
        "get" => {
            let place = ServicePlace::parse(&place, P::NAME)?;
            let endpoint = Opening::named(P::NAME)?.finding(&place)?.open()?;
            let service = endpoint.host().expect("a service let it in");
            until_done(P::client(endpoint, service));
            println!("done");
        }
        _ => crate::main(4, Together(pair)),
    }
    Ok(())
}

fn until_done(mut end: impl End<weft_open::AnyEndpoint>) {
    let mut waiter = Waiter::default();
    while end.turn() {
        waiter.wait(end.sessions(), &[], None);
    }
}
