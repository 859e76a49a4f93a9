//! Random commands that a server must refuse without losing its position in the stream.
//!
//! Upstream: `generator`. Downstream: `command`; `rules` names the kinds in which versions differ.

use crate::command::Command;
use crate::generator::Generator;

/// Above the largest item that a server with default options takes.
const TOO_LARGE_BYTES: usize = 1_048_577;

impl Generator {
    /// One command with something wrong in it.
    pub(crate) fn malformed(&mut self) -> Command {
        match self.random.below(100) {
            0..8 => self.unknown_verb(),
            8..18 => self.short_line(),
            18..30 => self.missing_words(),
            30..46 => self.bad_number(),
            46..54 => self.long_key(),
            54..62 => self.wrong_data_length(),
            62..70 => self.surplus_words(),
            70..74 => self.bad_base64(),
            74..94 => self.bad_meta_flag(),
            94..98 => self.many_flags(),
            98 if self.random.percent(50) => self.too_large(),
            _ => self.shutdown(),
        }
    }

    fn unknown_verb(&mut self) -> Command {
        let lines: [&[u8]; 8] = [
            b"bogus a b\r\n",
            b"GET key1\r\n",
            b"mz key1 v\r\n",
            b"stats no-such-kind\r\n",
            b"gett key1\r\n",
            b"get\tkey1\r\n",
            b"getskey1 0 0 0\r\n",
            b"m key1\r\n",
        ];
        Command::broken("unknown", "unknown_verb", self.random.pick(&lines))
    }

    fn short_line(&mut self) -> Command {
        let lines: [&[u8]; 6] = [b"\r\n", b"\n", b"a\r\n", b"x\n", b"ms\n", b"xy\n"];
        Command::broken("short", "short_line", self.random.pick(&lines))
    }

