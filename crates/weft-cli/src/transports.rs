//! The transports that this build carries, with the parameters that the options say.

use weft_fabric::Capabilities;
use weft_memory::CopyMode;
use weft_options::{CopyMethod, Options};
use weft_transport_shm::Parameters;

/// The capabilities of each of them.
pub fn all(options: &Options) -> Vec<Capabilities> {
    let sim = weft_transport_sim::Settings::default().capabilities();
    vec![shm_parameters(options).capabilities(), sim]
}

/// The settings of the option table for endpoints over shared memory.
pub fn shm_parameters(options: &Options) -> Parameters {
    let default = Parameters::default();
    let limited = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Parameters {
        ring_slots: u32::try_from(options.shm_ring_slots()).unwrap_or(default.ring_slots),
        endpoints: u16::try_from(options.daemon_endpoints_max()).unwrap_or(default.endpoints),
        spin_us: limited(options.shm_spin_us()),
        yields: options.shm_yields(),
        copy: match options.shm_copy() {
            CopyMethod::Auto => default.copy,
            CopyMethod::Plain => CopyMode::Plain,
            CopyMethod::NonTemporal => CopyMode::NonTemporal,
        },
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_transport_have_the_same_defaults() {
        assert_eq!(shm_parameters(&Options::default()), Parameters::default());
    }
}
