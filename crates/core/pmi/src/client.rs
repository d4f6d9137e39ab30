//! The client: requests of a process to its launcher, over PMI-1 or PMI-2.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;

use crate::Error;
use crate::connection::Connection;
use crate::environment::{LauncherAddress, SIZE_MAX};
use crate::inherited;
use crate::message::{Form, Message};

/// The time in which a launcher answers anything but a barrier. It is long, since the launcher's
/// machine may be busy with starting the job.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest key and value in bytes that PMI-2 defines.
const LIMITS_OF_PMI2: Limits = Limits { key: 64, value: 1024 };
/// Longest value that is sent by PMI-1, in bytes: older launchers and MPICH's clients have buffers
/// of 1,024 bytes for a whole line.
const VALUE_BYTES_OF_PMI1: usize = 900;

/// A version of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// PMI-1: lines.
    One,
    /// PMI-2: frames after the first line.
    Two,
}

/// Longest key and value in bytes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    key: usize,
    value: usize,
}

/// The connection of one process to its launcher.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    version: Version,
    rank: u32,
    size: u32,
    /// The name of the job's values.
    name: String,
    limits: Limits,
}

impl Client {
    /// Reaches the launcher at the place that its variables named. Asks for PMI-1, and for PMI-2 if
    /// the launcher refuses that.
    ///
    /// # Errors
    /// [`Error`].
    pub fn reach(place: &LauncherAddress) -> Result<Self, Error> {
        match place {
            &LauncherAddress::Descriptor { number, rank, size } => {
                let socket = inherited::stream_socket(number).map_err(|errno| {
                    let problem = match errno {
                        Errno::NOTSOCK => "names a descriptor that is no stream socket",
                        Errno::MFILE => {
                            "cannot be used: this process may open no more files (ulimit -n)"
                        }
                        _ => "names a descriptor that is not open",
                    };
                    Error::Environment { variable: "PMI_FD", value: number.to_string(), problem }
                })?;
                Self::over(socket, rank, size)
            }
            LauncherAddress::Port { host, port, id } => {
                let mut connection = Connection::to_port(host, *port, ANSWER_WITHIN)?;
                let (rank, size) = introduce(&mut connection, *id)?;
                Self::greet(connection, rank, size)
            }
        }
    }

    /// Speaks over a socket that is connected to the launcher.
    ///
    /// # Errors
    /// [`Error`].
    pub fn over(socket: OwnedFd, rank: u32, size: u32) -> Result<Self, Error> {
        Self::greet(Connection::new(socket), rank, size)
    }

    fn greet(connection: Connection, rank: u32, size: u32) -> Result<Self, Error> {
        let limits = Limits { key: 0, value: 0 };
        let name = String::new();
        let mut client = Self { connection, version: Version::One, rank, size, name, limits };
        match client.init(Version::One) {
            Ok(()) => client.begin_pmi1()?,
            Err(Error::Refused { .. }) => {
                client.init(Version::Two)?;
                client.begin_pmi2()?;
            }
            Err(error) => return Err(error),
        }
        Ok(client)
    }

    /// The version that the launcher speaks.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The rank of this process, below [`Client::size`].
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes of the job.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The longest value that [`Client::put`] takes, in bytes.
    pub const fn value_bytes_max(&self) -> usize {
        self.limits.value
    }

    /// Puts a value under a key. Others see it after the next barrier. Keys that begin with `PMI_`
    /// belong to the launcher.
    ///
    /// # Errors
    /// [`Error`]; a key or value that is too long, or holds a space or a control character.
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Error> {
        check("the key", key, self.limits.key)?;
        check("the value", value, self.limits.value)?;
        let pairs = |message: Message| message.with("key", key).with("value", value);
        let answer = match self.version {
            Version::One => {
                let message = pairs(Message::new("put").with("kvsname", &self.name));
                self.ask("put", "put_result", message, ANSWER_WITHIN)?
            }
            Version::Two => {
                let message = pairs(Message::new("kvs-put"));
                self.ask("kvs-put", "kvs-put-response", message, ANSWER_WITHIN)?
            }
        };
        is_accepted(&answer, "put", key)
    }

