//! The mechanisms of SASL by which clients may log in, and their names.
//!
//! Upstream:   `kachel` selects them by an option.
//! Downstream: `users` prepares what they need; `sasl` answers their messages.

/// The mechanisms by which clients may log in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanisms {
    /// All.
    #[default]
    All,
    /// PLAIN only.
    Plain,
    /// SCRAM-SHA-256 only.
    ScramSha256,
}

impl Mechanisms {
    /// Their names, as `LIST MECHS` is answered. A client takes the strongest that it supports.
    /// PLAIN is first, because libmemcached 1.0.16 (inside pylibmc) often finds no mechanism that
    /// it supports if PLAIN is the last name.
    pub const fn names(self) -> &'static str {
        match self {
            Self::All => "PLAIN SCRAM-SHA-256",
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
        }
    }

    /// Whether a client may log in by SCRAM.
    pub(crate) const fn have_scram(self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// The mechanism of this name. `None` if no client may log in by it. As in Cyrus SASL, the case
    /// of letters does not count.
    pub(crate) fn find(self, name: &[u8]) -> Option<Mechanism> {
        debug_assert!(!self.names().is_empty(), "a client may log in somehow");
        let is_named = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        self.names().split(' ').find(|text| is_named(text)).map(|found| match found {
            "PLAIN" => Mechanism::Plain,
            _ => Mechanism::ScramSha256,
        })
    }
}

/// A mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Plain,
    ScramSha256,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_is_found_where_it_may_be_used() {
        let find = |name: &str| {
            let sets = [Mechanisms::All, Mechanisms::Plain, Mechanisms::ScramSha256];
            sets.map(|mechanisms| mechanisms.find(name.as_bytes()))
        };
        let (plain, scram) = (Some(Mechanism::Plain), Some(Mechanism::ScramSha256));
        assert_eq!(find("PLAIN"), [plain, plain, None]);
        assert_eq!(find("plain"), [plain, plain, None]);
        assert_eq!(find("Scram-SHA-256"), [scram, None, scram]);
        for name in ["", " ", "GSSAPI", "SCRAM-SHA-1", "PLAIN ", "SCRAM-SHA-256 PLAIN"] {
            assert_eq!(find(name), [None; 3], "{name}");
        }
    }
}
