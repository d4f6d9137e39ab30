//! Both ways do the same to files.
#![allow(clippy::disallowed_methods, reason = "tests own clocks and threads")]

use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use weft_file_io::{
    Action, Done, Engine, EngineError, Kind, Options, Pool, PoolError, Request, Space, Way,
    alignment_of,
};
use weft_memory::{CopyMode, Segment};

/// The engines that this kernel has, each with and without a registered pool.
fn engines(pool: &Pool) -> Vec<Engine> {
    let make = |way| Engine::new(&Options { depth: 8, way });
    let mut all = vec![make(Way::Plain).expect("the plain way is always there")];
    for registers in [false, true] {
        match make(Way::Uring) {
            Ok(mut engine) => {
                if registers && !engine.register(pool) {
                    println!("the kernel registers no buffers");
                }
                all.push(engine);
            }
            Err(error) => println!("not tried: {error}"),
        }
    }
    all
}

fn file_of(bytes: &[u8]) -> (std::fs::File, Arc<OwnedFd>) {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("room");
    let again = file.try_clone().expect("a descriptor");
    (file, Arc::new(again.into()))
}

fn one(engine: &mut Engine, request: Request) -> Done {
    engine.submit(request).expect("room");
    let mut done = Vec::new();
    engine.wait(1, &mut done).expect("the kernel answers");
    assert_eq!((done.len(), engine.pending()), (1, 0));
    done.pop().expect("one")
}

#[test]
fn bytes_are_written_where_they_were_asked_for_and_read_back() {
    let pool = Pool::new(100_000, 4).expect("a pool");
    for mut engine in engines(&pool) {
        let (mut file, shared) = file_of(b"");
        let mut buffer = pool.take().expect("a buffer");
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = u8::try_from(index % 251).expect("it is below");
        }
        let expected = buffer[10..90_010].to_vec();
        let done = one(
            &mut engine,
            Request {
                token: 7,
                file: Arc::clone(&shared),
                action: Action::Write { at: 5_000 },
                space: Some(Space::buffer(buffer, 10, 90_000)),
            },
        );
        assert_eq!((done.token, done.result), (7, Ok(90_000)), "{:?}", engine.kind());
        drop(done);
        for action in [Action::Sync, Action::DataSync] {
            let request = Request { token: 8, file: Arc::clone(&shared), action, space: None };
            assert_eq!(one(&mut engine, request).result, Ok(0));
        }
        let mut seen = Vec::new();
        file.rewind().expect("a file");
        file.read_to_end(&mut seen).expect("a file");
        assert!(seen[..5_000].iter().all(|byte| *byte == 0) && seen[5_000..] == expected);
        // Past the end a read is short.
        let buffer = pool.take().expect("a buffer");
        let done = one(
            &mut engine,
            Request {
                token: 9,
                file: shared,
                action: Action::Read { at: 5_000 },
                space: Some(Space::buffer(buffer, 0, 100_000)),
            },
        );
        assert_eq!(done.result, Ok(90_000));
        let buffer = done.space.and_then(Space::into_buffer).expect("it comes back");
        assert!(buffer[..90_000] == expected);
    }
    assert_eq!(pool.idle(), pool.count(), "all came back");
}

#[test]
fn shared_memory_is_filled_and_emptied_in_place() {
    let pool = Pool::new(4_096, 1).expect("a pool");
    for mut engine in engines(&pool) {
        let segment = Arc::new(Segment::anonymous(8_192).expect("memory"));
        let (_file, shared) = file_of(b"from the file");
        let done = one(
            &mut engine,
            Request {
                token: 1,
                file: Arc::clone(&shared),
                action: Action::Read { at: 5 },
                space: Some(Space::shared(Arc::clone(&segment), 100, 8)),
            },
        );
        assert_eq!(done.result, Ok(8));
        let mut seen = [0; 8];
        segment.read(100, &mut seen);
        assert_eq!(&seen, b"the file");
        segment.write(100, b"THE", CopyMode::Plain);
        let done = one(
            &mut engine,
            Request {
                token: 2,
                file: Arc::clone(&shared),
                action: Action::Write { at: 0 },
                space: Some(Space::shared(Arc::clone(&segment), 100, 3)),
            },
        );
        assert_eq!(done.result, Ok(3));
    }
}

