//! Seeds, in the network of the other tests.

use super::*;

#[test]
fn a_seed_that_is_no_node_is_told_apart_from_the_nodes() {
    let mut net = Net::new(4, 1);
    // Nobody is at the address of host 3 yet.
    net.hosts[1].seeds = vec![address(3), address(0)];
    net.start(1);
    net.run(Duration::from_secs(5));
    let seeds = |net: &mut Net| -> Vec<String> {
        net.machine(1).seeds_without_node().into_iter().map(|(address, _)| address).collect()
    };
    let text = |place| address(place).to_string();
    assert_eq!(seeds(&mut net), [text(3), text(0)]);
    let places = |net: &mut Net| -> Vec<SocketAddr> {
        net.machine(1).nodes().into_iter().map(|node| node.address).collect()
    };
    assert_eq!(places(&mut net), [address(1)], "the own host alone");
    net.start(0);
    net.run(Duration::from_secs(10));
    assert_eq!(seeds(&mut net), [text(3)]);
    assert_eq!(places(&mut net), [address(0), address(1)]);
    net.start(3);
    net.run(Duration::from_secs(10));
    assert!(seeds(&mut net).is_empty());
}

#[test]
fn a_seed_with_a_name_is_dialled_when_its_address_is_known_and_told_by_its_name() {
    let mut net = Net::new(2, 1);
    (net.hosts[1].seeds, net.hosts[1].seed_names) = (Vec::new(), vec!["first:7700".to_owned()]);
    net.start(0);
    net.start(1);
    net.run(Duration::from_secs(2));
    assert!(net.machine(1).needs_seeds());
    let found = |net: &mut Net, found: Result<Vec<SocketAddr>, &str>| {
        let now = net.now;
        net.machine(1).seed_is_at("first:7700", found.map_err(str::to_owned), now);
        net.run(Duration::from_secs(3));
    };
    found(&mut net, Err("no such host"));
    let NodeState::Joining(reason) = net.state(1) else { panic!("{:?}", net.state(1)) };
    assert!(reason.contains("first:7700 is known: no such host"), "{reason}");
    let told = net.machine(1).seeds_without_node();
    assert_eq!(told, [("first:7700".to_owned(), "no such host".to_owned())]);
    // A wrong address first, and then another one.
    net.kill(0, true);
    found(&mut net, Ok(vec![address(0)]));
    let (seed, _) = net.machine(1).seeds_without_node().remove(0);
    assert_eq!(seed, format!("first:7700 ({})", address(0)));
    net.start(0);
    found(&mut net, Err("the server is away"));
    net.assert_mesh(&[0, 1], 1);
    assert!(!net.machine(1).needs_seeds());
}

#[test]
fn hosts_that_all_have_seeds_are_told_how_one_becomes_the_first() {
    let mut net = Net::new(3, 1);
    let all = vec![address(0), address(1), address(2)];
    (0..3).for_each(|place| net.hosts[place].seeds = all.clone());
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(8));
    for place in 0..3 {
        let NodeState::Joining(reason) = net.state(place) else { panic!("host {place}") };
        assert!(reason.contains("once without fabric.seeds"), "{reason}");
    }
    // As it says.
    net.kill(0, true);
    net.hosts[0].seeds = Vec::new();
    net.start(0);
    net.run(Duration::from_secs(10));
    net.assert_mesh(&[0, 1, 2], 1);
    net.kill(0, true);
    net.hosts[0].seeds = all;
    net.start(0);
    net.run(Duration::from_secs(10));
    net.assert_mesh(&[0, 1, 2], 1);
}

#[test]
fn hosts_with_one_name_are_told_apart_by_their_numbers() {
    let mut net = Net::new(3, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    let mut table = net.hosts[0].kept.clone().expect("a table");
    (0..3).for_each(|place| net.kill(place, true));
    table.members[1].name = "h0".to_owned();
    let (one, other) = (table.members[0].clone(), table.members[1].clone());
    net.hosts[2].kept = Some(table);
    net.start(2);
    let machine = net.machine(2);
    let told = |machine: &mut Machine| -> Vec<String> {
        machine.nodes().into_iter().filter_map(|node| node.name).collect()
    };
    assert_eq!(told(machine)[..2], ["h0#0", "h0#1"]);
    assert_eq!(machine.namesakes(NodeId(1)), [NodeId(0)]);
    // One that was expelled leaves the name to the other.
    let mut table = machine.roster.clone().expect("a table");
    table.expel(other.number);
    machine.roster = Some(table);
    assert_eq!((machine.name_of(&one), machine.namesakes(NodeId(0))), ("h0".to_owned(), vec![]));
    assert_eq!(told(machine)[..2], ["h0", "h0#1"]);
}
