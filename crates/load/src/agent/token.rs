//! The secret that leaders and agents share.
//!
//! Upstream:   `--token FILE`, or the environment.
//! Downstream: `mod` compares; `leader` sends it.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  How long a comparison takes tells nothing of the bytes that are equal.

use std::fmt::{self, Debug, Formatter};
use std::path::Path;

use subtle::ConstantTimeEq as _;

/// The environment variable with the token.
const VARIABLE: &str = "KACHEL_LOAD_TOKEN";
/// A shorter token could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// A longer one does not fit into the greeting.
const TOKEN_BYTES_MAX: usize = 1_024;

/// The secret.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// The token of a file, or else of the environment; `None`: there is neither.
    ///
    /// Errors: the file cannot be read, or the token is too short or too long; as a message for the
    /// user.
    pub(crate) fn read(path: Option<&Path>) -> Result<Option<Self>, String> {
        let Some(path) = path else {
            let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
            return Self::new(&text).map(Some).map_err(|error| format!("{VARIABLE}: {error}"));
        };
        let failed = |error: String| format!("--token {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        Self::new(&text).map(Some).map_err(failed)
    }

    fn new(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches(['\r', '\n']);
        if (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes, not {}", text.len()))
    }

    /// Whether the two are equal (I1; their lengths are no secret).
    pub(crate) fn is(&self, offered: &str) -> bool {
        self.0.as_bytes().ct_eq(offered.as_bytes()).into()
    }

    /// The text, to send it.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_line_of_its_file_and_short_ones_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "0123456789abcdef\n").expect("written");
        let token = Token::read(Some(file.path())).expect("valid").expect("there");
        assert!(token.is("0123456789abcdef"));
        for other in ["0123456789abcdee", "1123456789abcdef", "0123456789abcde", ""] {
            assert!(!token.is(other), "{other}");
        }
        std::fs::write(file.path(), "0123456789abcde\n").expect("written");
        let error = Token::read(Some(file.path())).expect_err("short");
        assert!(error.contains("--token"), "{error}");
        assert!(Token::read(Some(Path::new("/no-such-file"))).is_err());
        assert_eq!(format!("{token:?}"), "Token", "a secret is not printed");
    }
}
