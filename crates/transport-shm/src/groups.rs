//! Multicast groups: joining, leaving, and their members as the broker knows them.

use weft_fabric::{
    ConnectError, EndpointAddress, Group, GroupError, Issued, OperationError, SendError, Vpid,
};
use weft_wire::endpoint_control::{AskMembers, EndpointControl, Join, Leave, status};

use crate::broker::{BrokerError, Received};
use crate::endpoint::ShmEndpoint;
use crate::requests::Asked;

impl ShmEndpoint {
    pub(crate) fn change_group(
        &mut self,
        group: Group,
        join: bool,
        context: u64,
    ) -> Result<Issued, GroupError> {
        if group == Group::BROADCAST {
            return Err(GroupError::Broadcast);
        }
        let (ticket, vpid, number) = (self.next_ticket(), self.address.vpid.0, group.number());
        let request: EndpointControl = if join {
            Join { ticket, vpid, group: number }.into()
        } else {
            Leave { ticket, vpid, group: number }.into()
        };
        let asked = Asked::Group { group, join };
        self.start(ticket, request, &[], asked, Some(context))?.issued(|error| match error {
            OperationError::Group(error) => Some(error),
            _ => None,
        })
    }

    /// The broker answered a change of a group.
    pub(crate) fn group_changed(
        &mut self,
        group: Group,
        join: bool,
        status: u16,
    ) -> Result<u64, GroupError> {
        match status {
            status::DONE => {}
            status::NOT_FOUND => return Err(GroupError::UnknownEndpoint),
            // A daemon of an earlier release says the same of an endpoint that it does not know.
            status::INVALID => {
                let reason = "it found the request not valid; open a new endpoint".to_owned();
                return Err(GroupError::Broker { reason });
            }
            _ => return Err(BrokerError::InvalidAnswer.into()),
        }
        let bit = 1 << group.number();
        self.joined = if join { self.joined | bit } else { self.joined & !bit };
        self.members[usize::from(group.number())] = None;
        Ok(0)
    }

    /// The other members of a group. Asks the broker, and waits, when they are not known. None when
    /// the broker does not answer.
    pub(crate) fn group_members(&mut self, group: Group) -> Result<Vec<u16>, SendError> {
        if self.doorbell.words().is_rung() {
            self.answer_wakeup();
        }
        let place = usize::from(group.number());
        if let Some(known) = &self.members[place] {
            return Ok(known.clone());
        }
        let (ticket, vpid) = (self.next_ticket(), self.address.vpid.0);
        let ask = AskMembers { ticket, vpid, group: group.number() };
        self.handle_broker_messages();
        let answer = self.client.call(ask.into(), ticket, &[]);
        let Ok(Received { message: EndpointControl::Members(found), .. }) = answer else {
            return Ok(Vec::new());
        };
        let (mut members, mut are_all_here) = (Vec::new(), true);
        for other in (0..crate::wakeup::VPIDS_MAX).filter(|other| *other != vpid) {
            let bit = found.vpids[usize::from(other / 64)] & (1 << (other % 64));
            if bit == 0 {
                continue;
            }
            let address = EndpointAddress::new(self.address.node, Vpid(other));
            match self.connect_at_once(address) {
                Ok(()) => members.push(other),
                Err(ConnectError::Exhausted { maximum }) => {
                    return Err(SendError::Exhausted { maximum });
                }
                // A member that has gone is left out, and one that may have no more peers now.
                Err(_) => are_all_here = false,
            }
        }
        self.members[place] = are_all_here.then(|| members.clone());
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    use super::*;
    use crate::broker::{Client, Connector, Limits, local::LocalBroker};
    use crate::{Parameters, ShmTransport};
    use weft_fabric::{Endpoint, EndpointOptions, NodeId, Transport};
    use weft_wire::endpoint_control::Reply;

    /// A broker that answers each request to join a group with a status.
    struct Refusing(LocalBroker, u16);

    struct RefusingClient(Box<dyn Client>, u16, Vec<Received>);

    impl Connector for Refusing {
        fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
            Ok(Box::new(RefusingClient(self.0.client()?, self.1, Vec::new())))
        }
    }

    impl Client for RefusingClient {
        fn call(
            &mut self,
            request: EndpointControl,
            ticket: u32,
            files: &[BorrowedFd<'_>],
        ) -> Result<Received, BrokerError> {
            self.0.call(request, ticket, files)
        }

        fn start(
            &mut self,
            request: EndpointControl,
            files: &[BorrowedFd<'_>],
        ) -> Result<(), BrokerError> {
            if let EndpointControl::Join(Join { ticket, .. }) = request {
                let message = Reply { ticket, status: self.1, first: 0, second: 0 }.into();
                self.2.push(Received { message, files: Vec::new() });
                return Ok(());
            }
            self.0.start(request, files)
        }

        fn next(&mut self) -> Option<Received> {
            self.2.pop().or_else(|| self.0.next())
        }
    }

    #[test]
    fn each_refusal_to_change_a_group_has_an_error_of_its_own() {
        let join = |status| {
            let broker = LocalBroker::new(NodeId::LOCAL, Limits::default());
            let broker = Arc::new(Refusing(broker, status));
            let transport = ShmTransport::new(broker, Parameters::default());
            let mut endpoint = transport.open(&EndpointOptions::default()).expect("room");
            endpoint.join(Group::new(1).expect("a group"), 0)
        };
        assert_eq!(join(status::DONE), Ok(Issued::Done(0)));
        let refusals = [status::NOT_FOUND, status::INVALID, 99].map(|status| join(status).err());
        assert_eq!(refusals[0], Some(GroupError::UnknownEndpoint));
        let reason = |of: &Option<GroupError>| match of {
            Some(GroupError::Broker { reason }) => reason.clone(),
            other => panic!("{other:?}"),
        };
        let reasons = [reason(&refusals[1]), reason(&refusals[2])];
        assert!(reasons[0].contains("open a new endpoint"), "{reasons:?}");
        assert_eq!(reasons[1], BrokerError::InvalidAnswer.to_string());
    }
}
