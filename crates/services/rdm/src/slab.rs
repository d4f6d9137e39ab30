//! Numbers for things that are under way. A number that is over names nothing, ever.

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// Things by number.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn length(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 1, value: None });
            u32::try_from(self.places.len() - 1).expect("memory ends before 2^32 things")
        });
        let slot = &mut self.places[place as usize];
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(place)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let slot = self.places.get(usize::try_from(number & 0xffff_ffff).ok()?)?;
        if u64::from(slot.generation) == number >> 32 { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let slot = self.places.get_mut(usize::try_from(number & 0xffff_ffff).ok()?)?;
        if u64::from(slot.generation) == number >> 32 { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = u32::try_from(number & 0xffff_ffff).ok()?;
        let slot = self.places.get_mut(place as usize)?;
        if u64::from(slot.generation) != number >> 32 {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place);
        Some(value)
    }

    /// The numbers of the things of which `is_it` is true.
    pub(crate) fn numbers(&self, mut is_it: impl FnMut(&T) -> bool) -> Vec<u64> {
        let of = |(place, slot): (usize, &Place<T>)| {
            let number = u64::from(slot.generation) << 32 | place as u64;
            slot.value.as_ref().filter(|value| is_it(value)).map(|_| number)
        };
        self.places.iter().enumerate().filter_map(of).collect()
    }
}
