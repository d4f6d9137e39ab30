//! Joining by a directory, in the network of the other tests.

use super::*;

/// Hosts that join by the first directory.
fn by_directory(count: usize, seed: u64) -> Net {
    let mut net = Net::new(count, seed);
    for host in &mut net.hosts {
        (host.directory, host.seeds) = (Some(0), vec![]);
    }
    net
}

#[test]
fn hosts_join_by_a_directory_in_any_order_and_without_a_first_daemon() {
    for seed in 0..50 {
        let mut net = by_directory(6, seed);
        for place in [3, 1, 0, 4, 2] {
            net.start(place);
            let pause = net.random(300);
            net.run(Duration::from_millis(pause));
        }
        net.run(Duration::from_secs(15));
        net.assert_mesh(&[0, 1, 2, 3, 4], seed);
        // The one that founded it is not needed for another one to join.
        let founder = (0..5).find(|place| net.number(*place) == 0).expect("somebody founded it");
        net.kill(founder, true);
        net.start(5);
        net.run(Duration::from_secs(10));
        let left: Vec<usize> = (0..6).filter(|place| *place != founder).collect();
        net.assert_mesh(&left, seed);
        assert!(net.hosts.iter().all(|host| host.complaints.is_empty()), "seed {seed}");
    }
}

#[test]
fn while_the_directory_is_away_nobody_joins_and_the_others_go_on() {
    for seed in 0..20 {
        let mut net = by_directory(4, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(8));
        net.stores[0].is_away = true;
        net.kill(2, true);
        net.run(Duration::from_secs(2));
        (2..4).for_each(|place| net.start(place));
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[0, 1, 2], seed);
        assert_eq!(net.machine(3).number(), None);
        let NodeState::Joining(reason) = net.state(3) else { panic!("{:?}", net.state(3)) };
        assert!(reason.contains("waits for etcd") && reason.contains("no leader"), "{reason}");
        assert_eq!(net.machine(0).directory_fault(), Some("no leader"));
        let now = net.now;
        let expelled = net.machine(0).expel(NodeId(2), now);
        assert!(matches!(expelled, Err(NotExpelled::Away(_)) | Err(NotExpelled::Own)));
        net.stores[0].is_away = false;
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[0, 1, 2, 3], seed);
        assert_eq!(net.machine(0).directory_fault(), None);
    }
}

#[test]
fn a_node_is_expelled_by_any_daemon_of_a_directory() {
    let mut net = by_directory(3, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(8));
    let (out, now) = (net.number(2), net.now);
    let gone = net.hosts[2].identity;
    let expelled = net.machine(1).expel(NodeId(out), now);
    assert_eq!(expelled, Ok(Expulsion::UnderWay(gone)));
    assert!(!net.machine(1).has_expelled(&gone), "the directory has not taken it");
    net.drain(1);
    net.run(Duration::from_secs(8));
    net.assert_mesh(&[0, 1], 1);
    assert!(net.machine(1).has_expelled(&gone));
    assert_eq!(net.machine(1).expel(NodeId(out), now), Ok(Expulsion::Done));
    assert!(net.hosts[2].complaints.contains(&Refusal::Expelled.to_string()));
    let present = [1, 2].map(|place| net.machine(place).present_as());
    assert_eq!(present, [net.machine(1).number(), None]);
}

#[test]
fn an_expulsion_that_was_given_up_or_is_of_a_former_holder_expels_nobody() {
    let mut net = by_directory(3, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(8));
    let (out, now) = (net.number(2), net.now);
    let gone = net.hosts[2].identity;
    // The directory goes away behind the question.
    net.stores[0].is_away = true;
    net.machine(1).expel(NodeId(out), now).expect("it is there");
    net.machine(1).give_up_expulsion(&gone);
    net.drain(1);
    net.run(Duration::from_secs(4));
    net.stores[0].is_away = false;
    net.run(Duration::from_secs(8));
    net.assert_mesh(&[0, 1, 2], 1);
    // The number has another holder by the time the directory is there again.
    net.stores[0].is_away = true;
    net.machine(1).expel(NodeId(out), now).expect("it is there");
    net.drain(1);
    net.run(Duration::from_secs(1));
    let table = net.stores[0].table.as_mut().expect("founded");
    table.members.iter_mut().filter(|one| one.number == out).for_each(|one| {
        (one.identity, one.former) = (identity(77), 1);
    });
    table.revision += 1;
    net.stores[0].version += 1;
    net.stores[0].is_away = false;
    net.run(Duration::from_secs(8));
    let table = net.stores[0].table.clone().expect("founded");
    let holder = table.of_number(out).expect("it is there");
    assert!(holder.identity == identity(77) && !holder.is_expelled, "{holder:?}");
    assert!(net.machine(1).has_expelled(&gone));
}

