//! A transfer between two far ends, as the end that asks for it sees it.
//!
//! The target listens, the source comes to it, and bytes go between them alone. This end hears how
//! it goes, says that it lives, and tells both when it is to stop.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weft_transfer::{Meeting, Message, Role, Terms};

use crate::channel::ALIVE;
use crate::error::CopyError;
use crate::line::Saying;
use crate::place::Place;
use crate::remote::{Reach, Transport, Welcome, connect, greet, hello};
use crate::report::{Gauge, Outcome, Reporter, Way};

/// How long this end waits for anything before it looks whether it shall stop.
const LOOK: Duration = Duration::from_millis(100);

/// Has the files at places of the source copied to the destination.
pub(crate) fn between(
    source: &Place,
    paths: Vec<Vec<u8>>,
    destination: &Place,
    (reach, terms): (&Reach, &Terms),
    (reporter, gauge): (&Arc<dyn Reporter>, &Gauge),
) -> Result<Outcome, CopyError> {
    let ticket = crate::server::random()?;
    let (mut target, _target_end) = connect(destination, reach)?;
    let places = vec![destination.path().to_vec()];
    let asked = hello(Role::Target, terms, places, Meeting::Expects { ticket });
    let expected = greet(&mut target, asked)?;
    let (mut origin, _source_end) = connect(source, reach)?;
    let (to, at) = way_to(destination, reach, &expected)?;
    let is_offered = !at.is_empty();
    let came =
        greet(&mut origin, hello(Role::Source, terms, paths, Meeting::Goes { to, at, ticket }))?;
    let (is_fabric, apart) = match is_offered {
        true => (came.apart.is_empty(), came.apart),
        false => (false, expected.apart),
    };
    let why = match (is_fabric, apart.as_str()) {
        (true, _) => "both places are on other hosts, which meet on the fabric".to_owned(),
        (false, "") => "both places are on other hosts".to_owned(),
        (false, why) => format!("both places are on other hosts; not over the fabric: {why}"),
    };
    let (tell, told) = mpsc::channel();
    let mut sayings = Vec::new();
    for (is_target, line) in [(true, target), (false, origin)] {
        let (saying, mut hearing) = line.parted();
        sayings.push(saying);
        let tell = tell.clone();
        let hear = move || {
            loop {
                let heard = hearing.hear();
                let is_over = !matches!(heard, Ok(Message::Trouble(_) | Message::Would(_)));
                if tell.send((is_target, heard)).is_err() || is_over {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weft-hear".to_owned()).spawn(hear);
        thread.map_err(|why| CopyError::system("threads cannot be started", &why))?;
    }
    drop(tell);
    let summary = listen(&told, &mut sayings, reporter, gauge)?;
    Ok(Outcome {
        summary,
        way: Way::ThirdParty,
        why,
        window: 0,
        block_bytes: terms.block_bytes,
        streams: if is_fabric { 1 } else { terms.streams },
    })
}

/// Where the source finds the target: host and port, and the service of the fabric.
fn way_to(
    destination: &Place,
    reach: &Reach,
    expected: &Welcome,
) -> Result<(String, String), CopyError> {
    let host = match destination {
        Place::Shell { host, .. } => host.rsplit('@').next().unwrap_or(host).to_owned(),
        Place::Server { host, .. } if host.contains(':') => format!("[{host}]"),
        Place::Server { host, .. } => host.clone(),
        Place::Here(_) => unreachable!("the caller looked"),
    };
    let to = format!("{host}:{}", expected.port);
    match reach.transport {
        Transport::Tcp => Ok((to, String::new())),
        Transport::Auto => Ok((to, expected.at.clone())),
        Transport::Fabric if expected.at.is_empty() => {
            let (place, why) = (destination.to_string(), expected.apart.clone());
            Err(CopyError::Unreachable { place, why })
        }
        Transport::Fabric => Ok((String::new(), expected.at.clone())),
    }
}

/// A message of a far end, and whether that is the target.
type Heard = (bool, Result<Message, CopyError>);

/// Hears of the transfer until it is over.
fn listen(
    told: &mpsc::Receiver<Heard>,
    sayings: &mut [Saying],
    reporter: &Arc<dyn Reporter>,
    gauge: &Gauge,
) -> Result<weft_transfer::Summary, CopyError> {
    let say = |sayings: &mut [Saying], message: Message| {
        for saying in sayings {
            // One that is gone does not hear it, which its other half tells.
            let _ = saying.say(message.clone());
        }
    };
    let mut lost = CopyError::Lost("both ends are gone".to_owned());
    let mut said = Instant::now();
    loop {
        let heard = told.recv_timeout(LOOK);
        if gauge.stops() {
            say(sayings, Message::Refused { text: CopyError::Stopped.to_string() });
            return Err(CopyError::Stopped);
        }
        if said.elapsed() >= ALIVE {
            say(sayings, Message::Alive);
            said = Instant::now();
        }
        match heard {
            Ok((true, Ok(Message::Trouble(trouble)))) => reporter.trouble(&trouble),
            Ok((true, Ok(Message::Would(text)))) => reporter.would(&text),
            Ok((true, Ok(Message::Done(summary)))) => return Ok(summary),
            Ok((_, Ok(Message::Refused { text }))) => return Err(CopyError::Lost(text)),
            Ok((true, Err(error))) => lost = error,
            Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(lost),
        }
    }
}
