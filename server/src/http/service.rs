//! Serves HTTP/1.1 on accepted connections, within limits of time and size.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use futures::{Stream, StreamExt};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

/// Time for which a client may take to send the head of a request, and leave a connection idle before the next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the largest head of a request.
const HEAD_BYTES: usize = 64 << 10;

/// Serves the connections that `accepted` yields until `shutdown` resolves, then ends once running requests are answered.
pub async fn serve<C>(router: Router, mut accepted: impl Stream<Item = C> + Unpin, shutdown: impl Future<Output = ()>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES);
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            Some(connection) = accepted.next() => connection,
            () = &mut shutdown => break,
            else => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let served = open.watch(builder.serve_connection(TokioIo::new(connection), service));
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection of HTTP ended with an error");
            }
        });
    }
    open.shutdown().await;
}
