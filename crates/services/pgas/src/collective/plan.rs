//! The part of a member in a collective whose members are on several hosts, as a list of actions.
//! Nothing is read, sent or waited for here.
//!
//! All data that members of a host want of another host cross to it once, to one of them, who
//! [holds](Across::holder) them for the others. So a plan is: get what this member holds, all at a
//! time; meet on the host; copy what others hold.
//!
//! A reduction is divided into a slice for each member. Its owner gets what others have for it,
//! combines, and puts the result to one member of each other host. If no order of the operands
//! matters, the members of a host combine theirs before.
//!
//! # Invariants
//! - A member writes to its own destination, and puts to that of another one what that one holds
//!   for the owner of the slice.
//! - Between two meetings nobody reads what another one writes.

use std::ops::Range;

use super::steps::Step;

/// Where the members of a group on several hosts are, by their numbers in the group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Across {
    /// The members of each host. The first one of each leads.
    pub hosts: Vec<Vec<usize>>,
    /// The own host.
    pub own: usize,
    /// Members of other hosts, by their numbers in the world.
    pub far: Vec<usize>,
    /// The host of each member, and its place there.
    places: Vec<(usize, usize)>,
}

impl Across {
    /// Where members are: of each its number in the world and that of its host. Nothing if all are
    /// on the host with the number `own`, or none is.
    pub fn of(own: u32, members: impl Iterator<Item = (usize, u32)>) -> Option<Self> {
        let mut across = Self::default();
        let mut numbers = Vec::new();
        for (member, (pe, host)) in members.enumerate() {
            let known = numbers.iter().position(|number| *number == host);
            let at = known.unwrap_or(numbers.len());
            if known.is_none() {
                numbers.push(host);
                across.hosts.push(Vec::new());
            }
            across.places.push((at, across.hosts[at].len()));
            across.hosts[at].push(member);
            if host != own {
                across.far.push(pe);
            }
        }
        across.own = numbers.iter().position(|number| *number == own)?;
        (!across.far.is_empty()).then_some(across)
    }

    /// How many members there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// The members of the own host.
    #[must_use]
    pub fn near(&self) -> &[usize] {
        self.hosts.get(self.own).map_or(&[], Vec::as_slice)
    }

    /// Whether a member is of the own host.
    #[must_use]
    pub fn is_near(&self, member: usize) -> bool {
        self.places[member].0 == self.own
    }

    /// The leader of the own host.
    #[must_use]
    pub fn leader(&self) -> usize {
        self.near()[0]
    }

    /// The leaders of all hosts.
    pub fn leaders(&self) -> impl Iterator<Item = usize> + Clone {
        self.hosts.iter().map(|members| members[0])
    }

    /// The member of a host that has the data of a member for the others there.
    #[must_use]
    pub fn holder(&self, host: usize, of: usize) -> usize {
        let (its_host, place) = self.places[of];
        if its_host == host {
            return of;
        }
        let members = &self.hosts[host];
        members[(its_host + place) % members.len()]
    }

    fn holds(&self, member: usize) -> usize {
        self.holder(self.own, member)
    }

    fn is_alone(&self) -> bool {
        self.near().len() == 1
    }
}

/// Memory of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// Its elements.
    Source,
    /// The place of its results.
    Dest,
    /// The workspace of this member.
    Workspace,
}

/// Elements of a member from the one with a number on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The member.
    pub member: usize,
    /// The memory.
    pub area: Area,
    /// The number of the first element.
    pub first: usize,
}

/// An action of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Begins to get elements of a member of another host. They come until [`Action::Landed`].
    Get {
        /// Where they are.
        from: Place,
        /// Where they go: to the own destination or workspace.
        to: Place,
        /// How many they are.
        count: usize,
    },
    /// Waits for all that this member gets.
    Landed,
    /// Copies elements of a member of the own host to the own destination.
    Copy {
        /// Where they are.
        from: Place,
        /// The number of the first one in the destination.
        to: usize,
        /// How many they are.
        count: usize,
    },
    /// Combines elements of members of the own host into the own destination, in this order.
    Combine {
        /// Where they are.
        of: Vec<Place>,
        /// The number of the first one in the destination.
        to: usize,
        /// How many they are of each.
        count: usize,
    },
    /// Begins to put elements of the own destination to the same place of a member of another host.
    /// They may change again at once.
    Put {
        /// The member.
        member: usize,
        /// The number of the first one.
        first: usize,
        /// How many they are.
        count: usize,
    },
    /// Waits until all that was put is there.
    Quiet,
    /// Reaches a step and waits until all members have, or those of the own host if it
    /// [is a near one](Step::is_near).
    Meet(Step),
}

