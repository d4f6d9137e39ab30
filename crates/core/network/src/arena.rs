//! Places for values that come and go, named by 32 bits, which are used again.

/// The name of no place.
pub(crate) const NONE: u32 = u32::MAX;

/// An arena of values of type `T`.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    places: Vec<Cell<T>>,
    free: u32,
    taken: u32,
}

#[derive(Debug)]
enum Cell<T> {
    Taken(T),
    /// Free, and the next free place.
    Free(u32),
}

impl<T> Arena<T> {
    pub const fn new() -> Self {
        Self { places: Vec::new(), free: NONE, taken: 0 }
    }

    /// The number of values.
    pub const fn len(&self) -> u32 {
        self.taken
    }

    /// Puts a value into a free place.
    pub fn insert(&mut self, value: T) -> u32 {
        self.taken += 1;
        if self.free == NONE {
            let number = u32::try_from(self.places.len()).unwrap_or(NONE);
            assert_ne!(number, NONE, "settings bound the packets below the numbers of places");
            self.places.push(Cell::Taken(value));
            return number;
        }
        let number = self.free;
        if let Cell::Free(next) = &self.places[index(number)] {
            self.free = *next;
        }
        self.places[index(number)] = Cell::Taken(value);
        number
    }

    /// Takes a value out of its place.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.places.get_mut(index(number))?;
        if matches!(place, Cell::Free(_)) {
            return None;
        }
        let taken = std::mem::replace(place, Cell::Free(self.free));
        self.free = number;
        self.taken -= 1;
        match taken {
            Cell::Taken(value) => Some(value),
            Cell::Free(_) => None,
        }
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        match self.places.get(index(number)) {
            Some(Cell::Taken(value)) => Some(value),
            _ => None,
        }
    }

    /// The value at a place that is known to be taken.
    ///
    /// # Panics
    /// When it is free.
    pub fn at(&self, number: u32) -> &T {
        self.get(number).expect("the network keeps no names of free places")
    }

    /// As [`Arena::at`].
    ///
    /// # Panics
    /// When the place is free.
    pub fn at_mut(&mut self, number: u32) -> &mut T {
        match &mut self.places[index(number)] {
            Cell::Taken(value) => value,
            Cell::Free(_) => panic!("the network keeps no names of free places"),
        }
    }

    /// The number of places, taken or free.
    pub const fn places(&self) -> usize {
        self.places.len()
    }

    /// All values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| match place {
            Cell::Taken(value) => Some(value),
            Cell::Free(_) => None,
        })
    }

    /// All values with their names, by name.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.places).filter_map(|(number, place)| match place {
            Cell::Taken(value) => Some((number, value)),
            Cell::Free(_) => None,
        })
    }
}

/// The place of a number in a table.
pub(crate) const fn index(number: u32) -> usize {
    // Targets have pointers of 32 bits or more.
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut arena = Arena::new();
        let names = ['a', 'b', 'c'].map(|value| arena.insert(value));
        assert_eq!(arena.remove(names[1]), Some('b'));
        assert_eq!((arena.remove(names[1]), arena.get(names[1])), (None, None));
        assert_eq!(arena.iter().map(|(_, value)| *value).collect::<String>(), "ac");
        assert_eq!(arena.insert('d'), names[1]);
        *arena.at_mut(names[0]) = 'e';
        assert_eq!((arena.len(), *arena.at(names[0]), arena.get(9)), (3, 'e', None));
    }
}
