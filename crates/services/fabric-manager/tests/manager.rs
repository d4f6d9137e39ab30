//! Managers and agents under seeds: lost packets, failing links and nodes, managers that crash and
//! are followed by others.

mod world;

use std::collections::BTreeSet;

use weft_fabric_manager::Standing;
use weft_routing::tables::Side;
use weft_topology::{Vertex, file};
use world::{World, expected, graph, guid, settings};

fn numbers(world: &World) -> Vec<Option<u16>> {
    world.agents.iter().map(|agent| agent.number()).collect()
}

#[test]
fn nodes_without_numbers_are_found_numbered_and_routed() {
    for (text, loss) in [("torus:4x4", 0), ("torus:3x3x3", 50), ("fattree:2x3", 50), ("mesh:1", 0)]
    {
        let mut world = World::new(graph(text), settings(None), loss, 7);
        world.elect(0);
        world.settle();
        let hosts: Vec<Vertex> = world.graph.hosts().collect();
        let numbers: BTreeSet<_> =
            hosts.iter().map(|host| world.agents[*host as usize].number()).collect();
        assert_eq!(numbers.len(), hosts.len(), "{text}");
        assert!(!numbers.contains(&None), "{text}");
    }
}

#[test]
fn an_expected_network_is_verified_and_gets_its_own_routes() {
    let whole = graph("torus:4x4");
    let mut world = World::new(whole.clone(), settings(Some(expected(&whole))), 20, 3);
    world.elect(5);
    world.settle();
    let manager = &world.managers[&5];
    assert!(manager.differences().is_empty());
    let (routes, _) = manager.routes().expect("routes");
    assert!(routes.tables().base().is_some(), "dimension order");
    // Node v has the number that the torus gives it, as routes by dimensions need.
    let numbers = numbers(&world);
    assert_eq!(numbers, (0..16).map(Some).collect::<Vec<_>>());
}

