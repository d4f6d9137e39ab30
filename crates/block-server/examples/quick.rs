//! quick
#![forbid(unsafe_code)]
use std::sync::Arc;
use weft_block::scsi::*;
use weft_block::iscsi::*;
use weft_block_server::*;
fn main() {
    let shared = Shared::new(weft_numa::Topology::of_host().unwrap());
    let target = Arc::new(Target::new("iqn.2026-11.weft:t", vec![]).unwrap());
    for n in 0..2 {
    let store = Arc::new(MemoryStore::new(256<<20, None).unwrap());
    let unit = Arc::new(Unit::new(Identity::new(target.name(), n), UnitOptions{is_removable:n==1,is_read_only:false}, store, None, None).unwrap());
    shared.place_unit(&unit, None);
    target.add(n, unit).unwrap();
    }
    shared.targets.add(target).unwrap();
    let l = std::net::TcpListener::bind(std::env::args().nth(1).unwrap()).unwrap();
    l.set_nonblocking(true).unwrap();
    let _r = Running::start(&shared, vec![(Listener::Tcp(l), Speaks::Iscsi)], 8).unwrap();
    std::thread::park();
}
