//! The answer to a request.
//!
//! Upstream:   `connection`, with the head of each request.
//! Downstream: `hosts`, `wrong_tokens` and `login` allow or refuse it; [`AdminSource`], `probe`,
//!             `page` and `live` have the content of the answer.
//!
//! Invariants:
//! - R1  If there is a token, only requests for health and readiness are answered without it. These
//!   answers say only whether the server serves, and if not, why. A browser may send the token in a
//!   form, and gets a cookie that stands for it.
//! - R2  Pages that are open when the token is replaced use up no checks of tokens: the last event
//!   of their updates sends them to the form, which everybody gets.

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, LOCATION,
    RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use kachel_host::{Level, LogField};

use crate::deadline::Deadline;
use crate::hosts::{Hosts, Purpose, check_site, follows_link};
use crate::live::{LiveUpdates, Viewer};
use crate::login;
use crate::page::{self, Pages};
use crate::probe::Probe;
use crate::source::AdminSource;
use crate::token::AdminToken;
use crate::wrong_tokens::WrongTokens;

/// The content type of sentences.
const PLAIN: &str = "text/plain; charset=utf-8";
/// The content type of Prometheus' text format (`kachel_observe::Metrics`).
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// The state that all connections share.
pub(crate) struct Service {
    hosts: Hosts,
    /// `None` if clients need none.
    token: Option<RwLock<AdminToken>>,
    /// Whether clients speak TLS.
    is_encrypted: bool,
    wrong_tokens: WrongTokens,
    probe: Probe,
    updates: LiveUpdates,
    pages: Pages,
    source: Box<dyn AdminSource>,
}

/// An answer, before it is a response of HTTP.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) content: Content,
    /// More headers, which replace those that every answer has.
    pub(crate) headers: HeaderMap,
}

/// The content of an answer.
pub(crate) enum Content {
    /// Bytes that are sent in one piece, until they are taken.
    Whole(Option<Bytes>),
    /// Updates of the live page.
    Updates(Viewer),
}

impl Answer {
    fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let content = Content::Whole(Some(body.into()));
        Self { status, content_type, content, headers: HeaderMap::new() }
    }

    fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, content_type, body)
    }

    fn sentence(status: StatusCode, sentence: &str) -> Self {
        Self::new(status, PLAIN, format!("{sentence}\n"))
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    fn with_static(self, name: HeaderName, value: &'static str) -> Self {
        self.with(name, HeaderValue::from_static(value))
    }
}

impl Service {
    pub(crate) fn new(
        hosts: Vec<String>,
        token: Option<AdminToken>,
        is_encrypted: bool,
        source: impl AdminSource,
    ) -> Self {
        Self {
            hosts: Hosts(hosts),
            token: token.map(RwLock::new),
            is_encrypted,
            wrong_tokens: WrongTokens::new(),
            probe: Probe::default(),
            updates: LiveUpdates::new(),
            pages: Pages::new(),
            source: Box::new(source),
        }
    }

    /// Takes a sample once a second, for the live page. Never ends.
    pub(crate) async fn update(&self) {
        self.updates.run(&*self.source, &self.probe).await;
    }

    /// Replaces the token. Open pages go on if it is the same one: the file is read again with all
    /// others, also for a client of the cache (`refresh_certs`).
    pub(crate) fn set_token(&self, token: AdminToken) {
        let place = self.token.as_ref().expect("a server without a token gets none later");
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_same(&token) {
            return;
        }
        *place = token;
        drop(place);
        self.updates.end_viewers(); // R1: they show the new one. R2.
    }

    /// Answers the request of a client at `address`, which is `None` for a unix socket. Its
    /// connection must end at `deadline`.
    pub(crate) async fn answer(
        &self,
        address: Option<IpAddr>,
        head: &Parts,
        body: Incoming,
        deadline: &Deadline,
    ) -> Answer {
        let is_form = head.method == Method::POST && head.uri.path() == "/login";
        let purpose = if is_form && self.token.is_some() { Purpose::LogIn } else { Purpose::Read };
        if let Err((status, sentence)) = self.hosts.check(head, !body.is_end_stream(), purpose) {
            let answer = Answer::sentence(status, sentence);
            let is_method = status == StatusCode::METHOD_NOT_ALLOWED;
            return if is_method { answer.with_static(ALLOW, "GET, HEAD") } else { answer };
        }
        match head.uri.path() {
            "/health" => return self.health().await, // R1
            "/ready" => return self.ready(),
            _ => {}
        }
        if purpose == Purpose::LogIn {
            return self.log_in(address, head, body).await;
        }
        if head.uri.path() == "/login" && self.token.is_some() {
            // Without a check (R2). A page comes with this query.
            let is_ended = head.uri.query() == Some("replaced");
            return self.form(if is_ended { Refused::Ended } else { Refused::Missing });
        }
        if let Err(answer) = self.check_token(address, head).await {
            return answer;
        }
        if head.uri.path() == "/metrics" {
            let stopped = self.probe.stopped(&*self.source).await.len();
            return self.whole(METRICS, |source, to| source.metrics(stopped, to));
        }
        // The page is the same for everybody, and asks for the figures by itself.
        let opens_page = head.uri.path() == "/" && follows_link(&head.headers);
        if !opens_page && let Err((status, sentence)) = check_site(&head.headers) {
            return Answer::sentence(status, sentence);
        }
        match head.uri.path() {
            "/" => Answer::ok(HTML, page::PAGE)
                .with(CONTENT_SECURITY_POLICY, self.pages.page_policy.clone()),
            "/live" => self.live(deadline),
            "/api/now" => self.whole(JSON, |source, to| source.now(to)),
            "/api/history" => self.whole(JSON, |source, to| source.history(to)),
            _ => Answer::sentence(StatusCode::NOT_FOUND, "there is nothing here; / lists what is"),
        }
    }

