//! Lanes over endpoints pass the suite of all lanes: over shared memory, and over the simulator
//! with and without order.

mod fabrics;

mod shm {
    weft_conformance::lane_tests!(crate::fabrics::Pair<crate::fabrics::Shm>);
}

mod sim {
    weft_conformance::lane_tests!(crate::fabrics::Pair<crate::fabrics::Sim>);
}

mod sim_without_order {
    weft_conformance::lane_tests!(crate::fabrics::Pair<crate::fabrics::Unordered>);
}
