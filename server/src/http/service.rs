//! Serves HTTP/1.1 on accepted connections, within limits of time and size.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use futures::{Stream, StreamExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tower::ServiceExt;

use super::audit::Callers;
use crate::network::Accepted;

/// Time for which a client may take to send the head of a request, and leave a connection idle before the next one.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same at the port for probes, where everybody may connect.
pub(crate) const PROBE_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the largest head of a request.
const HEAD_BYTES: usize = 64 << 10;

/// Serves the connections that `accepted` yields until `shutdown` resolves, then ends once running requests are answered.
pub(crate) async fn serve(
    router: Router,
    mut accepted: impl Stream<Item = Accepted> + Unpin,
    head_timeout: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(HEAD_BYTES);
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            Some(connection) = accepted.next() => connection,
            () = &mut shutdown => break,
        };
        let peer = connection.peer().clone();
        let callers = Arc::<Callers>::default();
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(Arc::clone(&callers));
            router.clone().oneshot(request)
        });
        let served = open.watch(builder.serve_connection(TokioIo::new(connection), service));
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection of HTTP ended with an error");
            }
        });
    }
    // Who waits to be taken is not.
    drop(accepted);
    open.shutdown().await;
}
