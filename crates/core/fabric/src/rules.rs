//! The rights of a key and the doors of a partition: the rules that every transport and every
//! broker keeps, said once.

use crate::address::{NodeId, PartitionId};
use crate::error::{GrantError, InviteError, OpenError, OperationError, RegionError};
use crate::opening::Partition;
use crate::operation::{Access, Command};
use crate::service::{ServiceName, Ticket};

/// Whether `length` bytes from `offset` on lie in `bytes` bytes. No sum can overflow.
#[inline]
#[must_use]
pub const fn is_inside(offset: u64, length: u64, bytes: u64) -> bool {
    offset <= bytes && length <= bytes - offset
}

/// Checks that a range lies in a region of `region` bytes.
///
/// # Errors
/// [`RegionError::OutOfBounds`].
#[inline]
pub const fn check_range(offset: u64, length: u64, region: u64) -> Result<(), RegionError> {
    if is_inside(offset, length, region) {
        Ok(())
    } else {
        Err(RegionError::OutOfBounds { offset, length, region })
    }
}

/// Checks the number of bytes of an immediate put, which has 1 to 8.
///
/// # Errors
/// [`OperationError::InvalidLength`].
#[inline]
pub const fn check_immediate(length: u8) -> Result<u8, OperationError> {
    match length {
        1..=8 => Ok(length),
        _ => Err(OperationError::InvalidLength { length: length as u64 }),
    }
}

impl Access {
    /// The rights with these bits, if a key can have them: some, none that is unknown, and atomics
    /// only beside both others, since an atomic reads and writes.
    #[must_use]
    pub const fn of_key(bits: u8) -> Option<Self> {
        let whole = Self::READ.union(Self::WRITE);
        match Self::from_bits(bits) {
            Some(access) if access.is_empty() => None,
            Some(access) if access.contains(Self::ATOMIC) && !access.contains(whole) => None,
            access => access,
        }
    }

    /// Checks that a key can have these rights.
    ///
    /// # Errors
    /// [`GrantError::InvalidAccess`].
    pub fn check_key(self) -> Result<(), GrantError> {
        let access = self.bits();
        Self::of_key(access).map(|_| ()).ok_or(GrantError::InvalidAccess { access })
    }

    //= EXTOLL-THESIS#3.2.5
    //# The ATU verifies the VPID and the access permissions of every translation.
    /// Checks that a key with these rights on `region` bytes allows `command`, which needs the
    /// right `needed`, on `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OperationError::AccessDenied`], [`OperationError::OutOfBounds`].
    #[inline]
    pub const fn check(
        self,
        (command, needed): (Command, Self),
        (offset, length): (u64, u64),
        region: u64,
    ) -> Result<(), OperationError> {
        if !self.contains(needed) {
            return Err(OperationError::AccessDenied { command });
        }
        if !is_inside(offset, length, region) {
            return Err(OperationError::OutOfBounds { offset, length, region });
        }
        Ok(())
    }
}

impl PartitionId {
    /// Whether a user may open the partition by its number.
    #[must_use]
    pub const fn is_open_to(self, user: u32) -> bool {
        user == 0 || self.user() == user
    }

    /// Checks that an endpoint of `user` in this partition may let others in by tickets.
    ///
    /// # Errors
    /// [`InviteError::Forbidden`], [`InviteError::DefaultPartition`].
    pub const fn check_invitation(self, user: u32) -> Result<(), InviteError> {
        if !self.is_open_to(user) {
            return Err(InviteError::Forbidden);
        }
        if self.is_default() {
            return Err(InviteError::DefaultPartition);
        }
        Ok(())
    }
}

/// A partition that an endpoint offers by a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Door<H> {
    /// The user of the endpoint.
    pub user: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The endpoint.
    pub host: H,
}

/// The doors of partitions: what is offered and who was invited. `H` names an endpoint.
pub trait Doors<H> {
    /// The partitions that are offered by a name, at this node or at any, the best first: those of
    /// the own node before others, which are in the order of their nodes. Each node has its own
    /// names.
    fn offered(&self, name: ServiceName, at: Option<NodeId>) -> Vec<Door<H>>;
    /// Whether an endpoint of the own node offers this name.
    fn is_taken(&self, name: ServiceName) -> bool;
    /// The partition that a ticket leads to, and the endpoint that gave it.
    fn invited(&self, ticket: Ticket) -> Option<(PartitionId, H)>;
    /// Whether the policy lets a user offer this name.
    fn may_offer(&self, user: u32, name: ServiceName) -> bool;
    /// Whether the policy lets a user use what `owner` offers by this name.
    fn may_use(&self, user: u32, owner: u32, name: ServiceName) -> bool;
}

