//! One request of a client and its answer; then the connection ends.
//!
//! Upstream:   `accept`, with each connection.
//! Downstream: hyper reads the head and sends the answer; `route` makes it.
//!
//! A connection serves one request. So what a client has sent behind its request is never parsed,
//! and a client that sends nothing or reads nothing is a case of [`CONNECTION_TIME_MAX`].
//!
//! Invariants:
//! - C1  A connection takes at most [`CONNECTION_TIME_MAX`], and the memory of a head and of one
//!   answer.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::limits::{CONNECTION_TIME_MAX, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::route::{Answer, Service};

/// The content security policy: a browser must not load or run anything for an answer.
const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Answers one request of a client at `address`, once `opening` has its stream.
pub(crate) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    opening: impl Future<Output = io::Result<S>>,
    address: Option<IpAddr>,
    service: Arc<Service>,
) {
    let answer = |request| respond(&service, address, request);
    let serving = async {
        let stream = opening.await.ok()?;
        let mut http = http1::Builder::new();
        http.keep_alive(false).max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
        http.header_read_timeout(None); // C1: the whole connection has a limit.
        http.serve_connection(TokioIo::new(stream), service_fn(answer)).await.ok()
    };
    // A client that breaks the protocol, or is late, is closed.
    let _ended = tokio::time::timeout(CONNECTION_TIME_MAX, serving).await;
}

async fn respond(
    service: &Service,
    address: Option<IpAddr>,
    request: Request<Incoming>,
) -> Result<Response<Whole>, Infallible> {
    let (head, body) = request.into_parts();
    let Answer { status, content_type, body, more } =
        service.answer(address, &head, !body.is_end_stream()).await;
    let mut response = Response::new(Whole(Some(Bytes::from(body))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some((name, value)) = more {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// The body of an answer, which is sent in one piece.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
