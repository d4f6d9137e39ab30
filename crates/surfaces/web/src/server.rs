//! Listens, and bounds what clients may take.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::sync::Semaphore;

use crate::impatient::Impatient;
use crate::reply::reply;
use crate::source::{Sampler, Source};

/// Clients at once; further ones wait in the kernel's queue.
const CLIENTS_MAX: usize = 256;
/// How long a client may take for the head of a request, and may be idle.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of a request's head, and of what waits for a client beside the snapshot.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// The pause after the system had no descriptor for a client.
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// The pages that a server has.
#[derive(Clone, Debug)]
pub struct Site {
    /// `/metrics`.
    pub metrics: bool,
    /// The dashboard.
    pub dashboard: bool,
    /// The token without which nobody sees the dashboard's numbers; `None`: all who reach it may.
    pub token: Option<String>,
    /// The name of this host, by which requests may ask for it.
    pub name: String,
}

/// A server that is about to serve.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    site: Site,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// It is not an address of this host, or is taken.
    pub fn bind(address: SocketAddr, site: Site) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, site })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves snapshots of `source` until the process ends, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread or no runtime.
    pub fn start(self, source: Arc<dyn Source>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .context("no runtime for the HTTP server")?;
        let serve = move || {
            if let Err(error) = runtime.block_on(self.serve(source)) {
                tracing::error!(%error, "the HTTP server ended");
            }
        };
        std::thread::Builder::new()
            .name("weft-http".to_owned())
            .spawn(serve)
            .context("a thread for the HTTP server")?;
        Ok(())
    }

    async fn serve(self, source: Arc<dyn Source>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let (site, sampler) = (Arc::new(self.site), Arc::new(Sampler::new(source)));
        let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&clients).acquire_owned().await else { return Ok(()) };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "a client is not accepted");
                    tokio::time::sleep(NO_DESCRIPTORS_PAUSE).await;
                    continue;
                }
            };
            // Without it the client waits longer.
            let _ = stream.set_nodelay(true);
            let (site, sampler) = (Arc::clone(&site), Arc::clone(&sampler));
            tokio::spawn(async move {
                let answer = service_fn(|request| {
                    let (site, sampler) = (&site, &sampler);
                    async move { Ok::<_, Infallible>(reply(&request, site, sampler).await) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_WITHIN)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .max_headers(HEADERS_MAX)
                    .serve_connection(Impatient::new(stream), answer)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a client of the HTTP server");
                }
                drop(place);
            });
        }
    }
}