#[test]
fn a_fabric_passes_from_its_first_daemon_to_a_directory() {
    let mut net = Net::new(5, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    let again = |net: &mut Net, place: usize| {
        net.kill(place, true);
        net.hosts[place].directory = Some(0);
        net.start(place);
        net.run(Duration::from_secs(8));
    };
    // The table is that of the first daemon, so one of the others waits for it.
    again(&mut net, 1);
    let told = net.machine(1).directory_fault().expect("no table").to_owned();
    assert!(told.contains("which founded the fabric") && told.contains("h0"), "{told}");
    net.assert_mesh(&[0, 1, 2], 1);
    again(&mut net, 0);
    net.assert_mesh(&[0, 1, 2], 1);
    assert_eq!((net.number(0), net.machine(1).directory_fault()), (0, None));
    // From now on nobody is admitted without it.
    net.hosts[3].seeds = vec![address(2)];
    net.start(3);
    net.hosts[4].directory = Some(0);
    net.start(4);
    net.run(Duration::from_secs(8));
    let NodeState::Refused(reason) = net.state(3) else { panic!("{:?}", net.state(3)) };
    assert!(reason.contains("set fabric.etcd"), "{reason}");
    net.assert_mesh(&[0, 1, 2, 4], 1);
    assert_eq!(net.number(4), 3);
}

#[test]
fn a_directory_of_another_fabric_or_with_other_numbers_is_told_and_changes_nothing() {
    let mut net = by_directory(4, 1);
    net.hosts[2].directory = Some(1);
    net.hosts[3].directory = Some(1);
    for place in [0, 1] {
        net.start_alone(place);
    }
    for place in [2, 3] {
        net.start_alone(place);
    }
    let other = net.stores[1].clone();
    let first = std::mem::replace(&mut net.stores[0], other);
    net.run(Duration::from_secs(8));
    let told = net.machine(1).directory_fault().expect("another fabric").to_owned();
    assert!(told.contains("of another fabric"), "{told}");
    assert_eq!(net.hosts[0].up.len(), 1, "what runs goes on");
    // It lost all: the founder puts its table back. It went back: so, too.
    net.stores[0] = Store::default();
    net.run(Duration::from_secs(8));
    assert_eq!(net.stores[0].table, net.hosts[0].kept);
    let mut older = first.clone();
    older.table.as_mut().expect("founded").members.truncate(1);
    older.table.as_mut().expect("founded").revision = 1;
    net.stores[0] = older;
    net.run(Duration::from_secs(8));
    assert_eq!(net.stores[0].table, net.hosts[0].kept);
    // Numbers that contradict the own ones.
    let mut other_name = Store { table: net.hosts[0].kept.clone(), ..first.clone() };
    other_name.table.as_mut().expect("founded").members[1].name = "x".to_owned();
    net.stores[0] = other_name;
    net.run(Duration::from_secs(4));
    let told = net.machine(1).directory_fault().expect("two tables of one revision").to_owned();
    assert!(told.contains("contradicts"), "{told}");
    let mut wrong = first;
    let table = wrong.table.as_mut().expect("founded");
    table.revision += 7;
    table.members[1].identity = identity(9);
    net.stores[0] = wrong;
    net.run(Duration::from_secs(8));
    let told = net.machine(1).directory_fault().expect("a contradiction").to_owned();
    assert!(told.contains("contradicts"), "{told}");
    assert_eq!(net.hosts[0].up.len(), 1, "what runs goes on");
}

#[test]
fn two_directories_that_give_one_number_twice_make_no_two_daemons_one_node() {
    for seed in 0..20 {
        let mut net = by_directory(4, seed);
        (0..2).for_each(|place| net.start_alone(place));
        // From here on etcd answers host 3 as if host 2 were not there.
        net.stores[1] = net.stores[0].clone();
        net.hosts[3].directory = Some(1);
        net.start(2);
        net.run(Duration::from_secs(6));
        net.numbers.clear();
        net.start(3);
        net.run(Duration::from_secs(15));
        assert_eq!((net.number(2), net.number(3)), (2, 2));
        net.assert_mesh(&[0, 1, 2], seed);
        assert_eq!(net.hosts[3].up, BTreeMap::new(), "seed {seed}");
        let told = Refusal::Number(2).to_string();
        assert!(net.hosts[3].complaints.contains(&told), "{:?}", net.hosts[3].complaints);
    }
}

#[test]
fn two_daemons_with_one_identity_that_see_the_directory_alone_do_not_both_stay() {
    let mut net = by_directory(3, 1);
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(8));
    net.hosts[2].identity = net.hosts[1].identity;
    net.hosts[2].kept = net.hosts[1].kept.clone();
    net.cut.extend([(0, 2), (1, 2)]);
    net.start(2);
    net.run(Duration::from_secs(24));
    let told = Refusal::SameIdentity.to_string();
    assert!(net.hosts[2].complaints.contains(&told), "{:?}", net.hosts[2].complaints);
    assert!(!net.hosts[1].complaints.contains(&told));
    net.assert_mesh(&[0, 1], 1);
}

