//! The answer to each request of PMI-1 and PMI-2.

use super::{
    Action, ClientState, KEY_BYTES_MAX, NAME_BYTES_MAX, Server, VALUE_BYTES_MAX, WAITING_MAX,
    Waiting, WaitingForValue,
};
use crate::message::{Form, Message};

/// The answer of PMI-1 to a command that is none, or is not served.
const REFUSED: &str = "-1";
/// Exit code of a job that a process ends without naming one.
const CODE_DEFAULT: i32 = 1;

impl Server {
    /// Serves one request.
    pub(super) fn serve(&mut self, rank: u32, form: Form, request: &Message) {
        if matches!(request.command.as_str(), "abort") {
            return self.abort(rank, request);
        }
        match form {
            Form::Line => self.serve_line(rank, request),
            Form::Frame => self.serve_frame(rank, request),
        }
    }

    fn abort(&mut self, rank: u32, request: &Message) {
        let code = request.number("exitcode").unwrap_or(CODE_DEFAULT);
        let message = request.value("message").or(request.value("msg")).unwrap_or_default();
        let message = message.to_owned();
        if let Some(process) = self.process(rank) {
            process.is_deaf = true;
        }
        self.actions.push_back(Action::Abort { rank, code, message });
    }

    fn serve_line(&mut self, rank: u32, request: &Message) {
        let size = self.processes.len();
        let value = |name| request.value(name).unwrap_or_default();
        let answer = match request.command.as_str() {
            "init" => self.init(rank, request),
            "get_maxes" => Message::new("maxes")
                .with("kvsname_max", NAME_BYTES_MAX)
                .with("keylen_max", KEY_BYTES_MAX)
                .with("vallen_max", VALUE_BYTES_MAX)
                .with("rc", 0),
            "get_appnum" => Message::new("appnum").with("appnum", self.program(rank)).with("rc", 0),
            "get_universe_size" => Message::new("universe_size").with("size", size).with("rc", 0),
            "get_my_kvsname" => {
                Message::new("my_kvsname").with("kvsname", &self.name).with("rc", 0)
            }
            "put" => self.put_line(request),
            "get" => self.get_line(request),
            "barrier_in" if request.value("group").is_none() => {
                return self.arrive(rank, Waiting { form: Form::Line, thread: None });
            }
            "barrier_in" => refused("barrier_out", "groups_are_not_served"),
            "finalize" => {
                self.finalize(rank);
                Message::new("finalize_ack").with("rc", 0)
            }
            "publish_name" => match self.publish(value("service"), value("port")) {
                Ok(()) => Message::new("publish_result").with("rc", 0).with("msg", "success"),
                Err(reason) => refused("publish_result", reason),
            },
            "unpublish_name" => match self.unpublish(value("service")) {
                Ok(()) => Message::new("unpublish_result").with("rc", 0).with("msg", "success"),
                Err(reason) => refused("unpublish_result", reason),
            },
            "lookup_name" => match self.ports.get(value("service")) {
                Some(port) => Message::new("lookup_result").with("rc", 0).with("port", port),
                None => refused("lookup_result", "service_not_found"),
            },
            "spawn" => refused("spawn_result", "this_launcher_starts_no_further_processes"),
            command => refused(&format!("{command}_result"), "the_command_is_not_served"),
        };
        self.send(rank, Form::Line, &answer);
    }

    /// Answers the first line, which says the version. Frames follow it in PMI-2.
    fn init(&mut self, rank: u32, request: &Message) -> Message {
        let version: u32 = request.number("pmi_version").unwrap_or(0);
        let answer = Message::new("response_to_init");
        let (version, subversion, code) = match version {
            1 => (1, 1, "0"),
            2 => (2, 0, "0"),
            _ => (1, 1, REFUSED),
        };
        self.join(rank);
        answer.with("pmi_version", version).with("pmi_subversion", subversion).with("rc", code)
    }

    fn put_line(&mut self, request: &Message) -> Message {
        if let Err(reason) = self.is_own_name(request) {
            return refused("put_result", reason);
        }
        let (Some(key), Some(value)) = (request.value("key"), request.value("value")) else {
            return refused("put_result", "key_or_value_is_missing");
        };
        match self.keep(key, value) {
            Ok(()) => Message::new("put_result").with("rc", 0).with("msg", "success"),
            Err(reason) => refused("put_result", reason),
        }
    }

    fn get_line(&self, request: &Message) -> Message {
        if let Err(reason) = self.is_own_name(request) {
            return refused("get_result", reason);
        }
        match request.value("key").and_then(|key| self.value(key)) {
            Some(value) => {
                let answer = Message::new("get_result").with("rc", 0).with("msg", "success");
                answer.with("value", value)
            }
            None => refused("get_result", "key_not_found").with("value", "unknown"),
        }
    }

