//! The test kit: code that several test suites and benchmarks share.
//!
//! Upstream:   tests and benchmarks.
//! Downstream: the crates that they test.
#![forbid(unsafe_code)]

mod delaying;
mod fake_rocksdb;
mod filled;
#[cfg(feature = "flash")]
mod flash_files;
mod kept_server;
mod live_world;
#[cfg(feature = "flash")]
mod log_files;
mod output;
mod plain;
#[cfg(feature = "process")]
mod process;
mod random;
mod scans;
mod scram;
mod settings;
mod value_file;
mod world;

pub use delaying::{DelayCounts, Delaying, DelayingOpener};
pub use fake_rocksdb::{FakeRocksdb, rocksdb_library};
pub use filled::{
    BenchKey, Filled, FilledCache, KEY_BYTES, VALUE_BYTES, copy_out, key, random_keys,
};
#[cfg(feature = "flash")]
pub use flash_files::FlashFiles;
pub use kept_server::{
    KeptServer, every_verb_survives_a_restart, flushes_survive_a_restart,
    requests_for_one_key_keep_their_order, scans_are_right_beside_writes,
    the_flush_of_a_prefix_survives_a_restart,
};
pub use live_world::LiveWorld;
#[cfg(feature = "flash")]
pub use log_files::{DAMAGE_KINDS, damaged, operation_name, random_value};
pub use output::{skip, tell};
pub use plain::{Plain, PlainOpener};
#[cfg(feature = "process")]
pub use process::{
    Address, Client, Ended, Launch, Look, PATIENCE, Server, UdpClient, Unheard, announced_port,
    flood, http_ask, http_connect, http_get, http_get_with, http_read_to_end, http_status,
    is_usable, set_request, user, wait_until, wants_tls, within,
};
#[cfg(feature = "tls")]
pub use process::{Authority, CertificateFiles, ClientCertificate, TLS_VERSIONS, Validity, tunnel};
pub use random::Random;
pub use scans::{ScanItem, ScanJudge, ScanReply, scan_request};
pub use scram::{scram_first, scram_proof, scram_proof_with};
pub use settings::{count, setting};
pub use world::{
    OWN_UDP_PORT, PlainOptions, ShardClock, Uncounted, World, WorldOptions, WorldShard, is_rest,
};
