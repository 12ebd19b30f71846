//! Serves one connection, and closes it if it keeps the gateway waiting.
//!
//! The first bytes tell HTTP/1 from HTTP/2. hyper gives a connection over HTTP/1 buffers, and keeps
//! them while the connection is idle. So an idle one is taken from hyper, and given to it again
//! with its next bytes: load balancers and clients keep thousands of them.

use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::InspectWriter;
use tokio_util::sync::CancellationToken;

use super::auth::origin::Routes;
use super::connections::Admitted;
use super::connections::activity::watched;
use super::connections::unread_body::UnreadBody;
use super::socket::{Protocol, Socket};
use super::unsent::{ConnectionProgress, ExpectedResponse, StreamExecutor};

/// The interval of HTTP/2 pings; a peer that does not answer is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The longest head of a request, and the most that HTTP/1 reads at once. HTTP/2 keeps up to six
/// frames of 16 KiB of a head that has no end. `connections` counts both.
const HEAD_MAX: usize = 16 * 1024;

/// One connection that was let in.
struct Serving<'a> {
    admitted: &'a Admitted,
    routes: Routes,
    abort: CancellationToken,
    progress: Arc<ConnectionProgress>,
    unread: Arc<UnreadBody>,
}

/// The reason for which hyper has a connection no longer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The connection has to be closed.
    Over,
    /// Nothing is under way on it.
    Idle,
}

/// Serves one connection until its end, and that of its streams. Tells a client to leave when its
/// time is over, or for another reason (by GOAWAY over HTTP/2), and serves its open requests to
/// their end.
pub(super) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    admitted: &Admitted,
    routes: Routes,
    abort: CancellationToken,
) {
    let (streams, ended) = StreamExecutor::new(routes.unsent.ended.clone());
    let (progress, unread) = (ConnectionProgress::begin(), Arc::default());
    Serving { admitted, routes, abort, progress, unread }.serve(stream, streams).await;
    // Streams hold memory, so the connection counts until then.
    ended.wait().await;
}

impl Serving<'_> {
    async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        streams: StreamExecutor,
    ) {
        let connection = &self.admitted.connection;
        let activity = &connection.activity;
        let written = self.progress.clone();
        let stream = InspectWriter::new(stream, move |_: &[u8]| written.bytes_written());
        let stream = watched(self.admitted.measured(stream), activity.clone());
        let mut socket = Socket::new(stream, activity.clone());
        let service = service_fn(|mut request: Request<Incoming>| {
            let response = ExpectedResponse::to(&mut request, &self.routes.unsent, &self.progress);
            let mut open = self.admitted.begin(&request);
            request.extensions_mut().insert(self.admitted.handle());
            let version = request.version();
            let answer = self.routes.call(request.map(|body| self.unread.watch(version, body)));
            let unread = self.unread.clone();
            async move {
                open.turn().await;
                let mut answer = answer.await?;
                if !unread.read_rest().await {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.count(answer).map(|body| open.answered(body)))
            }
        });
        loop {
            let protocol = tokio::select! {
                biased;
                () = connection.evicted.cancelled() => return,
                // Next, so that a request that has arrived is served, however late this task runs.
                protocol = socket.protocol() => protocol,
                () = activity.expired() => return,
                () = connection.leave.cancelled() => return,
            };
            // Boxed, so that the task of an idle connection is small.
            match protocol {
                None => return,
                Some(Protocol::Http2) => {
                    return Box::pin(self.http2(socket, service, streams)).await;
                }
                Some(Protocol::Http1) => match Box::pin(self.http1(socket, service)).await {
                    None => return,
                    Some(idle) => socket = idle,
                },
            }
            self.admitted.idle();
        }
    }

    /// Serves HTTP/1 until the connection is idle, and then gives it back.
    async fn http1<S, V, B>(&self, socket: Socket<S>, service: V) -> Option<Socket<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
        B: Body<Error: Into<BoxError>> + 'static,
    {
        let mut builder = http1::Builder::new();
        // `Activity` keeps the time of a head.
        builder.header_read_timeout(None).max_buf_size(HEAD_MAX);
        let mut served = builder.serve_connection(TokioIo::new(socket), service);
        let idle = self.admitted.connection.activity.idle();
        let shut_down = http1::Connection::graceful_shutdown;
        if self.run(Pin::new(&mut served), idle, shut_down).await == Left::Over {
            return None;
        }
        let parts = served.into_parts();
        Some(parts.io.into_inner().with_first(parts.read_buf))
    }

    async fn http2<V, B>(
        &self,
        socket: impl AsyncRead + AsyncWrite + Unpin,
        service: V,
        streams: StreamExecutor,
    ) where
        V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        V::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let mut builder = http2::Builder::new(streams.clone());
        builder.max_header_list_size(HEAD_MAX as u32);
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
        let served = pin!(builder.serve_connection(TokioIo::new(socket), service));
        // After `served`, so that it is dropped first.
        let _end_streams = streams.end_with_connection();
        self.run(served, pending(), http2::Connection::graceful_shutdown).await;
    }

    /// Lets hyper serve the connection until it is over or idle.
    async fn run<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut served: Pin<&mut C>,
        idle: impl Future<Output = ()>,
        shut_down: impl FnOnce(Pin<&mut C>),
    ) -> Left {
        let connection = &self.admitted.connection;
        let activity = &connection.activity;
        let mut stuck = pin!(async {
            self.progress.stuck().await;
            self.routes.unsent.ended.inc();
        });
        tokio::select! {
            biased;
            // First, so that nothing more is read: a request would be ended at once.
            () = connection.evicted.cancelled() => return Left::Over,
            // Next, for the reason above. `idle` relies on it too: hyper has done all it can.
            ended = served.as_mut() => return over(ended),
            () = stuck.as_mut() => return Left::Over,
            () = activity.expired() => {}
            () = connection.leave.cancelled() => {}
            () = idle => return Left::Idle,
        }
        activity.set_leaving();
        shut_down(served.as_mut());
        tokio::select! {
            biased;
            () = connection.evicted.cancelled() => Left::Over,
            // Next, so that GOAWAY is written also where no time is left: after a half-sent head.
            ended = served.as_mut() => over(ended),
            () = stuck.as_mut() => Left::Over,
            () = activity.expired() => Left::Over,
            () = self.abort.cancelled() => Left::Over,
        }
    }
}

fn over(ended: hyper::Result<()>) -> Left {
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection failed");
    }
    Left::Over
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
