//! The lines of `stats settings`, in memcached's order.
//!
//! Upstream:   `kachel` calls it once, at the start, and gives the pairs to the shards.
//! Downstream: the shards send the pairs to clients unchanged.

use std::fmt::Display;
use std::ops::RangeInclusive;

use kachel_host::LogFormat;

use crate::{CoreChoice, EngineMode, IoChoice, Protocol, Reads, ServeOptions};

/// memcached's `-R` where none is given.
const REQUESTS_PER_EVENT: u32 = 20;

/// The pairs made so far.
struct Pairs(Vec<(String, String)>);

impl Pairs {
    fn say(&mut self, key: &'static str, value: impl Display) {
        // A path may contain a line end, which would end the line of the reply.
        self.0.push((key.to_string(), value.to_string().replace(char::is_control, "?")));
    }

    /// Says the first and the last port of the shards, or `off` if they have none.
    fn say_ports(&mut self, key: &'static str, ports: Option<RangeInclusive<u16>>) {
        match ports.map(RangeInclusive::into_inner) {
            None => self.say(key, "off"),
            Some((first, last)) => self.say(key, format_args!("{first}-{last}")),
        }
    }

    fn yes_no(&mut self, key: &'static str, value: bool) {
        self.say(key, if value { "yes" } else { "no" });
    }
}

impl ServeOptions {
    /// Key and value of every line of `stats settings` when the server has just started:
    /// memcached's keys in its order, then Kachel's. `threads` is the number of threads. No value
    /// is empty or has a line end.
    ///
    /// The values are those of the start. In memcached, commands change some of them: `maxbytes`
    /// (`cache_memlimit`), `verbosity`, `oldest` (`flush_all`), `detail_enabled` (`stats detail`)
    /// and `lru_crawler`.
    ///
    /// Cost: two allocations per line.
    pub fn settings(&self, threads: u16) -> Vec<(String, String)> {
        let mut pairs = Pairs(Vec::with_capacity(64));
        self.say_network(&mut pairs);
        self.say_work(threads, &mut pairs);
        self.say_slabs_and_lru(&mut pairs);
        self.say_rest(threads, &mut pairs);
        pairs.0
    }

    fn say_network(&self, pairs: &mut Pairs) {
        let echo = &self.echo;
        pairs.say("maxbytes", self.memory_bytes);
        pairs.say("maxconns", self.connections_max);
        pairs.say("tcpport", echo.tcp_port);
        pairs.say("udpport", echo.udp_port);
        pairs.say("inter", echo.inter.as_deref().unwrap_or("NULL"));
        pairs.say("verbosity", self.verbosity);
        pairs.say("oldest", 0);
        pairs.say("evictions", if self.evict { "on" } else { "off" });
        pairs.say("domain_socket", echo.unix_path.as_deref().unwrap_or("NULL"));
        pairs.say("umask", format_args!("{:o}", echo.unix_mode));
        pairs.yes_no("shutdown_command", self.shutdown_allowed);
        pairs.say("growth_factor", format_args!("{:.2}", echo.growth_factor));
        pairs.say("chunk_size", echo.chunk_size);
    }

    fn say_work(&self, threads: u16, pairs: &mut Pairs) {
        let several = self.echo.inter.as_deref().is_some_and(|list| list.contains(','));
        pairs.say("num_threads", threads);
        pairs.say("num_threads_per_udp", if several { 1 } else { threads });
        pairs.say("stat_key_prefix", char::from(self.prefix_delimiter));
        pairs.yes_no("detail_enabled", self.detail_at_start);
        pairs.say("reqs_per_event", self.requests_per_tick.unwrap_or(REQUESTS_PER_EVENT));
        pairs.yes_no("cas_enabled", self.cas);
        pairs.say("tcp_backlog", self.backlog);
        // Only the text protocol has this login.
        let protocol = if self.auth_file.is_some() { Protocol::Ascii } else { self.protocol };
        pairs.say("binding_protocol", protocol.settings_word());
        pairs.yes_no("auth_enabled_sasl", self.sasl);
        pairs.yes_no("auth_enabled_ascii", self.auth_file.is_some());
        pairs.say("item_size_max", self.item_bytes_max);
        pairs.yes_no("maxconns_fast", self.maxconns_fast);
    }

