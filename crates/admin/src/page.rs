//! The live page and the form for the token, with the policies that a browser must keep.
//!
//! Upstream:   `route` answers with them.
//! Downstream: the files in `crates/admin/page/`, which are parts of the binary.
//!
//! A page is one answer. Its style and its script stand in it, and the policy has their hashes, so
//! a browser runs nothing else: no attribute, and nothing that a key could bring.
//!
//! Invariants:
//! - B1  A page has at most [`PAGE_BYTES_MAX`] bytes, and loads nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use sha2::{Digest as _, Sha256};

/// The most bytes of a page.
const PAGE_BYTES_MAX: usize = 150 << 10;

/// The policy of every answer: a browser must not load or run anything for it.
pub(crate) const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! style {
    () => {
        include_str!("../page/page.css")
    };
}

macro_rules! script {
    () => {
        concat!(include_str!("../page/chart.js"), include_str!("../page/page.js"))
    };
}

/// The live page.
pub(crate) const PAGE: &str = concat!(
    include_str!("../page/head.html"),
    "<style>",
    style!(),
    "</style>\n",
    include_str!("../page/body.html"),
    "<script>",
    script!(),
    "</script>\n</html>\n"
);

/// The form that asks for the token, up to the place of the sentence about the last attempt.
const LOGIN_BEGIN: &str = concat!(
    include_str!("../page/head.html"),
    "<style>",
    style!(),
    "</style>\n",
    include_str!("../page/login.html"),
);

/// The rest of the form, after that sentence.
const LOGIN_END: &str = "</p></form></main></body>\n</html>\n";

const _: () = assert!(PAGE.len() <= PAGE_BYTES_MAX, "B1");

/// The pages with their policies.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The policy of the live page.
    pub(crate) page_policy: HeaderValue,
    /// The policy of the form.
    pub(crate) login_policy: HeaderValue,
}

impl Pages {
    pub(crate) fn new() -> Self {
        let base = "default-src 'none'; img-src data:; base-uri 'none'; frame-ancestors 'none'";
        let (style, script) = (hash(style!()), hash(script!()));
        let policy = |more: String| {
            HeaderValue::from_str(&format!("{base}; style-src '{style}'; {more}")).expect("ASCII")
        };
        Self {
            page_policy: policy(format!(
                "script-src '{script}'; connect-src 'self'; form-action 'none'"
            )),
            login_policy: policy("form-action 'self'".to_owned()),
        }
    }
}

/// The form for the token, with a sentence about the last try. The sentence is one of ours.
pub(crate) fn login(sentence: &'static str) -> Vec<u8> {
    debug_assert!(!sentence.contains(['<', '&']), "it needs no escape");
    [LOGIN_BEGIN, sentence, LOGIN_END].concat().into_bytes()
}

/// The source of a policy that allows this text.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_one_style_and_script_and_load_nothing() {
        let form = String::from_utf8(login("")).expect("text");
        for (page, scripts) in [(PAGE, 1), (&form, 0)] {
            assert!(page.is_ascii(), "a page is ASCII, so no encoding can be guessed wrong");
            assert_eq!(page.matches("<style>").count(), 1);
            assert_eq!(page.matches("<script").count(), scripts, "B1");
            for loads in ["src=", "@import", "url(", " onclick", " onload", " style=", "//cdn"] {
                assert!(!page.contains(loads), "{loads}: B1");
            }
            let links = page.matches("href=").count();
            let own = ["href=\"/", "href=\"#", "href=\"data:"].map(|own| page.matches(own).count());
            assert_eq!(links, own.iter().sum::<usize>(), "B1");
        }
        for writes in ["innerHTML", "outerHTML", "document.write", "eval(", "insertAdjacentHTML"] {
            assert!(!PAGE.contains(writes), "{writes}: a key could become markup");
        }
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