/// The partition into which `user` comes by this way, and the endpoint that lets it in.
///
/// # Errors
/// [`OpenError::Forbidden`], [`OpenError::DefaultPartition`], [`OpenError::OfferForbidden`],
/// [`OpenError::NameTaken`], [`OpenError::NotOffered`], [`OpenError::ServiceForbidden`],
/// [`OpenError::InvalidTicket`].
pub fn entrance<H>(
    doors: &impl Doors<H>,
    user: u32,
    way: Partition,
) -> Result<(PartitionId, Option<H>), OpenError> {
    match way {
        Partition::OfUser => Ok((PartitionId::of_user(user), None)),
        Partition::Numbered(partition) | Partition::Offered(partition, _)
            if !partition.is_open_to(user) =>
        {
            Err(OpenError::Forbidden { partition: partition.0 })
        }
        Partition::Numbered(partition) => Ok((partition, None)),
        Partition::Offered(partition, _) if partition.is_default() => {
            Err(OpenError::DefaultPartition)
        }
        Partition::Offered(_, name) if !doors.may_offer(user, name) => {
            Err(OpenError::OfferForbidden { name })
        }
        Partition::Offered(_, name) if doors.is_taken(name) => Err(OpenError::NameTaken { name }),
        Partition::Offered(partition, _) => Ok((partition, None)),
        Partition::Service(name) => guest(doors, user, name, None),
        Partition::ServiceAt(name, node) => guest(doors, user, name, Some(node)),
        Partition::Ticket(ticket) => {
            let (partition, host) = doors.invited(ticket).ok_or(OpenError::InvalidTicket)?;
            Ok((partition, Some(host)))
        }
    }
}

