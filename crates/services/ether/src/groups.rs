//! The table of IP multicast groups: which nodes want which group, from the reports and queries of
//! hosts and routers (RFC 4541); groups of the fabric carry them (EXTOLL-THESIS#5.4.5.3).
//!
//! A frame to a group that hosts report goes to the nodes that want it, and to routers. A frame is
//! flooded:
//! - if no host reports its group: the link-local groups, and the solicited-node groups of IPv6,
//!   which are needed to find an address in the first place;
//! - if it is not IP;
//! - if it has a VLAN tag and no router sends queries in that VLAN, since hosts soon stop reporting
//!   then;
//! - until a switch that just started has had time to hear the reports.
//!
//! If no router queries the untagged network, each switch queries its own hosts.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::forwarding::Location;
use crate::mac::MacAddress;
use crate::snooping::{Report, Reports};

/// How often hosts are queried (RFC 3376 section 8.2).
pub const QUERY_EVERY: Duration = Duration::from_secs(125);
/// A membership ends if it is not reported again in this time: two queries and the time for an
/// answer (RFC 3376 section 8.4).
pub const MEMBER_FOR: Duration = Duration::from_secs(260);
/// A router that was silent for this long is gone (RFC 3376 section 8.5).
pub const ROUTER_FOR: Duration = Duration::from_secs(255);
/// When one host leaves a group, the other hosts behind the same node have this long to report that
/// they still want it (RFC 3376 sections 8.8 and 8.9).
pub const LEAVE_AFTER: Duration = Duration::from_secs(2);
/// How long a switch that just started floods while it learns the memberships: hosts answer within
/// 10 s (RFC 3376 section 8.3).
pub const LEARN_FOR: Duration = Duration::from_secs(12);
/// Memberships kept for one node at most. A node that reports more gets all groups.
pub const GROUPS_OF_NODE_MAX: u32 = 1_024;

/// The receivers of a frame to a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Audience {
    /// All nodes.
    All,
    /// These places only.
    Some(BTreeSet<Location>),
}

/// The group table of one node.
#[derive(Debug)]
pub struct Groups {
    /// Frames to groups are flooded until then.
    learns_until: Duration,
    /// When to query the hosts behind this node's device next.
    asks_at: Duration,
    /// For each VLAN and group, the places that want it, each with the end of its membership.
    members: HashMap<(u16, MacAddress), HashMap<Location, Duration>>,
    counts: HashMap<Location, u32>,
    /// Places that reported more groups than are kept, and until when. They get all groups.
    greedy: HashMap<Location, Duration>,
    /// The places of routers for each VLAN, and until when each is taken for present.
    routers: HashMap<(u16, Location), Duration>,
    /// The VLANs in which a router sends queries, and until when that is assumed.
    asked: HashMap<u16, Duration>,
}

