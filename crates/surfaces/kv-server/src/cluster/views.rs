//! The view of a cluster, made of the views that its regions have of it.
//!
//! The record of each region has the nodes in an order of its own: here a node has one place.

use std::sync::Arc;

use weft_kv::node::{Member, Region, View};

/// The views of the regions, and the one that was made of them.
#[derive(Default)]
pub(super) struct Views {
    parts: Vec<Arc<View>>,
    whole: Option<Arc<View>>,
}

impl Views {
    /// The view that these views of all regions make.
    pub fn of(&mut self, parts: Vec<Arc<View>>) -> Arc<View> {
        let is_same = self.parts.len() == parts.len()
            && self.parts.iter().zip(&parts).all(|(one, other)| Arc::ptr_eq(one, other));
        if let (Some(whole), true) = (&self.whole, is_same) {
            return Arc::clone(whole);
        }
        let whole = Arc::new(merged(&parts));
        self.parts = parts;
        self.whole = Some(Arc::clone(&whole));
        whole
    }
}

fn merged(parts: &[Arc<View>]) -> View {
    let parts: Vec<&View> = parts.iter().map(|part| &**part).collect();
    let mut members: Vec<Member> = Vec::new();
    for member in parts.iter().flat_map(|part| &part.members) {
        match members.iter_mut().find(|it| it.id == member.id) {
            Some(known) => known.is_up |= member.is_up,
            None => members.push(member.clone()),
        }
    }
    let place = |part: &View, place: usize| {
        let id = &part.members.get(place)?.id;
        members.iter().position(|member| member.id == *id)
    };
    let region = |part: &View, region: &Region| Region {
        primary: region.primary.and_then(|it| place(part, it)),
        in_sync: region.in_sync.iter().filter_map(|it| place(part, *it)).collect(),
        ..region.clone()
    };
    let mut regions = Vec::new();
    for part in &parts {
        regions.extend(part.regions.iter().map(|it| region(part, it)));
    }
    let myself = parts.first().and_then(|part| place(part, part.myself)).unwrap_or(0);
    View {
        // Each version only grows, and grows with each change.
        version: parts.iter().map(|part| part.version).sum(),
        is_cluster: parts.iter().any(|part| part.is_cluster),
        myself,
        members,
        regions,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod tests {
    use super::*;

    fn part(region: u64, ids: [&str; 3], primary: &str, version: u64) -> Arc<View> {
        let place = |id: &str| ids.iter().position(|it| *it == id);
        let member = |id: &&str| Member {
            id: (*id).to_owned(),
            host: (*id).to_owned(),
            port: 1,
            is_up: *id != "c" || region == 1,
        };
        let first = u16::try_from(region).unwrap() * 100;
        let in_sync = ids.iter().filter(|id| **id != primary).filter_map(|id| place(id)).collect();
        Arc::new(View {
            version,
            is_cluster: true,
            myself: place("b").unwrap(),
            members: ids.iter().map(member).collect(),
            regions: vec![Region {
                id: region,
                first,
                last: first + 99,
                epoch: 1,
                primary: place(primary),
                in_sync,
            }],
        })
    }

    #[test]
    fn nodes_that_came_to_each_region_in_another_order_have_one_place() {
        let mut views = Views::default();
        let parts = vec![part(0, ["a", "b", "c"], "a", 3), part(1, ["c", "a", "b"], "b", 4)];
        let whole = views.of(parts.clone());
        let name = |place: usize| whole.members[place].id.as_str();
        assert_eq!((name(whole.myself), whole.version, whole.members.len()), ("b", 7, 3));
        assert_eq!(whole.regions[0].primary.map(name), Some("a"));
        assert_eq!(whole.regions[1].primary.map(name), Some("b"));
        let in_sync: Vec<&str> = whole.regions[1].in_sync.iter().map(|it| name(*it)).collect();
        assert_eq!(in_sync, ["c", "a"]);
        assert!(whole.members.iter().all(|member| member.is_up));
        assert_eq!(whole.region(150).unwrap().id, 1);
        // The same parts are not merged again; other ones are.
        assert!(Arc::ptr_eq(&whole, &views.of(parts.clone())));
        let other = views.of(vec![Arc::clone(&parts[0]), part(1, ["c", "a", "b"], "c", 5)]);
        assert_eq!((other.version, other.regions[1].primary), (8, Some(2)));
    }
}
