//! Who wants which IP multicast group, as hosts and routers said (RFC 4541).
//!
//! A group that somebody asked for goes to those alone, and to routers. What no host reports goes
//! everywhere: the groups of the own link, solicited-node groups of IPv6, which are needed to find
//! an address in the first place, what is not IP, what is in a VLAN whose hosts nobody asks, since
//! they soon stop telling then, and all of it until those that were there before have told. Hosts
//! of the network itself are asked by their own switch when no router does.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::forwarding::Place;
use crate::mac::MacAddress;
use crate::membership::{Heard, Said};

/// How often hosts are asked (RFC 3376 section 8.2).
pub const QUERY_EVERY: Duration = Duration::from_secs(125);
/// Who did not say again that it wants a group in this time no longer wants it: two questions and
/// the time for an answer (RFC 3376 section 8.4).
pub const MEMBER_FOR: Duration = Duration::from_secs(260);
/// A router that was silent for so long is gone (RFC 3376 section 8.5).
pub const ROUTER_FOR: Duration = Duration::from_secs(255);
/// Time for others behind the same node to say that they want a group that one of them leaves (RFC
/// 3376 section 8.8 and 8.9).
pub const LEAVE_AFTER: Duration = Duration::from_secs(2);
/// So long a switch that has just begun has to hear of who wants what: hosts answer within 10 s
/// (RFC 3376 section 8.3).
pub const LEARN_FOR: Duration = Duration::from_secs(12);
/// Groups that are kept for one node; more of its groups go everywhere.
pub const GROUPS_OF_NODE_MAX: u32 = 1_024;

/// Where a frame to a group goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Audience {
    /// To everybody.
    All,
    /// To these alone.
    Some(BTreeSet<Place>),
}

/// The table of one node.
#[derive(Debug)]
pub struct Groups {
    /// Until then nothing is kept from anybody.
    learns_until: Duration,
    /// When the hosts behind the own device are to be asked.
    asks_at: Duration,
    /// Until when each wants it.
    members: HashMap<(u16, MacAddress), HashMap<Place, Duration>>,
    counts: HashMap<Place, u32>,
    /// Wanted more groups than are kept: all go there.
    greedy: HashMap<Place, Duration>,
    /// Until when each is there, per VLAN.
    routers: HashMap<(u16, Place), Duration>,
    /// Until when a router asks, per VLAN.
    asked: HashMap<u16, Duration>,
}

impl Groups {
    /// An empty table, which has to learn first.
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

    /// Nothing is kept from anybody until then.
    pub const fn learn_until(&mut self, end: Duration) {
        self.learns_until = end;
    }

    /// `place` said `heard` in `vlan`.
    pub fn heard(&mut self, place: Place, vlan: u16, heard: &Heard, now: Duration) {
        for said in &heard.said {
            match *said {
                Said::Join(group) => self.join(place, vlan, group, now),
                Said::Leave(group) => self.leave(place, vlan, group, now),
                Said::Query => {
                    self.asked.insert(vlan, now + ROUTER_FOR);
                    self.routers.insert((vlan, place), now + ROUTER_FOR);
                }
                Said::Router => {
                    self.routers.insert((vlan, place), now + ROUTER_FOR);
                }
            }
        }
    }