    /// Gets the value that the process with a rank put under a key before the last barrier. The
    /// rank is a hint for the launcher: keys are those of the whole job.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] where there is no such key.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<String, Error> {
        check("the key", key, self.limits.key)?;
        let answer = match self.version {
            Version::One => {
                let message = Message::new("get").with("kvsname", &self.name).with("key", key);
                self.ask("get", "get_result", message, ANSWER_WITHIN)?
            }
            Version::Two => {
                let message = Message::new("kvs-get").with("jobid", &self.name);
                let message = message.with("srcid", rank).with("key", key);
                self.ask("kvs-get", "kvs-get-response", message, ANSWER_WITHIN)?
            }
        };
        is_accepted(&answer, "get", key)?;
        value_found(&answer, key)
    }

    /// Gets a value of the launcher about the job, such as `PMI_process_mapping`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] where there is no such key.
    pub fn attribute(&mut self, key: &str) -> Result<String, Error> {
        if self.version == Version::One {
            return self.get(self.rank, key);
        }
        let message = Message::new("info-getjobattr").with("key", key);
        let answer =
            self.ask("info-getjobattr", "info-getjobattr-response", message, ANSWER_WITHIN)?;
        is_accepted(&answer, "info-getjobattr", key)?;
        value_found(&answer, key)
    }

    /// Waits until all processes of the job are here, at most for `within`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoAnswer`] when the time is over.
    pub fn barrier(&mut self, within: Duration) -> Result<(), Error> {
        let (request, answer) = match self.version {
            Version::One => ("barrier_in", "barrier_out"),
            Version::Two => ("kvs-fence", "kvs-fence-response"),
        };
        let answer = self.ask(request, answer, Message::new(request), within)?;
        is_accepted(&answer, request, "")
    }

    /// Has the launcher end the job with an exit code. There is no answer; the caller exits.
    ///
    /// # Errors
    /// [`Error`] where the launcher cannot be told.
    pub fn abort(&mut self, exit_code: i32, message: &str) -> Result<(), Error> {
        let abort = Message::new("abort");
        let abort = match self.version {
            Version::One => abort,
            Version::Two => abort.with("isworld", "TRUE").with("msg", message),
        };
        let abort = abort.with("exitcode", exit_code).with("message", message);
        let bytes = abort.encode(self.form());
        self.connection.send("abort", &bytes, ANSWER_WITHIN)
    }

    /// Says that this process needs the launcher no more, and may end.
    ///
    /// # Errors
    /// [`Error`].
    pub fn finalize(mut self) -> Result<(), Error> {
        let answer = match self.version {
            Version::One => "finalize_ack",
            Version::Two => "finalize-response",
        };
        let answer = self.ask("finalize", answer, Message::new("finalize"), ANSWER_WITHIN)?;
        is_accepted(&answer, "finalize", "")
    }

    fn init(&mut self, version: Version) -> Result<(), Error> {
        let (number, subversion) = match version {
            Version::One => (1, 1),
            Version::Two => (2, 0),
        };
        let message = Message::new("init");
        let message = message.with("pmi_version", number).with("pmi_subversion", subversion);
        let answer = self.ask("init", "response_to_init", message, ANSWER_WITHIN)?;
        is_accepted(&answer, "init", &format!("version {number}"))?;
        self.version = version;
        Ok(())
    }

    fn begin_pmi1(&mut self) -> Result<(), Error> {
        let maxes = self.ask("get_maxes", "maxes", Message::new("get_maxes"), ANSWER_WITHIN)?;
        let key = numeric(&maxes, "get_maxes", "keylen_max")?;
        let value: usize = numeric(&maxes, "get_maxes", "vallen_max")?;
        self.limits = Limits { key, value: value.min(VALUE_BYTES_OF_PMI1) };
        let request = Message::new("get_my_kvsname");
        let answer = self.ask("get_my_kvsname", "my_kvsname", request, ANSWER_WITHIN)?;
        self.name = text(&answer, "get_my_kvsname", "kvsname")?;
        Ok(())
    }

    fn begin_pmi2(&mut self) -> Result<(), Error> {
        self.limits = LIMITS_OF_PMI2;
        let message = Message::new("fullinit").with("pmirank", self.rank).with("threaded", "FALSE");
        let answer = self.ask("fullinit", "fullinit-response", message, ANSWER_WITHIN)?;
        is_accepted(&answer, "fullinit", "")?;
        let told = (numeric(&answer, "fullinit", "rank")?, numeric(&answer, "fullinit", "size")?);
        if told != (self.rank, self.size) {
            let answer = format!("rank {} of {}", told.0, told.1);
            return Err(Error::Unexpected { request: "fullinit", answer });
        }
        let request = Message::new("job-getid");
        let answer = self.ask("job-getid", "job-getid-response", request, ANSWER_WITHIN)?;
        is_accepted(&answer, "job-getid", "")?;
        self.name = text(&answer, "job-getid", "jobid")?;
        Ok(())
    }

    const fn form(&self) -> Form {
        match self.version {
            Version::One => Form::Line,
            Version::Two => Form::Frame,
        }
    }

    /// Sends a request and receives its answer.
    fn ask(
        &mut self,
        request: &'static str,
        expected: &str,
        message: Message,
        within: Duration,
    ) -> Result<Message, Error> {
        let bytes = message.encode(self.form());
        self.connection.send(request, &bytes, ANSWER_WITHIN)?;
        let (_, answer) = self.connection.receive(request, within)?;
        if answer.command == expected {
            Ok(answer)
        } else {
            Err(Error::Unexpected { request, answer: answer.command })
        }
    }
}

