//! The table that sorts functions and system calls into the parts of a server's work.
//!
//! Upstream:   `parts.toml`, or the file of `--parts`.
//! Downstream: `cpu` and `wall`.
//!
//! Invariants:
//! - I1  The first rule that matches decides. Of a stack, the innermost frame that any rule matches
//!   decides; an interrupt anywhere in the stack of the kernel comes before that.

use serde::{Deserialize, Serialize};

use super::symbols::Frame;

/// The table that is used without `--parts`.
pub(super) const TABLE: &str = include_str!("parts.toml");

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    Network,
    Concurrency,
    Memory,
    KeyValue,
    /// The kernel's work that belongs to none of the four.
    Other,
    /// Code without a known name.
    NoSymbol,
    /// Softirqs and interrupts that came in meanwhile, for this process or another.
    Interrupts,
}

/// The parts whose shares sum to 100 %.
pub(super) const OWN: [Part; 6] =
    [Part::Network, Part::Concurrency, Part::Memory, Part::KeyValue, Part::Other, Part::NoSymbol];

impl Part {
    /// Its name in a table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Concurrency => "concurrency control",
            Self::Memory => "memory management",
            Self::KeyValue => "key-value work",
            Self::Other => "other kernel work",
            Self::NoSymbol => "symbols missing",
            Self::Interrupts => "interrupts",
        }
    }
}

/// The kind of name that a rule sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// A function of the program or of a library.
    Symbol,
    /// The source file of such a function, if there is debug information.
    Source,
    /// A function of the kernel.
    Kernel,
    /// A system call.
    Call,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// A pattern for the file name of the program; without it the rule is for all.
    program: Option<String>,
    what: What,
    part: Part,
    /// Patterns in which `*` stands for any text.
    names: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    waits: Vec<String>,
    rule: Vec<Rule>,
}

/// The rules for one program.
#[derive(Debug)]
pub(super) struct Rules {
    waits: Vec<String>,
    rules: Vec<Rule>,
}

/// Whether a name has the form of a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut pieces = rest.split('*').collect::<Vec<_>>();
    let last = pieces.pop().expect("a split text has a piece");
    for piece in pieces {
        let Some(at) = name.find(piece) else { return false };
        name = &name[at + piece.len()..];
    }
    name.ends_with(last)
}

impl Rules {
    /// The rules of a table for the program with this file name.
    ///
    /// Errors: the text is no such table.
    pub(super) fn read(text: &str, program: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let is_for = |rule: &Rule| rule.program.as_ref().is_none_or(|name| matches(name, program));
        let rules = file.rule.into_iter().filter(is_for).collect();
        Ok(Self { waits: file.waits, rules })
    }

    fn part(&self, what: What, name: &str) -> Option<Part> {
        let mut rules = self.rules.iter().filter(|rule| rule.what == what);
        let found = rules.find(|rule| rule.names.iter().any(|pattern| matches(pattern, name)));
        found.map(|rule| rule.part)
    }

    /// The part of user code, by its functions, the innermost first: several where the compiler has
    /// inlined. Code that no rule knows is key-value work. Also the name of the function that
    /// decided: the outermost if none did.
    pub(super) fn of_user(&self, frames: &[Frame]) -> (Part, Option<String>) {
        let Some(outermost) = frames.last() else { return (Part::NoSymbol, None) };
        let of_frame = |frame: &Frame| {
            let by_source = || self.part(What::Source, frame.source.as_deref()?);
            let by_name = || self.part(What::Symbol, &frame.name);
            if frame.is_short() { by_source() } else { by_name().or_else(by_source) }
        };
        let mut found = frames.iter().enumerate();
        let found = found.find_map(|(index, frame)| Some((index, of_frame(frame)?)));
        let (index, part) = found.unwrap_or((frames.len() - 1, Part::KeyValue));
        let name = &frames[index].name;
        let is_inlined = index + 1 < frames.len();
        (
            part,
            Some(if is_inlined { format!("{name} in {}", outermost.name) } else { name.clone() }),
        )
    }

    /// The part of code of the kernel, by its stack, the innermost frame first, and the system call
    /// in it (I1).
    pub(super) fn of_kernel(&self, names: &[&str], call: Option<&str>) -> Part {
        if names.is_empty() {
            return Part::NoSymbol;
        }
        let parts = || names.iter().filter_map(|name| self.part(What::Kernel, name));
        if parts().any(|part| part == Part::Interrupts) {
            return Part::Interrupts;
        }
        let of_call = || self.of_call(call?).into();
        parts().next().or_else(of_call).unwrap_or(Part::Other)
    }

    /// The part of a system call.
    pub(super) fn of_call(&self, name: &str) -> Part {
        self.part(What::Call, name).unwrap_or(Part::Other)
    }