    /// An answer that the source writes.
    fn whole(
        &self,
        content_type: &'static str,
        write: impl FnOnce(&dyn AdminSource, &mut Vec<u8>),
    ) -> Answer {
        let mut body = Vec::new();
        write(&*self.source, &mut body);
        Answer::ok(content_type, body)
    }

    /// The updates of the live page.
    fn live(&self, deadline: &Deadline) -> Answer {
        let Some(viewer) = self.updates.view(&*self.source, deadline.clone()) else {
            let sentence = "20 pages get updates already; close one of them";
            let answer = Answer::sentence(StatusCode::SERVICE_UNAVAILABLE, sentence);
            return answer.with_static(RETRY_AFTER, "5");
        };
        Answer { content: Content::Updates(viewer), ..Answer::ok(EVENTS, "") }
    }

    /// Gives a browser that has sent the token a cookie.
    async fn log_in(&self, address: Option<IpAddr>, head: &Parts, body: Incoming) -> Answer {
        if let Err((status, sentence)) = check_site(&head.headers) {
            return Answer::sentence(status, sentence);
        }
        let Some(token) = login::read_form(body).await else {
            return Answer::sentence(StatusCode::BAD_REQUEST, "this is no form with a token");
        };
        if let Err(refused) = self.check(address, |needed| needed.is(&token)).await {
            refused.log(address);
            return self.form(refused);
        }
        let session = AdminToken::session(&token);
        let cookie = login::set_cookie(&head.headers, &session, self.is_encrypted);
        let answer = Answer::sentence(StatusCode::SEE_OTHER, "logged in");
        answer.with(SET_COOKIE, cookie).with_static(LOCATION, "/")
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

    /// Checks the token of a client, or the cookie that stands for it, if one is needed (R1).
    async fn check_token(&self, address: Option<IpAddr>, head: &Parts) -> Result<(), Answer> {
        if self.token.is_none() {
            return Ok(());
        }
        let checked = if let Some(token) = bearer(&head.headers) {
            self.check(address, |needed| needed.is(token)).await
        } else if let Some(session) = login::cookie(&head.headers) {
            let checked = self.check(address, |needed| needed.is_session(session)).await;
            checked.map_err(Refused::of_session)
        } else {
            Err(Refused::Missing)
        };
        checked.map_err(|refused| {
            refused.log(address);
            match head.uri.path() {
                "/" | "/login" => self.form(refused),
                _ => refused.answer(),
            }
        })
    }

    /// Checks what a client has sent by `is_right`, unless too many of its network were wrong.
    async fn check(
        &self,
        address: Option<IpAddr>,
        is_right: impl Fn(&AdminToken) -> bool,
    ) -> Result<(), Refused> {
        let Some(needed) = &self.token else { return Ok(()) };
        let Some(check) = self.wrong_tokens.check(address).await else {
            return Err(Refused::TooMany);
        };
        if !is_right(&needed.read().unwrap_or_else(PoisonError::into_inner)) {
            return Err(Refused::Wrong);
        }
        check.give_back();
        Ok(())
    }

    /// The form in which a browser asks for the token.
    fn form(&self, refused: Refused) -> Answer {
        let sentence = if refused == Refused::Missing { "" } else { refused.sentence() };
        Answer::new(refused.status(), HTML, page::login(sentence))
            .with(CONTENT_SECURITY_POLICY, self.pages.login_policy.clone())
    }
}

/// Why a client is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// It has sent no token.
    Missing,
    /// It has sent a wrong token.
    Wrong,
    /// It has sent a cookie of another token.
    Ended,
    /// Its network has sent too many wrong tokens.
    TooMany,
}

impl Refused {
    /// Why a client with a cookie is not answered, if a token would be refused for this.
    const fn of_session(self) -> Self {
        match self {
            Self::Wrong => Self::Ended,
            other => other,
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::Missing | Self::Wrong | Self::Ended => StatusCode::UNAUTHORIZED,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "a token is needed: Authorization: Bearer TOKEN",
            Self::Wrong => "the token is wrong",
            Self::Ended => "the token was replaced; send the new one",
            Self::TooMany => "too many wrong tokens came from this address; try again later",
        }
    }

    /// Tells the operator who has sent a wrong token.
    fn log(self, address: Option<IpAddr>) {
        if matches!(self, Self::Wrong | Self::TooMany) {
            let client = address.map_or_else(|| "local".into(), |ip| ip.to_string());
            let fields =
                [LogField::text("event", "admin_refused"), LogField::text("client", &client)];
            let why = self.sentence();
            let sentence = format_args!("--admin: refused {client}: {why}");
            kachel_host::log_client(Level::Info, sentence, &fields);
        }
    }

    /// The answer for tools.
    fn answer(self) -> Answer {
        let answer = Answer::sentence(self.status(), self.sentence());
        match self {
            Self::Missing | Self::Wrong | Self::Ended => {
                answer.with_static(WWW_AUTHENTICATE, "Bearer")
            }
            Self::TooMany => answer.with_static(RETRY_AFTER, "5"),
        }
    }
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
