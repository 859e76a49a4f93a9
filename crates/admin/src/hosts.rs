//! Whether a request is allowed: by its method, its body, its host, and the site of the page that
//! sends it.
//!
//! Upstream:   `route`, with the head of each request.
//! Downstream: nothing.
//!
//! A page of another site can have a browser on this machine send requests here. It cannot read the
//! answers, unless its name leads to this address (DNS rebinding). So the name must be one that an
//! attacker does not have.
//!
//! Invariants:
//! - V1  A request names its host exactly once, by an IP address, as `localhost`, or by a name of
//!   `--admin-host`. Only one of HTTP/1.0 may name none: load balancers ask like this, and no
//!   browser does.
//! - V2  A page of another site reaches only what tools ask for, and reads none of it.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

/// The header by which a browser tells which site a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// A request that is refused: the status, and a sentence for its client.
pub(crate) type Refusal = (StatusCode, &'static str);

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To read something.
    Read,
    /// To log in by a form.
    LogIn,
}

/// The names of `--admin-host`.
#[derive(Debug)]
pub(crate) struct Hosts(pub(crate) Vec<String>);

impl Hosts {
    /// Checks the method and the host of a request (V1). Only a login may be a POST with a body.
    pub(crate) fn check(
        &self,
        head: &Parts,
        has_body: bool,
        purpose: Purpose,
    ) -> Result<(), Refusal> {
        let is_allowed = match purpose {
            Purpose::Read => head.method == Method::GET || head.method == Method::HEAD,
            Purpose::LogIn => head.method == Method::POST,
        };
        if !is_allowed {
            return Err((
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET and HEAD are answered, and POST of a token to /login",
            ));
        }
        let hosts = head.headers.get_all(HOST);
        let may_lack_host = head.version == Version::HTTP_10;
        if hosts.iter().count() != 1 && !(may_lack_host && hosts.iter().next().is_none()) {
            let sentence = "a request must have one header Host";
            return Err((StatusCode::MISDIRECTED_REQUEST, sentence));
        }
        let of_target = head.uri.authority().map(|authority| authority.as_str().as_bytes());
        let named = hosts.iter().map(HeaderValue::as_bytes);
        if !of_target.into_iter().chain(named).all(|host| self.has(host)) {
            let sentence = "Host must be an IP address, localhost, or a name of --admin-host";
            return Err((StatusCode::MISDIRECTED_REQUEST, sentence));
        }
        if has_body && purpose == Purpose::Read {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "a request must have no body"));
        }
        Ok(())
    }

    /// Whether clients may call the server by this name, which may be followed by a port.
    fn has(&self, named: &[u8]) -> bool {
        let Ok(named) = str::from_utf8(named) else { return false };
        if let Some(bracketed) = named.strip_prefix('[') {
            let Some((host, port)) = bracketed.split_once(']') else { return false };
            return is_port(port) && host.parse::<Ipv6Addr>().is_ok();
        }
        let (host, port) = named.split_at(named.find(':').unwrap_or(named.len()));
        let is_known = |known: &String| known.eq_ignore_ascii_case(host);
        is_port(port)
            && (host.parse::<Ipv4Addr>().is_ok()
                || host.eq_ignore_ascii_case("localhost")
                || self.0.iter().any(is_known))
    }
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

/// Checks that no page of another site has sent the request (V2).
pub(crate) fn check_site(headers: &HeaderMap) -> Result<(), Refusal> {
    let has_own_site =
        headers.get_all(SEC_FETCH_SITE).iter().all(|site| site == "same-origin" || site == "none");
    let is_host = |origin: &str| {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let of_origin = origin.split_once("://").map(|(_, host)| host);
        host.zip(of_origin).is_some_and(|(host, of_origin)| host.eq_ignore_ascii_case(of_origin))
    };
    let has_own_origin =
        headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_host));
    if has_own_site && has_own_origin {
        return Ok(());
    }
    Err((StatusCode::FORBIDDEN, "a page of another site may not ask for this"))
}

/// Whether somebody follows a link in a browser, on a page of any site. Such a request opens a page
/// of its own, which the other site cannot read.
pub(crate) fn follows_link(headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, wanted: &str| headers.get(name).is_some_and(|is| is == wanted);
    is(&SEC_FETCH_MODE, "navigate") && is(&SEC_FETCH_DEST, "document")
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn head(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_host_is_an_address_or_a_name_that_the_operator_gave() {
        let hosts = Hosts(vec!["cache.example".into()]);
        let status = |host: &str| {
            let checked = hosts.check(&head("/", &[("host", host)]), false, Purpose::Read);
            checked.map_err(|(status, _)| status.as_u16())
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:9000",
            "10.0.0.7:9000",
            "[::1]",
            "[::1]:9000",
            "localhost:9000",
            "LocalHost",
            "cache.example",
            "Cache.Example:80",
        ] {
            assert_eq!(status(host), Ok(()), "{host}");
        }
        for host in [
            "",
            ":9000",
            "evil.example",
            "cache.example.evil.example",
            "localhost.evil.example",
            "localhost:9000:1",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "127.0.0.1.evil.example",
            "[::1",
            "::1",
            "[::1]x",
            "[evil.example]",
            "user@localhost",
            "localhost.",
            "127.1",
        ] {
            assert_eq!(status(host), Err(421), "{host}");
        }
    }

    #[test]
    fn a_host_is_named_once_and_the_target_names_no_other() {
        let hosts = Hosts(Vec::new());
        let host = ("host", "localhost");
        for (target, headers, wanted) in [
            ("/", &[host][..], Ok(())),
            ("http://127.0.0.1:9000/", &[host], Ok(())),
            ("http://evil.example/", &[host], Err(421)),
            ("/", &[host, host], Err(421)),
            ("/", &[host, ("host", "evil.example")], Err(421)),
            ("/", &[], Err(421)),
        ] {
            let checked = hosts.check(&head(target, headers), false, Purpose::Read);
            assert_eq!(checked.map_err(|(status, _)| status.as_u16()), wanted, "{target}");
        }
        assert!(hosts.check(&head("/", &[host]), true, Purpose::Read).is_err(), "a body");
        let old = |headers: &[(&str, &str)]| {
            let mut head = head("/", headers);
            head.version = Version::HTTP_10;
            head
        };
        assert!(hosts.check(&old(&[]), false, Purpose::Read).is_ok(), "a load balancer");
        for headers in [&[host, host][..], &[("host", "evil.example")]] {
            assert!(hosts.check(&old(headers), false, Purpose::Read).is_err(), "{headers:?}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_told_by_what_browsers_send() {
        let host = ("host", "localhost:9000");
        for (header, passes) in [
            (("accept", "*/*"), true),
            (("sec-fetch-site", "none"), true),
            (("sec-fetch-site", "same-origin"), true),
            (("sec-fetch-site", "same-site"), false),
            (("sec-fetch-site", "cross-site"), false),
            (("origin", "http://localhost:9000"), true),
            (("origin", "http://localhost:8000"), false),
            (("origin", "http://evil.example"), false),
            (("origin", "null"), false),
        ] {
            let headers = head("/", &[host, header]).headers;
            assert_eq!(check_site(&headers).is_ok(), passes, "{header:?}");
        }
    }
}
