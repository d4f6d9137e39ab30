//! Full feature phase: commands and their data, task management, pings, text, logout.
//!
//! Source: RFC 7143 sections 4 and 11. Invariants: a command runs when all its data are there, and
//! is answered once or aborted. The window of commands, and the bytes that commands hold, are
//! bounded; what has no room waits in order of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::connection::Event;
use super::input::{Pdu, Sink, Sunk};
use super::login::{Established, Negotiated};
use super::output::{Data, Output};
use super::pdu::{Head, NO_TAG, Request, is_before};
use super::target::{SessionInfo, Target, Targets};
use super::task::{Phase, Plan, Task};
use super::{HELD_BYTES_MAX, IMMEDIATE_MAX, TEXT_BYTES_MAX, WINDOW, text};
use crate::scsi::{
    Begun, Directory, Job, Link, Outcome, Port, Reply, Sense, Status, Unit, absent, decode_number,
};

const FINAL: u8 = 0x80;
/// Buffers that are kept for later commands, and bytes of one of them.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 1 << 20;

const REJECT_DATA_DIGEST: u8 = 0x02;
const REJECT_PROTOCOL: u8 = 0x04;
const REJECT_NOT_SUPPORTED: u8 = 0x05;
const REJECT_IMMEDIATE: u8 = 0x06;

/// A command, or a task management function, whose job runs outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Command {
        tag: u32,
        serial: u64,
        lun: u64,
        held: usize,
    },
    /// Barriers of a task management function.
    Management {
        serial: u64,
    },
}

/// A task management function that waits for its barriers.
#[derive(Debug)]
struct Management {
    tag: u32,
    barriers: usize,
    ends_session: bool,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It goes on.
    No,
    /// When all was sent.
    WhenSent,
}

/// A session in full feature phase. The module lists its invariants.
#[derive(Debug)]
pub struct Session {
    targets: Arc<Targets>,
    target: Option<(Arc<Target>, u16, SessionInfo)>,
    port: Port,
    portal: String,
    negotiated: Negotiated,
    links: HashMap<u64, (Arc<Unit>, Arc<Link>)>,
    tasks: HashMap<u32, Task>,
    waiting: VecDeque<(u32, u64)>,
    management: HashMap<u64, Management>,
    command_number: u32,
    command_number_max: u32,
    status_number: u32,
    serial: u64,
    held: HashMap<u64, usize>,
    text: Vec<u8>,
    spare: Vec<Vec<u8>>,
    end: End,
}

impl Session {
    pub fn new(targets: Arc<Targets>, portal: String, established: Established) -> Self {
        let Established { negotiated, target, port, command_number, status_number } = established;
        Self {
            targets,
            target,
            port,
            portal,
            negotiated,
            links: HashMap::new(),
            tasks: HashMap::new(),
            waiting: VecDeque::new(),
            management: HashMap::new(),
            command_number,
            command_number_max: command_number.wrapping_add(WINDOW - 1),
            status_number,
            serial: 0,
            held: HashMap::new(),
            text: Vec::new(),
            spare: Vec::new(),
            end: End::No,
        }
    }

    pub fn target(&self) -> Option<&Arc<Target>> {
        self.target.as_ref().map(|(target, ..)| target)
    }

    pub fn end(&self) -> End {
        self.end
    }

    /// Whether another login took its place.
    pub fn is_replaced(&self) -> bool {
        self.target.as_ref().is_some_and(|(_, _, session)| session.is_ended())
    }

