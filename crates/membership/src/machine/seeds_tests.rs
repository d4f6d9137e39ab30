//! Seeds, in the network of the other tests.

use super::*;

#[test]
fn a_seed_that_is_no_node_is_told_apart_from_the_nodes() {
    let mut net = Net::new(4, 1);
    // Nobody is at the address of host 3 yet.
    net.hosts[1].seeds = vec![address(3), address(0)];
    net.start(1);
    net.run(Duration::from_secs(5));
    let seeds = |net: &mut Net| -> Vec<SocketAddr> {
        net.machine(1).seeds_without_node().into_iter().map(|(address, _)| address).collect()
    };
    assert_eq!(seeds(&mut net), [address(3), address(0)]);
    let places = |net: &mut Net| -> Vec<SocketAddr> {
        net.machine(1).nodes().into_iter().map(|node| node.address).collect()
    };
    assert_eq!(places(&mut net), [address(1)], "the own host alone");
    net.start(0);
    net.run(Duration::from_secs(10));
    assert_eq!(seeds(&mut net), [address(3)]);
    assert_eq!(places(&mut net), [address(0), address(1)]);
    net.start(3);
    net.run(Duration::from_secs(10));
    assert_eq!(seeds(&mut net), []);
}