#[test]
fn missing_extra_and_miswired_links_are_listed_and_not_used() {
    let text = "hosts = [\"a\", \"b\", \"c\", \"d\"]
        links = [{ ends = [\"a:0\", \"b:0\"] }, { ends = [\"b:1\", \"c:0\"] },
                 { ends = [\"c:1\", \"d:0\"] }, { ends = [\"d:1\", \"a:1\"] }]";
    let planned = file::parse(text).expect("a graph").graph;
    // d leads to port 2 of a, and a and c have a link that was not planned.
    let text =
        text.replace("\"a:1\"", "\"a:2\"").replace("}]", "}, { ends = [\"a:3\", \"c:3\"] }]");
    let wired = file::parse(&text).expect("a graph").graph;
    let mut world = World::new(wired, settings(Some(expected(&planned))), 0, 1);
    world.elect(0);
    world.run(500);
    let manager = &world.managers[&0];
    let told: Vec<String> = manager.differences().iter().map(ToString::to_string).collect();
    assert_eq!(told, ["miswired: d:1 leads to a:2, not to a:1", "extra: link a:3 to c:3"]);
    assert!(matches!(manager.standing(), Standing::Ruling { .. }));
    let choice = world.agents[0].next(None, 2).expect("a way to c");
    assert_eq!(choice.port, 0, "over b");
}

#[test]
fn a_failed_link_is_led_around_and_used_again_when_it_is_back() {
    let whole = graph("torus:4x4");
    for expected in [None, Some(expected(&whole))] {
        let mut world = World::new(whole.clone(), settings(expected), 20, 11);
        world.elect(0);
        world.settle();
        let before = numbers(&world);
        let hops = |world: &World, from: usize, to: usize| {
            world.agents[from].next(None, world.agents[to].number().expect("a number"))
        };
        let usual = hops(&world, 5, 6);
        let port = usual.expect("a neighbour").port;
        world.set_cut(5, port, true);
        assert_eq!(hops(&world, 5, 6), None, "until the manager knows");
        world.settle();
        assert!(hops(&world, 5, 6).is_some_and(|choice| choice.port != port));
        world.set_cut(5, port, false);
        let end = world.now + 20_000;
        while hops(&world, 5, 6).is_none_or(|choice| choice.port != port) {
            assert!(world.now < end, "the link is not used again");
            world.step();
        }
        world.settle();
        assert_eq!(numbers(&world), before);
    }
}

#[test]
fn a_broadcast_reaches_every_node_once_after_each_change() {
    let mut world = World::new(graph("torus:4x4"), settings(None), 10, 5);
    world.elect(0);
    for round in 0..4 {
        world.settle();
        let mut reached = Vec::new();
        let side = world.agents[3].side().expect("tables");
        let mut packets = vec![(3, None)];
        while let Some((at, arrived)) = packets.pop() {
            reached.push(at);
            assert!(reached.len() <= 16, "a packet comes back");
            let agent = &world.agents[at as usize];
            let ends = agent.forward(side, 63, arrived);
            packets.extend(
                ends.filter_map(|port| world.graph.far(at, port))
                    .map(|(next, port)| (next, Some(port))),
            );
        }
        reached.sort_unstable();
        assert_eq!(reached, (0..16).collect::<Vec<_>>(), "round {round}");
        assert!(side == Side::A || round > 0);
        world.set_cut(round, 0, true);
    }
}

#[test]
fn the_next_manager_takes_over_and_the_last_one_is_refused() {
    for seed in 0..12 {
        let whole = graph("torus:4x4");
        let own = (seed % 2 == 0).then(|| expected(&whole));
        let mut world = World::new(whole, settings(own), 20, seed);
        world.elect(0);
        if seed >= 4 {
            world.settle();
            world.set_cut(9, 0, true);
        }
        // The change is somewhere between its first and its last order when the manager dies.
        let moment = 20 + u64::from(world.draw(200));
        world.run(moment);
        let before = numbers(&world);
        if seed % 3 == 0 {
            world.crash(0);
        }
        world.elect(10);
        world.settle();
        assert!(world.agents.iter().enumerate().all(|(vertex, agent)| {
            agent.term() == 2 || world.dead.contains(&Vertex::try_from(vertex).expect("few"))
        }));
        if seed >= 4 {
            for (old, new) in before.iter().zip(numbers(&world)).skip(1) {
                assert_eq!(*old, new, "seed {seed}: a node keeps its number");
            }
        }
        // The manager of before thinks that it still has its lease, until a node tells it.
        if let Some(old) = world.managers.get(&0) {
            assert_eq!(old.standing(), Standing::Idle, "seed {seed}");
        }
    }
}

#[test]
fn a_link_that_was_down_for_a_moment_waits_for_an_activation() {
    let mut world = World::new(graph("torus:4x4"), settings(None), 0, 13);
    world.elect(0);
    world.settle();
    let number = world.agents[6].number().expect("a number");
    let usual = world.agents[5].next(None, number).expect("a neighbour");
    world.set_cut(5, usual.port, true);
    world.set_cut(5, usual.port, false);
    assert_eq!(world.agents[5].next(None, number), None, "its tables still name the link");
    world.settle();
    let again = world.agents[5].next(None, number).expect("a neighbour");
    assert_eq!(again.port, usual.port);
}

#[test]
fn an_activation_that_was_cut_short_is_finished_by_the_next_manager() {
    for seed in 0..5 {
        let mut world = World::new(graph("torus:4x4"), settings(None), 20, seed);
        world.elect(0);
        world.settle();
        let before = world.agents[0].version();
        world.set_cut(9, 0, true);
        let changed =
            |world: &World| world.agents.iter().filter(|agent| agent.version() > before).count();
        while changed(&world) == 0 {
            world.step();
        }
        assert!(changed(&world) < 16, "seed {seed}: all nodes changed at once");
        world.managers.remove(&0);
        world.elect(10);
        let end = world.now + 10_000;
        while changed(&world) < 16 {
            assert!(world.now < end, "seed {seed}: the activation stays as it is");
            world.step();
            let has_tables = world.agents.iter().all(|agent| agent.version().is_some());
            assert!(has_tables, "seed {seed}: a node has lost its routes");
        }
        world.settle();
    }
}

#[test]
fn a_node_that_obeys_no_orders_is_left_out() {
    let mut world = World::new(graph("torus:4x4"), settings(None), 0, 17);
    // It has heard of a version that no manager will reach.
    world.poison(7);
    world.elect(0);
    let end = world.now + 30_000;
    let is_ruled = |world: &World| {
        let others = (0..16).filter(|vertex| *vertex != 7);
        others.clone().all(|vertex| world.agents[vertex].version().is_some())
    };
    while !is_ruled(&world) {
        assert!(world.now < end, "one node holds up all others: {:?}", world.standing());
        world.step();
    }
    assert_eq!(world.agents[7].version(), None);
}

#[test]
fn a_manager_gives_no_orders_after_its_lease() {
    let mut world = World::new(graph("torus:3x3"), settings(None), 0, 2);
    world.elect(4);
    world.settle();
    let before: Vec<_> = world.agents.iter().map(|agent| agent.version()).collect();
    world.lease.1 = None;
    world.run(1_000);
    assert_eq!(world.managers[&4].standing(), Standing::Idle);
    world.set_cut(0, 0, true);
    world.run(5_000);
    let after: Vec<_> = world.agents.iter().map(|agent| agent.version()).collect();
    assert_eq!(after, before, "routes stay as they are while nobody rules");
    world.elect(4);
    world.settle();
}

#[test]
fn a_part_that_was_cut_off_comes_back() {
    let mut world = World::new(graph("mesh:6"), settings(None), 20, 9);
    world.elect(0);
    world.settle();
    world.set_cut(2, 0, true);
    world.settle();
    assert_eq!(world.part(), [0, 1, 2]);
    world.set_cut(2, 0, false);
    world.settle();
    assert_eq!(world.part().len(), 6);
}

#[test]
fn any_failures_are_survived_and_tables_never_close_a_circle() {
    for seed in 0..30 {
        let text = ["torus:4x4", "torus:3x3x2", "fattree:2x3", "mesh:4x3"][(seed % 4) as usize];
        let whole = graph(text);
        let own = (seed % 3 == 0).then(|| expected(&whole));
        let mut world = World::new(whole, settings(own), 30, seed);
        world.elect(0);
        world.settle();
        for _ in 0..6 {
            for _ in 0..=world.draw(2) {
                let vertices = world.graph.vertices();
                let vertex = world.draw(vertices);
                let ports = world.graph.ports(vertex);
                let port = world.draw(ports.into());
                let port = u16::try_from(port).expect("few ports");
                let far = world.graph.wired(vertex, port);
                if world.draw(4) == 0 && vertex != 0 {
                    if world.dead.contains(&vertex) {
                        world.restart(vertex);
                    } else {
                        world.crash(vertex);
                    }
                } else if let Some((far, _)) = far
                    && !world.dead.contains(&vertex)
                    && !world.dead.contains(&far)
                {
                    let is_cut = world.graph.is_cut(vertex, port);
                    world.set_cut(vertex, port, !is_cut);
                }
            }
            // Some failures come while tables change for those before.
            for _ in 0..world.draw(40) {
                world.run(10);
                assert!(!world.has_circle(), "seed {seed} at {}", world.now);
            }
        }
        for vertex in world.dead.clone() {
            world.restart(vertex);
        }
        let links: Vec<_> = world.graph.links().collect();
        for (end, _, is_cut) in links {
            if is_cut {
                world.set_cut(end.0, end.1, false);
            }
        }
        world.settle();
        let hosts = world.graph.hosts().count();
        assert_eq!(world.part().len(), hosts, "seed {seed}");
        let numbers: BTreeSet<_> =
            world.graph.hosts().map(|host| world.agents[host as usize].number()).collect();
        assert_eq!(numbers.len(), hosts, "seed {seed}: a number is there twice");
        assert!(world.graph.hosts().all(|host| world.managers[&0].vertex(guid(host)).is_some()));
    }
}
