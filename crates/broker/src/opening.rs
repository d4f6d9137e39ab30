//! Opening endpoints: who may come into which partition.
//!
//! # Invariants
//! - An endpoint comes into a partition of another user by a service that the policy lets it use,
//!   by an invitation, or back after a restart of the broker, and in no other way.
//! - One that comes back so is outside until an endpoint of the partition's user remembers it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{Group, PartitionId, ServiceName, Ticket};
use weft_wire::endpoint_control::{Invite, NO_VPID, Open, VPIDS_MAX, flags, status};

use crate::invitations::Invitation;
use crate::state::{Answer, Asker, Outgoing, State};
use crate::tables::{Entry, Files, VpidSet};

/// How an endpoint comes into its partition.
struct Entrance {
    partition: PartitionId,
    /// False for a guest that comes back after a restart.
    is_member: bool,
    /// The endpoint that offered the service or invited.
    host: Option<u16>,
    offers: Option<ServiceName>,
    ticket: Option<Ticket>,
}

impl Entrance {
    const fn into(partition: PartitionId) -> Self {
        Self { partition, is_member: true, host: None, offers: None, ticket: None }
    }
}

impl State {
    pub(crate) fn open(
        &mut self,
        asker: Asker,
        open: Open,
        files: Vec<OwnedFd>,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Answer {
        let entrance = match self.entrance(asker, &open, now) {
            Ok(entrance) => entrance,
            Err(status) => return Answer::refused(status),
        };
        let vpid = match self.choose_vpid(open.vpid) {
            Ok(vpid) => vpid,
            Err(answer) => return answer,
        };
        let (own, all) = self.endpoints_by(asker.uid);
        let maximum = self.limits.allowance(asker.uid, self.entries.len(), own, all);
        if own >= maximum {
            return Answer::full(maximum);
        }
        let Ok([doorbell, registers, wakeup]) = <[OwnedFd; 3]>::try_from(files) else {
            return Answer::refused(status::INVALID);
        };
        let bell = wakeup.try_clone().ok().and_then(|wakeup| {
            is_socket(&wakeup).then(|| (self.open_bell)(doorbell.as_fd(), wakeup))?
        });
        let Some(bell) = bell else {
            return Answer::refused(status::INVALID);
        };
        let files = Files {
            doorbell: Arc::new(doorbell),
            registers: Arc::new(registers),
            wakeup: Arc::new(wakeup),
        };
        let Entrance { partition, is_member, host, offers, ticket } = entrance;
        // Nothing can fail from here on.
        if let Some(ticket) = ticket {
            self.invitations.take(ticket);
        }
        self.entries[usize::from(vpid)] = Some(Entry {
            process: asker.process,
            uid: asker.uid,
            partition,
            is_member,
            offers,
            flags: open.flags & flags::FULL_FENCES,
            slots: open.slots,
            peers_max: usize::from(if open.peers_max == 0 { VPIDS_MAX } else { open.peers_max }),
            birth: open.birth,
            files,
            bell,
            pairs: VpidSet::default(),
            awaited: Vec::new(),
            groups: 0,
            asked: 0,
            keys: Vec::new(),
            keys_count: 0,
        });
        if is_member {
            self.tell_groups(partition, vpid, 1 << Group::BROADCAST.number(), out);
        }
        if open.flags & flags::AGAIN != 0 {
            self.welcome_back(vpid, open.birth, out);
        }
        let host = u64::from(host.unwrap_or(NO_VPID));
        Answer::done(host << 48 | self.address(vpid), partition.0)
    }

    /// The partition that an endpoint may come into, or the status of the refusal.
    fn entrance(&mut self, asker: Asker, open: &Open, now: Duration) -> Result<Entrance, u16> {
        let ways = flags::PARTITION | flags::OFFER | flags::SERVICE | flags::INVITATION;
        let partition = PartitionId(open.partition);
        let owns = asker.uid == 0 || asker.uid == partition.user();
        match open.flags & ways {
            0 => Ok(Entrance::into(PartitionId::of_user(asker.uid))),
            flags::PARTITION if owns => Ok(Entrance::into(partition)),
            flags::PARTITION if open.flags & flags::AGAIN != 0 && !self.is_settled => {
                Ok(Entrance { is_member: false, ..Entrance::into(partition) })
            }
            flags::PARTITION => Err(status::FORBIDDEN),
            way if way == flags::PARTITION | flags::OFFER => {
                if !owns {
                    return Err(status::FORBIDDEN);
                }
                let name = self.free_name(asker, partition, open)?;
                Ok(Entrance { offers: Some(name), ..Entrance::into(partition) })
            }
            flags::SERVICE => self.service(asker, open),
            flags::INVITATION => {
                let ticket = Ticket(open.invitation.0);
                let host = self.invitations.host(ticket, now).ok_or(status::NOT_INVITED)?;
                let partition = self.entry(host).ok_or(status::NOT_INVITED)?.partition;
                let (host, ticket) = (Some(host), Some(ticket));
                Ok(Entrance { host, ticket, ..Entrance::into(partition) })
            }
            _ => Err(status::INVALID),
        }
    }

    /// The name under which a partition may be offered.
    fn free_name(
        &self,
        asker: Asker,
        partition: PartitionId,
        open: &Open,
    ) -> Result<ServiceName, u16> {
        let name = ServiceName::of_padded(open.name).map_err(|_| status::INVALID)?;
        if partition.is_default() {
            return Err(status::DEFAULT_PARTITION);
        }
        if !self.policy.may_offer(asker.uid, name.as_str()) {
            return Err(status::OFFER_FORBIDDEN);
        }
        if self.offered(name).is_some() { Err(status::NAME_TAKEN) } else { Ok(name) }
    }

    /// The way into the partition that is offered by the name in `open`.
    fn service(&self, asker: Asker, open: &Open) -> Result<Entrance, u16> {
        let name = ServiceName::of_padded(open.name).map_err(|_| status::INVALID)?;
        let (vpid, host) = self.offered(name).ok_or(status::NOT_OFFERED)?;
        if !self.policy.may_use(asker.uid, host.uid, name.as_str()) {
            return Err(status::SERVICE_FORBIDDEN);
        }
        Ok(Entrance { host: Some(vpid), ..Entrance::into(host.partition) })
    }

    /// The endpoint that offers a service of this name.
    fn offered(&self, name: ServiceName) -> Option<(u16, &Entry)> {
        (0..).zip(&self.entries).find_map(|(vpid, entry)| {
            let entry = entry.as_ref().filter(|entry| entry.offers == Some(name))?;
            Some((vpid, entry))
        })
    }

    fn choose_vpid(&mut self, wanted: u16) -> Result<u16, Answer> {
        let count = u16::try_from(self.entries.len()).unwrap_or(VPIDS_MAX);
        if wanted != NO_VPID {
            return match self.entries.get(usize::from(wanted)) {
                Some(None) => Ok(wanted),
                Some(Some(_)) => Err(Answer::taken(self.address(wanted))),
                None => Err(Answer::full(usize::from(count))),
            };
        }
        for step in 0..count {
            let vpid = (self.next_vpid + step) % count;
            let mut others = self.entries.iter().flatten();
            let awaited = others.any(|other| other.awaited.iter().any(|(peer, _)| *peer == vpid));
            if self.entry(vpid).is_none() && !awaited {
                // The VPID of an endpoint that just died is not reused at once: late messages about
                // that endpoint would seem to concern the new one.
                self.next_vpid = (vpid + 1) % count;
                return Ok(vpid);
            }
        }
        Err(Answer::full(usize::from(count)))
    }

    pub(crate) fn invite(&mut self, asker: Asker, ask: Invite, now: Duration) -> Answer {
        let Some(host) = self.own(asker, ask.vpid) else {
            return Answer::refused(status::INVALID);
        };
        let partition = host.partition;
        if asker.uid != 0 && partition.user() != asker.uid {
            return Answer::refused(status::FORBIDDEN);
        }
        if partition.is_default() {
            return Answer::refused(status::DEFAULT_PARTITION);
        }
        let within = Duration::from_millis(ask.within_ms.into());
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Answer::refused(status::INVALID);
        }
        self.invitations.expire(now);
        let (own, all) = (self.invitations.of(asker.uid), self.invitations.count());
        let maximum = self.limits.allowance(asker.uid, self.limits.invitations_max, own, all);
        if own >= maximum {
            return Answer::full(maximum);
        }
        let (ticket, host, user) = (Ticket(ask.invitation.0), ask.vpid, asker.uid);
        let until = now.saturating_add(within);
        self.invitations.add(Invitation { ticket, host, user, until });
        Answer::done(0, 0)
    }
}

/// A wakeup must be a socket: only a write to a socket is guaranteed not to block.
fn is_socket(file: &OwnedFd) -> bool {
    // Not by fstat, which asks the server of a file system in user space.
    rustix::net::sockopt::socket_domain(file) == Ok(rustix::net::AddressFamily::UNIX)
}