    fn say_slabs_and_lru(&self, pairs: &mut Pairs) {
        let echo = &self.echo;
        pairs.say("hashpower_init", echo.hashpower);
        pairs.yes_no("slab_reassign", echo.slab_reassign);
        pairs.say("slab_automove", echo.slab_automove);
        pairs.say("slab_automove_ratio", format_args!("{:.2}", echo.slab_automove_ratio));
        pairs.say("slab_automove_window", echo.slab_automove_window);
        pairs.say("slab_chunk_max", echo.slab_chunk_bytes_max);
        pairs.yes_no("lru_crawler", echo.lru_crawler);
        pairs.say("lru_crawler_sleep", echo.lru_crawler_sleep);
        pairs.say("lru_crawler_tocrawl", echo.lru_crawler_tocrawl);
        pairs.say("tail_repair_time", echo.tail_repair_time);
        pairs.yes_no("flush_enabled", self.flush_allowed);
        pairs.yes_no("dump_enabled", self.dumps_allowed);
        pairs.say("hash_algorithm", echo.hash_algorithm);
        pairs.yes_no("lru_maintainer_thread", echo.lru_maintainer);
        pairs.yes_no("lru_segmented", echo.lru_maintainer);
        pairs.say("hot_lru_pct", echo.hot_lru_pct);
        pairs.say("warm_lru_pct", echo.warm_lru_pct);
        pairs.say("hot_max_factor", format_args!("{:.2}", echo.hot_max_factor));
        pairs.say("warm_max_factor", format_args!("{:.2}", echo.warm_max_factor));
        pairs.yes_no("temp_lru", echo.temporary_ttl.is_some());
        pairs.say("temporary_ttl", echo.temporary_ttl.unwrap_or(61));
    }

    fn say_tls(&self, pairs: &mut Pairs) {
        let tls = &self.tls;
        pairs.yes_no("ssl_enabled", tls.enabled);
        pairs.say("ssl_chain_cert", tls.chain_certificate.as_deref().unwrap_or("NULL"));
        pairs.say("ssl_key", tls.key.as_deref().unwrap_or("NULL"));
        pairs.say("ssl_verify_mode", openssl_verify_mode(tls.verify_mode));
        pairs.say("ssl_keyformat", tls.key_format);
        pairs.say("ssl_ciphers", tls.ciphers.as_deref().unwrap_or("NULL"));
        pairs.say("ssl_ca_cert", tls.authorities.as_deref().unwrap_or("NULL"));
        pairs.say("ssl_wbuf_size", tls.wbuf_bytes);
        pairs.yes_no("ssl_session_cache", tls.session_cache);
        pairs.yes_no("ssl_kernel_tls", false);
        pairs.say("ssl_min_version", if tls.min_version == 3 { "tlsv1.3" } else { "tlsv1.2" });
    }