#[test]
fn many_requests_end_once_each_and_no_more_than_the_depth_are_taken() {
    let pool = Pool::new(4_096, 32).expect("a pool");
    for mut engine in engines(&pool) {
        let (_file, shared) = file_of(&vec![3; 40_000]);
        let mut ended = vec![0; 200];
        let (mut next, mut refused, mut done) = (0, 0, Vec::new());
        while next < 200 || engine.pending() > 0 {
            if next < 200 {
                let buffer = pool.take().expect("more buffers than depth");
                let request = Request {
                    token: next,
                    file: Arc::clone(&shared),
                    action: Action::Read { at: next * 100 },
                    space: Some(Space::buffer(buffer, 0, 4_096)),
                };
                match engine.submit(request) {
                    Ok(()) => next += 1,
                    Err(request) => {
                        assert_eq!((request.token, engine.pending()), (next, 8));
                        refused += 1;
                        drop(request);
                        engine.wait(1, &mut done).expect("the kernel answers");
                    }
                }
            } else {
                engine.wait(usize::MAX, &mut done).expect("the kernel answers");
            }
            for done in done.drain(..) {
                assert_eq!(done.result, Ok(4_096));
                ended[usize::try_from(done.token).expect("small")] += 1;
            }
        }
        assert!(refused > 0 && ended.iter().all(|count| *count == 1));
    }
}

#[test]
fn errors_name_what_the_kernel_said() {
    let pool = Pool::new(4_096, 1).expect("a pool");
    for mut engine in engines(&pool) {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let done = one(
            &mut engine,
            Request {
                token: 1,
                file: Arc::new(reader.into()),
                action: Action::Write { at: 0 },
                space: Some(Space::buffer(pool.take().expect("a buffer"), 0, 10)),
            },
        );
        let error = done.result.expect_err("a pipe's reading end");
        assert!([Errno::BADF, Errno::SPIPE].contains(&error), "{error}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let full = Arc::new(OwnedFd::from(full));
    for mut engine in engines(&pool) {
        let done = one(
            &mut engine,
            Request {
                token: 1,
                file: Arc::clone(&full),
                action: Action::Write { at: 0 },
                space: Some(Space::buffer(pool.take().expect("a buffer"), 0, 10)),
            },
        );
        assert_eq!(done.result, Err(Errno::NOSPC));
    }
}

#[test]
fn an_engine_that_is_dropped_gives_all_memory_back() {
    let pool = Pool::new(1 << 20, 8).expect("a pool");
    for mut engine in engines(&pool) {
        let (_file, shared) = file_of(&vec![1; 8 << 20]);
        for token in 0..8 {
            let space = Some(Space::buffer(pool.take().expect("a buffer"), 0, 1 << 20));
            let (file, action) = (Arc::clone(&shared), Action::Read { at: token << 20 });
            engine.submit(Request { token, file, action, space }).expect("room");
        }
        drop(engine);
        assert_eq!(pool.idle(), 8);
    }
}

#[test]
fn a_pool_wakes_who_waits_for_a_buffer() {
    let pool = Pool::new(1, 1).expect("a pool");
    assert_eq!(pool.buffer_bytes(), 4_096);
    let buffer = pool.take().expect("a buffer");
    assert!(pool.take().is_none() && pool.take_within(Duration::from_millis(1)).is_none());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.take_within(Duration::from_secs(60)).is_some());
        drop(buffer);
        assert!(waits.join().expect("it ends"));
    });
    assert!(matches!(Pool::new(0, 0), Err(PoolError::Shape { .. })));
    assert!(matches!(Pool::new(usize::MAX, 2), Err(PoolError::Shape { .. })));
}

#[test]
fn an_engine_says_how_it_works() {
    let plain = Engine::new(&Options { depth: 1, way: Way::Plain }).expect("always there");
    assert_eq!((plain.kind(), plain.why_plain()), (Kind::Plain, Some("it was asked for")));
    assert!(plain.descriptor().is_none());
    let refused = Engine::new(&Options { depth: 0, way: Way::Auto }).map(drop);
    assert_eq!(refused, Err(EngineError::Depth(0)));
    let auto = Engine::new(&Options::default()).expect("one of the two");
    assert_eq!(auto.kind() == Kind::Plain, auto.why_plain().is_some());
}

#[test]
fn direct_reads_of_a_disk_are_aligned_as_it_says() {
    let file = tempfile::tempfile().expect("a file");
    if let Some(alignment) = alignment_of(&file) {
        assert!(alignment.memory <= 4_096 && alignment.offset.is_power_of_two());
    }
}