const fn source(member: usize, first: usize) -> Place {
    Place { member, area: Area::Source, first }
}

const fn dest(member: usize, first: usize) -> Place {
    Place { member, area: Area::Dest, first }
}

/// All members, from one on, so that not all read from the same.
fn in_turns(me: usize, size: usize) -> impl Iterator<Item = usize> + Clone {
    (me..size).chain(0..me)
}

/// The elements of a member's slice. A slice is whole lines of so many elements.
#[must_use]
pub fn slice(me: usize, members: usize, elements: usize, line: usize) -> Range<usize> {
    let share = elements.div_ceil(members).next_multiple_of(line);
    (me * share).min(elements)..((me + 1) * share).min(elements)
}

/// Copies the elements of a root to all, and to the root's own destination if `to_root`.
#[must_use]
pub fn broadcast(
    across: &Across,
    me: usize,
    root: usize,
    count: usize,
    to_root: bool,
) -> Vec<Action> {
    let mut plan = vec![Action::Meet(Step::Ready)];
    if me == root {
        plan.extend(to_root.then_some(Action::Copy { from: source(root, 0), to: 0, count }));
    } else if across.is_near(root) {
        plan.push(Action::Copy { from: source(root, 0), to: 0, count });
    } else {
        let leader = across.leader();
        if me == leader {
            plan.push(Action::Get { from: source(root, 0), to: dest(me, 0), count });
            plan.push(Action::Landed);
        }
        plan.push(Action::Meet(Step::Copied));
        if me != leader {
            plan.push(Action::Copy { from: dest(leader, 0), to: 0, count });
        }
    }
    plan.push(Action::Meet(Step::Read));
    plan
}

/// Joins the elements of all members, whose sources are ready: `blocks` has the place of those of
/// each member in the destination.
#[must_use]
pub fn gather(across: &Across, me: usize, blocks: &[Range<usize>]) -> Vec<Action> {
    let members = || in_turns(me, across.size()).filter(|member| !blocks[*member].is_empty());
    let is_far = |member: &usize| !across.is_near(*member);
    let place = |member: usize| (blocks[member].start, blocks[member].len());
    let mut plan = Vec::new();
    for member in members().filter(is_far).filter(|member| across.holds(*member) == me) {
        let (first, count) = place(member);
        plan.push(Action::Get { from: source(member, 0), to: dest(me, first), count });
    }
    for member in members().filter(|member| across.is_near(*member)) {
        let (to, count) = place(member);
        plan.push(Action::Copy { from: source(member, 0), to, count });
    }
    plan.extend([Action::Landed, Action::Meet(Step::Copied)]);
    for member in members().filter(is_far).filter(|member| across.holds(*member) != me) {
        let (to, count) = place(member);
        plan.push(Action::Copy { from: dest(across.holds(member), to), to, count });
    }
    plan.push(Action::Meet(Step::Read));
    plan
}

/// Sends a block of so many elements of each member to each other one.
#[must_use]
pub fn exchange(across: &Across, me: usize, count: usize) -> Vec<Action> {
    let members = || in_turns(me, across.size());
    let from = |member: usize| source(member, me * count);
    let mut plan = vec![Action::Meet(Step::Ready)];
    for member in members().filter(|member| !across.is_near(*member)) {
        let to = dest(me, member * count);
        plan.push(Action::Get { from: from(member), to, count });
    }
    for member in members().filter(|member| across.is_near(*member)) {
        plan.push(Action::Copy { from: from(member), to: member * count, count });
    }
    plan.extend([Action::Landed, Action::Meet(Step::Read)]);
    plan
}

/// A reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// How many elements each member has.
    pub elements: usize,
    /// Every order of the operands gives the same bits.
    pub is_exact: bool,
    /// The destination of each member is its source.
    pub in_place: bool,
    /// A slice is whole lines of so many elements.
    pub line: usize,
    /// At most so many elements are combined at a time.
    pub part: usize,
    /// Elements for which the workspace has room.
    pub room: usize,
}

