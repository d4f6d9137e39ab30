//! A copy from or to another host.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_membership::Role as TlsRole;
use weft_open::{Opening, Source};
use weft_transfer::{Hello, Meeting, Message, Role, Summary, Terms, VERSION};

use crate::assembly::{self, Settings};
use crate::between::between;
use crate::channel::{Channel, SILENCE};
use crate::destination::Destination;
use crate::error::CopyError;
use crate::fabric::{self, Offer, Wire};
use crate::far::{dial, meeting_name, run_source, run_target};
use crate::line::{Line, Lines};
use crate::place::Place;
use crate::report::{Gauge, Outcome, Reporter, Way};
use crate::secure::{Key, secure};
use crate::tops::Tops;

/// How long a far end has to end by itself.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How long a far end that said that it came over the fabric may take to be seen.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

/// The way that bytes are to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Over the fabric where both ends are on it, else as for [`Transport::Tcp`].
    #[default]
    Auto,
    /// Over the fabric, or not at all.
    Fabric,
    /// Over TCP, or the pipes of a remote shell.
    Tcp,
}

/// How far ends are reached.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The way that bytes are to go.
    pub transport: Transport,
    /// How endpoints are opened.
    pub opening: Opening,
    /// Sessions of the fabric that carry blocks, where the far end comes to as many; 1 to
    /// [`weft_transfer::SERVICES_MAX`].
    pub sessions: u16,
    /// Addresses of this host that the sessions take in turn; empty for that of its fabric.
    pub rails: Vec<IpAddr>,
    /// The remote shell and its arguments.
    pub shell: Vec<String>,
    /// The program at the far end.
    pub weft_path: String,
    /// The text of a key file, for servers.
    pub key: Option<String>,
}

impl Reach {
    /// The address of the session in this place.
    fn rail(&self, place: u16) -> Option<IpAddr> {
        let place = usize::from(place).checked_rem(self.rails.len())?;
        Some(self.rails[place])
    }

    /// How its endpoint is opened.
    fn opening_at(&self, place: u16) -> Opening {
        match self.rail(place) {
            Some(address) => self.opening.clone().source(Source::Address(address)),
            None => self.opening.clone(),
        }
    }
}

/// A far end.
pub(crate) struct Far {
    child: Option<Child>,
    way: Way,
    /// Why the fabric is not used, where it was tried.
    apart: Option<String>,
    /// Host and port, and the key, for more connections.
    again: Option<(String, Option<Key>)>,
}

impl Drop for Far {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A pipe that is read with an end to each wait.
struct Pipe(OwnedFd);

impl std::io::Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let seconds = i64::try_from(SILENCE.as_secs()).expect("a minute");
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut waits = [PollFd::new(&self.0, PollFlags::IN)];
        if poll(&mut waits, Some(&limit))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(rustix::io::read(self.0.as_fd(), into)?)
    }
}

/// A channel over the standard input and output of this process.
pub(crate) fn standard() -> Result<Channel, CopyError> {
    let again = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(|why| CopyError::system("standard input or output", &why))
    };
    let reader = Pipe(again(std::io::stdin().as_fd())?);
    let writer = std::fs::File::from(again(std::io::stdout().as_fd())?);
    Ok(Channel::new(reader, writer))
}

pub(crate) fn connect(place: &Place, reach: &Reach) -> Result<(Line, Far), CopyError> {
    match place {
        Place::Here(_) => unreachable!("the caller looked"),
        Place::Shell { host, .. } => start_shell(host, place, reach),
        Place::Server { host, port, .. } => {
            let apart = match reach.transport {
                Transport::Tcp => None,
                _ => match fabric::find_server(&reach.opening_at(0), host, *port) {
                    Ok(wire) => {
                        let far = Far { child: None, way: Way::Fabric, apart: None, again: None };
                        return Ok((Line::Fabric(wire), far));
                    }
                    Err(why) => Some(why),
                },
            };
            // With a key the two may still meet on the fabric behind its proof.
            if let (Transport::Fabric, Some(why), None) = (reach.transport, &apart, &reach.key) {
                let (place, why) = (place.to_string(), why.clone());
                return Err(CopyError::Unreachable { place, why });
            }
            let key = reach.key.as_deref().map(Key::of_text).transpose()?;
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let to = format!("{host}:{port}");
            let channel = connect_again(&to, key.as_ref())?;
            let way = if key.is_some() { Way::Tls } else { Way::Tcp };
            Ok((Line::Stream(channel), Far { child: None, way, apart, again: Some((to, key)) }))
        }
    }
}

