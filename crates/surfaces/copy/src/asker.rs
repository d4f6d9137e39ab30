//! The end that asked for a transfer between two others, as one of those sees it.
//!
//! It hears of the transfer, and may stop it. Always true: a transfer whose asker is gone stops,
//! too, so that none goes on which nobody can see or stop; the same command takes it up again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use weft_transfer::{Message, Trouble};

use crate::channel::ALIVE;
use crate::line::{Line, Saying};
use crate::report::{Gauge, Reporter};

/// The asker.
pub(crate) struct Asker(Arc<Mutex<Saying>>);

/// Says that this end lives, as long as somebody has it.
pub(crate) struct Signs(Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Signs {
    fn drop(&mut self) {
        if let Some((goes_on, thread)) = self.0.take() {
            drop(goes_on);
            let _ = thread.join();
        }
    }
}

impl Asker {
    /// Listens to the asker, which stops the transfer of this gauge. Without a thread for that it
    /// goes on, and cannot be stopped.
    pub fn listen(line: Line, gauge: &Arc<Gauge>) -> (Arc<Self>, Signs) {
        let (saying, mut hearing) = line.parted();
        let saying = Arc::new(Mutex::new(saying));
        let stops = Arc::clone(gauge);
        let hear = move || {
            // It says nothing but that it lives, and that the transfer is to stop.
            let _ = hearing.hear();
            stops.stop.store(true, Ordering::Relaxed);
        };
        // It ends with the connection, and holds nothing of the transfer but its gauge.
        drop(std::thread::Builder::new().name("weft-asker".to_owned()).spawn(hear));
        let signs = says_that_it_lives(Arc::clone(&saying), ALIVE);
        (Arc::new(Self(saying)), signs)
    }

    /// Tells it something. One that is gone does not hear it.
    pub fn tell(&self, message: Message) {
        let _ = self.0.lock().say(message);
    }
}

/// Says [`Message::Alive`] now and then, so that the other end does not take this one for gone.
pub(crate) fn says_that_it_lives(saying: Arc<Mutex<Saying>>, every: Duration) -> Signs {
    let (goes_on, is_over) = mpsc::channel();
    let say = move || {
        while is_over.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = saying.lock().say(Message::Alive);
        }
    };
    let thread = std::thread::Builder::new().name("weft-alive".to_owned()).spawn(say);
    Signs(thread.ok().map(|thread| (goes_on, thread)))
}

impl Reporter for Asker {
    fn trouble(&self, trouble: &Trouble) {
        self.tell(Message::Trouble(Trouble { number: None, ..trouble.clone() }));
    }

    fn would(&self, text: &str) {
        self.tell(Message::Would(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use std::os::unix::net::UnixStream;

    fn ends() -> [Line; 2] {
        let (one, other) = UnixStream::pair().expect("sockets");
        [one, other].map(|stream| {
            let again = stream.try_clone().expect("a socket");
            Line::Stream(Channel::new(again, stream))
        })
    }

    fn await_stop(gauge: &Gauge) {
        for _ in 0..20_000 {
            if gauge.stops() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it goes on");
    }

    #[test]
    fn an_asker_that_says_so_or_is_gone_stops_the_transfer() {
        for says in [true, false] {
            let [far, asker] = ends();
            let gauge = Arc::new(Gauge::default());
            let _listening = Asker::listen(far, &gauge);
            let (mut saying, hearing) = asker.parted();
            saying.say(Message::Alive).expect("it listens");
            std::thread::sleep(Duration::from_millis(20));
            assert!(!gauge.stops(), "a sign of life is no stop");
            if says {
                saying.say(Message::Refused { text: "enough".to_owned() }).expect("it listens");
            } else {
                drop((saying, hearing));
            }
            await_stop(&gauge);
        }
    }

    #[test]
    fn signs_of_life_come_until_they_are_no_longer_wanted() {
        let [one, other] = ends();
        let (saying, _hearing) = one.parted();
        let saying = Arc::new(Mutex::new(saying));
        let signs = says_that_it_lives(Arc::clone(&saying), Duration::from_millis(1));
        let (_, hearing) = other.parted();
        let crate::line::Hearing::Stream(mut reader) = hearing else { unreachable!("a stream") };
        let alive = weft_transfer::Frame::Message(Message::Alive).bytes();
        let mut bytes = vec![0; 2 * alive.len()];
        std::io::Read::read_exact(&mut reader, &mut bytes).expect("signs come");
        assert_eq!(bytes, [&alive[..], &alive[..]].concat());
        drop(signs);
        assert_eq!(Arc::strong_count(&saying), 1, "the thread is over");
    }
}
