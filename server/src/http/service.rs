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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::runtime::Runtime;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::network::{Limits, Listener, Protocol};

    /// Time that is enough for everything.
    const LONG: Duration = Duration::from_secs(20);
    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    /// Serves `well` at `/` to so many connections, and runs a test with its address.
    fn with_server<T: Future<Output = ()>>(
        connections: usize,
        head_timeout: Duration,
        test: impl FnOnce(SocketAddr) -> T,
    ) {
        let runtime = Runtime::new().unwrap();
        let listener = Listener::bind(&runtime, "127.0.0.1:0", "http.addr").unwrap();
        let address = listener.addr().unwrap();
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let limits = Limits { connections, handshake: LONG };
            let accepted = listener.accept(Protocol::Http1, None, limits, stop.clone());
            let router = Router::new().route("/", get(|| async { "well" }));
            tokio::spawn(serve(router, accepted, head_timeout, stop.cancelled_owned()));
            test(address).await;
        });
    }

    /// What the server answers to some bytes until it closes the connection.
    async fn answer(address: SocketAddr, bytes: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    /// The begin of a head: so many bytes of it.
    fn begin_of_head(bytes: usize) -> String {
        let begin = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: ";
        format!("{begin}{}", "a".repeat(bytes - begin.len()))
    }

    #[test]
    fn heads_beyond_the_limits_are_refused_and_the_server_goes_on() {
        with_server(100, LONG, |address| async move {
            let largest = format!("{}\r\n\r\n", begin_of_head(HEAD_BYTES - (1 << 10)));
            assert!(answer(address, &largest).await.starts_with("HTTP/1.1 200 "));
            let many: String = (0..101).map(|number| format!("X-{number}: a\r\n")).collect();
            for (bytes, status) in [
                (begin_of_head(HEAD_BYTES), "431"),
                (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
                ("no request\r\n\r\n".to_owned(), "400"),
            ] {
                let answered = answer(address, &bytes).await;
                let head = answered.lines().next().unwrap_or_default();
                assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{} bytes: {head}", bytes.len());
                assert!(answer(address, REQUEST).await.ends_with("well"));
            }
        });
    }

    #[test]
    fn heads_that_are_half_sent_end_in_time_and_free_their_places() {
        with_server(4, Duration::from_millis(400), |address| async move {
            let mut waiting = Vec::new();
            // One says nothing, one a part of a head, one a request and then nothing more.
            for bytes in ["", "GET / HTTP/1.1\r\nHost: loc", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(bytes.as_bytes()).await.unwrap();
                waiting.push(stream);
            }
            // And one goes on and on.
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(b"GET / HTTP/1.1\r\nX-Long: ").await.unwrap();
            let slow = tokio::spawn(async move {
                while slow.write_all(b"a").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            // There is no fifth place.
            let mut closed = TcpStream::connect(address).await.unwrap();
            assert_eq!(tokio::time::timeout(LONG, closed.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
            let mut answers = Vec::new();
            for mut stream in waiting {
                let mut answer = Vec::new();
                tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
                answers.push(String::from_utf8(answer).unwrap());
            }
            assert!(answers[0].is_empty() && answers[1].is_empty() && answers[2].ends_with("well"), "{answers:?}");
            tokio::time::timeout(LONG, slow).await.unwrap().unwrap();
            for _ in 0..4 {
                assert!(answer(address, REQUEST).await.ends_with("well"));
            }
        });
    }
}