    /// Whether a thread that sleeps in this call waits for work, though it is not the network's.
    pub(super) fn is_wait(&self, name: &str) -> bool {
        self.waits.iter().any(|pattern| matches(pattern, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, name) in [
            ("free", "free"),
            ("tcp_*", "tcp_sendmsg"),
            ("*mutex*", "pthread_mutex_lock"),
            ("*::alloc*", "std::alloc"),
            ("a*b*c", "a-b-b-c"),
            ("*", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("free", "freeze"), ("tcp_*", "mptcp_x"), ("a*b*c", "acb"), ("a*a", "a"), ("*b", "ba")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    fn rules(program: &str) -> Rules {
        Rules::read(TABLE, program).expect("the table is right")
    }

    #[test]
    fn the_innermost_name_that_is_known_decides() {
        let part = |names: &[&str]| {
            let frames: Vec<Frame> = names.iter().map(|name| Frame::named(name)).collect();
            rules("any").of_user(&frames).0
        };
        assert_eq!(part(&["malloc"]), Part::Memory);
        assert_eq!(part(&["pthread_mutex_lock"]), Part::Concurrency);
        assert_eq!(part(&["sendmsg"]), Part::Network);
        assert_eq!(part(&["my_hash"]), Part::KeyValue);
        assert_eq!(part(&["copy_bytes", "malloc", "sendmsg"]), Part::Memory, "inlined");
        assert_eq!(part(&[]), Part::NoSymbol);
    }

    #[test]
    fn a_stack_of_the_kernel_comes_before_its_call() {
        let part = |names: &[&str], call| rules("any").of_kernel(names, call);
        assert_eq!(part(&["clear_page_erms", "asm_exc_page_fault"], None), Part::Memory);
        assert_eq!(part(&["eventfd_write", "vfs_write"], Some("write")), Part::Concurrency);
        assert_eq!(part(&["kmem_cache_alloc", "tcp_sendmsg"], Some("write")), Part::Network);
        assert_eq!(part(&["schedule"], Some("futex")), Part::Concurrency);
        assert_eq!(part(&["schedule"], Some("munmap")), Part::Memory);
        assert_eq!(part(&["do_syscall_64"], None), Part::Other);
        assert_eq!(part(&[], Some("futex")), Part::NoSymbol);
    }

    #[test]
    fn an_interrupt_is_told_apart_in_any_call() {
        let stack = ["udp_rcv", "handle_softirqs", "irq_exit_rcu", "asm_common_interrupt"];
        assert_eq!(rules("any").of_kernel(&stack, Some("sendto")), Part::Interrupts);
        let own = ["udp_rcv", "handle_softirqs", "do_softirq", "__local_bh_enable_ip"];
        assert_eq!(rules("any").of_kernel(&own, Some("sendto")), Part::Network);
    }

    #[test]
    fn the_names_of_a_server_are_its_own() {
        let frames = [Frame::named("slabs_alloc")];
        assert_eq!(rules("memcached").of_user(&frames).0, Part::Memory);
        assert_eq!(rules("another").of_user(&frames).0, Part::KeyValue);
        let frames = [Frame::named("kachel_io::uring::send::flush")];
        assert_eq!(rules("kachel").of_user(&frames).0, Part::Network);
    }

    /// Debug information names an inlined function without its module.
    #[test]
    fn an_inlined_function_is_sorted_by_its_source() {
        let source =
            |name, source: &str| Frame { source: Some(source.to_owned()), ..Frame::named(name) };
        let frames = [
            source("read", "/rustc/1/library/core/src/ptr/mod.rs"),
            source("find", "crates/table/src/table.rs"),
            source("kachel_net::outbox::flush", "crates/net/src/outbox/mod.rs"),
        ];
        let (part, name) = rules("kachel").of_user(&frames);
        assert_eq!(part, Part::KeyValue);
        assert_eq!(name.as_deref(), Some("find in kachel_net::outbox::flush"));
        let (part, name) = rules("another").of_user(&frames);
        assert_eq!((part, name.as_deref()), (Part::KeyValue, Some("kachel_net::outbox::flush")));
    }

    #[test]
    fn a_wait_for_work_is_no_other_wait() {
        assert!(rules("any").is_wait("clock_nanosleep") && !rules("any").is_wait("futex"));
    }

    #[test]
    fn a_table_with_an_unknown_word_is_refused() {
        let table = "waits = []\n[[rule]]\nwhat = \"symbol\"\npart = \"memory\"\nname = [\"x\"]\n";
        assert!(Rules::read(table, "any").is_err_and(|error| error.contains("name")));
        let table = table.replace("name =", "names =").replace("memory", "memories");
        assert!(Rules::read(&table, "any").is_err_and(|error| error.contains("memories")));
    }
}
