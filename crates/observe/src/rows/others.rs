//! The rows of `stats` and `stats kachel` that TLS, the pipe and the log count.
//!
//! Upstream:   `kachel`, which knows whether there is TLS or a pipe, and reads their counts.
//! Downstream: the sinks, between the rows of the tables `general` and `own`.
//!
//! The rows are described here, although others count them, so that this crate knows every name
//! that a server may show.

use crate::rows::{Row, Unit};

/// The counts of TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsNumbers {
    /// New sessions. `None` if clients cannot resume sessions.
    pub new_sessions: Option<u64>,
    /// Handshakes that failed.
    pub handshake_errors: u64,
    /// Connections closed for a wrong record.
    pub protocol_errors: u64,
    /// Seconds since the certificate was read.
    pub certificate_age_s: u64,
    /// The Unix second at which a certificate of the server expires, if it tells one.
    pub expires_s: Option<u64>,
    /// Bytes of records that are not whole.
    pub kept_bytes: u64,
}

/// The rows of TLS.
pub fn tls_rows(numbers: &TlsNumbers) -> Vec<Row<'static>> {
    let mut rows = Vec::with_capacity(6);
    if let Some(sessions) = numbers.new_sessions {
        rows.push(Row::counter("ssl_new_sessions", sessions, "New TLS sessions."));
    }
    rows.extend([
        Row::counter(
            "ssl_handshake_errors",
            numbers.handshake_errors,
            "TLS handshakes that failed.",
        ),
        Row::counter(
            "ssl_proto_errors",
            numbers.protocol_errors,
            "TLS connections closed for a wrong record.",
        ),
        Row::gauge(
            "time_since_server_cert_refresh",
            numbers.certificate_age_s,
            Unit::Seconds,
            "Time since the certificate was read.",
        ),
        Row::gauge(
            "kachel_tls_kept_bytes",
            numbers.kept_bytes,
            Unit::Bytes,
            "Memory of TLS records that are not whole.",
        ),
    ]);
    let expires = |at| {
        let help = "The Unix time at which the certificate of the server expires.";
        Row::gauge("kachel_tls_expires_s", at, Unit::Seconds, help)
    };
    rows.extend(numbers.expires_s.map(expires));
    rows
}

/// The row of the server's own log. `lost` lines were not written.
pub fn log_rows(lost: u64) -> Vec<Row<'static>> {
    let help = "Lines of the server's own log that were lost: too many, or nobody took them.";
    vec![Row::counter("kachel_log_lines_lost", lost, help)]
}

/// The counts of the pipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipeNumbers {
    /// Whether it answers requests.
    pub answers: bool,
    /// Requests that it has answered.
    pub answered: u64,
    /// Requests that it has passed to the server.
    pub passed: u64,
    /// Items that it has copies of.
    pub items: u64,
    /// Items that it has room for.
    pub items_max: u64,
}

/// The rows of the pipe.
pub fn pipe_rows(numbers: &PipeNumbers) -> Vec<Row<'static>> {
    let is_on = u64::from(numbers.answers);
    vec![
        Row::gauge("kachel_pipe_on", is_on, Unit::One, "1 while the pipe answers."),
        Row::counter(
            "kachel_pipe_answered",
            numbers.answered,
            "Requests that the pipe has answered.",
        ),
        Row::counter(
            "kachel_pipe_passed",
            numbers.passed,
            "Requests that the pipe has passed to the server.",
        ),
        Row::gauge(
            "kachel_pipe_items",
            numbers.items,
            Unit::One,
            "Items that the pipe has copies of.",
        ),
        Row::gauge(
            "kachel_pipe_items_max",
            numbers.items_max,
            Unit::One,
            "Items that the pipe has room for.",
        ),
    ]
}
