//! Words that a window loads and stores by one access each.

/// A word of 1, 2, 4 or 8 bytes, in the order of the machine's bytes.
///
/// ```
/// use weft_fabric::{Window, WindowError, Word};
///
/// /// Takes the word out of a place of a ring, if there is one, and leaves zero.
/// fn take<W: Word + Default + PartialEq>(
///     ring: &impl Window,
///     place: u64,
/// ) -> Result<Option<W>, WindowError> {
///     let offset = place * u64::from(W::BYTES);
///     let word = ring.load_word::<W>(offset)?;
///     if word == W::default() {
///         return Ok(None);
///     }
///     ring.store_word(offset, W::default())?;
///     Ok(Some(word))
/// }
///
/// # use std::sync::Arc;
/// # use weft_fabric::{
/// #     Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, NodeId, PATIENCE,
/// #     Region, Transport,
/// # };
/// # use weft_transport_shm::broker::Limits;
/// # use weft_transport_shm::local_broker;
/// # use weft_transport_shm::{Parameters, ShmTransport};
/// # let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// # let transport = ShmTransport::new(broker, Parameters::default());
/// # let mut owner = transport.open(&EndpointOptions::default())?;
/// # let mut peer = transport.open(&EndpointOptions::default())?;
/// # let region = owner.register(4096)?;
/// # let whole = LocalRange::whole(&region);
/// # let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE)?;
/// # let to = peer.connect_within(owner.address(), PATIENCE)?;
/// # let window = peer.window(to, key)?;
/// region.write(5 * 2, &7_u16.to_ne_bytes())?;
/// assert_eq!((take::<u16>(&window, 5)?, take::<u16>(&window, 5)?), (Some(7), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Word: Copy + Send + 'static + sealed::Sealed {
    /// Bytes of the word. It must lie at a multiple of them.
    const BYTES: u8;

    /// The word in the low bytes.
    fn value(self) -> u64;

    /// The word of the low bytes of `value`.
    fn of_value(value: u64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! word {
    ($($word:ty: $bytes:literal),*) => { $(
        impl sealed::Sealed for $word {}

        impl Word for $word {
            const BYTES: u8 = $bytes;

            #[inline]
            fn value(self) -> u64 {
                u64::from(self)
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation, trivial_numeric_casts, reason = "low bytes")]
            fn of_value(value: u64) -> Self {
                value as Self
            }
        }
    )* };
}

word!(u8: 1, u16: 2, u32: 4, u64: 8);
