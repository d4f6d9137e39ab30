//! Structures, tables of functions and numbers of libfabric's interface, on 64-bit Linux: for weft
//! as a user of libfabric, and for its provider.
//!
//! The layouts are those of version 1.17. From 1.17 to 2.7 libfabric's structures grew at their end
//! only, so they serve all of them. Structures that libfabric allocates are read and written as far
//! as this module has them. Those that a call takes are followed by zeros, for the fields of later
//! versions ([`Padded`]).
//!
//! Source: the headers `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_tagged.h`, `fi_rma.h`,
//! `fi_atomic.h`, `fi_cm.h`, `fi_eq.h`, `fi_errno.h`, `fi_ext.h` and `providers/fi_prov.h` of
//! libfabric 1.17 and 2.5.

mod numbers;
mod structures;
mod tables;

pub use numbers::*;
pub use structures::*;
pub use tables::*;