/// Combines the elements of all members.
#[must_use]
pub fn reduce(across: &Across, me: usize, of: &Reduction) -> Vec<Action> {
    let size = across.size();
    let slice = |member: usize| slice(member, size, of.elements, of.line);
    let mut plan = Vec::new();
    if of.is_exact && !across.is_alone() {
        plan.push(Action::Meet(Step::NearReady));
        for slice in (0..size).filter(|member| across.holds(*member) == me).map(slice) {
            let near = across.near().iter().map(|member| source(*member, slice.start)).collect();
            plan.push(Action::Combine { of: near, to: slice.start, count: slice.len() });
        }
    }
    plan.push(Action::Meet(Step::Ready));
    let others = (0..across.hosts.len()).filter(|host| *host != across.own);
    let (own, piece, to): (_, _, Vec<usize>) = if combines_all(across, of) {
        // Long answers in both directions hold each other up: there are two.
        (0..of.elements, of.part.div_ceil(2), Vec::new())
    } else {
        (slice(me), of.part, others.map(|host| across.holder(host, me)).collect())
    };
    let parts = Parts { across, me, of: operands(across, me, of), piece };
    parts.combine(own.clone(), of, &to, &mut plan);
    if !to.is_empty() && !own.is_empty() {
        plan.push(Action::Quiet);
    }
    plan.push(Action::Meet(Step::Read));
    for member in in_turns(me, size).filter(|member| across.holds(*member) != me) {
        let Range { start: to, end } = slice(member);
        plan.push(Action::Copy { from: dest(across.holds(member), to), to, count: end - to });
    }
    plan.push(Action::Meet(Step::Left));
    plan.retain(|action| {
        !matches!(action, Action::Combine { count: 0, .. } | Action::Copy { count: 0, .. })
    });
    plan
}

/// Whether each member combines all elements by itself. Between two hosts with a member each as
/// many bytes cross so, and nobody waits for puts. Sources have to stay as they are meanwhile.
fn combines_all(across: &Across, of: &Reduction) -> bool {
    across.size() == 2 && !of.in_place && of.elements <= of.part
}

/// The members that have an operand of a slice of this one, in order, and where.
fn operands(across: &Across, me: usize, of: &Reduction) -> Vec<(usize, Area)> {
    if !of.is_exact {
        return (0..across.size()).map(|member| (member, Area::Source)).collect();
    }
    let combined = |(host, members): (usize, &Vec<usize>)| {
        let area = if members.len() == 1 { Area::Source } else { Area::Dest };
        (across.holder(host, me), area)
    };
    across.hosts.iter().enumerate().map(combined).collect()
}

/// The operands of a slice, of which a part is combined at a time.
struct Parts<'a> {
    across: &'a Across,
    me: usize,
    of: Vec<(usize, Area)>,
    /// Elements of a get at most.
    piece: usize,
}

