//! A hash table in the memory of an endpoint that does nothing: the others read and write it.

use weft_examples::Program;
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, Event, Issued, LocalRange, Operation,
    OperationError, PATIENCE, Peer, RemoteKey, Source, Target, Width,
};

const BUCKETS: u64 = 4096;
const BUCKET_BYTES: u64 = 16;
const KEYS: u64 = 1000;

/// A way to the table.
struct Table<'a, E> {
    endpoint: E,
    owner: Peer,
    key: RemoteKey,
    step: &'a mut dyn FnMut(),
}

impl<E: Endpoint> Table<'_, E> {
    /// Sets the value of `key`, which is not 0.
    fn insert(&mut self, key: u64, value: u64) {
        let place = self.bucket_of(key);
        let (value, target) = (value.to_le_bytes(), Target::new(self.key, place + 8));
        let (to, value) = (self.owner, Source::Bytes(&value));
        let put = self.endpoint.put(to, value, target, Operation::new(0));
        self.finish(put);
    }

    /// The value of `key`.
    fn value(&mut self, key: u64) -> u64 {
        let value = self.bucket_of(key) + 8;
        self.atomic(value, Atomic::read(Width::Bits64))
    }

    /// The bucket that has `key`, or takes the first free one for it.
    fn bucket_of(&mut self, key: u64) -> u64 {
        let first = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BUCKETS;
        for step in 0..BUCKETS {
            let place = (first + step) % BUCKETS * BUCKET_BYTES;
            let found = self.atomic(place, Atomic::compare_swap(0, key));
            if found == 0 || found == key {
                return place;
            }
        }
        panic!("the table is full")
    }

    fn atomic(&mut self, offset: u64, atomic: Atomic) -> u64 {
        let (to, target) = (self.owner, Target::new(self.key, offset));
        let issued = self.endpoint.atomic(to, target, atomic, Operation::new(0));
        self.finish(issued).expect("it fetches")
    }

    /// Waits for the one operation that is pending.
    fn finish(&mut self, issued: Result<Issued, OperationError>) -> Option<u64> {
        let mut value = match issued.expect("the owner is there") {
            Issued::Done(value) => return value.word(),
            Issued::Pending => None,
        };
        while value.is_none() {
            (self.step)();
            self.endpoint.poll(1, &mut |event| {
                let Event::Completion(completion) = event else { return };
                value = Some(completion.result.expect("the owner is there"));
            });
        }
        value.expect("the loop ended").word()
    }
}

/// The program.
pub struct HashTable;

impl Program for HashTable {
    fn run<E: Endpoint>(self, endpoints: Vec<E>, step: &mut dyn FnMut()) {
        let mut endpoints = endpoints.into_iter();
        let mut owner = endpoints.next().expect("an owner");
        let memory = owner.register(BUCKETS * BUCKET_BYTES).expect("memory");
        let whole = LocalRange::whole(&memory);
        let key =
            owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE).expect("a key");
        for (number, mut endpoint) in (1..).zip(endpoints) {
            let peer = endpoint.connect_within(owner.address(), PATIENCE).expect("it is there");
            endpoint.resolve_within(peer, key, PATIENCE).expect("a key in force");
            let mut table = Table { endpoint, owner: peer, key, step: &mut *step };
            for key in 1..=KEYS {
                assert_eq!(table.value(key), key * (number - 1), "what the one before wrote");
                table.insert(key, key * number);
            }
            println!("{} read and wrote {KEYS} values", table.endpoint.address());
        }
    }
}

fn main() {
    weft_examples::main(4, HashTable);
}
