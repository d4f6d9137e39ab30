//! Copies of hosts, and hosts that were moved, in the network of the other tests.

use super::*;

impl Net {
    /// Gives a host a copy of the state of another one.
    fn copy(&mut self, from: usize, to: usize) {
        self.hosts[to].identity = self.hosts[from].identity;
        self.hosts[to].kept = self.hosts[from].kept.clone();
    }

    /// The address that a host's table has for another host.
    fn address_at(&self, place: usize, of: usize) -> SocketAddr {
        let roster = self.hosts[place].kept.as_ref().expect("a table");
        roster.of_identity(&self.hosts[of].identity).expect("it is known").address
    }

    /// That nobody knows host 2 by another address or name than its own.
    fn assert_untouched(&mut self, places: &[usize], seed: u64) {
        for place in places {
            let roster = self.hosts[*place].kept.clone().expect("a table");
            let known = roster.of_identity(&identity(2)).expect("it is in it").clone();
            let known = (known.address, known.name.as_str() == "h2");
            assert_eq!(known, (address(2), true), "seed {seed}, host {place}");
        }
    }
}

#[test]
fn a_copy_that_is_refused_changes_nothing() {
    for seed in 0..40 {
        let mut net = Net::new(4, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        net.copy(2, 3);
        net.start(3);
        for _ in 0..40 {
            net.run(Duration::from_millis(200));
            net.assert_untouched(&[0, 1, 2], seed);
            assert!(net.hosts[3].up.is_empty(), "seed {seed}");
        }
        net.assert_mesh(&[0, 1, 2], seed);
    }
}

#[test]
fn a_copy_that_comes_before_its_original_to_a_daemon_that_started_anew_changes_nothing() {
    for seed in 0..40 {
        let mut net = Net::new(4, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        // The copy does not reach the original, and so does not find it by itself.
        net.cut.insert((2, 3));
        net.copy(2, 3);
        net.start(3);
        net.run(Duration::from_secs(4));
        for round in 0..6 {
            let place = round % 2;
            net.kill(place, round % 3 == 0);
            net.run(Duration::from_millis(100));
            net.start(place);
            for _ in 0..30 {
                net.run(Duration::from_millis(200));
                net.assert_untouched(&[0, 1, 2], seed);
            }
        }
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[0, 1, 2], seed);
        assert!(net.hosts[3].up.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_host_that_was_moved_is_known_by_its_new_address_and_its_copy_is_refused_then() {
    for seed in 0..40 {
        let mut net = Net::new(4, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        net.kill(2, seed % 2 == 0);
        net.copy(2, 3);
        net.start(3);
        net.run(Duration::from_secs(12));
        net.assert_mesh(&[0, 1, 3], seed);
        for place in [0, 1, 3] {
            assert_eq!(net.address_at(place, 2), address(3), "seed {seed}, host {place}");
        }
        // The original is the copy now, whose place was taken.
        net.start(2);
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[0, 1, 3], seed);
        assert!(net.hosts[2].up.is_empty(), "seed {seed}");
        assert_eq!(net.address_at(0, 2), address(3), "seed {seed}");
    }
}

#[test]
fn the_first_daemon_that_was_moved_or_renamed_says_so_and_its_copy_gives_no_numbers() {
    for seed in 0..20 {
        let mut net = Net::new(5, seed);
        net.hosts[4].seeds = vec![address(3)];
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        net.copy(0, 3);
        net.hosts[3].seeds = Vec::new();
        net.start(3);
        net.start(4);
        net.run(Duration::from_secs(12));
        net.assert_mesh(&[0, 1, 2], seed);
        assert_eq!(net.machine(4).number(), None, "a copy admits nobody");
        assert_eq!(net.address_at(1, 0), address(0), "seed {seed}");
        net.kill(0, true);
        net.run(Duration::from_secs(20));
        net.assert_mesh(&[1, 2, 3, 4], seed);
        for place in 1..5 {
            assert_eq!(net.address_at(place, 0), address(3), "seed {seed}, host {place}");
        }
    }
}

#[test]
fn a_copy_of_a_host_that_was_expelled_stays_out_and_changes_nothing() {
    let mut net = Net::new(4, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    net.copy(2, 3);
    let (node, now) = (net.machine(2).number().expect("admitted"), net.now);
    net.machine(0).expel(node, now).expect("it is there");
    net.drain(0);
    net.kill(2, true);
    net.start(3);
    net.run(Duration::from_secs(12));
    net.assert_untouched(&[0, 1], 1);
    assert!(net.hosts[3].up.is_empty());
    // It takes nobody out of the fabric by what it says either.
    let machine = net.machine(0);
    let id = machine.inbound("the expelled one".to_owned(), now);
    machine.proved(id, identity(2), now);
    machine.message(id, Message::Refused(Refusal::SameIdentity), now);
    net.drain(0);
    net.run(Duration::from_secs(3));
    net.assert_mesh(&[0, 1], 1);
}

#[test]
fn a_copy_changes_nothing_in_the_directory_and_a_host_that_was_moved_does() {
    for seed in 0..20 {
        let mut net = Net::new(4, seed);
        (0..4).for_each(|place| net.hosts[place].directory = Some(0));
        (0..3).for_each(|place| {
            net.start(place);
            net.run(Duration::from_secs(3));
        });
        net.run(Duration::from_secs(10));
        net.copy(2, 3);
        // It reaches the directory alone.
        net.cut.extend([(0, 3), (1, 3), (2, 3)]);
        net.start(3);
        for _ in 0..60 {
            net.run(Duration::from_millis(500));
            net.assert_untouched(&[0, 1, 2], seed);
        }
        net.cut.clear();
        net.run(Duration::from_secs(10));
        net.assert_untouched(&[0, 1, 2], seed);
        net.assert_mesh(&[0, 1, 2], seed);
        net.kill(2, true);
        net.run(Duration::from_secs(60));
        net.assert_mesh(&[0, 1, 3], seed);
        assert_eq!(net.address_at(0, 3), address(3), "seed {seed}");
    }
}
