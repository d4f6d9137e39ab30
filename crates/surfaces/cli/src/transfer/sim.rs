//! `weft transfer sim`: a transfer over a long way, in virtual time.

use std::process::ExitCode;

use anyhow::ensure;
use serde_json::json;
use weft_transfer::model::{Setup, run};
use weft_transfer::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};

use crate::arguments::transfer::SimArguments;
use crate::output::show_line;

pub fn sim(arguments: &SimArguments) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    if !arguments.json {
        show_line!("  block  streams    MB/s  of link  steady  window  CPU s/GB  messages/GB");
    }
    for block in &arguments.block_size {
        let block_bytes = u32::try_from(*block).unwrap_or(u32::MAX);
        ensure!(
            (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes),
            "a block has 4K to 64M bytes"
        );
        for streams in &arguments.streams {
            let window = (arguments.window / block).clamp(4, 1 << 20);
            let setup = Setup {
                bits_per_second: u64::from(arguments.gbit.max(1)) * 1_000_000_000,
                one_way_ns: u64::from(arguments.rtt_ms) * 500_000,
                bytes: arguments.size.clamp(1, 1 << 50),
                block_bytes,
                streams: usize::try_from(*streams).unwrap_or(1).clamp(1, 1_024),
                window: u32::try_from(window).expect("it is bounded"),
                disk_bytes_per_second: u64::from(arguments.disk_mb.max(1)) * 1_000_000,
                threads: usize::try_from(arguments.threads).unwrap_or(1).clamp(1, 1_024),
                block_ns: u64::from(arguments.block_us) * 1_000,
            };
            rows.push(row(&setup, arguments.json));
        }
    }
    if arguments.json {
        show_line!("{}", serde_json::Value::Array(rows));
    }
    Ok(ExitCode::SUCCESS)
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn row(setup: &Setup, is_json: bool) -> serde_json::Value {
    let figures = run(setup);
    let link = setup.bits_per_second as f64 / 8.0;
    let share = figures.bytes_per_second as f64 / link;
    let steady = figures.steady_bytes_per_second as f64 / link;
    let gigabytes = setup.bytes as f64 / 1e9;
    let processor = figures.processor_ns as f64 / 1e9 / gigabytes;
    let messages = figures.messages as f64 / gigabytes;
    if !is_json {
        show_line!(
            "{:>6}K  {:>7}  {:>6.0}  {:>6.1}%  {:>5.1}%  {:>6}  {:>8.4}  {:>11.1}",
            setup.block_bytes >> 10,
            setup.streams,
            figures.bytes_per_second as f64 / 1e6,
            share * 100.0,
            steady * 100.0,
            figures.window,
            processor,
            messages
        );
    }
    json!({
        "block_bytes": setup.block_bytes,
        "streams": setup.streams,
        "bytes_per_second": figures.bytes_per_second,
        "share_of_link": share,
        "steady_share_of_link": steady,
        "window_blocks": figures.window,
        "processor_seconds_per_gb": processor,
        "messages_per_gb": messages,
        "seconds": figures.took_ns as f64 / 1e9,
    })
}
