//! A list in order of arrival, from which things are taken anywhere.

/// A thing in a list: its place, and the number that it got. A place is used again, a number never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    place: u32,
    /// Rises from thing to thing.
    pub(super) number: u64,
}

#[derive(Debug)]
struct Node<T> {
    number: u64,
    before: u32,
    after: u32,
    value: Option<T>,
}

/// The end of the list, as a place.
const END: u32 = u32::MAX;

/// A doubly linked list in a vector.
#[derive(Debug)]
pub(super) struct List<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    first: u32,
    last: u32,
    length: usize,
    numbers: u64,
}

impl<T> List<T> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), first: END, last: END, length: 0, numbers: 0 }
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Adds a thing at the end.
    #[inline]
    pub(super) fn push(&mut self, value: T) -> Spot {
        let (number, before) = (self.numbers, self.last);
        self.numbers += 1;
        let node = Node { number, before, after: END, value: Some(value) };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[at(place)] = node;
                place
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("memory ends before 2^32 things")
            }
        };
        match before {
            END => self.first = place,
            before => self.nodes[at(before)].after = place,
        }
        self.last = place;
        self.length += 1;
        Spot { place, number }
    }

    /// The thing at a spot, if it is there still.
    #[inline]
    pub(super) fn get(&self, spot: Spot) -> Option<&T> {
        let node = self.nodes.get(at(spot.place))?;
        (node.number == spot.number).then_some(node.value.as_ref()).flatten()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, spot: Spot) -> Option<&mut T> {
        let node = self.nodes.get_mut(at(spot.place))?;
        if node.number == spot.number { node.value.as_mut() } else { None }
    }

    /// Takes the thing at a spot, if it is there still.
    #[inline]
    pub(super) fn remove(&mut self, spot: Spot) -> Option<T> {
        let node = self.nodes.get_mut(at(spot.place))?;
        if node.number != spot.number {
            return None;
        }
        let value = node.value.take()?;
        let (before, after) = (node.before, node.after);
        match before {
            END => self.first = after,
            before => self.nodes[at(before)].after = after,
        }
        match after {
            END => self.last = before,
            after => self.nodes[at(after)].before = before,
        }
        self.free.push(spot.place);
        self.length -= 1;
        Some(value)
    }

    /// The oldest of the first `most` things of which `is_it` is true.
    #[inline]
    pub(super) fn first(&self, most: usize, is_it: impl Fn(&T) -> bool) -> Option<Spot> {
        self.iter().take(most).find(|(_, it)| is_it(it)).map(|(spot, _)| spot)
    }

    /// All things, the oldest first.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Spot, &T)> {
        let mut place = self.first;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at(place))?;
            let spot = Spot { place, number: node.number };
            place = node.after;
            Some((spot, node.value.as_ref()?))
        })
    }
}

const fn at(place: u32) -> usize {
    place as usize
}
