//! Nothing that a node or a manager says makes the other side fail.

use proptest::prelude::*;
use weft_fabric_manager::message::{Answer, Body, Identity, Link, Order, Packet, Row};
use weft_fabric_manager::{Agent, Manager, Output, Settings, Standing};
use weft_routing::Algorithm;
use weft_routing::tables::Side;

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::A), Just(Side::B)]
}

fn row() -> impl Strategy<Value = Row> {
    prop_oneof![
        Just(Row::BaseGlobal),
        Just(Row::BaseLocal),
        Just(Row::PlaneGlobal),
        Just(Row::PlaneLocal),
        any::<u8>().prop_map(Row::Group),
    ]
}

fn order() -> impl Strategy<Value = Order> {
    let entries = prop::collection::vec(any::<u16>(), 0..20);
    let first = prop_oneof![0_u16..1_100, any::<u16>()];
    prop_oneof![
        Just(Order::Identify),
        (any::<Option<u16>>(), any::<Option<u16>>())
            .prop_map(|(number, segment)| Order::Place { number, segment }),
        (0_u64..4).prop_map(|version| Order::Clear { version }),
        (0_u64..4, side(), row(), first, entries).prop_map(
            |(version, side, row, first, entries)| Order::Load {
                version,
                side,
                row,
                first,
                entries
            }
        ),
        (0_u64..4, any::<u8>()).prop_map(|(version, base_vcs)| Order::Seal { version, base_vcs }),
        (0_u64..4).prop_map(|version| Order::Activate { version }),
    ]
}

fn identity() -> impl Strategy<Value = Identity> {
    let link = prop_oneof![Just(Link::Down), Just(Link::Held), Just(Link::Up)];
    (
        (0_u64..6, any::<bool>(), prop::collection::vec(link, 0..5)),
        (prop::option::of(0_u16..6), any::<Option<u16>>(), prop::option::of((0_u64..4, side()))),
        (prop::option::of(0_u64..4), prop_oneof![9 => 0_u64..5, 1 => Just(u64::MAX)]),
    )
        .prop_map(|((guid, is_switch, ports), (arrived, number, active), (sealed, seen))| {
            Identity { guid, is_switch, ports, arrived, number, active, sealed, seen }
        })
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => identity().prop_map(Answer::Identity),
        3 => Just(Answer::Done),
        1 => Just(Answer::Refused),
        1 => (0_u64..3).prop_map(Answer::Superseded),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_a_packet_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut agent = Agent::new(1, false, 3);
        agent.link(0, true);
        for output in agent.receive(0, &bytes) {
            if let Output::Send(port, bytes) = output {
                prop_assert_eq!(port, 0, "the only link");
                prop_assert!(Packet::parse(&bytes).is_some());
            }
        }
    }

    #[test]
    fn any_orders_leave_an_agent_that_answers(
        orders in prop::collection::vec((0_u64..3, order()), 0..40),
        to in any::<u16>(),
        vc in any::<Option<u8>>(),
    ) {
        let mut agent = Agent::new(1, false, 3);
        agent.link(0, true);
        for (sequence, (term, order)) in (0..).zip(orders) {
            let packet = Packet::new(Vec::new(), Body::Order { term, sequence, order });
            let outputs = agent.receive(0, &packet.encode());
            prop_assert!(matches!(outputs.as_slice(), [Output::Send(0, _)]), "{:?}", outputs);
            if let Some(choice) = agent.next(vc, to) {
                prop_assert_eq!(choice.port, 0, "the only link");
            }
            for group in [0, 63, 255] {
                prop_assert!(agent.forward(Side::A, group, None).all(|port| port == 0));
            }
        }
    }

    #[test]
    fn any_answers_leave_a_manager_that_goes_on(
        answers in prop::collection::vec((0_u64..80, answer(), 0_u64..100), 0..60),
    ) {
        let settings =
            Settings { algorithm: Algorithm::Auto, expected: None, sweep_ms: 100, settle_ms: 10 };
        let mut manager = Manager::new(settings);
        let mut now = 0;
        for (sequence, answer, wait) in answers {
            manager.lead(1, now + 1_000);
            manager.receive(&Packet::new(Vec::new(), Body::Answer { sequence, answer }), now);
            now += wait;
            let orders = manager.tick(now).len();
            prop_assert!(orders <= 128, "{} orders at once", orders);
        }
        // A node of a higher term ends its rule; nothing else does.
        manager.lead(3, now + 1_000);
        prop_assert_ne!(manager.standing(), Standing::Idle);
    }
}
