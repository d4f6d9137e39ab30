//! Parameters that CONFIG GET shows, and the ones that CONFIG SET changes.

use weft_kv::store::VALUE_LIMIT;

use crate::number;

/// Parameters with their values in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Most connections.
    pub clients_max: usize,
    /// Seconds after which an idle connection ends; 0 is never.
    pub timeout: u64,
    /// Longest string.
    pub bulk_max: usize,
    /// Most bytes of a client that were read and not carried out.
    pub input_max: usize,
    /// Most bytes of answers to one client that were not sent; the connection ends above.
    pub output_max: usize,
    /// Most memory of all clients; above it the one that takes most ends.
    pub memory_max: usize,
    /// Microseconds from which on a command is slow; negative is never.
    pub slow_from: i64,
    /// Slow commands that are kept.
    pub slow_max: usize,
    /// Seconds between probes of an idle connection.
    pub keepalive: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            clients_max: 10_000,
            timeout: 0,
            bulk_max: 48 << 20,
            input_max: 64 << 20,
            output_max: 256 << 20,
            memory_max: 1 << 30,
            slow_from: 10_000,
            slow_max: 128,
            keepalive: 300,
        }
    }
}

/// A parameter that can be set.
struct Setting {
    name: &'static str,
    get: fn(&Parameters) -> String,
    set: fn(&mut Parameters, &[u8]) -> Option<()>,
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "maxclients",
        get: |it| it.clients_max.to_string(),
        set: |it, text| {
            it.clients_max = bounded(number::integer(text)?, 1, 1_000_000)?;
            Some(())
        },
    },
    Setting {
        name: "timeout",
        get: |it| it.timeout.to_string(),
        set: |it, text| {
            it.timeout = u64::try_from(number::integer(text)?).ok()?;
            Some(())
        },
    },
    Setting {
        name: "proto-max-bulk-len",
        get: |it| it.bulk_max.to_string(),
        set: |it, text| {
            it.bulk_max = bounded(bytes(text)?, 1 << 20, VALUE_LIMIT - 4096)?;
            Some(())
        },
    },
    Setting {
        name: "client-query-buffer-limit",
        get: |it| it.input_max.to_string(),
        set: |it, text| {
            it.input_max = bounded(bytes(text)?, 1 << 20, 1 << 40)?;
            Some(())
        },
    },
    Setting {
        name: "client-output-buffer-limit",
        get: |it| format!("normal {} 0 0 slave 0 0 0 pubsub 0 0 0", it.output_max),
        set: |it, text| {
            let text = std::str::from_utf8(text).ok()?;
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            for class in words.chunks(4) {
                let [name, hard, ..] = class else { return None };
                if *name == "normal" {
                    it.output_max = match bytes(hard.as_bytes())? {
                        0 => Parameters::default().output_max,
                        hard => bounded(hard, 1 << 20, 1 << 40)?,
                    };
                }
            }
            Some(())
        },
    },
    Setting {
        name: "maxmemory-clients",
        get: |it| it.memory_max.to_string(),
        set: |it, text| {
            it.memory_max = bounded(bytes(text)?, 16 << 20, 1 << 40)?;
            Some(())
        },
    },
    Setting {
        name: "slowlog-log-slower-than",
        get: |it| it.slow_from.to_string(),
        set: |it, text| {
            it.slow_from = number::integer(text)?;
            Some(())
        },
    },
    Setting {
        name: "slowlog-max-len",
        get: |it| it.slow_max.to_string(),
        set: |it, text| {
            it.slow_max = bounded(number::integer(text)?, 0, 100_000)?;
            Some(())
        },
    },
    Setting {
        name: "tcp-keepalive",
        get: |it| it.keepalive.to_string(),
        set: |it, text| {
            it.keepalive = u64::try_from(number::integer(text)?).ok().filter(|it| *it < 32_768)?;
            Some(())
        },
    },
];

fn bounded(number: i64, low: usize, high: usize) -> Option<usize> {
    usize::try_from(number).ok().filter(|number| (low..=high).contains(number))
}

/// A number of bytes: digits, and `k`, `kb`, `m`, `mb`, `g` or `gb`.
fn bytes(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.to_ascii_lowercase();
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number::integer(digits.as_bytes())?.checked_mul(factor)
}

impl Parameters {
    /// All parameters that can be set, with their values.
    pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
        SETTINGS.iter().map(|setting| (setting.name, (setting.get)(self))).collect()
    }

    /// Sets a parameter. `None` if there is none of this name; an inner `None` if it cannot have
    /// the value.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) -> Option<Option<()>> {
        let fits = |setting: &&Setting| name.eq_ignore_ascii_case(setting.name.as_bytes());
        SETTINGS.iter().find(fits).map(|setting| (setting.set)(self, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_within_their_bounds() {
        let mut it = Parameters::default();
        assert_eq!(it.set(b"Proto-Max-Bulk-Len", b"2mb"), Some(Some(())));
        assert_eq!(it.bulk_max, 2 << 20);
        assert_eq!(it.set(b"proto-max-bulk-len", b"1gb"), Some(None));
        assert_eq!(it.set(b"timeout", b"-1"), Some(None));
        assert_eq!(it.set(b"timeout", b"x"), Some(None));
        assert_eq!(it.set(b"nothing", b"1"), None);
        assert_eq!(it.set(b"client-output-buffer-limit", b"normal 2mb 0 0"), Some(Some(())));
        assert_eq!(it.output_max, 2 << 20);
    }
}
