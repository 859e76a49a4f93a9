//! Leases over a whole server: the replies byte for byte, on every path that a request may take,
//! and what look-aside clients get from them.

use kachel_engine::LeaseOptions;
use kachel_io::FarEnd;
use kachel_testkit::{Random, World, WorldOptions};

/// Servers in which the same request takes different paths: to its own shard, beside the owner of
/// another one, under its lock, and parked.
fn worlds() -> [World; 3] {
    [(1, true), (2, true), (2, false)]
        .map(|(shards, crew)| World::new(WorldOptions { shards, crew, ..WorldOptions::default() }))
}

/// Sends a request. Returns its reply, with `^` for each line end.
fn ask(world: &mut World, client: &FarEnd, request: &str) -> String {
    let request = request.replace('^', "\r\n");
    let reply = world.ask(client, request.as_bytes());
    String::from_utf8(reply).expect("text").replace("\r\n", "^")
}

/// The token in the reply to a `lease-get` of one key.
fn token(reply: &str) -> u64 {
    assert!(reply.starts_with("LVALUE "), "{reply}");
    let token = reply.split(' ').nth(2).expect("a token").parse().expect("a number");
    assert!(token > 1, "0 and 1 are no tokens: {reply}");
    token
}

#[test]
fn the_wire_form_byte_for_byte() {
    for mut world in worlds() {
        let client = world.connect();
        for number in 0..12 {
            let mut say = |request: &str| {
                let (k, n) = (format!("k{number}"), format!("n{number}"));
                ask(&mut world, &client, &request.replace('K', &k).replace('N', &n))
                    .replace(&k, "K")
                    .replace(&n, "N")
            };
            let one = token(&say("lease-get K^"));
            let again = say("get K^lease-get K^mg K v^lease-get K N^");
            let other = format!("LVALUE N {} 0 0^^END^", again.split(' ').nth(2).expect("a token"));
            assert_eq!(again, format!("END^NOT_FOUND_HOT^EN^NOT_FOUND_HOT^{other}"));
            assert_eq!(say(&format!("lease-set K {one} 7 0 3^abc^")), "STORED^");
            assert_eq!(say("get K^lease-get K^"), "VALUE K 7 3^abc^END^".repeat(2));
            assert_eq!(say(&format!("lease-set K {one} 7 0 3^xyz^")), "NOT_STORED^");
            assert_eq!(say("lease-get K N^"), "VALUE K 7 3^abc^NOT_FOUND_HOT^END^");
            assert_eq!(
                say("delete K^get K^delete K^incr K 1^"),
                "DELETED^END^NOT_FOUND^NOT_FOUND^"
            );
            let reply = say("lease-get K^");
            let two = token(&reply);
            assert_eq!(reply, format!("LVALUE K {two} 7 3^abc^END^"));
            assert_eq!(say("lease-get K^"), "LVALUE K 1 7 3^abc^END^");
            assert_eq!(say("lease-get K N^"), "LVALUE K 1 7 3^abc^NOT_FOUND_HOT^END^");
            assert_eq!(say("delete K^"), "NOT_FOUND^");
            assert_eq!(say(&format!("lease-set K {two} 5 0 3^old^")), "STALE_STORED^");
            assert_eq!(say("get K^lease-get K^"), "END^LVALUE K 1 5 3^old^END^");
            let silent = format!("lease-set K {two} 5 0 5 noreply^older^lease-get K^");
            assert_eq!(say(&silent), "LVALUE K 1 5 5^older^END^");
            assert_eq!(say("add K 1 0 3^new^"), "STORED^");
            assert_eq!(say("lease-get K^"), "VALUE K 1 3^new^END^");
            assert_eq!(say(&format!("lease-set K {two} 5 0 3^old^")), "NOT_STORED^");
            assert_eq!(
                say("lease-set K x 5 0 3^old^mn^"),
                "CLIENT_ERROR bad command line format^MN^"
            );
        }
        assert_eq!(
            ask(&mut world, &client, "lease-set none 9 0 0 1^x^get none^"),
            "NOT_STORED^END^"
        );
    }
}

#[test]
fn a_value_and_a_busy_key_are_answered_beside_their_owner() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let client = world.connect();
    let counts = |world: &World| {
        let (reads, writes) = (world.sum(|c| &c.reads_beside), world.sum(|c| &c.writes_beside));
        (reads, writes, world.parked())
    };
    for number in 0..40 {
        let key = format!("key{number}");
        let (_, before, _) = counts(&world);
        let token = token(&ask(&mut world, &client, &format!("lease-get {key}^")));
        let (reads, writes, parked) = counts(&world);
        let is_foreign = u64::from(writes > before);
        let get = format!("lease-get {key}^");
        assert_eq!(ask(&mut world, &client, &get), "NOT_FOUND_HOT^");
        assert_eq!(counts(&world), (reads + is_foreign, writes, parked), "busy: {key}");
        let set = format!("lease-set {key} {token} 0 0 1^x^");
        assert_eq!(ask(&mut world, &client, &set), "STORED^");
        let (reads, writes, parked) = counts(&world);
        assert_eq!(ask(&mut world, &client, &get), format!("VALUE {key} 0 1^x^END^"));
        assert_eq!(counts(&world), (reads + is_foreign, writes, parked), "a value: {key}");
    }
}