/// Tells a launcher that was reached by its port who calls; gets rank and size.
fn introduce(connection: &mut Connection, id: u32) -> Result<(u32, u32), Error> {
    const REQUEST: &str = "initack";
    let hello = Message::new(REQUEST).with("pmiid", id);
    connection.send(REQUEST, &hello.encode(Form::Line), ANSWER_WITHIN)?;
    let (mut rank, mut size) = (None, None);
    for expected in [REQUEST, "set", "set", "set"] {
        let (_, answer) = connection.receive(REQUEST, ANSWER_WITHIN)?;
        if answer.command != expected {
            return Err(Error::Unexpected { request: REQUEST, answer: answer.command });
        }
        is_accepted(&answer, REQUEST, "")?;
        rank = rank.or(answer.number("rank"));
        size = size.or(answer.number("size"));
    }
    match (rank, size) {
        (Some(rank), Some(size)) if rank < size && size <= SIZE_MAX => Ok((rank, size)),
        (rank, size) => {
            let answer = format!("rank {rank:?} of {size:?}");
            Err(Error::Unexpected { request: REQUEST, answer })
        }
    }
}

/// Refuses what has no room or would end a word or line.
fn check(part: &'static str, text: &str, max: usize) -> Result<(), Error> {
    if text.is_empty() || text.len() > max {
        return Err(Error::TooLong { part, bytes: text.len(), max });
    }
    match text.chars().find(|character| !character.is_ascii_graphic()) {
        Some(character) => Err(Error::Character { part, character }),
        None => Ok(()),
    }
}

fn is_accepted(answer: &Message, request: &'static str, subject: &str) -> Result<(), Error> {
    match answer.value("rc") {
        None | Some("0") => Ok(()),
        Some(code) => {
            let message = answer.value("msg").or_else(|| answer.value("errmsg"));
            Err(Error::Refused {
                request,
                subject: subject.to_owned(),
                code: code.to_owned(),
                message: message.unwrap_or("it gave no reason").to_owned(),
            })
        }
    }
}

fn value_found(answer: &Message, key: &str) -> Result<String, Error> {
    if answer.value("found").is_some_and(|found| !found.eq_ignore_ascii_case("true")) {
        return Err(Error::Refused {
            request: "get",
            subject: key.to_owned(),
            code: "found=FALSE".to_owned(),
            message: "nobody put a value under this key before the last barrier".to_owned(),
        });
    }
    text(answer, "get", "value")
}

fn text(answer: &Message, request: &'static str, name: &str) -> Result<String, Error> {
    let missing = || Error::Unexpected { request, answer: format!("without {name}") };
    answer.value(name).map(str::to_owned).ok_or_else(missing)
}

fn numeric<T: std::str::FromStr>(
    answer: &Message,
    request: &'static str,
    name: &str,
) -> Result<T, Error> {
    let text = text(answer, request, name)?;
    text.parse().map_err(|_| Error::Unexpected { request, answer: format!("{name}={text}") })
}
