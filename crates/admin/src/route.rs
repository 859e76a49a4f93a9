//! The answer to a request.
//!
//! Upstream:   `connection`, with the head of each request.
//! Downstream: `hosts` and `wrong_tokens` allow or refuse it; [`AdminSource`] and `probe` have the
//!             content of the answer.
//!
//! Invariants:
//! - R1  If there is a token, only requests for health and readiness are answered without it. These
//!   answers say only whether the server serves, and if not, why.

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use hyper::StatusCode;
use hyper::header::{ALLOW, AUTHORIZATION, HeaderMap, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::request::Parts;

use crate::hosts::{Hosts, check_site};
use crate::probe::Probe;
use crate::source::AdminSource;
use crate::token::AdminToken;
use crate::wrong_tokens::WrongTokens;

/// The content type of sentences.
const PLAIN: &str = "text/plain; charset=utf-8";
/// The content type of Prometheus' text format (`kachel_observe::Metrics`).
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer at `/`: the list of paths.
const CONTENTS: &str = "\
Kachel's admin address answers GET and HEAD:
/metrics  statistics, in Prometheus' text format
/health   200 while every thread of the server works
/ready    200 while clients should be sent here
";

/// The state that all connections share.
pub(crate) struct Service {
    hosts: Hosts,
    /// `None` if clients need none.
    token: Option<RwLock<AdminToken>>,
    wrong_tokens: WrongTokens,
    probe: Probe,
    source: Box<dyn AdminSource>,
}

/// An answer, before it is a response of HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// One more header.
    pub(crate) more: Option<(HeaderName, &'static str)>,
}

impl Answer {
    fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: StatusCode::OK, content_type, body: body.into(), more: None }
    }

    fn sentence(status: StatusCode, sentence: &str) -> Self {
        let body = format!("{sentence}\n").into_bytes();
        Self { status, content_type: PLAIN, body, more: None }
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { more: Some((name, value)), ..self }
    }
}

impl Service {
    pub(crate) fn new(
        hosts: Vec<String>,
        token: Option<AdminToken>,
        source: impl AdminSource,
    ) -> Self {
        Self {
            hosts: Hosts(hosts),
            token: token.map(RwLock::new),
            wrong_tokens: WrongTokens::new(),
            probe: Probe::default(),
            source: Box::new(source),
        }
    }

    /// Replaces the token.
    pub(crate) fn set_token(&self, token: AdminToken) {
        let place = self.token.as_ref().expect("a server without a token gets none later");
        *place.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Answers the request of a client at `address`, which is `None` for a unix socket.
    pub(crate) async fn answer(
        &self,
        address: Option<IpAddr>,
        head: &Parts,
        has_body: bool,
    ) -> Answer {
        if let Err((status, sentence)) = self.hosts.check(head, has_body) {
            let answer = Answer::sentence(status, sentence);
            let is_method = status == StatusCode::METHOD_NOT_ALLOWED;
            return if is_method { answer.with(ALLOW, "GET, HEAD") } else { answer };
        }
        match head.uri.path() {
            "/health" => return self.health().await, // R1
            "/ready" => return self.ready(),
            _ => {}
        }
        if let Err(answer) = self.check_token(address, &head.headers).await {
            return answer;
        }
        if head.uri.path() == "/metrics" {
            let stopped = self.probe.stopped(&*self.source).await.len();
            let mut body = Vec::new();
            self.source.metrics(stopped, &mut body);
            return Answer::ok(METRICS, body);
        }
        if let Err((status, sentence)) = check_site(&head.headers) {
            return Answer::sentence(status, sentence);
        }
        match head.uri.path() {
            "/" => Answer::ok(PLAIN, CONTENTS),
            _ => Answer::sentence(StatusCode::NOT_FOUND, "there is nothing here; / lists what is"),
        }
    }

    async fn health(&self) -> Answer {
        let stopped = self.probe.stopped(&*self.source).await;
        match &stopped[..] {
            [] => Answer::ok(PLAIN, "ok\n"),
            [shard] => {
                let sentence = format!("shard {shard} has not answered for 1 s");
                Answer::sentence(StatusCode::SERVICE_UNAVAILABLE, &sentence)
            }
            shards => {
                let shards: Vec<String> = shards.iter().map(usize::to_string).collect();
                let sentence = format!("shards {} have not answered for 1 s", shards.join(", "));
                Answer::sentence(StatusCode::SERVICE_UNAVAILABLE, &sentence)
            }
        }
    }

    fn ready(&self) -> Answer {
        match self.source.not_ready() {
            None => Answer::ok(PLAIN, "ready\n"),
            Some(reason) => Answer::sentence(StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }

    /// Checks the token of a client, if one is needed (R1).
    async fn check_token(
        &self,
        address: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<(), Answer> {
        let Some(needed) = &self.token else { return Ok(()) };
        let unauthorized = |sentence| {
            let answer = Answer::sentence(StatusCode::UNAUTHORIZED, sentence);
            answer.with(WWW_AUTHENTICATE, "Bearer")
        };
        let Some(token) = bearer(headers) else {
            return Err(unauthorized("a token is needed: Authorization: Bearer TOKEN"));
        };
        let Some(check) = self.wrong_tokens.check(address).await else {
            let sentence = "too many wrong tokens came from this address; try again later";
            let answer = Answer::sentence(StatusCode::TOO_MANY_REQUESTS, sentence);
            return Err(answer.with(RETRY_AFTER, "5"));
        };
        if !needed.read().unwrap_or_else(PoisonError::into_inner).is(token) {
            return Err(unauthorized("the token is wrong"));
        }
        check.give_back();
        Ok(())
    }
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