#[test]
fn large_values_are_leased_and_stored_whole() {
    let pattern = |bytes: usize, first: usize| -> String {
        (0..bytes).map(|place| char::from(b'a' + ((place + first) % 23) as u8)).collect()
    };
    for mut world in worlds() {
        let client = world.connect();
        for (number, bytes) in [16_383, 20_000, 300_000].into_iter().enumerate() {
            let (new, old) = (pattern(bytes, 1), pattern(bytes + 7, 2));
            let key = format!("large{number}");
            let one = token(&ask(&mut world, &client, &format!("lease-get {key}^")));
            let set = |token, value: &str| {
                format!("lease-set {key} {token} 3 0 {}^{value}^", value.len())
            };
            assert_eq!(ask(&mut world, &client, &set(one, &new)), "STORED^");
            let hit = format!("VALUE {key} 3 {bytes}^{new}^END^");
            assert!(ask(&mut world, &client, &format!("lease-get {key}^")) == hit);
            assert_eq!(
                ask(&mut world, &client, &format!("delete {key}^get {key}^")),
                "DELETED^END^"
            );
            let reply = ask(&mut world, &client, &format!("lease-get {key}^"));
            let two = token(&reply);
            assert!(reply == format!("LVALUE {key} {two} 3 {bytes}^{new}^END^"));
            assert_eq!(ask(&mut world, &client, &set(one, &old)), "STALE_STORED^");
            let hot = format!("LVALUE {key} 1 3 {}^{old}^END^", old.len());
            assert!(ask(&mut world, &client, &format!("lease-get {key}^")) == hot);
            assert_eq!(ask(&mut world, &client, &set(two, &new)), "STORED^");
            assert!(ask(&mut world, &client, &format!("get {key}^")) == hit);
        }
        world.audit();
    }
}

#[test]
fn one_token_in_ten_seconds() {
    for mut world in worlds() {
        let client = world.connect();
        let one = token(&ask(&mut world, &client, "lease-get k^"));
        world.clock.advance_s(9);
        assert_eq!(ask(&mut world, &client, "lease-get k^"), "NOT_FOUND_HOT^");
        world.clock.advance_s(2);
        let two = token(&ask(&mut world, &client, "lease-get k^"));
        assert_eq!(
            ask(&mut world, &client, &format!("lease-set k {one} 0 0 1^x^")),
            "STALE_STORED^"
        );
        assert_eq!(ask(&mut world, &client, &format!("lease-set k {two} 0 0 1^y^")), "STORED^");
        assert_eq!(ask(&mut world, &client, "lease-get k^"), "VALUE k 0 1^y^END^");
    }
}

#[test]
fn deleted_values_are_kept_for_leases_within_their_share_and_time() {
    const VALUE_BYTES: usize = 10_000;
    let value = "v".repeat(VALUE_BYTES);
    let kept = |leases, is_used: bool, pause_s: u64| {
        let memory_bytes = 32 << 20;
        let mut world =
            World::new(WorldOptions { leases, memory_bytes, ..WorldOptions::default() });
        let client = world.connect();
        if is_used {
            ask(&mut world, &client, "lease-get first^");
        }
        for key in 0..400 {
            let set = format!("set k{key} 0 0 {VALUE_BYTES}^{value}^delete k{key}^");
            assert_eq!(ask(&mut world, &client, &set), "STORED^DELETED^");
        }
        world.clock.advance_s(pause_s);
        let get = |key| format!("lease-get k{key}^");
        let kept = (0..400).filter(|&key| ask(&mut world, &client, &get(key)).len() > VALUE_BYTES);
        let bytes = kept.count() * VALUE_BYTES;
        world.audit();
        bytes
    };
    let share = (32 << 20) / 100 * 5;
    let usual = LeaseOptions::DEFAULT;
    let full = kept(usual, true, 0);
    assert!((share - VALUE_BYTES..=share).contains(&full), "{full} of {share} bytes");
    assert_eq!(kept(usual, true, 61), 0, "a minute later");
    assert_eq!(kept(usual, false, 0), 0, "no client asked for a lease before");
    assert_eq!(kept(LeaseOptions { stale_percent: 0, ..usual }, true, 0), 0);
    assert_eq!(kept(LeaseOptions { stale_s: 0, ..usual }, true, 0), 0);
}

#[test]
fn what_is_kept_for_leases_is_not_listed_and_flushes() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let token = token(&ask(&mut world, &client, "lease-get leased^"));
    ask(&mut world, &client, "set shown 0 0 1^x^set gone 0 0 1^x^delete gone^");
    assert_eq!(ask(&mut world, &client, "lru_crawler mgdump all^"), "OK^mg shown^EN^");
    assert_eq!(ask(&mut world, &client, "flush_all^"), "OK^");
    let late = format!("lease-set leased {token} 0 0 1^x^");
    assert_eq!(ask(&mut world, &client, &late), "NOT_STORED^");
    assert!(ask(&mut world, &client, "lease-get gone^").ends_with(" 0 0^^END^"));
}

