//! The broker of this host's endpoints: it rings their doorbells.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use weft_broker::local::LocalBroker;
use weft_broker::{Bell, Limits};
use weft_fabric::NodeId;
use weft_options::ServicePolicy;

use crate::doorbell::Doorbell;

impl Bell for Doorbell {
    fn ring_broker(&self) {
        Self::ring_broker(self);
    }
}

/// Opens the doorbell of an endpoint, for a broker ([`weft_broker::OpenBell`]).
#[must_use]
pub fn open_bell(file: BorrowedFd<'_>, wakeup: OwnedFd) -> Option<Arc<dyn Bell>> {
    Some(Arc::new(Doorbell::open(file, wakeup).ok()?))
}

/// A broker in this process for node `node`, without rules for services.
#[must_use]
pub fn local_broker(node: NodeId, limits: Limits) -> LocalBroker {
    LocalBroker::new(node, limits, ServicePolicy::default(), open_bell)
}
