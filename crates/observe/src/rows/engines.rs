//! The rows of `stats engine`: the files of the engines.
//!
//! Upstream:   `shard`, with what the engines report.
//! Downstream: the sinks. An engine without files has no such rows.

use kachel_engine::FileReport;

use crate::rows::{Kind, Row, RowValue, Unit};

/// The rows of `stats engine`.
pub fn engine_rows(report: &FileReport) -> Vec<Row<'_>> {
    let bytes = |name, number, help| Row::gauge(name, number, Unit::Bytes, help);
    let count = |name, number, help| Row::gauge(name, number, Unit::One, help);
    vec![
        bytes("kachel_engine_disk_bytes", report.disk_bytes, "Bytes of the engines' files."),
        bytes(
            "kachel_engine_live_bytes",
            report.live_bytes,
            "Bytes of the engines' files that are not out of date. An estimate.",
        ),
        count("kachel_engine_files", report.files, "Files of the engines."),
        bytes(
            "kachel_engine_write_buffer_bytes",
            report.write_buffer_bytes,
            "Memory for changes that are not in the engines' files yet.",
        ),
        bytes(
            "kachel_engine_cache_bytes",
            report.cache_bytes,
            "Memory with copies of what is in the engines' files.",
        ),
        bytes(
            "kachel_engine_debt_bytes",
            report.debt_bytes,
            "Bytes that upkeep of the engines' files must still rewrite. An estimate.",
        ),
        count(
            "kachel_engine_stopped",
            report.stopped,
            "Engines that take no changes until upkeep has made room.",
        ),
        count(
            "kachel_engine_read_only",
            report.read_only,
            "Engines that take no changes until the next start, because the disk has failed.",
        ),
        Row::counter("kachel_engine_commits", report.commits, "Batches of changes written."),
        Row::counter("kachel_engine_syncs", report.syncs, "Syncs of the engines' files."),
        Row {
            name: "kachel_engine_first_error",
            value: RowValue::Text(report.first_error.as_deref().unwrap_or("none")),
            kind: Kind::Info,
            unit: Unit::One,
            help: "The first failure of a disk since the start.",
        },
    ]
}
