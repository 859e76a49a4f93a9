//! The trait by which the admin address reads the state of the server.
//!
//! Upstream:   `kachel` implements it over the state that the shards share.
//! Downstream: `route`, `probe` and `live` ask.

/// The state of the server, as the admin address answers it. The functions are called on the
/// thread of the admin address, and must not block.
pub trait AdminSource: Send + Sync + 'static {
    /// Appends the metrics in Prometheus' text format, version 0.0.4. `stopped_shards` is the
    /// number of shards that did not answer the last probe.
    fn metrics(&self, stopped_shards: usize, to: &mut Vec<u8>);

    /// Replaces `ticks` by the number of ticks that each shard has made. It is empty while no shard
    /// runs, and a number never falls.
    fn ticks(&self, ticks: &mut Vec<u64>);

    /// Has a shard make a tick soon, if it can.
    fn wake(&self, shard: usize);

    /// Takes the sample of this second, for the live page. It is called once a second. The shards
    /// `stopped` do not answer, by number.
    fn sample(&self, stopped: &[usize]);

    /// Appends the newest sample, and what is wrong, as a line of JSON without its end.
    fn now(&self, to: &mut Vec<u8>);

    /// Appends the samples of the last ten minutes as JSON.
    fn history(&self, to: &mut Vec<u8>);

    /// Why the server is not ready for clients, as a sentence. `None` if it is ready.
    fn not_ready(&self) -> Option<&'static str>;
}
