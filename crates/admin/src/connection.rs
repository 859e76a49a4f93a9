//! One request of a client and its answer; then the connection ends.
//!
//! Upstream:   `accept`, with each connection.
//! Downstream: hyper reads the head and sends the answer; `route` makes it.
//!
//! A connection serves one request. So what a client has sent behind its request is never parsed,
//! and a client that sends nothing or reads nothing is a case of its deadline.
//!
//! Invariants:
//! - C1  A connection takes at most `CONNECTION_TIME_MAX`, and the memory of a head and of one
//!   answer. One that gets updates takes as long as it reads each update in that time.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::deadline::Deadline;
use crate::limits::{HEAD_BYTES_MAX, HEADERS_MAX};
use crate::page::POLICY;
use crate::route::{Answer, Content, Service};

/// Answers one request of a client at `address`, once `opening` has its stream.
pub(crate) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    opening: impl Future<Output = io::Result<S>>,
    address: Option<IpAddr>,
    service: Arc<Service>,
) {
    let deadline = Deadline::new();
    let answer = |request| respond(&service, address, &deadline, request);
    let serving = async {
        let stream = opening.await.ok()?;
        let mut http = http1::Builder::new();
        http.keep_alive(false).max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
        http.header_read_timeout(None); // C1: the whole connection has a limit.
        http.serve_connection(TokioIo::new(stream), service_fn(answer)).await.ok()
    };
    // A client that breaks the protocol, or is late, is closed.
    deadline.limit(serving).await;
}

async fn respond(
    service: &Service,
    address: Option<IpAddr>,
    deadline: &Deadline,
    request: Request<Incoming>,
) -> Result<Response<Content>, Infallible> {
    let (head, body) = request.into_parts();
    let Answer { status, content_type, content, headers: more } =
        service.answer(address, &head, body, deadline).await;
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // A browser that may send no referrer hides the origin of a form as well (V2).
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.extend(more);
    Ok(response)
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Updates(viewer) => viewer.poll_event(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Updates(_) => SizeHint::default(),
        }
    }
}