    fn join(&mut self, place: Place, vlan: u16, group: MacAddress, now: Duration) {
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

    fn leave(&mut self, place: Place, vlan: u16, group: MacAddress, now: Duration) {
        let known = self.members.get_mut(&(vlan, group)).and_then(|group| group.get_mut(&place));
        if let Some(until) = known {
            *until = (*until).min(now + LEAVE_AFTER);
        }
    }

    /// Who gets a frame to `group`, the sender's own place among them if it wants it.
    #[must_use]
    pub fn audience(&self, group: MacAddress, vlan: u16, now: Duration) -> Audience {
        let is_asked = vlan == 0 || self.asked.get(&vlan).is_some_and(|until| *until >= now);
        if !is_asked || now < self.learns_until || !is_reported(group) {
            return Audience::All;
        }
        let wants = self.members.get(&(vlan, group)).into_iter().flatten();
        let routers = self.routers.iter().filter(|((where_, _), _)| *where_ == vlan);
        let places = wants
            .chain(&self.greedy)
            .map(|(place, until)| (*place, *until))
            .chain(routers.map(|((_, place), until)| (*place, *until)));
        let there = places.filter(|(_, until)| *until >= now).map(|(place, _)| place);
        Audience::Some(there.collect())
    }

    /// Who gets a report: routers alone, or everybody when none is known.
    #[must_use]
    pub fn routers(&self, vlan: u16, now: Duration) -> Audience {
        let there: BTreeSet<Place> = self
            .routers
            .iter()
            .filter(|((where_, _), until)| *where_ == vlan && **until >= now)
            .map(|((_, place), _)| *place)
            .collect();
        if there.is_empty() { Audience::All } else { Audience::Some(there) }
    }

    /// True when the hosts behind the own device are to be asked now; they are then, and not again
    /// for a while.
    pub fn asks(&mut self, now: Duration) -> bool {
        if now < self.asks_at || self.asked.get(&0).is_some_and(|until| *until >= now) {
            return false;
        }
        self.asks_at = now + QUERY_EVERY;
        true
    }

    /// When [`Groups::asks`] may be true next.
    #[must_use]
    pub fn asks_at(&self) -> Duration {
        self.asked.get(&0).map_or(self.asks_at, |until| self.asks_at.max(*until))
    }

    /// A node came that knows nothing of what is wanted here: hosts are to say it again.
    pub fn appeared(&mut self, now: Duration) {
        self.asks_at = now;
        self.asked.remove(&0);
    }

    /// True when `place` gets every group of some VLAN.
    #[must_use]
    pub fn wants_all(&self, place: Place, now: Duration) -> bool {
        let routers = self.routers.iter().map(|((_, router), until)| (router, until));
        let mut all = self.greedy.iter().chain(routers);
        all.any(|(wants, until)| *wants == place && *until >= now)
    }

    /// Forgets what is over. To be called now and then; lookups pass it over in any case.
    pub fn age(&mut self, now: Duration) {
        self.retain(|_, until| until >= now);
        self.asked.retain(|_, until| *until >= now);
    }

    /// A node is gone, with all that was behind it.
    pub fn lost(&mut self, gone: Place) {
        self.retain(|place, _| place != gone);
    }

    fn retain(&mut self, keep: impl Fn(Place, Duration) -> bool) {
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

    /// Every group with its VLAN and who wants it, in order.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<(MacAddress, u16, BTreeSet<Place>)> {
        let wanted = |members: &HashMap<Place, Duration>| {
            members.iter().filter(|(_, until)| **until >= now).map(|(place, _)| *place).collect()
        };
        let groups = self.members.iter();
        let mut list: Vec<_> =
            groups.map(|((vlan, group), members)| (*group, *vlan, wanted(members))).collect();
        list.retain(|(_, _, places): &(_, _, BTreeSet<Place>)| !places.is_empty());
        list.sort_unstable();
        list
    }
}

/// Hosts report that they want it: the groups of IPv4 beyond the own link, and of IPv6 but for all
/// nodes and solicited nodes (RFC 4541 sections 2.1.2 and 3).
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
    const ONE: Place = Place::Node(NodeId(1));
    const TWO: Place = Place::Node(NodeId(2));
    const START: Duration = Duration::from_secs(1_000);

    fn says(said: Said) -> Heard {
        Heard { said: vec![said], for_routers: false }
    }

    /// One that has learned, with a router.
    fn asked() -> Groups {
        let mut groups = Groups::new(START - LEARN_FOR);
        groups.heard(TWO, 0, &says(Said::Query), START);
        groups
    }

    fn only(places: &[Place]) -> Audience {
        Audience::Some(places.iter().copied().collect())
    }