impl Groups {
    /// An empty table, which floods until [`LEARN_FOR`] has passed.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            learns_until: now + LEARN_FOR,
            asks_at: now,
            members: HashMap::new(),
            counts: HashMap::new(),
            greedy: HashMap::new(),
            routers: HashMap::new(),
            asked: HashMap::new(),
        }
    }

    /// Floods frames to groups until `end`.
    pub const fn learn_until(&mut self, end: Duration) {
        self.learns_until = end;
    }

    /// Records the statements of a frame from `place` in `vlan`.
    pub fn heard(&mut self, place: Location, vlan: u16, heard: &Reports, now: Duration) {
        for report in &heard.reports {
            match *report {
                Report::Join(group) => self.join(place, vlan, group, now),
                Report::Leave(group) => self.leave(place, vlan, group, now),
                Report::Query => {
                    self.asked.insert(vlan, now + ROUTER_FOR);
                    self.routers.insert((vlan, place), now + ROUTER_FOR);
                }
                Report::Router => {
                    self.routers.insert((vlan, place), now + ROUTER_FOR);
                }
            }
        }
    }

    fn join(&mut self, place: Location, vlan: u16, group: MacAddress, now: Duration) {
        let until = now + MEMBER_FOR;
        let members = self.members.entry((vlan, group)).or_default();
        if let Some(known) = members.get_mut(&place) {
            *known = until;
            return;
        }
        let count = self.counts.entry(place).or_default();
        if *count < GROUPS_OF_NODE_MAX {
            *count += 1;
            members.insert(place, until);
            return;
        }
        if members.is_empty() {
            self.members.remove(&(vlan, group));
        }
        self.greedy.insert(place, until);
    }

    fn leave(&mut self, place: Location, vlan: u16, group: MacAddress, now: Duration) {
        let known = self.members.get_mut(&(vlan, group)).and_then(|group| group.get_mut(&place));
        if let Some(until) = known {
            *until = (*until).min(now + LEAVE_AFTER);
        }
    }

    /// The receivers of a frame to `group`, with the sender's own place if that wants the group.
    #[must_use]
    pub fn audience(&self, group: MacAddress, vlan: u16, now: Duration) -> Audience {
        let is_asked = vlan == 0 || self.asked.get(&vlan).is_some_and(|until| *until >= now);
        if !is_asked || now < self.learns_until || !is_reported(group) {
            return Audience::All;
        }
        let wants = self.members.get(&(vlan, group)).into_iter().flatten();
        let routers = self.routers.iter().filter(|((of, _), _)| *of == vlan);
        let places = wants
            .chain(&self.greedy)
            .map(|(place, until)| (*place, *until))
            .chain(routers.map(|((_, place), until)| (*place, *until)));
        let current = places.filter(|(_, until)| *until >= now).map(|(place, _)| place);
        Audience::Some(current.collect())
    }

    /// The receivers of a report: the routers, or all nodes if no router is known.
    #[must_use]
    pub fn routers(&self, vlan: u16, now: Duration) -> Audience {
        let current: BTreeSet<Location> = self
            .routers
            .iter()
            .filter(|((of, _), until)| *of == vlan && **until >= now)
            .map(|((_, place), _)| *place)
            .collect();
        if current.is_empty() { Audience::All } else { Audience::Some(current) }
    }

    /// True when the hosts behind this node's device must be queried now. The caller then queries
    /// them; the next query is due after [`QUERY_EVERY`].
    pub fn asks(&mut self, now: Duration) -> bool {
        if now < self.asks_at || self.asked.get(&0).is_some_and(|until| *until >= now) {
            return false;
        }
        self.asks_at = now + QUERY_EVERY;
        true
    }

    /// The earliest moment at which [`Groups::asks`] may be true next.
    #[must_use]
    pub fn asks_at(&self) -> Duration {
        self.asked.get(&0).map_or(self.asks_at, |until| self.asks_at.max(*until))
    }

    /// A node appeared that knows no memberships: the hosts are queried so that they report again.
    pub fn appeared(&mut self, now: Duration) {
        self.asks_at = now;
        self.asked.remove(&0);
    }

    /// True when `place` gets every group of some VLAN.
    #[must_use]
    pub fn wants_all(&self, place: Location, now: Duration) -> bool {
        let routers = self.routers.iter().map(|((_, router), until)| (router, until));
        let mut all = self.greedy.iter().chain(routers);
        all.any(|(wants, until)| *wants == place && *until >= now)
    }

    /// Removes what has expired. Call it now and then to free memory; lookups ignore it in any
    /// case.
    pub fn age(&mut self, now: Duration) {
        self.retain(|_, until| until >= now);
        self.asked.retain(|_, until| *until >= now);
    }

    /// Removes all entries of a node that went away.
    pub fn lost(&mut self, gone: Location) {
        self.retain(|place, _| place != gone);
    }

    fn retain(&mut self, keep: impl Fn(Location, Duration) -> bool) {
        let counts = &mut self.counts;
        self.members.retain(|_, members| {
            members.retain(|place, until| {
                let kept = keep(*place, *until);
                if !kept && let Some(count) = counts.get_mut(place) {
                    *count -= 1;
                }
                kept
            });
            !members.is_empty()
        });
        counts.retain(|_, count| *count > 0);
        self.greedy.retain(|place, until| keep(*place, *until));
        self.routers.retain(|(_, place), until| keep(*place, *until));
    }

    /// Every group with its VLAN and the places that want it, in order.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<(MacAddress, u16, BTreeSet<Location>)> {
        let wanted = |members: &HashMap<Location, Duration>| {
            members.iter().filter(|(_, until)| **until >= now).map(|(place, _)| *place).collect()
        };
        let groups = self.members.iter();
        let mut list: Vec<_> =
            groups.map(|((vlan, group), members)| (*group, *vlan, wanted(members))).collect();
        list.retain(|(_, _, places): &(_, _, BTreeSet<Location>)| !places.is_empty());
        list.sort_unstable();
        list
    }
}