    fn say_rest(&self, threads: u16, pairs: &mut Pairs) {
        let echo = &self.echo;
        pairs.say("idle_timeout", self.idle_timeout_s);
        pairs.say("watcher_logbuf_size", echo.watcher_logbuf_bytes);
        pairs.say("worker_logbuf_size", echo.worker_logbuf_bytes);
        pairs.say("read_buf_mem_limit", echo.read_buf_bytes_max);
        pairs.yes_no("track_sizes", self.track_sizes);
        pairs.yes_no("inline_ascii_response", false);
        say_second_tier(pairs);
        self.say_tls(pairs);
        say_absent(pairs);
        pairs.say("num_napi_ids", echo.napi_ids);
        match &self.memory_file {
            Some(path) => pairs.say("memory_file", path.display()),
            None => pairs.say("memory_file", "(null)"),
        }
        pairs.say("client_flags_size", 4);
        pairs.say("kachel_version", crate::KACHEL_VERSION);
        pairs.say(
            "kachel_engine",
            match self.engine {
                EngineMode::Cache => "cache",
                EngineMode::Store => "store",
                EngineMode::Flash => "flash",
                EngineMode::Rocksdb => "rocksdb",
            },
        );
        self.say_data(pairs);
        pairs.say(
            "kachel_reads",
            match self.reads {
                Reads::Crew => "crew",
                Reads::Erew => "erew",
            },
        );
        pairs.say(
            "kachel_cores",
            match self.cores {
                CoreChoice::Auto => "auto",
                CoreChoice::All => "all",
            },
        );
        pairs.say(
            "kachel_io",
            match self.io {
                IoChoice::Auto => "auto",
                IoChoice::Epoll => "epoll",
                IoChoice::Uring => "uring",
            },
        );
        match self.roles {
            None => pairs.say("kachel_roles", "off"),
            Some(roles) => pairs.say("kachel_roles", roles),
        }
        // A server does not start with ports that are refused.
        let ports = self.shard_ports(threads).ok().flatten();
        pairs.say_ports("kachel_shard_ports", ports);
        let ports = self.udp_shard_ports(threads).ok().flatten();
        pairs.say_ports("kachel_udp_shard_ports", ports);
        pairs.say("kachel_udp_reply_datagrams", self.udp.reply_datagrams_max);
        pairs.say("kachel_udp_sender_budget", self.udp.sender_datagrams_max);
        pairs.say("kachel_pipe", self.pipe.interface.as_deref().unwrap_or("off"));
        pairs.say("kachel_pipe_memory", self.pipe.memory_bytes);
        pairs.say("kachel_pipe_reply_times", self.pipe.reply_times);
        self.say_operating(pairs);
    }

    fn say_data(&self, pairs: &mut Pairs) {
        let Some(folder) = &self.data.folder else {
            pairs.say("kachel_data", "off");
            return pairs.say("kachel_sync", "off");
        };
        pairs.say("kachel_data", folder.display());
        pairs.say("kachel_sync", self.data.sync.unwrap_or_default());
    }

    fn say_operating(&self, pairs: &mut Pairs) {
        match &self.admin.listen {
            None => pairs.say("kachel_admin", "off"),
            Some(listen) => pairs.say("kachel_admin", listen),
        }
        let observers = if self.observe.is_empty() { "off" } else { &self.observe.join(",") };
        pairs.say("kachel_observe", observers);
        pairs.say("kachel_drain", self.drain_s);
        pairs.say(
            "kachel_log_format",
            match self.log_format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            },
        );
        pairs.say("kachel_line_timeout", self.line_timeout_s);
        pairs.say("kachel_block_timeout", self.block_timeout_s);
        pairs.say("kachel_reader_timeout", self.reader_timeout_s);
        pairs.say("kachel_slack", self.slack_us);
        pairs.say("kachel_pinned_percent", self.pinned_percent);
        pairs.say("kachel_lease_seconds", self.lease_s);
        pairs.say("kachel_lease_stale_seconds", self.lease_stale_s);
        pairs.say("kachel_lease_stale_percent", self.lease_stale_percent);
    }
}

/// The lines of memcached's second tier, with its defaults: there is none here.
fn say_second_tier(pairs: &mut Pairs) {
    pairs.say("ext_item_size", 512);
    pairs.say("ext_item_age", u32::MAX);
    pairs.say("ext_low_ttl", 0);
    pairs.say("ext_recache_rate", 2000);
    pairs.say("ext_wbuf_size", 4 << 20);
    pairs.say("ext_compact_under", 0);
    pairs.say("ext_drop_under", 0);
    pairs.say("ext_max_sleep", 1_000_000);
    pairs.say("ext_max_frag", "0.80");
    pairs.say("slab_automove_freeratio", "0.010");
    pairs.yes_no("ext_drop_unread", false);
}

/// The lines about the proxy, which memcached prints if it is built with it.
fn say_absent(pairs: &mut Pairs) {
    pairs.yes_no("proxy_enabled", false);
    pairs.yes_no("proxy_uring_enabled", false);
}

/// The number that memcached shows for `ssl_verify_mode`: the flags of OpenSSL.
const fn openssl_verify_mode(mode: u8) -> u8 {
    assert!(mode <= 3, "the row's range");
    match mode {
        0 => 0,
        1 => 1,
        2 => 3,
        _ => 7,
    }
}