    fn serve_frame(&mut self, rank: u32, request: &Message) {
        let key = request.value("key").unwrap_or_default();
        let value = request.value("value").unwrap_or_default();
        let thread = request.value("thrid").map(str::to_owned);
        let answer = match request.command.as_str() {
            "fullinit" => self.full_init(rank),
            "job-getid" => Message::new("").with("jobid", &self.name).with("rc", 0),
            "kvs-put" => accepted(self.keep(key, value)),
            "kvs-get" => found(self.value(key).as_deref()),
            "kvs-fence" => return self.arrive(rank, Waiting { form: Form::Frame, thread }),
            "info-getjobattr" => found(self.value(key).as_deref()),
            "info-putnodeattr" => accepted(self.keep_for_host(rank, key, value)),
            "info-getnodeattr" => {
                let is_patient = request.value("wait").is_some_and(|wait| wait == "TRUE");
                let known = self.values_of_hosts.get(&(self.host(rank), key.to_owned()));
                if known.is_some() || !is_patient {
                    found(known.map(String::as_str))
                } else if self.waits(rank) < WAITING_MAX {
                    let key = key.to_owned();
                    return self.waiting_for_values.push(WaitingForValue { rank, key, thread });
                } else {
                    refused_frame("too_many_requests_wait")
                }
            }
            "finalize" => {
                self.finalize(rank);
                Message::new("").with("rc", 0)
            }
            "name-publish" => {
                let name = request.value("name").unwrap_or_default();
                accepted(self.publish(name, request.value("port").unwrap_or_default()))
            }
            "name-unpublish" => {
                let name = request.value("name").unwrap_or_default();
                accepted(self.unpublish(name))
            }
            "name-lookup" => match request.value("name").and_then(|name| self.ports.get(name)) {
                Some(port) => Message::new("").with("port", port).with("rc", 0),
                None => refused_frame("service_not_found"),
            },
            "spawn" => refused_frame("this_launcher_starts_no_further_processes"),
            _ => refused_frame("the_command_is_not_served"),
        };
        let answer = response(&request.command, thread.as_deref(), answer);
        self.send(rank, Form::Frame, &answer);
    }

    fn full_init(&mut self, rank: u32) -> Message {
        self.join(rank);
        Message::new("")
            .with("pmi-version", 2)
            .with("pmi-subversion", 0)
            .with("rank", rank)
            .with("size", self.processes.len())
            .with("appnum", self.program(rank))
            .with("debugged", "FALSE")
            .with("pmiverbose", "FALSE")
            .with("rc", 0)
    }

    fn join(&mut self, rank: u32) {
        if let Some(process) = self.process(rank)
            && matches!(process.state, ClientState::Silent)
        {
            process.state = ClientState::Member;
        }
    }

    fn finalize(&mut self, rank: u32) {
        if let Some(process) = self.process(rank) {
            process.state = ClientState::Finalized;
        }
    }

    fn publish(&mut self, service: &str, port: &str) -> Result<(), &'static str> {
        if self.ports.contains_key(service) {
            return Err("the_service_is_published_already");
        }
        self.admit(service, port, None)?;
        self.ports.insert(service.to_owned(), port.to_owned());
        Ok(())
    }

    fn unpublish(&mut self, service: &str) -> Result<(), &'static str> {
        let port = self.ports.remove(service).ok_or("service_not_found")?;
        self.value_bytes -= service.len() + port.len();
        Ok(())
    }

    fn is_own_name(&self, request: &Message) -> Result<(), &'static str> {
        match request.value("kvsname") {
            Some(name) if name != self.name => Err("kvsname_is_not_known"),
            _ => Ok(()),
        }
    }

    fn program(&self, rank: u32) -> u32 {
        let process = usize::try_from(rank).ok().and_then(|rank| self.processes.get(rank));
        process.map_or(0, |process| process.membership.program)
    }

    fn waits(&self, rank: u32) -> usize {
        self.waiting_for_values.iter().filter(|waiting| waiting.rank == rank).count()
    }
}

/// The answer that ends a barrier.
pub(super) fn of_barrier(waiting: &Waiting) -> Message {
    match waiting.form {
        Form::Line => Message::new("barrier_out").with("rc", 0),
        Form::Frame => {
            response("kvs-fence", waiting.thread.as_deref(), Message::new("").with("rc", 0))
        }
    }
}

/// The answer to a process that waits for a value of its host.
pub(super) fn of_value_of_host(value: Option<&str>, thread: Option<&str>) -> Message {
    response("info-getnodeattr", thread, found(value))
}

/// An answer of PMI-2: the name of the request, and its thread, by which the client finds it.
fn response(command: &str, thread: Option<&str>, answer: Message) -> Message {
    let mut response = Message::new(&format!("{command}-response"));
    if let Some(thread) = thread {
        response = response.with("thrid", thread);
    }
    response.pairs.extend(answer.pairs);
    response
}

fn refused(command: &str, reason: &str) -> Message {
    Message::new(command).with("rc", REFUSED).with("msg", reason)
}

fn refused_frame(reason: &str) -> Message {
    Message::new("").with("rc", 1).with("errmsg", reason)
}

fn accepted(result: Result<(), &'static str>) -> Message {
    match result {
        Ok(()) => Message::new("").with("rc", 0),
        Err(reason) => refused_frame(reason),
    }
}

fn found(value: Option<&str>) -> Message {
    match value {
        Some(value) => Message::new("").with("found", "TRUE").with("value", value).with("rc", 0),
        None => Message::new("").with("found", "FALSE").with("rc", 0),
    }
}