/// A look-aside client: it reads the cache, and after a miss the database, and fills the cache.
#[derive(Clone, Copy, Debug, Default)]
enum Reader {
    /// It asks the cache next.
    #[default]
    Asks,
    /// It has a lease and reads the database next.
    Reads { token: u64 },
    /// It stores what it read.
    Fills { token: u64, version: u64 },
}

/// One schedule of two readers and a writer. The writer takes two steps for each change: the
/// database, then a delete in the cache.
struct LookAside<'w> {
    world: &'w mut World,
    clients: &'w [FarEnd; 3],
    key: String,
    readers: [Reader; 2],
    /// The version in the database.
    version: u64,
    /// The version when the last delete was answered: nobody may read an older one.
    deleted: u64,
    /// Whether the writer has changed the database and not deleted the key yet.
    is_changing: bool,
    /// Values stored for all since the last delete, and tokens given in this lease time.
    fills: u32,
    tokens: u32,
}

impl LookAside<'_> {
    fn say(&mut self, who: usize, request: &str) -> String {
        ask(self.world, &self.clients[who], request)
    }

    /// The version in a value that a client got, which must not be older than the last delete.
    fn fresh(&self, reply: &str) -> u64 {
        let version = reply.split('^').nth(1).and_then(|value| value.parse().ok());
        let version: u64 = version.unwrap_or_else(|| panic!("a version: {reply}"));
        assert!(version >= self.deleted, "{}: {version} was read", self.key);
        version
    }

    fn read(&mut self, who: usize) {
        let key = self.key.clone();
        self.readers[who] = match self.readers[who] {
            Reader::Asks => {
                let reply = self.say(who, &format!("lease-get {key}^"));
                let word = reply.split([' ', '^']).next();
                match (word, reply.split(' ').nth(2)) {
                    (Some("VALUE"), _) => {
                        self.fresh(&reply);
                        Reader::Asks
                    }
                    (Some("NOT_FOUND_HOT"), _) | (Some("LVALUE"), Some("1")) => Reader::Asks,
                    _ => {
                        self.tokens += 1;
                        Reader::Reads { token: token(&reply) }
                    }
                }
            }
            Reader::Reads { token } => Reader::Fills { token, version: self.version },
            Reader::Fills { token, version } => {
                let value = version.to_string();
                let set = format!("lease-set {key} {token} 0 0 {}^{value}^", value.len());
                match self.say(who, &set).as_str() {
                    "STORED^" => {
                        self.fills += 1;
                        assert!(version >= self.deleted, "{key}: a stale set was stored");
                    }
                    "STALE_STORED^" | "NOT_STORED^" => {}
                    other => panic!("{other}"),
                }
                Reader::Asks
            }
        };
        assert!(self.fills <= 1 && self.tokens <= 1 + self.fills, "{key}: one fill a miss");
    }

    fn write(&mut self) {
        if self.is_changing {
            let request = format!("delete {}^", self.key);
            let reply = self.say(2, &request);
            assert!(matches!(reply.as_str(), "DELETED^" | "NOT_FOUND^"), "{reply}");
            self.deleted = self.version;
            // A token that is out still keeps others from getting one; a filled key may be leased.
            self.tokens -= self.fills;
            self.fills = 0;
        } else {
            self.version += 1;
        }
        self.is_changing = !self.is_changing;
    }

    fn run(mut self, random: &mut Random) {
        for _ in 0..random.between(10, 30) {
            match random.below(5) {
                0..2 => self.read(0),
                2..4 => self.read(1),
                _ => self.write(),
            }
        }
        if self.is_changing {
            self.write();
        }
        // The holders finish. A token that a delete made invalid ends with its time.
        for _ in 0..3 {
            self.read(0);
            self.read(1);
        }
        self.world.clock.advance_s(11);
        (self.tokens, self.readers) = (self.fills, Default::default());
        for _ in 0..3 {
            self.read(0);
        }
        let get = format!("get {}^", self.key);
        let reply = self.say(1, &get);
        assert_eq!(self.fresh(&reply), self.version, "the value of the database is there");
    }
}

#[test]
fn look_aside_clients_store_nothing_stale_and_fill_once_a_miss() {
    let mut worlds = worlds();
    let clients = worlds.each_ref().map(|world| [(); 3].map(|()| world.connect()));
    for seed in 0..1_000 {
        let place = seed as usize % worlds.len();
        let key = format!("key{seed}");
        let schedule = LookAside {
            world: &mut worlds[place],
            clients: &clients[place],
            key,
            readers: Default::default(),
            version: 1,
            deleted: 0,
            is_changing: false,
            fills: 0,
            tokens: 0,
        };
        schedule.run(&mut Random::new(seed));
    }
}
