//! Daemons that are stopped for a while, as with their machines.

use super::*;

#[test]
fn the_time_in_which_all_daemons_were_stopped_is_no_silence() {
    for seed in 0..20 {
        let mut net = Net::new(3, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(8));
        net.assert_mesh(&[0, 1, 2], seed);
        let messages: Vec<usize> = net.hosts.iter().map(|host| host.messages).collect();
        let links = net.links.len();
        for pause in [3, 15, 100] {
            // Nobody looks meanwhile.
            net.now += SILENCE * pause;
            net.run(Duration::from_secs(5));
        }
        net.assert_mesh(&[0, 1, 2], seed);
        // Nobody was down in between: each message comes behind an Up.
        let since: Vec<usize> = net.hosts.iter().map(|host| host.messages).collect();
        assert_eq!((since, net.links.len()), (messages, links), "seed {seed}");
    }
}

#[test]
fn a_daemon_that_is_often_late_still_notices_a_silence() {
    let mut net = Net::new(2, 1);
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(8));
    net.kill(1, false);
    for _ in 0..20 {
        net.now += SILENCE / 2;
        net.run(Duration::from_millis(10));
    }
    assert_eq!(net.hosts[0].up.len(), 0, "it is down");
}