impl Parts<'_> {
    fn is_far(&self, member: usize) -> bool {
        !self.across.is_near(member)
    }

    /// Combines a slice and puts each part to some members, while the next part comes.
    fn combine(self, own: Range<usize>, of: &Reduction, to: &[usize], plan: &mut Vec<Action>) {
        let far = self.of.iter().filter(|(member, _)| self.is_far(*member)).count();
        // Two parts are in the workspace.
        let part = of.part.min(of.room / 2 / far.max(1)).max(1);
        let starts: Vec<usize> = own.clone().step_by(part).collect();
        let count = |first: usize| part.min(own.end - first);
        let half = |number: usize| number % 2 * far * part;
        let get = |plan: &mut Vec<Action>, number: usize| {
            let Some(first) = starts.get(number).copied() else { return };
            let places = (half(number)..).step_by(part);
            let far = self.of.iter().filter(|(member, _)| self.is_far(*member));
            for ((member, area), place) in far.copied().zip(places) {
                for done in (0..count(first)).step_by(self.piece) {
                    let count = self.piece.min(count(first) - done);
                    let place =
                        Place { member: self.me, area: Area::Workspace, first: place + done };
                    let from = Place { member, area, first: first + done };
                    plan.push(Action::Get { from, to: place, count });
                }
            }
        };
        get(plan, 0);
        for (number, first) in starts.iter().copied().enumerate() {
            plan.push(Action::Landed);
            get(plan, number + 1);
            let mut places = (half(number)..).step_by(part);
            let operand = |(member, area): (usize, Area)| {
                if self.is_far(member) {
                    let first = places.next().unwrap_or_default();
                    Place { member: self.me, area: Area::Workspace, first }
                } else {
                    Place { member, area, first }
                }
            };
            let of = self.of.iter().copied().map(operand).collect();
            plan.push(Action::Combine { of, to: first, count: count(first) });
            for member in to.iter().copied() {
                plan.push(Action::Put { member, first, count: count(first) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Groups on several hosts, as each of their hosts sees them: the places of members by host.
    fn groups() -> impl Strategy<Value = Vec<u32>> {
        let is_on_several = |hosts: &Vec<u32>| hosts.iter().any(|host| *host != hosts[0]);
        proptest::collection::vec(0_u32..4, 2..12).prop_filter("several hosts", is_on_several)
    }

    fn across(hosts: &[u32], me: usize) -> Across {
        let members = hosts.iter().copied().enumerate();
        Across::of(hosts[me], members).expect("several hosts")
    }

    /// Elements that all members get and put, by the host that has them then.
    fn crossing(hosts: &[u32], plan: impl Fn(&Across, usize) -> Vec<Action>) -> Vec<usize> {
        let mut crossing = vec![0; 4];
        for (me, own) in hosts.iter().enumerate() {
            for action in plan(&across(hosts, me), me) {
                let (host, count) = match action {
                    Action::Get { count, .. } => (*own, count),
                    Action::Put { member, count, .. } => (hosts[member], count),
                    _ => continue,
                };
                crossing[host as usize] += count;
            }
        }
        crossing
    }

    proptest! {
        #[test]
        fn all_slices_are_all_elements_once(
            members in 1_usize..9, elements in 0_usize..200, line in 1_usize..9
        ) {
            let all: Vec<usize> =
                (0..members).flat_map(|me| slice(me, members, elements, line)).collect();
            prop_assert_eq!(all, (0..elements).collect::<Vec<_>>());
        }

        #[test]
        fn each_block_crosses_to_each_other_host_once(
            hosts in groups(), counts in proptest::collection::vec(0_usize..50, 12)
        ) {
            let mut first = 0;
            let blocks: Vec<_> = counts[..hosts.len()].iter().map(|count| {
                first += count;
                first - count..first
            }).collect();
            let crossing = crossing(&hosts, |across, me| gather(across, me, &blocks));
            for host in hosts.iter().copied() {
                let far = hosts.iter().zip(&counts).filter(|(other, _)| **other != host);
                let far: usize = far.map(|(_, count)| count).sum();
                prop_assert_eq!(crossing[host as usize], far);
            }
        }

        #[test]
        fn a_broadcast_crosses_to_each_other_host_once(hosts in groups(), count in 1_usize..50) {
            let crossing = crossing(&hosts, |across, me| broadcast(across, me, 0, count, true));
            for host in hosts.iter().copied() {
                let expected = if host == hosts[0] { 0 } else { count };
                prop_assert_eq!(crossing[host as usize], expected);
            }
        }

        /// Operands cross to the owner of their slice: those of a host together where the order
        /// does not matter. A result crosses once to each other host.
        #[test]
        fn operands_and_results_of_a_reduction_cross_once(
            hosts in groups(), elements in 1_usize..300, is_exact in any::<bool>(),
            part in 1_usize..64,
        ) {
            let of = Reduction { elements, is_exact, in_place: true, line: 4, part, room: 64 };
            let crossing = crossing(&hosts, |across, me| reduce(across, me, &of));
            let crossing: usize = crossing.iter().sum();
            let mut expected = 0;
            for (owner, own) in hosts.iter().enumerate() {
                let far = hosts.iter().filter(|host| *host != own);
                let others: std::collections::BTreeSet<_> = far.clone().collect();
                let operands = if is_exact { others.len() } else { far.count() };
                let slice = slice(owner, hosts.len(), elements, 4).len();
                expected += slice * (operands + others.len());
            }
            prop_assert_eq!(crossing, expected);
        }
    }
}