    fn missing_words(&mut self) -> Command {
        let lines: [(&'static str, &[u8]); 18] = [
            ("get", b"get\r\n"),
            ("gets", b"gets\r\n"),
            ("get", b"get   \r\n"),
            ("gat", b"gat\r\n"),
            ("gat", b"gat 0\r\n"),
            ("set", b"set\r\n"),
            ("set", b"set key1 0 0\r\n"),
            ("cas", b"cas key1 0 0\r\n"),
            ("incr", b"incr key1\r\n"),
            ("decr", b"decr\r\n"),
            ("touch", b"touch key1\r\n"),
            ("delete", b"delete\r\n"),
            ("verbosity", b"verbosity\r\n"),
            ("mg", b"mg\r\n"),
            ("ms", b"ms key1\r\n"),
            ("md", b"md\r\n"),
            ("ma", b"ma\r\n"),
            ("me", b"me\r\n"),
        ];
        let (verb, line) = self.random.pick(&lines);
        Command::broken(verb, "missing_words", line)
    }

    /// A number that is none, or not one of those allowed. Storage lines bring the data block that
    /// they announce, where they announce one.
    fn bad_number(&mut self) -> Command {
        let lines: [(&'static str, &[u8]); 20] = [
            ("set", b"set key1 x 0 1\r\ny\r\n"),
            ("set", b"set key1 -1 0 1\r\ny\r\n"),
            ("set", b"set key1 0 x 1\r\ny\r\n"),
            ("set", b"set key1 0 0 x\r\n"),
            ("set", b"set key1 0 0 -1\r\n"),
            ("set", b"set key1 0 0 2147483647\r\n"),
            ("set", b"set key1 0 0 18446744073709551616\r\n"),
            ("add", b"add key1 0 0 1e3\r\n"),
            ("cas", b"cas key1 0 0 1 x\r\ny\r\n"),
            ("incr", b"incr number1 x\r\n"),
            ("incr", b"incr number1 -1\r\n"),
            ("decr", b"decr number1 18446744073709551616\r\n"),
            ("decr", b"decr number1 1x\r\n"),
            ("touch", b"touch key1 x\r\n"),
            ("gat", b"gat x key1\r\n"),
            ("flush_all", b"flush_all x\r\n"),
            ("verbosity", b"verbosity x\r\n"),
            ("ms", b"ms key1 x\r\n"),
            ("ms", b"ms key1 -1\r\n"),
            ("ms", b"ms key1 S1\r\n"),
        ];
        let (verb, line) = self.random.pick(&lines);
        Command::broken(verb, "bad_number", line)
    }

    fn long_key(&mut self) -> Command {
        let verb = self.random.pick(&[
            "get", "gets", "gat", "set", "delete", "incr", "touch", "mg", "ms", "md", "ma", "me",
        ]);
        let key = vec![b'k'; 251 + self.random.below(100) as usize];
        let command = Command::new(verb, b"");
        let mut command = match verb {
            "gat" => command.word("0").word(&key).end(),
            "set" => command.word(&key).word("0 0 1").data(b"y"),
            "incr" | "touch" => command.word(&key).word("1").end(),
            "ms" => command.word(&key).word("1").data(b"y"),
            _ => command.word(&key).end(),
        };
        command.malformed = Some("long_key");
        command
    }

    /// Data longer or shorter than announced: what is over is read as a command, what is missing is
    /// taken from the next one.
    fn wrong_data_length(&mut self) -> Command {
        let verb = self.random.pick(&["set", "add", "ms"]);
        let (key, longer) = (self.key(), self.random.percent(50));
        let data = b"abcdefghijkl";
        let length = if longer { 1 + self.random.below(11) } else { 13 + self.random.below(6) };
        let mut command = Command::new(verb, &key).word(&key);
        if verb == "ms" {
            command = command.word(length.to_string());
        } else {
            command = command.word("0 0").word(length.to_string());
            if self.random.percent(20) {
                command = command.word("noreply");
            }
        }
        command.malformed = Some(if longer { "data_longer" } else { "data_shorter" });
        command.data(data)
    }

    fn surplus_words(&mut self) -> Command {
        let key = self.fresh_key();
        let kind = self.random.below(6);
        let verb = ["set", "set", "delete", "touch", "incr", "version"][kind as usize];
        let command = Command::new(verb, &key);
        let mut command = match kind {
            0 => command.word(&key).word("0 0 1 noreply x").data(b"y"),
            1 => command.word(&key).word("0 0 1 2 3 4 5 6").data(b"y"),
            2 => command.word(&key).word("1").end(),
            3 => command.word(&key).word("0 x").end(),
            4 => command.word(&key).word("1 x").end(),
            _ => command.word("x y z").end(),
        };
        command.malformed = Some("surplus_words");
        command
    }

    fn bad_base64(&mut self) -> Command {
        let lines: [(&'static str, &[u8]); 6] = [
            ("mg", b"mg a b v\r\n"),
            ("mg", b"mg a=b= b v\r\n"),
            ("mg", b"mg a b v q\r\n"),
            ("md", b"md abc b\r\n"),
            ("ma", b"ma !!!! b v\r\n"),
            ("ms", b"ms a 1 b\r\ny\r\n"),
        ];
        let (verb, line) = self.random.pick(&lines);
        Command::broken(verb, "bad_base64", line)
    }

    fn bad_meta_flag(&mut self) -> Command {
        let lines: [(&'static str, &'static str, &[u8]); 26] = [
            ("mg", "repeated_flag", b"mg key1 v v\r\n"),
            ("mg", "repeated_flag", b"mg key1 T0 t T0\r\n"),
            ("ms", "repeated_flag", b"ms key1 1 c c\r\ny\r\n"),
            ("md", "repeated_flag", b"md key1 q q\r\n"),
            ("ma", "repeated_flag", b"ma number1 v v\r\n"),
            ("mg", "unknown_flag", b"mg key1 z\r\n"),
            ("mg", "unknown_flag", b"mg key1 v Z\r\n"),
            ("ms", "unknown_flag", b"ms key1 1 z\r\ny\r\n"),
            ("md", "unknown_flag", b"md key1 z\r\n"),
            ("ma", "unknown_flag", b"ma number1 z\r\n"),
            ("mg", "strange_flag", b"mg key1 !\r\n"),
            ("mg", "strange_flag", b"mg key1 v \xff\r\n"),
            ("mg", "bad_flag_number", b"mg key1 Tx v\r\n"),
            ("mg", "bad_flag_number", b"mg key1 Nx\r\n"),
            ("mg", "bad_flag_number", b"mg key1 R\r\n"),
            ("ms", "bad_flag_number", b"ms key1 1 Fx\r\ny\r\n"),
            ("ms", "bad_flag_number", b"ms key1 1 Tx q\r\ny\r\n"),
            ("md", "bad_flag_number", b"md key1 Cx\r\n"),
            ("ma", "bad_flag_number", b"ma number1 Dx v\r\n"),
            ("ma", "bad_flag_number", b"ma number1 N0 J-1\r\n"),
            ("ms", "bad_mode", b"ms key1 1 MX\r\ny\r\n"),
            ("ms", "bad_mode", b"ms double 1 MSS\r\ny\r\n"),
            ("ms", "bad_mode", b"ms key1 1 Ms\r\ny\r\n"),
            ("ma", "bad_mode", b"ma number1 MX\r\n"),
            ("ma", "bad_mode", b"ma number1 Mi\r\n"),
            ("mg", "long_opaque", b"mg key1 Oabcdefghijklmnopqrstuvwxyz0123456789 v\r\n"),
        ];
        let (verb, wrong, line) = self.random.pick(&lines);
        Command::broken(verb, wrong, line)
    }

    fn many_flags(&mut self) -> Command {
        let verb = self.random.pick(&["mg", "md", "ma"]);
        let key = self.key();
        let mut command = Command::new(verb, &key).word(&key);
        for letter in b'a'..=b'w' {
            command = command.word([letter]);
        }
        command.malformed = Some("many_flags");
        command.end()
    }

    fn too_large(&mut self) -> Command {
        let verb = self.random.pick(&["set", "add", "replace", "ms"]);
        let key = self.key();
        let command = Command::new(verb, &key).word(&key);
        let command = if verb == "ms" { command } else { command.word("0 0") };
        let mut command = command.word(TOO_LARGE_BYTES.to_string());
        command.malformed = Some("too_large");
        command.data(&vec![b'L'; TOO_LARGE_BYTES])
    }

    fn shutdown(&mut self) -> Command {
        Command::broken("shutdown", "shutdown", b"shutdown\r\n")
    }
}
