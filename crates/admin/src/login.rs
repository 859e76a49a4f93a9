//! The login of a browser: a form with the token, and the cookie that stands for it.
//!
//! Upstream:   `route`, with requests that carry a form or a cookie.
//! Downstream: `token` compares; nothing is kept for a login.
//!
//! Invariants:
//! - O1  A form has at most [`LOGIN_BYTES_MAX`] bytes. The rest of a longer one is not read.
//! - O2  No address has a token: browsers keep addresses, and tell them to others.
//! - O3  The cookie is not shown to scripts, and not sent with requests of other sites.

use std::pin::Pin;

use hyper::body::{Body, Incoming};
use hyper::header::{COOKIE, HOST, HeaderMap, HeaderValue};

use crate::limits::LOGIN_BYTES_MAX;

/// The field of the form, and what follows it in the body. The form is sent as `text/plain`, which
/// has no escapes.
const FIELD: &[u8] = b"token=";

/// Reads the token of a form. `None` if there is none, or the form is too long (O1).
pub(crate) async fn read_form(mut body: Incoming) -> Option<Vec<u8>> {
    let mut form = Vec::new();
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(frame) = frame else { break };
        let bytes = frame.ok()?.into_data().unwrap_or_default();
        if form.len() + bytes.len() > LOGIN_BYTES_MAX {
            return None; // O1
        }
        form.extend_from_slice(&bytes);
    }
    Some(form.strip_prefix(FIELD)?.trim_ascii().to_vec())
}

/// The header that gives a browser the cookie (O3). It lasts until the browser ends.
pub(crate) fn set_cookie(headers: &HeaderMap, session: &str, is_encrypted: bool) -> HeaderValue {
    let (name, secure) = (cookie_name(headers), if is_encrypted { "; Secure" } else { "" });
    let cookie = format!("{name}={session}; Path=/; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&cookie).expect("a port and hexadecimal digits")
}

/// The value of the cookie that a request carries.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&[u8]> {
    let name = cookie_name(headers);
    let pairs = headers.get_all(COOKIE).iter().flat_map(|header| header.as_bytes().split(is_end));
    let mut values = pairs
        .filter_map(|pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    values.next()
}

fn is_end(byte: &u8) -> bool {
    *byte == b';'
}

/// The name of the cookie. A browser keeps one set of cookies for all ports of a host, so it has
/// the port.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    port.map_or_else(|| "kachel".to_owned(), |port| format!("kachel_{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &'static str, cookies: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_static(cookie));
        }
        headers
    }

    #[test]
    fn servers_of_one_host_have_cookies_of_their_own() {
        let cookies = ["a=b; kachel_9000=one;kachel_9001=two", "kachel=three; kachel_90=four"];
        for (host, value) in [
            ("localhost:9000", Some("one")),
            ("[::1]:9001", Some("two")),
            ("cache.example", Some("three")),
            ("localhost:900", None),
        ] {
            assert_eq!(cookie(&headers(host, &cookies)), value.map(str::as_bytes), "{host}");
        }
        let set = set_cookie(&headers("localhost:9000", &[]), "ab", true);
        assert_eq!(set, "kachel_9000=ab; Path=/; HttpOnly; SameSite=Strict; Secure");
    }
}
