//! Hints of every kind: the fuzzing entry.

use weft_libfabric::abi::{self, DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr, flag};

use super::{CAPS, ORDER, Wish, fill, inline_bytes_max};

/// Reads values off the input. At its end all is zero.
struct Values<'a>(&'a [u8]);

impl Values<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// Bits, mostly such as are offered.
    fn bits(&mut self, offered: u64) -> u64 {
        match self.byte() {
            0..=99 => 0,
            100..=249 => u64::from_le_bytes(self.bytes()) & offered,
            _ => u64::from_le_bytes(self.bytes()),
        }
    }

    /// A size, mostly a small one.
    fn size(&mut self) -> usize {
        match self.byte() {
            0..=99 => 0,
            100..=249 => usize::from(u16::from_le_bytes(self.bytes())) >> 4,
            _ => usize::from_le_bytes(self.bytes()),
        }
    }

    /// The number of a kind, mostly a small one.
    fn kind(&mut self) -> i32 {
        match self.byte() {
            byte @ 0..=249 => i32::from(byte % 8),
            _ => i32::from_le_bytes(self.bytes()),
        }
    }
}

/// Hints off the input: what is granted is at least what was wanted.
///
/// # Panics
/// When it is not.
pub fn fuzz_hints(input: &[u8]) {
    let mut values = Values(input);
    let it = &mut values;
    let parts = it.byte();
    let version = 1 << 16 | u32::from(it.byte() % 24);
    let hints = Info {
        caps: it.bits(CAPS),
        mode: it.bits(u64::MAX),
        address_format: it.kind().cast_unsigned(),
        ..Info::default()
    };
    let tx = TxAttr {
        caps: it.bits(CAPS),
        op_flags: it.bits(super::OP_FLAGS),
        msg_order: it.bits(ORDER),
        comp_order: it.bits(0),
        inject_size: it.size(),
        size: it.size(),
        iov_limit: it.size(),
        rma_iov_limit: it.size(),
        ..TxAttr::default()
    };
    let rx = RxAttr {
        caps: it.bits(CAPS),
        op_flags: it.bits(super::OP_FLAGS),
        msg_order: it.bits(ORDER),
        comp_order: it.bits(0),
        iov_limit: it.size(),
        ..RxAttr::default()
    };
    let ep = EpAttr {
        kind: it.kind(),
        protocol: it.kind().cast_unsigned(),
        max_msg_size: it.size(),
        max_order_raw_size: it.size(),
        max_order_waw_size: it.size(),
        mem_tag_format: it.bits(u64::MAX),
        tx_ctx_cnt: it.size(),
        rx_ctx_cnt: it.size(),
        auth_key_size: it.size(),
        ..EpAttr::default()
    };
    let domain = DomainAttr {
        threading: it.kind(),
        control_progress: it.kind(),
        data_progress: it.kind(),
        av_type: it.kind(),
        mr_mode: it.kind(),
        cq_data_size: it.size(),
        max_ep_srx_ctx: it.size(),
        mr_iov_limit: it.size(),
        caps: it.bits(CAPS),
        ..DomainAttr::default()
    };
    let wish = Wish {
        hints: Some(&hints),
        tx: (parts & 1 == 0).then_some(&tx),
        rx: (parts & 2 == 0).then_some(&rx),
        ep: (parts & 4 == 0).then_some(&ep),
        domain: (parts & 8 == 0).then_some(&domain),
        fabric: None,
    };
    if wish.is_served() {
        check(&wish, version);
    }
}

fn check(wish: &Wish<'_>, version: u32) {
    let (mut tx, mut rx, mut ep) = (TxAttr::default(), RxAttr::default(), EpAttr::default());
    let (mut domain, mut fabric) = (DomainAttr::default(), FabricAttr::default());
    let mut info = Info {
        tx: &raw mut tx,
        rx: &raw mut rx,
        ep: &raw mut ep,
        domain: &raw mut domain,
        fabric: &raw mut fabric,
        ..Info::default()
    };
    fill(&mut info, wish, version);
    assert_eq!(info.caps & wish.caps(), wish.caps(), "a capability is missing");
    assert_eq!(info.caps & !CAPS, 0, "a capability is not there");
    assert_eq!((info.mode, ep.kind), (0, abi::EP_RDM));
    let memory = flag::REMOTE_READ | flag::REMOTE_WRITE;
    assert!(wish.caps() & flag::RMA == 0 || info.caps & (flag::READ | flag::WRITE | memory) != 0);
    if let Some(wanted) = wish.tx {
        assert!(tx.inject_size >= wanted.inject_size && tx.size >= wanted.size);
        assert!(
            tx.iov_limit >= wanted.iov_limit && tx.msg_order & wanted.msg_order == wanted.msg_order
        );
        assert_eq!(tx.op_flags, wanted.op_flags);
    }
    if let Some(wanted) = wish.rx {
        assert!(
            rx.iov_limit >= wanted.iov_limit && rx.msg_order & wanted.msg_order == wanted.msg_order
        );
        assert_eq!(rx.op_flags, wanted.op_flags);
    }
    if let Some(wanted) = wish.ep {
        assert!(ep.max_msg_size >= wanted.max_msg_size && ep.tx_ctx_cnt >= wanted.tx_ctx_cnt);
        assert!(ep.max_order_waw_size >= wanted.max_order_waw_size);
    }
    if let Some(wanted) = wish.domain {
        assert!(wanted.threading == 0 || domain.threading == wanted.threading);
        assert!(domain.cq_data_size >= wanted.cq_data_size);
        assert_eq!(domain.av_type, wanted.av_type);
        // Without a mode a program of an early version says that registrations scale.
        assert!(domain.mr_mode & !wanted.mr_mode == 0 || version < (1 << 16 | 5));
    }
    assert!(tx.inject_size == inline_bytes_max() && fabric.api_version == version);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_of_weft_and_of_the_protocol_have_the_same_defaults() {
        let opening = weft_open::Opening::with("fi", &Default::default());
        let (set, own) = (opening.options(), weft_rdm::Options::default());
        let ours = (set.mpi_inline_bytes(), set.mpi_eager_bytes(), set.mpi_ends_receives());
        assert_eq!(ours, (own.inline_bytes_max, own.chunk_bytes_max, own.ends_receives));
    }

    #[test]
    fn the_corpus_is_granted_what_it_wants() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/fi_hints");
        for file in std::fs::read_dir(folder).expect("the corpus is committed") {
            let path = file.expect("a folder can be read").path();
            fuzz_hints(&std::fs::read(&path).expect("a file can be read"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2000, failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn hints_of_every_kind(input in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz_hints(&input);
        }
    }
}