fn start_shell(host: &str, place: &Place, reach: &Reach) -> Result<(Line, Far), CopyError> {
    let unreachable = |why: String| CopyError::Unreachable { place: place.to_string(), why };
    let (shell, arguments) =
        reach.shell.split_first().ok_or_else(|| unreachable("no remote shell".to_owned()))?;
    // An address in brackets is for the colon behind it; shells take it without.
    let host = host.replace(['[', ']'], "");
    let mut child = Command::new(shell)
        .args(arguments)
        .args([host.as_str(), reach.weft_path.as_str(), "transfer", "answer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| unreachable(format!("{shell} cannot be started: {why}")))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let far = Far { child: Some(child), way: Way::Shell, apart: None, again: None };
    let (Some(input), Some(output)) = (input, output) else {
        return Err(unreachable("it has no pipes".to_owned()));
    };
    Ok((Line::Stream(Channel::new(Pipe(output.into()), input)), far))
}

fn connect_again(to: &str, key: Option<&Key>) -> Result<Channel, CopyError> {
    let stream = dial(to)?;
    match key {
        Some(key) => secure(stream, TlsRole::Dialer, key),
        None => plain(stream),
    }
}

/// A channel over TCP without TLS.
pub(crate) fn plain(stream: std::net::TcpStream) -> Result<Channel, CopyError> {
    let again = stream.try_clone().map_err(|why| CopyError::system("the connection", &why))?;
    Ok(Channel::new(again, Closing(stream)))
}

/// Says the end of the stream when it is dropped, though the other half is still read.
struct Closing(std::net::TcpStream);

impl std::io::Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
        self.0.write_vectored(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

/// The answer to a hello.
pub(crate) struct Welcome {
    token: u128,
    pub port: u16,
    pub at: String,
    came: u16,
    pub apart: String,
}

/// Says hello and hears the answer.
pub(crate) fn greet(line: &mut Line, hello: Hello) -> Result<Welcome, CopyError> {
    // A far end that is gone by now may have said why.
    let said = line.say(Message::Hello(hello));
    match line.hear() {
        Ok(Message::Welcome { token, port, at, came, apart }) => {
            Ok(Welcome { token, port, at, came, apart })
        }
        Ok(Message::Refused { text }) => Err(CopyError::Refused(text)),
        Ok(_) => Err(weft_transfer::Offence("another message than a welcome").into()),
        Err(CopyError::Lost(why)) => {
            said?;
            Err(CopyError::Refused(format!("no answer: {why}")))
        }
        // A text that a shell prints at its start is no message, either.
        Err(error) => Err(CopyError::Refused(format!("it answers something else: {error}"))),
    }
}

pub(crate) fn hello(role: Role, terms: &Terms, places: Vec<Vec<u8>>, meeting: Meeting) -> Hello {
    Hello { version: VERSION, role, terms: terms.clone(), places, meeting }
}

/// Services that a far end may come to, for the sessions in these places, or fewer if the fabric
/// has no more; one at least, or why there is none.
fn offer(reach: &Reach, places: Range<u16>) -> Result<Vec<Offer>, String> {
    let mut offers = Vec::new();
    for place in places {
        match Offer::new(&reach.opening, &meeting_name()?, reach.rail(place)) {
            Ok(offer) => offers.push(offer),
            Err(why) if offers.is_empty() => return Err(why),
            Err(_) => break,
        }
    }
    Ok(offers)
}

/// Waits for the far end that has said that it came to so many of the services.
fn seen(offers: &[Offer], count: u16) -> Result<Vec<Wire>, CopyError> {
    let lost =
        || CopyError::Lost("the other end came over the fabric, and was not seen".to_owned());
    let came = offers.iter().take(count.into());
    came.map(|offer| offer.accept(SEEN_WITHIN).ok_or_else(lost)).collect()
}

/// All connections of a transfer, after the hello.
fn open(
    place: &Place,
    reach: &Reach,
    terms: &Terms,
    role: Role,
    places: Vec<Vec<u8>>,
) -> Result<(Lines, Far, Terms), CopyError> {
    if matches!(place, Place::Shell { .. }) && reach.transport != Transport::Tcp {
        // The shell and the far end take their time, too.
        reach.opening.load_ahead();
    }
    let (mut line, mut far) = connect(place, reach)?;
    let mut terms = terms.clone();
    if far.again.is_none() {
        terms.streams = 1;
    }
    // A server without a key was found on the fabric already, or is not there.
    let may_meet = matches!(far.way, Way::Shell | Way::Tls) && reach.transport != Transport::Tcp;
    let is_met = matches!(line, Line::Fabric(_));
    let offered = match is_met {
        // Where there are no further services, the session that is there carries all.
        true => Some(Ok(offer(reach, 1..reach.sessions).unwrap_or_default())),
        false => may_meet.then(|| offer(reach, 0..reach.sessions)),
    };
    let unreachable = |why| Err(CopyError::Unreachable { place: place.to_string(), why });
    let services = |offers: &[Offer]| offers.iter().map(|offer| offer.place().to_owned()).collect();
    let meeting = match &offered {
        Some(Ok(offers)) if is_met => Meeting::Here { also: services(offers) },
        Some(Ok(offers)) => Meeting::Nearby { at: services(offers) },
        Some(Err(why)) if reach.transport == Transport::Fabric => return unreachable(why.clone()),
        _ => Meeting::Here { also: Vec::new() },
    };
    let welcome = greet(&mut line, hello(role, &terms, places, meeting))?;
    let on_fabric = |wires: Vec<Wire>, far, mut terms: Terms| {
        terms.streams = u16::try_from(wires.len()).expect("a hello names few services");
        Ok((Lines::Fabric(wires), far, terms))
    };
    let mut channels = match (line, &offered) {
        (Line::Stream(channel), _) => vec![channel],
        (Line::Fabric(wire), offered) => {
            let mut wires = vec![wire];
            if let Some(Ok(offers)) = offered {
                wires.extend(seen(offers, welcome.came)?);
            }
            return on_fabric(wires, far, terms);
        }
    };
    match offered {
        Some(Ok(offers)) if welcome.apart.is_empty() => {
            far.way = Way::Fabric;
            return on_fabric(seen(&offers, welcome.came.max(1))?, far, terms);
        }
        Some(Ok(_)) if reach.transport == Transport::Fabric => return unreachable(welcome.apart),
        Some(Ok(_)) => far.apart = Some(welcome.apart),
        Some(Err(why)) => far.apart = Some(why),
        None => {}
    }
    if let Some((to, key)) = &far.again {
        for _ in 1..terms.streams {
            let mut channel = connect_again(to, key.as_ref())?;
            channel.say(Message::Attach { token: welcome.token })?;
            channels.push(channel);
        }
    }
    Ok((Lines::Streams(channels), far, terms))
}

/// Copies between this host and another one, or between two others.
///
/// # Errors
/// [`CopyError`].
pub fn copy(
    sources: &[Place],
    destination: &Place,
    (reach, terms, settings): (&Reach, &Terms, &Settings),
    reporter: &Arc<dyn Reporter>,
    gauge: &Arc<Gauge>,
) -> Result<Outcome, CopyError> {
    let first = sources.first().ok_or_else(|| CopyError::place("", "there is no source"))?;
    if let Some(other) = sources.iter().find(|other| !other.is_at(first)) {
        return Err(CopyError::place(other, "all sources have to be at one place"));
    }
    let paths: Vec<Vec<u8>> = sources.iter().map(|place| place.path().to_vec()).collect();
    let reports = (Arc::clone(reporter), Arc::clone(gauge));
    match (first, destination) {
        (Place::Here(_), Place::Here(path)) => {
            crate::local::copy(&paths, path, terms, settings, reporter, gauge)
        }
        (Place::Here(_), _) => {
            let tops = Arc::new(Tops::of_user(&paths, !terms.is_recursive)?);
            let places = vec![destination.path().to_vec()];
            let (lines, far, terms) = open(destination, reach, terms, Role::Target, places)?;
            let there = (&tops, assembly::identity(&paths));
            let read = run_source(lines, there, &terms, settings, reports)?;
            let mut outcome = outcome(read.summary, (&far, reach), 0, &terms);
            match read.shares_memory {
                Some(true) => outcome.why += ", and files are read into its memory",
                Some(false) => outcome.why += ", and libfabric puts blocks",
                None => {}
            }
            Ok(outcome)
        }
        (_, Place::Here(path)) => {
            let (lines, far, terms) = open(first, reach, terms, Role::Source, paths)?;
            let here = Destination { place: path.clone(), within: None };
            let written = run_target(lines, here, &terms, settings, reports)?;
            Ok(outcome(written.summary, (&far, reach), written.window, &terms))
        }
        _ => between(first, paths, destination, (reach, terms), (reporter, gauge)),
    }
}

fn outcome(summary: Summary, (far, reach): (&Far, &Reach), window: u32, terms: &Terms) -> Outcome {
    let why = match far.way {
        Way::Shell => "a remote shell carries it",
        Way::Tls => "the server has a key",
        Way::Fabric => "the other end is on the fabric",
        _ => "no key was named, and the server asks for none",
    };
    let why = match &far.apart {
        Some(apart) => format!("{why}; not over the fabric: {apart}"),
        None if far.way == Way::Fabric && !reach.rails.is_empty() => {
            let rails: Vec<String> = reach.rails.iter().map(IpAddr::to_string).collect();
            format!("{why}, by way of {}", rails.join(" and "))
        }
        None => why.to_owned(),
    };
    Outcome {
        summary,
        way: far.way,
        why,
        window,
        block_bytes: terms.block_bytes,
        streams: terms.streams,
    }
}