/// Whether hosts report memberships of this group. They do for the IPv4 groups that are not
/// link-local, and for the IPv6 groups other than all-nodes and solicited-node (RFC 4541 sections
/// 2.1.2 and 3).
const fn is_reported(group: MacAddress) -> bool {
    match group.0 {
        [1, 0, 0x5e, 0, 0, _] | [0x33, 0x33, 0xff, ..] | [0x33, 0x33, 0, 0, 0, _] => false,
        [1, 0, 0x5e, ..] | [0x33, 0x33, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use weft_fabric::NodeId;

    use super::*;

    const GROUP: MacAddress = MacAddress([1, 0, 0x5e, 1, 2, 3]);
    const ONE: Location = Location::Node(NodeId(1));
    const TWO: Location = Location::Node(NodeId(2));
    const START: Duration = Duration::from_secs(1_000);

    fn says(report: Report) -> Reports {
        Reports { reports: vec![report], for_routers: false }
    }

    /// A table that has learned, with a router at [`TWO`].
    fn asked() -> Groups {
        let mut groups = Groups::new(START - LEARN_FOR);
        groups.heard(TWO, 0, &says(Report::Query), START);
        groups
    }

    fn only(places: &[Location]) -> Audience {
        Audience::Some(places.iter().copied().collect())
    }

    #[test]
    fn groups_are_flooded_until_memberships_are_learned() {
        let mut groups = Groups::new(START);
        groups.heard(ONE, 0, &says(Report::Join(GROUP)), START);
        groups.heard(ONE, 5, &says(Report::Join(GROUP)), START);
        let soon = START + LEARN_FOR - Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, soon), Audience::All);
        let learned = START + LEARN_FOR;
        assert_eq!(groups.audience(GROUP, 0, learned), only(&[ONE]));
        assert_eq!(
            groups.audience(GROUP, 5, learned),
            Audience::All,
            "no router queries that VLAN"
        );
        groups.heard(TWO, 5, &says(Report::Query), learned);
        assert_eq!(groups.audience(GROUP, 5, learned), only(&[ONE, TWO]));
        let longer = learned + LEARN_FOR;
        groups.learn_until(longer);
        assert_eq!(groups.audience(GROUP, 0, learned), Audience::All);
        assert_eq!(groups.audience(GROUP, 0, longer), only(&[ONE]));
        let late = learned + ROUTER_FOR + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 5, late), Audience::All, "the router is gone");
    }

    #[test]
    fn hosts_are_queried_unless_a_router_queries() {
        let mut groups = Groups::new(START);
        assert!(groups.asks(START));
        assert!(!groups.asks(START));
        assert_eq!(groups.asks_at(), START + QUERY_EVERY);
        groups.heard(ONE, 0, &says(Report::Query), START + QUERY_EVERY);
        assert!(!groups.asks(START + QUERY_EVERY));
        assert!(!groups.asks(groups.asks_at()));
        assert!(groups.asks(groups.asks_at() + Duration::from_nanos(1)), "it is gone");
        let later = START + QUERY_EVERY * 5;
        groups.heard(ONE, 0, &says(Report::Query), later);
        groups.appeared(later);
        assert!(groups.asks(later), "for the node that appeared");
    }

    #[test]
    fn memberships_start_end_and_expire() {
        let mut groups = asked();
        assert_eq!(groups.audience(GROUP, 0, START), only(&[TWO]), "routers get all");
        groups.heard(Location::Here, 0, &says(Report::Join(GROUP)), START);
        groups.heard(ONE, 0, &says(Report::Join(GROUP)), START);
        assert_eq!(groups.audience(GROUP, 0, START), only(&[Location::Here, ONE, TWO]));
        groups.heard(ONE, 0, &says(Report::Leave(GROUP)), START);
        let soon = START + LEAVE_AFTER;
        assert_eq!(groups.audience(GROUP, 0, soon), only(&[Location::Here, ONE, TWO]));
        let later = soon + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, later), only(&[Location::Here, TWO]));
        groups.heard(ONE, 0, &says(Report::Leave(GROUP)), START);
        groups.heard(ONE, 0, &says(Report::Join(GROUP)), START);
        assert_eq!(groups.audience(GROUP, 0, later), only(&[Location::Here, ONE, TWO]), "another");
        groups.heard(TWO, 0, &says(Report::Query), START + MEMBER_FOR);
        let old = START + MEMBER_FOR + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, old), only(&[TWO]));
        groups.age(old);
        assert!(groups.list(old).is_empty() && groups.counts.is_empty());
    }

    #[test]
    fn groups_that_no_host_reports_are_flooded() {
        let groups = asked();
        for group in [
            MacAddress::BROADCAST,
            MacAddress([1, 0, 0x5e, 0, 0, 251]),
            MacAddress([0x33, 0x33, 0, 0, 0, 1]),
            MacAddress([0x33, 0x33, 0xff, 1, 2, 3]),
            MacAddress([1, 0x80, 0xc2, 0, 0, 0]),
        ] {
            assert_eq!(groups.audience(group, 0, START), Audience::All, "{group}");
        }
        assert_eq!(groups.audience(MacAddress([0x33, 0x33, 0, 1, 0, 3]), 0, START), only(&[TWO]));
    }

    #[test]
    fn reports_are_for_routers() {
        assert_eq!(asked().routers(0, START), only(&[TWO]));
        assert_eq!(asked().routers(7, START), Audience::All);
        let mut groups = asked();
        groups.heard(ONE, 0, &says(Report::Router), START);
        assert_eq!(groups.routers(0, START), only(&[ONE, TWO]));
        groups.lost(TWO);
        assert_eq!(groups.routers(0, START), only(&[ONE]));
    }

    #[test]
    fn a_node_with_too_many_memberships_gets_all_groups_and_fills_its_own_share() {
        let mut groups = asked();
        let group = |number: u32| {
            let [_, b, c, d] = number.to_be_bytes();
            MacAddress([1, 0, 0x5e, 0x40 | b, c, d])
        };
        for number in 0..=GROUPS_OF_NODE_MAX {
            groups.heard(ONE, 0, &says(Report::Join(group(number))), START);
        }
        assert_eq!(groups.list(START).len(), 1_024);
        let unknown = group(GROUPS_OF_NODE_MAX + 9);
        assert_eq!(groups.audience(unknown, 0, START), only(&[ONE, TWO]));
        groups.heard(Location::Here, 0, &says(Report::Join(unknown)), START);
        assert_eq!(groups.audience(unknown, 0, START), only(&[Location::Here, ONE, TWO]));
        groups.lost(ONE);
        assert_eq!(groups.list(START), [(unknown, 0, BTreeSet::from([Location::Here]))]);
        assert_eq!(groups.counts.len(), 1);
    }
}