/// The way into the first of the doors with a name that the user may use.
fn guest<H>(
    doors: &impl Doors<H>,
    user: u32,
    name: ServiceName,
    at: Option<NodeId>,
) -> Result<(PartitionId, Option<H>), OpenError> {
    let all = doors.offered(name, at);
    if all.is_empty() {
        return Err(OpenError::NotOffered { name });
    }
    let door = all.into_iter().find(|door| doors.may_use(user, door.user, name));
    let door = door.ok_or(OpenError::ServiceForbidden { name })?;
    Ok((door.partition, Some(door.host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_in_their_region_and_no_sum_wraps() {
        for (offset, length) in [(0, 0), (0, 8), (8, 0), (3, 5)] {
            assert_eq!(check_range(offset, length, 8), Ok(()), "{offset} {length}");
        }
        for (offset, length) in [(9, 0), (0, 9), (8, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let refused = RegionError::OutOfBounds { offset, length, region: 8 };
            assert_eq!(check_range(offset, length, 8), Err(refused));
        }
        assert!(is_inside(0, u64::MAX, u64::MAX) && !is_inside(1, u64::MAX, u64::MAX));
    }

    #[test]
    fn a_key_has_some_rights_and_atomics_only_beside_both_others() {
        let of = |bits: u8| Access::of_key(bits).map(|access| access.bits());
        let allowed: Vec<u8> = (0..=u8::MAX).filter_map(of).collect();
        assert_eq!(allowed, [1, 2, 3, 7]);
        let refused = Err(GrantError::InvalidAccess { access: 4 });
        assert_eq!(Access::ATOMIC.check_key(), refused);
        assert_eq!(Access::all().check_key(), Ok(()));
    }

    #[test]
    fn the_right_is_looked_at_before_the_range() {
        let put = (Command::Put, Access::WRITE);
        let denied = OperationError::AccessDenied { command: Command::Put };
        assert_eq!(Access::READ.check(put, (9, 1), 8), Err(denied));
        let outside = OperationError::OutOfBounds { offset: 8, length: 1, region: 8 };
        assert_eq!(Access::WRITE.check(put, (8, 1), 8), Err(outside));
        assert_eq!(Access::all().check(put, (7, 1), 8), Ok(()));
    }

    /// Endpoint 5 of user 1 offers partition 9 of it as "kv", and has invited by one ticket. So
    /// does endpoint 6 of user 8 on node 2. Root alone may offer "root". User 3 may use nothing,
    /// user 4 nothing of user 1.
    struct House;

    const OFFERED: PartitionId = PartitionId::of_user_named(1, 9);
    const ELSEWHERE: PartitionId = PartitionId::of_user_named(8, 9);

    impl Doors<u16> for House {
        fn offered(&self, name: ServiceName, at: Option<NodeId>) -> Vec<Door<u16>> {
            let here = (NodeId(1), Door { user: 1, partition: OFFERED, host: 5 });
            let there = (NodeId(2), Door { user: 8, partition: ELSEWHERE, host: 6 });
            let all = [here, there].into_iter().filter(|_| name.as_str() == "kv");
            let all = all.filter(|(node, _)| at.is_none_or(|wanted| wanted == *node));
            all.map(|(_, door)| door).collect()
        }

        fn is_taken(&self, name: ServiceName) -> bool {
            name.as_str() == "kv"
        }

        fn invited(&self, ticket: Ticket) -> Option<(PartitionId, u16)> {
            (ticket == Ticket([7; 16])).then_some((OFFERED, 5))
        }

        fn may_offer(&self, user: u32, name: ServiceName) -> bool {
            user == 0 || name.as_str() != "root"
        }

        fn may_use(&self, user: u32, owner: u32, _: ServiceName) -> bool {
            user != 3 && (user, owner) != (4, 1)
        }
    }

    #[test]
    fn each_way_leads_in_or_is_refused_with_its_reason() {
        let name = |text| ServiceName::new(text).expect("a name");
        let go = |user, way| entrance(&House, user, way);
        let own = PartitionId::of_user_named(2, 4);
        assert_eq!(go(2, Partition::OfUser), Ok((PartitionId::of_user(2), None)));
        assert_eq!(go(2, Partition::Numbered(own)), Ok((own, None)));
        assert_eq!(go(0, Partition::Numbered(own)), Ok((own, None)));
        let forbidden = Err(OpenError::Forbidden { partition: own.0 });
        assert_eq!(go(3, Partition::Numbered(own)), forbidden);
        assert_eq!(go(3, Partition::Offered(own, name("x"))), forbidden);
        assert_eq!(go(2, Partition::Offered(own, name("x"))), Ok((own, None)));
        let default = Partition::Offered(PartitionId::of_user(2), name("x"));
        assert_eq!(go(2, default), Err(OpenError::DefaultPartition));
        let (root, kv) = (name("root"), name("kv"));
        let refused = Err(OpenError::OfferForbidden { name: root });
        assert_eq!(go(2, Partition::Offered(own, root)), refused);
        assert_eq!(go(0, Partition::Offered(own, root)), Ok((own, None)));
        assert_eq!(go(2, Partition::Offered(own, kv)), Err(OpenError::NameTaken { name: kv }));
        assert_eq!(go(2, Partition::Service(kv)), Ok((OFFERED, Some(5))));
        assert_eq!(go(3, Partition::Service(kv)), Err(OpenError::ServiceForbidden { name: kv }));
        assert_eq!(go(4, Partition::Service(kv)), Ok((ELSEWHERE, Some(6))));
        assert_eq!(go(2, Partition::ServiceAt(kv, NodeId(2))), Ok((ELSEWHERE, Some(6))));
        let refused = Err(OpenError::ServiceForbidden { name: kv });
        assert_eq!(go(4, Partition::ServiceAt(kv, NodeId(1))), refused);
        let absent = Err(OpenError::NotOffered { name: kv });
        assert_eq!(go(2, Partition::ServiceAt(kv, NodeId(3))), absent);
        let x = name("x");
        assert_eq!(go(2, Partition::Service(x)), Err(OpenError::NotOffered { name: x }));
        assert_eq!(go(3, Partition::Ticket(Ticket([7; 16]))), Ok((OFFERED, Some(5))));
        assert_eq!(go(1, Partition::Ticket(Ticket([8; 16]))), Err(OpenError::InvalidTicket));
    }

    #[test]
    fn tickets_lead_into_own_partitions_that_not_every_program_is_in() {
        assert_eq!(OFFERED.check_invitation(1), Ok(()));
        assert_eq!(OFFERED.check_invitation(0), Ok(()));
        assert_eq!(OFFERED.check_invitation(2), Err(InviteError::Forbidden));
        let default = PartitionId::of_user(1).check_invitation(1);
        assert_eq!(default, Err(InviteError::DefaultPartition));
    }
}
