//! Snapshots: collected when a client asks and the last one is too old.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Mutex;

/// The age up to which a snapshot serves further clients.
const FRESH: Duration = Duration::from_millis(250);

/// The state of a node at one instant, in both forms.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// As JSON in one line, for the dashboard.
    pub json: Bytes,
    /// As OpenMetrics.
    pub metrics: Bytes,
}

/// Collects snapshots.
pub trait Source: Send + Sync + 'static {
    /// The state of now. May take a second.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    fn collect(&self) -> Result<Snapshot, String>;
}

type Collected = Result<Snapshot, String>;

/// Collects for all clients.
pub struct Sampler {
    source: Arc<dyn Source>,
    last: Mutex<Option<(Instant, Collected)>>,
}

impl Sampler {
    /// A sampler without a snapshot.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, last: Mutex::new(None) }
    }

    /// A fresh snapshot. Clients that ask while one is collected get that one.
    pub async fn get(&self) -> Collected {
        let mut last = self.last.lock().await;
        if let Some((at, snapshot)) = &*last
            && at.elapsed() < FRESH
        {
            return snapshot.clone();
        }
        let source = Arc::clone(&self.source);
        let collected = tokio::task::spawn_blocking(move || source.collect()).await;
        let collected = collected.unwrap_or_else(|_| Err("collecting failed".to_owned()));
        *last = Some((Instant::now(), collected.clone()));
        collected
    }
}
