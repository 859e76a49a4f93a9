//! Random meta commands: each verb with its flags in any order.
//!
//! Upstream: `generator`, whose keys, values and times these use. Downstream: `command`.
//!
//! - M1  A command has each flag at most once. A repeated flag is refused; `malformed` makes such
//!   commands.
//! - M2  Tokens set by `E` are larger than any token that a server reaches in a run, so that their
//!   order is the same on both servers.

use base64::Engine as _;

use crate::command::Command;
use crate::generator::Generator;

/// The first of the tokens that commands set (M2).
const SET_TOKEN_MIN: u64 = 1 << 40;
/// The longest key whose base64 form is still short enough for a key.
const ENCODED_KEY_BYTES_MAX: usize = 250 / 4 * 3;

impl Generator {
    /// One meta command.
    pub(crate) fn meta(&mut self) -> Command {
        match self.random.below(100) {
            0..42 => self.meta_get(),
            42..74 => self.meta_set(),
            74..85 => self.meta_delete(),
            85..97 => self.meta_arithmetic(),
            _ => self.meta_debug(),
        }
    }

    /// Begins a command: verb and key, the key in base64 one time in eight (then with flag `b`).
    fn meta_key(&mut self, verb: &'static str, key: &[u8]) -> (Command, bool) {
        let encoded = key.len() <= ENCODED_KEY_BYTES_MAX && self.random.below(8) == 0;
        let mut command = Command::new(verb, key);
        if encoded {
            command = command.word(base64::engine::general_purpose::STANDARD.encode(key));
        } else {
            command = command.word(key);
        }
        (command, encoded)
    }

    /// Adds the chosen flags in a random order; `b` if the key is encoded.
    fn meta_flags(&mut self, mut command: Command, encoded: bool, flags: &[(u8, u64)]) -> Command {
        let mut chosen: Vec<u8> = Vec::new();
        for (letter, percent) in flags {
            if self.random.percent(*percent) {
                chosen.push(*letter);
            }
        }
        if encoded {
            chosen.push(b'b');
        }
        for index in (1..chosen.len()).rev() {
            chosen.swap(index, self.random.below(index as u64 + 1) as usize);
        }
        for letter in chosen {
            command = self.meta_flag(command, letter);
        }
        command
    }

    /// Adds one flag, with an argument where it takes one.
    fn meta_flag(&mut self, command: Command, letter: u8) -> Command {
        let verb = command.verb;
        match letter {
            b'C' => {
                let age = if self.random.percent(80) { 0 } else { 1 };
                command.flag(letter, "").token(age)
            }
            b'E' => command.flag(letter, (SET_TOKEN_MIN + self.random.below(1_000)).to_string()),
            b'F' => command.flag(letter, self.client_flags()),
            b'O' => command.flag(letter, format!("opaque{}", self.random.below(1_000))),
            b'T' => command.flag(letter, self.time()),
            b'N' => command.flag(letter, self.random.pick(&["0", "3600", "30000"])),
            // Clearly before, or clearly after, the end of an item of an hour.
            b'R' => command.flag(letter, self.random.pick(&["30", "10000"])),
            b'D' => command.flag(letter, self.delta()),
            b'J' => command.flag(letter, self.delta()),
            b'P' | b'L' => command.flag(letter, self.random.pick(&["", "/route/"])),
            b'M' if verb == "ms" => {
                command.flag(letter, self.random.pick(&["S", "E", "A", "P", "R"]))
            }
            b'M' => command.flag(letter, self.random.pick(&["I", "+", "D", "-"])),
            _ => command.flag(letter, ""),
        }
    }

    fn meta_get(&mut self) -> Command {
        let newer = self.random.below(12) == 0;
        let key = if newer { self.apart_key() } else { self.key() };
        let (command, encoded) = self.meta_key("mg", &key);
        let command = if newer { self.meta_flag(command, b'E') } else { command };
        let flags = [
            (b'v', 70),
            (b'c', 25),
            (b'C', 5),
            (b'f', 15),
            (b'h', 8),
            (b'k', 15),
            (b'l', 8),
            (b'L', 5),
            (b'N', 8),
            (b'O', 12),
            (b'P', 5),
            (b'q', 12),
            (b'R', 8),
            (b's', 12),
            (b't', 20),
            (b'T', 8),
            (b'u', 6),
        ];
        let mut command = self.meta_flags(command, encoded, &flags);
        command.keys_asked = 1;
        command.end()
    }

    fn meta_set(&mut self) -> Command {
        // What an old peer does otherwise: set the token, add to what is not there.
        let newer = self.random.below(8);
        let key = if newer < 2 { self.apart_key() } else { self.key() };
        let value = self.value();
        let (mut command, encoded) = self.meta_key("ms", &key);
        command = command.word(value.len().to_string());
        match newer {
            0 => command = self.meta_flag(command, b'E'),
            1 => {
                let mode = self.random.pick(&["A", "P"]);
                command = self.meta_flag(command.flag(b'M', mode), b'N');
            }
            _ => {}
        }
        let mode = if newer == 1 { 0 } else { 35 };
        let flags = [
            (b'c', 25),
            (b'C', 20),
            (b'F', 25),
            (b'I', 15),
            (b'k', 15),
            (b'L', 5),
            (b'M', mode),
            (b'O', 12),
            (b'P', 5),
            (b'q', 12),
            (b's', 10),
            (b'T', 25),
        ];
        self.meta_flags(command, encoded, &flags).data(&value)
    }

    fn meta_delete(&mut self) -> Command {
        let newer = self.random.below(4);
        let key = if newer < 2 { self.apart_key() } else { self.key() };
        let (mut command, encoded) = self.meta_key("md", &key);
        match newer {
            0 => command = self.meta_flag(command, b'x'),
            1 => command = self.meta_flag(command, b'E'),
            _ => {}
        }
        let flags = [
            (b'C', 15),
            (b'I', 45),
            (b'k', 12),
            (b'L', 8),
            (b'O', 12),
            (b'P', 8),
            (b'q', 12),
            (b'T', 20),
        ];
        self.meta_flags(command, encoded, &flags).end()
    }

    fn meta_arithmetic(&mut self) -> Command {
        let newer = self.random.below(8) == 0;
        // Memcached loses a time as it loses a token, when the item is read (G6) or the number
        // grows longer: it sets them on the old item. So they are given only to those that count
        // down.
        let timed = !newer && self.random.percent(30);
        let key = match (newer, timed) {
            (true, _) => self.apart_number_key(),
            (false, true) => self.tally_key(),
            (false, false) => self.number_key(),
        };
        let (command, encoded) = self.meta_key("ma", &key);
        let mut command = if newer { self.meta_flag(command, b'E') } else { command };
        if newer || timed {
            command = command.flag(b'M', self.random.pick(&["D", "-"]));
        }
        let flags = [
            (b'v', 50),
            (b'c', 20),
            (b'C', 10),
            (b'D', 30),
            (b'J', 20),
            (b'k', 12),
            (b'L', 8),
            (b'M', if newer || timed { 0 } else { 40 }),
            (b'N', 25),
            (b'O', 12),
            (b'P', 8),
            (b'q', 12),
            (b't', 25),
            (b'T', if timed { 50 } else { 0 }),
        ];
        self.meta_flags(command, encoded, &flags).end()
    }

    fn meta_debug(&mut self) -> Command {
        let key = self.key();
        let (command, encoded) = self.meta_key("me", &key);
        // A `b` counts only where something follows it; 1.6.18 takes the last word for one, too.
        if encoded { command.word("b v").end() } else { command.end() }
    }
}