/// Deaths, cuts, silence of the directory, and hosts that are expelled and join anew: in the end
/// all that live are up, each with its number. With each table that is kept it is looked at that no
/// number has two holders.
#[test]
fn after_any_accidents_of_hosts_and_directory_all_that_live_are_up() {
    for seed in 0..25 {
        let mut net = by_directory(5, seed);
        // Few numbers are free, so those of expelled hosts are given again.
        let mut table = full(&[(0, 0)]);
        table.numbering = Numbering::Directory;
        for number in [7, 8, 9, 200] {
            table.members[number].former = 0;
        }
        net.hosts[0].kept = Some(table);
        (0..5).for_each(|place| net.start(place));
        net.run(Duration::from_secs(10));
        let mut names = 10;
        for _ in 0..14 {
            let place = usize::try_from(net.random(5)).expect("few");
            let other = usize::try_from(net.random(5)).expect("few");
            match net.random(7) {
                0 if net.hosts[place].machine.is_some() => {
                    let is_told = net.random(2) == 0;
                    net.kill(place, is_told);
                }
                1 if net.hosts[place].machine.is_none() => net.start(place),
                2 if place != other => {
                    net.cut.insert((place.min(other), place.max(other)));
                }
                3 => net.stores[0].is_away = !net.stores[0].is_away,
                4 if place != 0 && net.hosts[place].machine.is_some() => {
                    // Its root removes its state, and it joins with another identity.
                    let Some(number) = net.machine(place).number() else { continue };
                    let now = net.now;
                    if net.hosts[0].machine.is_some() {
                        let _ = net.machine(0).expel(number, now);
                        net.drain(0);
                    }
                    net.kill(place, true);
                    names += 1;
                    net.hosts[place].identity = identity(names);
                    net.hosts[place].kept = None;
                    net.start(place);
                }
                _ => net.cut.clear(),
            }
            let pause = net.random(4_000);
            net.run(Duration::from_millis(pause));
        }
        net.cut.clear();
        net.stores[0].is_away = false;
        for place in 0..5 {
            if net.hosts[place].machine.is_none() {
                net.start(place);
            }
        }
        net.run(Duration::from_secs(40));
        let table = net.stores[0].table.clone().expect("founded");
        let is_in = |host: &Host| table.of_identity(&host.identity).is_some();
        let numbered: Vec<usize> = (0..5).filter(|place| is_in(&net.hosts[*place])).collect();
        // Without room for all, some wait for a number.
        let free = table.members.iter().filter(|one| one.is_expelled && one.former < u32::MAX);
        assert!(numbered.len() == 5 || free.count() == 0, "seed {seed}: {numbered:?}");
        net.assert_mesh(&numbered, seed);
    }
}

#[test]
fn a_first_daemon_that_hears_of_a_directory_admits_nobody_any_more() {
    let mut net = Net::new(2, 1);
    net.start(0);
    let (now, machine) = (net.now, net.machine(0));
    let id = machine.inbound("one with the key".to_owned(), now);
    machine.proved(id, identity(9), now);
    let about = machine.config.about.clone();
    let first = Some(identity(0));
    let hello = Hello { fabric: "f".to_owned(), incarnation: 9, number: None, first, about };
    machine.message(id, Message::Hello(hello), now);
    let mut table = machine.roster.clone().expect("founded");
    table.numbering = Numbering::Directory;
    table.revision += 1;
    machine.message(id, Message::Roster(table), now);
    net.drain(0);
    net.start(1);
    net.run(Duration::from_secs(5));
    assert_eq!(net.machine(1).number(), None);
    assert!(matches!(net.state(1), NodeState::Refused(reason) if reason.contains("fabric.etcd")));
}