    #[test]
    fn all_goes_everywhere_until_it_is_learned_who_wants_what() {
        let mut groups = Groups::new(START);
        groups.heard(ONE, 0, &says(Said::Join(GROUP)), START);
        groups.heard(ONE, 5, &says(Said::Join(GROUP)), START);
        let soon = START + LEARN_FOR - Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, soon), Audience::All);
        let learned = START + LEARN_FOR;
        assert_eq!(groups.audience(GROUP, 0, learned), only(&[ONE]));
        assert_eq!(groups.audience(GROUP, 5, learned), Audience::All, "nobody asks there");
        groups.heard(TWO, 5, &says(Said::Query), learned);
        assert_eq!(groups.audience(GROUP, 5, learned), only(&[ONE, TWO]));
        let longer = learned + LEARN_FOR;
        groups.learn_until(longer);
        assert_eq!(groups.audience(GROUP, 0, learned), Audience::All);
        assert_eq!(groups.audience(GROUP, 0, longer), only(&[ONE]));
        let late = learned + ROUTER_FOR + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 5, late), Audience::All, "nor any more");
    }

    #[test]
    fn hosts_are_asked_unless_a_router_does() {
        let mut groups = Groups::new(START);
        assert!(groups.asks(START));
        assert!(!groups.asks(START));
        assert_eq!(groups.asks_at(), START + QUERY_EVERY);
        groups.heard(ONE, 0, &says(Said::Query), START + QUERY_EVERY);
        assert!(!groups.asks(START + QUERY_EVERY));
        assert!(!groups.asks(groups.asks_at()));
        assert!(groups.asks(groups.asks_at() + Duration::from_nanos(1)), "it is gone");
        let later = START + QUERY_EVERY * 5;
        groups.heard(ONE, 0, &says(Said::Query), later);
        groups.appeared(later);
        assert!(groups.asks(later), "for a node that knows nothing");
    }

    #[test]
    fn members_join_leave_and_grow_old() {
        let mut groups = asked();
        assert_eq!(groups.audience(GROUP, 0, START), only(&[TWO]), "routers get all");
        groups.heard(Place::Here, 0, &says(Said::Join(GROUP)), START);
        groups.heard(ONE, 0, &says(Said::Join(GROUP)), START);
        assert_eq!(groups.audience(GROUP, 0, START), only(&[Place::Here, ONE, TWO]));
        groups.heard(ONE, 0, &says(Said::Leave(GROUP)), START);
        let soon = START + LEAVE_AFTER;
        assert_eq!(groups.audience(GROUP, 0, soon), only(&[Place::Here, ONE, TWO]));
        let later = soon + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, later), only(&[Place::Here, TWO]));
        groups.heard(ONE, 0, &says(Said::Leave(GROUP)), START);
        groups.heard(ONE, 0, &says(Said::Join(GROUP)), START);
        assert_eq!(groups.audience(GROUP, 0, later), only(&[Place::Here, ONE, TWO]), "another");
        groups.heard(TWO, 0, &says(Said::Query), START + MEMBER_FOR);
        let old = START + MEMBER_FOR + Duration::from_nanos(1);
        assert_eq!(groups.audience(GROUP, 0, old), only(&[TWO]));
        groups.age(old);
        assert!(groups.list(old).is_empty() && groups.counts.is_empty());
    }

    #[test]
    fn what_no_host_reports_goes_everywhere() {
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
        groups.heard(ONE, 0, &says(Said::Router), START);
        assert_eq!(groups.routers(0, START), only(&[ONE, TWO]));
        groups.lost(TWO);
        assert_eq!(groups.routers(0, START), only(&[ONE]));
    }

    #[test]
    fn a_node_that_wants_too_much_gets_all_and_fills_its_own_part_alone() {
        let mut groups = asked();
        let group = |number: u32| {
            let [_, b, c, d] = number.to_be_bytes();
            MacAddress([1, 0, 0x5e, 0x40 | b, c, d])
        };
        for number in 0..=GROUPS_OF_NODE_MAX {
            groups.heard(ONE, 0, &says(Said::Join(group(number))), START);
        }
        assert_eq!(groups.list(START).len(), 1_024);
        let unknown = group(GROUPS_OF_NODE_MAX + 9);
        assert_eq!(groups.audience(unknown, 0, START), only(&[ONE, TWO]));
        groups.heard(Place::Here, 0, &says(Said::Join(unknown)), START);
        assert_eq!(groups.audience(unknown, 0, START), only(&[Place::Here, ONE, TWO]));
        groups.lost(ONE);
        assert_eq!(groups.list(START), [(unknown, 0, BTreeSet::from([Place::Here]))]);
        assert_eq!(groups.counts.len(), 1);
    }
}