    /// The place for the data of a PDU.
    pub fn sink(&mut self, head: &Head) -> Sink {
        let length = head.data_bytes();
        match head.request() {
            Some(Request::Command) => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                Sink::Task { buffer, at: 0 }
            }
            Some(Request::DataOut) => {
                let (transfer, number) = (head.word(20), head.word(36));
                let offset = head.word(40) as usize;
                let Some(task) = self.tasks.get_mut(&head.tag()) else { return Sink::Discard };
                if !task.check_data(transfer, number, offset, length) {
                    return Sink::Discard;
                }
                Sink::Task { buffer: task.take_buffer(offset + length), at: offset }
            }
            Some(Request::Text | Request::NopOut) => Sink::Own,
            _ => Sink::Discard,
        }
    }

    /// Takes a PDU.
    pub fn request(&mut self, pdu: Pdu, output: &mut Output, events: &mut VecDeque<Event>) {
        let head = pdu.head;
        let Some(request) = head.request() else {
            return self.reject(&head, REJECT_NOT_SUPPORTED, output);
        };
        if request == Request::DataOut {
            return self.data_out(pdu, output, events);
        }
        if !pdu.is_intact && request != Request::Command {
            return self.reject(&head, REJECT_DATA_DIGEST, output);
        }
        if matches!(request, Request::Snack | Request::Login) {
            return self.reject(&head, REJECT_PROTOCOL, output);
        }
        // RFC 7143 section 4.2.2.1: what is out of order is passed over. One connection delivers
        // in order, so a gap never fills.
        if !head.is_immediate() {
            let number = head.word(24);
            if number != self.command_number || is_before(self.command_number_max, number) {
                return;
            }
            self.command_number = self.command_number.wrapping_add(1);
        }
        match request {
            Request::Command => self.command(pdu, output, events),
            Request::TaskManagement => self.manage(&head, output, events),
            Request::NopOut => self.ping(pdu, output),
            Request::Text => self.ask(pdu, output),
            Request::Logout => self.logout(&head, output),
            Request::DataOut | Request::Snack | Request::Login => {}
        }
    }

    /// The job of a ticket has ended; `data` is what the initiator gets, `spare` a buffer that the
    /// job does not need any more.
    pub fn finished(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
        data: Vec<u8>,
        spare: Vec<u8>,
        output: &mut Output,
        events: &mut VecDeque<Event>,
    ) {
        self.keep_spare(spare);
        match ticket.0 {
            Kind::Management { serial } => self.barrier_ended(serial, output),
            Kind::Command { tag, serial, lun, held } => {
                let is_open = self.tasks.get(&tag).is_some_and(|task| task.serial == serial);
                let (status, follows) = match outcome {
                    Outcome::Done(status) => (Some(status), None),
                    Outcome::Continues(job) => (Some(Status::Good), Some(job)),
                    Outcome::Aborted => (None, None),
                };
                if let Some(job) = follows {
                    events.push_back(Event::RunUnasked { job });
                }
                let task = if is_open { self.tasks.remove(&tag) } else { None };
                match (task, status) {
                    (Some(task), Some(status)) => {
                        self.answer(tag, task, status, data, output);
                    }
                    // Aborted: nobody is answered.
                    _ => self.release(lun, held),
                }
            }
        }
        self.start_waiting(output, events);
    }

    /// Bytes of a command were sent, or are not needed any more.
    pub fn release(&mut self, lun: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if let Some(held) = self.held.get_mut(&lun) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.held.remove(&lun);
            }
        }
    }

    /// Commands that waited for room may go on.
    pub fn start_waiting(&mut self, output: &mut Output, events: &mut VecDeque<Event>) {
        for _ in 0..self.waiting.len() {
            let Some((tag, serial)) = self.waiting.pop_front() else { return };
            let Some(task) = self.tasks.get(&tag).filter(|task| task.serial == serial) else {
                continue;
            };
            let need = self.need(task);
            if !self.has_room(task.lun, need) {
                self.waiting.push_back((tag, serial));
                continue;
            }
            self.proceed(tag, output, events);
        }
    }

    pub fn keep_spare(&mut self, buffer: Vec<u8>) {
        let is_useful = (1..=SPARE_BYTES_MAX).contains(&buffer.len());
        if is_useful && self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// A ping from this end.
    pub fn ping_initiator(&mut self, output: &mut Output) {
        self.serial += 1;
        let transfer = u32::try_from(self.serial & 0x7fff_ffff).expect("31 bits");
        let head = Head::new(0x20, FINAL, NO_TAG).with(20, transfer);
        let head = self.numbered(head, false);
        output.push(&head, None, (0, 0));
    }

    fn command(&mut self, pdu: Pdu, output: &mut Output, events: &mut VecDeque<Event>) {
        let head = pdu.head;
        let tag = head.tag();
        let (data, length) = match pdu.data {
            Sunk::Task(buffer) => (buffer, head.data_bytes()),
            _ => (Vec::new(), 0),
        };
        if self.tasks.contains_key(&tag) || tag == NO_TAG {
            return self.reject(&head, REJECT_PROTOCOL, output);
        }
        if self.tasks.len() >= WINDOW as usize + IMMEDIATE_MAX {
            return self.reject(&head, REJECT_IMMEDIATE, output);
        }
        let (reads, writes) = (head.flags() & 0x40 != 0, head.flags() & 0x20 != 0);
        let transfer_length = head.word(20);
        let number = decode_number(head.lun());
        let plan = self.plan(number, &head.command());
        let wanted = match &plan {
            Plan::Job(job) => job.data_out(),
            Plan::Reply(..) => 0,
        };
        let sent = if writes { transfer_length } else { 0 };
        let expected = usize::try_from(wanted.min(sent.into())).expect("at most 32 bits");
        let allowed = self.negotiated.first_burst_bytes.min(sent as usize);
        let mut broken = None;
        if length > allowed || (length > 0 && !self.negotiated.immediate_data) {
            broken = Some(Sense::DATA_PHASE);
        } else if !pdu.is_intact {
            broken = Some(Sense::DATA_DIGEST);
        } else if let Plan::Job(job) = &plan
            && job.needs_exact_data()
            && wanted != u64::from(sent)
        {
            broken = Some(Sense::INVALID_COMMAND);
        }
        self.serial += 1;
        let task = Task {
            serial: self.serial,
            lun: number.unwrap_or(u64::MAX),
            plan,
            phase: if head.is_final() { Phase::Waiting } else { Phase::Unsolicited },
            buffer: data,
            received: length.min(expected),
            expected,
            transfer_length,
            is_read: reads,
            data_number: 0,
            asked: 0,
            held: 0,
            broken,
        };
        let waits = matches!(task.phase, Phase::Unsolicited) && writes;
        self.tasks.insert(tag, task);
        if !waits {
            self.ready(tag, output, events);
        }
    }

    /// The way of a command.
    fn plan(&mut self, number: Option<u64>, command: &[u8; 16]) -> Plan {
        let Some((target, ..)) = &self.target else {
            return Plan::Reply(absent(command, &[]), None);
        };
        let target = Arc::clone(target);
        let unit = number.and_then(|number| target.unit(number));
        let Some(unit) = unit else {
            if let Some((unit, link)) = number.and_then(|number| self.links.remove(&number)) {
                unit.detach(&link);
            }
            return Plan::Reply(absent(command, &target.numbers()), None);
        };
        let Some(link) = self.link(number.unwrap_or(0), &unit) else {
            return Plan::Reply(Reply { status: Status::Busy, data: Vec::new() }, None);
        };
        match unit.begin(&link, command, &*target) {
            Begun::Done(reply) => Plan::Reply(reply, Some(unit)),
            Begun::Job(job) => Plan::Job(job),
        }
    }

    /// This session's way to a unit, which is made when it is first used.
    fn link(&mut self, number: u64, unit: &Arc<Unit>) -> Option<Arc<Link>> {
        if let Some((own, link)) = self.links.get(&number) {
            if Arc::ptr_eq(own, unit) {
                return Some(Arc::clone(link));
            }
            // Another unit took the number.
            own.detach(link);
        }
        let link = unit.attach(&self.port)?;
        self.links.insert(number, (Arc::clone(unit), Arc::clone(&link)));
        Some(link)
    }

    /// Goes on with a command whose sequence of data has ended.
    fn ready(&mut self, tag: u32, output: &mut Output, events: &mut VecDeque<Event>) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if task.broken.is_some() || matches!(task.plan, Plan::Reply(..)) {
            let Some(task) = self.tasks.remove(&tag) else { return };
            return self.answer_now(tag, task, output);
        }
        task.phase = Phase::Waiting;
        let task = &self.tasks[&tag];
        let need = self.need(task);
        // Nothing goes past what waits already for the same unit.
        let is_behind = self
            .waiting
            .iter()
            .any(|(other, _)| self.tasks.get(other).is_some_and(|other| other.lun == task.lun));
        if need > 0 && (is_behind || !self.has_room(task.lun, need)) {
            self.waiting.push_back((tag, task.serial));
            return;
        }
        self.proceed(tag, output, events);
    }

    /// Bytes that a command does not hold yet and needs to go on.
    fn need(&self, task: &Task) -> usize {
        let out = task.expected - task.received;
        let read = match &task.plan {
            Plan::Job(job) => usize::try_from(job.data_in()).unwrap_or(usize::MAX),
            Plan::Reply(..) => 0,
        };
        if task.held > 0 { 0 } else { out.max(read) }
    }

    /// One unit gets half of the room, so that others go on when it is slow.
    fn has_room(&self, lun: u64, bytes: usize) -> bool {
        let own = self.held.get(&lun).copied().unwrap_or(0);
        let all: usize = self.held.values().sum();
        bytes == 0
            || own == 0
            || (own + bytes <= HELD_BYTES_MAX / 2 && all + bytes <= HELD_BYTES_MAX)
    }

    /// Asks for the next data of a command that has room, or runs it.
    fn proceed(&mut self, tag: u32, output: &mut Output, events: &mut VecDeque<Event>) {
        let Some(task) = self.tasks.get(&tag) else { return };
        let (need, lun) = (self.need(task), task.lun);
        let (command, maximum) = (self.command_number, self.window());
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if need > 0 {
            task.held = need;
            *self.held.entry(lun).or_default() += need;
        }
        if task.received < task.expected {
            let length = (task.expected - task.received).min(self.negotiated.burst_bytes);
            self.serial += 1;
            let transfer = u32::try_from(self.serial & 0x7fff_ffff).expect("31 bits");
            task.phase = Phase::Solicited { transfer, until: task.received + length };
            task.data_number = 0;
            let word = |bytes: usize| u32::try_from(bytes).expect("within a transfer length");
            let mut head = Head::new(0x31, FINAL, tag)
                .with(20, transfer)
                .with(24, self.status_number)
                .with(28, command)
                .with(32, maximum)
                .with(36, task.asked)
                .with(40, word(task.received))
                .with(44, word(length));
            head.0[8..16].copy_from_slice(&crate::scsi::encode_number(lun));
            task.asked += 1;
            output.push(&head, None, (0, 0));
            return;
        }
        task.phase = Phase::Running;
        let Plan::Job(job) = &task.plan else { return };
        let ticket = Ticket(Kind::Command { tag, serial: task.serial, lun, held: task.held });
        let job = job.clone();
        let received = task.received;
        let mut data = std::mem::take(&mut task.buffer);
        data.truncate(received);
        let into =
            if job.data_in() > 0 { self.spare.pop().unwrap_or_default() } else { Vec::new() };
        events.push_back(Event::Run { ticket, job, data, into });
    }

    fn data_out(&mut self, pdu: Pdu, output: &mut Output, events: &mut VecDeque<Event>) {
        let tag = pdu.head.tag();
        // Data of a task that was aborted, or answered before its data came: they are thrown away.
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let transfer = pdu.head.word(20);
        let is_own = match task.phase {
            Phase::Unsolicited => transfer == NO_TAG,
            Phase::Solicited { transfer: own, .. } => transfer == own,
            Phase::Waiting | Phase::Running => false,
        };
        if let Sunk::Task(buffer) = pdu.data {
            task.buffer = buffer;
            task.received += pdu.head.data_bytes();
        }
        if !is_own {
            return;
        }
        if !pdu.is_intact {
            task.broken = Some(Sense::DATA_DIGEST);
        }
        if !pdu.head.is_final() {
            return;
        }
        if let Phase::Solicited { until, .. } = task.phase
            && task.received < until
        {
            task.broken = task.broken.or(Some(Sense::DATA_PHASE));
        }
        self.ready(tag, output, events);
    }

    /// Answers a command that does not run.
    fn answer_now(&mut self, tag: u32, mut task: Task, output: &mut Output) {
        let buffer = std::mem::take(&mut task.buffer);
        self.keep_spare(buffer);
        if let Some(sense) = task.broken {
            return self.answer(tag, task, sense.into(), Vec::new(), output);
        }
        let plan = std::mem::replace(
            &mut task.plan,
            Plan::Reply(Reply { status: Status::Good, data: Vec::new() }, None),
        );
        if let Plan::Reply(reply, unit) = plan {
            task.plan = Plan::Reply(Reply { status: reply.status, data: Vec::new() }, unit);
            self.answer(tag, task, reply.status, reply.data, output);
        }
    }

    /// Sends the data and the status of a command.
    fn answer(&mut self, tag: u32, task: Task, status: Status, data: Vec<u8>, output: &mut Output) {
        let releases = (task.lun, task.held);
        let (wanted, unit) = match &task.plan {
            Plan::Job(job) => (job.data_out(), Some(Arc::clone(job.unit()))),
            Plan::Reply(_, unit) => (0, unit.clone()),
        };
        if status == Status::Good && task.is_read && !data.is_empty() && task.transfer_length > 0 {
            return self.send_data(tag, &task, data, releases, output);
        }
        let moved = if task.is_read { data.len() as u64 } else { wanted };
        let (flag, residual) = match status {
            Status::Good => residual(task.transfer_length, moved),
            // Nothing of it counts.
            _ => residual(task.transfer_length, 0),
        };
        let (byte, sense) = match status {
            Status::Good => (0x00, None),
            Status::Check(sense) => {
                let bytes = unit.map_or_else(|| sense.encode(false), |unit| unit.encode(&sense));
                (0x02, Some(bytes))
            }
            Status::Busy => (0x08, None),
            Status::Conflict => (0x18, None),
        };
        self.keep_spare(data);
        let mut head = Head::new(0x21, FINAL | flag, tag).with(44, residual);
        head.0[3] = byte;
        let head = self.numbered(head, true);
        let sense = sense.map(|sense| {
            let length = u16::try_from(sense.len()).expect("sense data are short");
            let bytes = [&length.to_be_bytes()[..], &sense].concat();
            let length = bytes.len();
            Data { bytes: Arc::new(bytes), from: 0, length }
        });
        output.push(&head, sense, releases);
    }

    /// Sends the data of a read; the status rides with the last of them.
    fn send_data(
        &mut self,
        tag: u32,
        task: &Task,
        data: Vec<u8>,
        releases: (u64, usize),
        output: &mut Output,
    ) {
        const HAS_STATUS: u8 = 0x01;
        let (flag, residual) = residual(task.transfer_length, data.len() as u64);
        let whole = data.len().min(task.transfer_length as usize);
        let bytes = Arc::new(data);
        let step = self.negotiated.segment_bytes;
        let (burst, mut in_burst) = (self.negotiated.burst_bytes, 0);
        let mut from = 0;
        let mut number = 0;
        while from < whole {
            let length = step.min(whole - from).min(burst - in_burst);
            in_burst += length;
            let is_last = from + length == whole;
            let ends_burst = is_last || in_burst == burst;
            let flags = match (is_last, ends_burst) {
                (true, _) => FINAL | HAS_STATUS | flag,
                (false, true) => FINAL,
                (false, false) => 0,
            };
            if ends_burst {
                in_burst = 0;
            }
            let word = |bytes: usize| u32::try_from(bytes).expect("within a transfer length");
            let head = Head::new(0x25, flags, tag)
                .with(20, NO_TAG)
                .with(36, number)
                .with(40, word(from))
                .with(44, if is_last { residual } else { 0 });
            let head = self.numbered(head, is_last);
            let data = Data { bytes: Arc::clone(&bytes), from, length };
            output.push(&head, Some(data), if is_last { releases } else { (0, 0) });
            from += length;
            number += 1;
        }
    }

    fn manage(&mut self, head: &Head, output: &mut Output, events: &mut VecDeque<Event>) {
        const COMPLETE: u8 = 0;
        const NO_TASK: u8 = 1;
        const NO_LUN: u8 = 2;
        const NOT_SUPPORTED: u8 = 5;
        let function = head.flags() & 0x7f;
        let target = self.target.as_ref().map(|(target, ..)| Arc::clone(target));
        let number = decode_number(head.lun());
        let unit = number.zip(target.as_ref()).and_then(|(number, target)| target.unit(number));
        let respond = |session: &mut Self, response: u8, output: &mut Output| {
            let mut answer = Head::new(0x22, FINAL, head.tag());
            answer.0[2] = response;
            let answer = session.numbered(answer, true);
            output.push(&answer, None, (0, 0));
        };
        let of_target = matches!(function, 6 | 7);
        let units: Vec<(u64, Arc<Unit>)> = match (of_target, unit, &target) {
            (true, _, Some(target)) => target.units(),
            (false, Some(unit), _) => vec![(number.unwrap_or(0), unit)],
            _ => return respond(self, NO_LUN, output),
        };
        match function {
            1 => {
                // ABORT TASK: the task, and then all that runs of it.
                let Some(task) = self.tasks.remove(&head.word(20)) else {
                    return respond(self, NO_TASK, output);
                };
                self.forget(task);
            }
            2 => self.abort_tasks(number),
            4 => {
                if let Some((unit, link)) = number.and_then(|number| self.links.get(&number)) {
                    unit.clear_tasks(link);
                }
                self.abort_tasks(number);
            }
            5..=7 => {
                for (number, unit) in &units {
                    unit.reset();
                    self.abort_tasks(Some(*number));
                }
            }
            _ => return respond(self, NOT_SUPPORTED, output),
        }
        if self.management.len() >= IMMEDIATE_MAX {
            return self.reject(head, REJECT_IMMEDIATE, output);
        }
        self.serial += 1;
        let (serial, tag) = (self.serial, head.tag());
        let mut barriers = 0;
        for (number, unit) in units {
            if Job::is_unit_idle(&unit) {
                continue;
            }
            if let Some(link) = self.link(number, &unit) {
                barriers += 1;
                let ticket = Ticket(Kind::Management { serial });
                let job = Job::barrier(&unit, &link);
                events.push_back(Event::Run { ticket, job, data: Vec::new(), into: Vec::new() });
            }
        }
        // TARGET COLD RESET ends the connection.
        let ends_session = function == 7;
        if barriers == 0 {
            respond(self, COMPLETE, output);
            if ends_session {
                self.end = End::WhenSent;
            }
            return;
        }
        self.management.insert(serial, Management { tag, barriers, ends_session });
    }

    fn barrier_ended(&mut self, serial: u64, output: &mut Output) {
        let Some(management) = self.management.get_mut(&serial) else { return };
        management.barriers -= 1;
        if management.barriers > 0 {
            return;
        }
        let Some(management) = self.management.remove(&serial) else { return };
        let head = Head::new(0x22, FINAL, management.tag);
        let head = self.numbered(head, true);
        output.push(&head, None, (0, 0));
        if management.ends_session {
            self.end = End::WhenSent;
        }
    }

    /// Takes all tasks of a unit out of the session; they are not answered.
    fn abort_tasks(&mut self, number: Option<u64>) {
        let Some(number) = number else { return };
        let tags: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.lun == number).map(|(tag, _)| *tag).collect();
        for tag in tags {
            if let Some(task) = self.tasks.remove(&tag) {
                self.forget(task);
            }
        }
    }

    /// A task that is not answered: what it holds is free, unless its job runs and gives it back.
    fn forget(&mut self, task: Task) {
        if !matches!(task.phase, Phase::Running) {
            self.release(task.lun, task.held);
        }
        self.keep_spare(task.buffer);
    }

    fn ping(&mut self, pdu: Pdu, output: &mut Output) {
        // Without a tag it is an answer to a ping of ours, or wants none.
        if pdu.head.tag() == NO_TAG {
            return;
        }
        let head = Head::new(0x20, FINAL, pdu.head.tag()).with(20, NO_TAG);
        let head = self.numbered(head, true);
        match pdu.data {
            Sunk::Own(mut data) => {
                data.truncate(self.negotiated.segment_bytes);
                output.push_own(&head, data);
            }
            _ => output.push(&head, None, (0, 0)),
        }
    }

    fn ask(&mut self, pdu: Pdu, output: &mut Output) {
        const CONTINUES: u8 = 0x40;
        let data = if let Sunk::Own(data) = pdu.data { data } else { Vec::new() };
        if self.text.len() + data.len() > TEXT_BYTES_MAX {
            self.text.clear();
            return self.reject(&pdu.head, REJECT_PROTOCOL, output);
        }
        self.text.extend(data);
        let mut answer = Vec::new();
        let is_whole = pdu.head.flags() & CONTINUES == 0;
        if is_whole {
            let asked = std::mem::take(&mut self.text);
            let Ok(keys) = text::parse(&asked) else {
                return self.reject(&pdu.head, REJECT_PROTOCOL, output);
            };
            for (key, value) in keys {
                if key == "SendTargets" {
                    self.send_targets(value, &mut answer);
                } else {
                    text::add(&mut answer, key, "NotUnderstood");
                }
            }
        }
        // All of it is sent at once: names that do not fit are left out.
        answer.truncate(self.negotiated.segment_bytes);
        let flags = if is_whole { FINAL } else { 0 };
        let transfer = if is_whole { NO_TAG } else { 1 };
        let head = Head::new(0x24, flags, pdu.head.tag()).with(20, transfer);
        let head = self.numbered(head, true);
        output.push_own(&head, answer);
    }

    fn send_targets(&self, value: &str, answer: &mut Vec<u8>) {
        let own = self.target.as_ref().map(|(target, ..)| target.name().to_owned());
        for target in self.targets.all() {
            let is_asked = match (value, &own) {
                ("All", None) => true,
                ("", Some(own)) => own == target.name(),
                (name, None) => name == target.name(),
                (name, Some(own)) => name == own && own == target.name(),
            };
            if is_asked {
                text::add(answer, "TargetName", target.name());
                text::add(answer, "TargetAddress", &format!("{},1", self.portal));
            }
        }
    }

    fn logout(&mut self, head: &Head, output: &mut Output) {
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        let is_recovery = head.flags() & 0x7f == 2;
        let mut answer = Head::new(0x26, FINAL, head.tag());
        if is_recovery {
            answer.0[2] = RECOVERY_NOT_SUPPORTED;
        } else {
            self.end = End::WhenSent;
        }
        let answer = self.numbered(answer, true);
        output.push(&answer, None, (0, 0));
    }

    fn reject(&mut self, head: &Head, reason: u8, output: &mut Output) {
        let mut answer = Head::new(0x3f, FINAL, NO_TAG);
        answer.0[2] = reason;
        let answer = self.numbered(answer, true);
        output.push_own(&answer, head.0.to_vec());
    }

    /// The last number that the initiator may give to a command. It never goes back.
    fn window(&mut self) -> u32 {
        let open = u32::try_from(self.tasks.len()).unwrap_or(WINDOW).min(WINDOW);
        let maximum = self.command_number.wrapping_add(WINDOW - open).wrapping_sub(1);
        if is_before(self.command_number_max, maximum) {
            self.command_number_max = maximum;
        }
        self.command_number_max
    }

    /// The same head with the numbers of an answer.
    fn numbered(&mut self, head: Head, has_status: bool) -> Head {
        let head = head.with(28, self.command_number).with(32, self.window());
        let is_data = head.0[0] == 0x25;
        if !has_status {
            return if is_data { head } else { head.with(24, self.status_number) };
        }
        let number = self.status_number;
        self.status_number = number.wrapping_add(1);
        head.with(24, number)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (unit, link) in self.links.values() {
            unit.abort_tasks(link);
            unit.detach(link);
        }
        if let Some((target, handle, session)) = &self.target {
            target.end_session(*handle, session);
        }
    }
}

/// The flag and the count of bytes that were too many (0x04) or missing (0x02).
fn residual(expected: u32, moved: u64) -> (u8, u32) {
    let expected = u64::from(expected);
    let word = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    if moved > expected {
        (0x04, word(moved - expected))
    } else if moved < expected {
        (0x02, word(expected - moved))
    } else {
        (0, 0)
    }
}
