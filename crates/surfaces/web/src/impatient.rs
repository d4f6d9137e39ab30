//! A connection that ends when its other end takes nothing for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How long a client may take nothing while something waits for it.
const STUCK_WITHIN: Duration = Duration::from_secs(10);

/// The connection.
pub struct Impatient {
    io: TokioIo<TcpStream>,
    /// Runs while a write waits.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    /// Watches over a connection.
    pub fn new(stream: TcpStream) -> Self {
        Self { io: TokioIo::new(stream), patience: None }
    }

    fn watch<T>(
        &mut self,
        done: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.patience = None;
            return done;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(STUCK_WITHIN)));
        match patience.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Read for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.io).poll_write(context, bytes);
        self.watch(done, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_flush(context);
        self.watch(done, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_shutdown(context);
        self.watch(done, context)
    }
}
