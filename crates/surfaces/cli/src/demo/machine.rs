//! The machine that the demonstration ran on, as far as it decides the figures.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a copy that no cache holds, and of one that the second-level cache does.
const LARGE: usize = 64 << 20;
const SMALL: usize = 128 << 10;
/// How long each measurement takes at most.
const WITHIN: Duration = Duration::from_millis(150);
/// Bytes copied between two looks at the clock, and how often a line crosses: less than what a
/// thread does before another program gets its processor.
const PIECE: usize = 2 << 20;
const CROSSINGS: u64 = 64;

/// Kind and speed of the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processor's name, if the kernel tells it.
    model: Option<String>,
    /// How many processors this process may use.
    processors: usize,
    is_virtual: bool,
    /// Programs that want a processor, on average over the last minute before the programs ran.
    load: f64,
    /// A cache line goes from one processor to another in this time; `None` with one processor.
    line_us: Option<f64>,
    /// A copy of memory, and one of the cache, in GB/s.
    copies: [f64; 2],
}

impl Machine {
    /// Looks and measures, for less than a second.
    pub fn look() -> Self {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            model: field(&text, "model name").map(str::to_owned),
            is_virtual: field(&text, "flags").is_some_and(|flags| flags.contains(" hypervisor")),
            load: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0),
            line_us: (processors > 1).then(line_us),
            copies: [LARGE, SMALL].map(copy_speed),
            processors,
        }
    }

    /// True when other programs wanted at least one of the processors.
    fn is_busy(&self) -> bool {
        self.load > self.processors.saturating_sub(1) as f64 + 0.5
    }

    /// Why a row has so little to gain: `weft` is the figure over weft, in GB/s for a stream and in
    /// us for a round trip.
    pub fn limit(&self, kind: Kind, weft: f64) -> String {
        let [memory, cache] = self.copies;
        match kind {
            _ if self.is_busy() => {
                format!("other programs used the processors (load {:.1})", self.load)
            }
            _ if self.processors == 1 => "both programs share one processor".into(),
            // Each byte is copied into the lane and out of it, by one program each.
            Kind::Stream if weft > memory / 2.0 => format!(
                "each program copies each byte once, and one processor copies {memory:.1} to \
                 {cache:.1} GB/s here: {weft:.1} GB/s is near that"
            ),
            Kind::Stream => "most of the time goes to the programs themselves, not to TCP".into(),
            Kind::Turns => {
                let line = self.line_us.unwrap_or(0.0);
                format!("a cache line takes {line:.2} us here; the rest is the programs' own time")
            }
        }
    }
}

/// The traffic that a figure is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes in one direction.
    Stream,
    /// Small messages that wait for each other.
    Turns,
}

impl fmt::Display for Machine {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.as_deref().unwrap_or("a processor without a name");
        let processors = crate::table::counted(self.processors, "processor");
        let kind = if self.is_virtual { "virtual" } else { "no virtual machine" };
        writeln!(to, "machine  {model}")?;
        writeln!(to, "         {processors}, {kind}, load {:.1} before", self.load)?;
        let [memory, cache] = self.copies;
        match self.line_us {
            Some(line) => write!(to, "         a cache line crosses in {line:.2} us")?,
            None => write!(to, "         no second processor")?,
        }
        write!(to, "; copies {memory:.1} GB/s, {cache:.1} in the cache")
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// The best of several copies within `length` bytes, in GB/s.
fn copy_speed(length: usize) -> f64 {
    let source = vec![1_u8; length];
    let mut target = vec![2_u8; length];
    let rounds = (PIECE / length).max(1);
    let end = Instant::now() + WITHIN;
    let mut best = f64::MAX;
    while Instant::now() < end {
        for (from, to) in source.chunks(PIECE).zip(target.chunks_mut(PIECE)) {
            let before = Instant::now();
            for _ in 0..rounds {
                to.copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(&mut *to);
            }
            best = best.min(before.elapsed().as_secs_f64() / (from.len() * rounds) as f64);
        }
    }
    1.0 / best / 1e9
}

/// The time in which a line that one thread wrote is seen by another, the best of many, in us.
fn line_us() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let lines = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    let end = Instant::now() + WITHIN;
    // A partner without a processor must not be waited for by a spinning thread alone.
    let wait = |line: &Line, wanted: u64| {
        let mut looks = 0_u32;
        while line.0.load(Ordering::Acquire) < wanted && Instant::now() < end + WITHIN {
            looks += 1;
            if looks.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
            for _ in 0..64 {
                if line.0.load(Ordering::Acquire) >= wanted {
                    break;
                }
                std::hint::spin_loop();
            }
        }
    };
    let mut best = f64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 1;
            while lines[0].0.load(Ordering::Acquire) != u64::MAX && Instant::now() < end + WITHIN {
                wait(&lines[0], turn);
                lines[1].0.store(turn, Ordering::Release);
                turn += 1;
            }
        });
        let mut turn = 1;
        while Instant::now() < end {
            let before = Instant::now();
            for _ in 0..CROSSINGS {
                lines[0].0.store(turn, Ordering::Release);
                wait(&lines[1], turn);
                turn += 1;
            }
            best = best.min(before.elapsed().as_secs_f64() * 1e6 / (2 * CROSSINGS) as f64);
        }
        lines[0].0.store(u64::MAX, Ordering::Release);
    });
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Machine {
        Machine {
            model: Some("A processor".into()),
            processors: 2,
            is_virtual: true,
            load: 0.2,
            line_us: Some(0.16),
            copies: [10.0, 20.0],
        }
    }

    #[test]
    fn fields_of_the_kernel_are_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu hypervisor avx\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(field(text, "nothing"), None);
    }

    #[test]
    fn measured_speeds_are_possible() {
        for speed in [LARGE, SMALL].map(copy_speed) {
            assert!(speed > 0.01 && speed < 10_000.0, "{speed} GB/s");
        }
        let line = line_us();
        assert!(line > 0.000_1, "{line} us");
    }

    #[test]
    fn the_limit_is_named_by_what_was_seen() {
        let machine = quiet();
        assert!(machine.limit(Kind::Stream, 7.0).contains("copies 10.0 to 20.0"));
        assert!(machine.limit(Kind::Stream, 1.0).contains("programs themselves"));
        assert!(machine.limit(Kind::Turns, 5.0).contains("0.16 us"));
        let busy = Machine { load: 2.4, ..quiet() };
        assert!(busy.limit(Kind::Stream, 7.0).contains("load 2.4"));
        let single = Machine { processors: 1, load: 0.1, line_us: None, ..quiet() };
        assert!(single.limit(Kind::Turns, 7.0).contains("share"));
    }

    #[test]
    fn what_is_told_fits_a_terminal() {
        let long = Machine { copies: [123.4, 123.4], ..quiet() };
        assert!(long.to_string().lines().all(|line| line.chars().count() <= 80), "{long}");
    }
}
