//! The names of system calls.
//!
//! Upstream:   `calls.txt`: the numbers of x86-64, from Linux' own table, up to 6.18.
//! Downstream: `cpu` and `wall`.

use std::borrow::Cow;
use std::collections::BTreeMap;

const LIST: &str = include_str!("calls.txt");

/// How the kernel begins the name of the function that carries out a system call.
const PREFIX: &str = "__x64_sys_";

/// The functions through which every system call goes.
const ENTRY: &str = "do_syscall_64";
const BEFORE_ENTRY: &str = "entry_SYSCALL_64";

/// The names by number.
#[derive(Debug)]
pub(super) struct CallNames(BTreeMap<u32, &'static str>);

impl CallNames {
    /// The names of the list.
    pub(super) fn new() -> Self {
        let line = |line: &'static str| {
            let (number, name) = line.split_once(' ').expect("a number and a name");
            (number.parse().expect("a number"), name)
        };
        let lines = LIST.lines().filter(|line| !line.starts_with('#'));
        Self(lines.map(line).collect())
    }

    /// The system call in a stack of the kernel, the innermost frame first. On the way into a call
    /// and out of it, the stack shows only that it is one; then its number is used.
    pub(super) fn in_stack<'n>(&self, names: &[&'n str], number: u64) -> Option<Cow<'n, str>> {
        let by_name = names.iter().rev().find_map(|name| name.strip_prefix(PREFIX));
        let is_one = || names.iter().any(|name| *name == ENTRY || name.starts_with(BEFORE_ENTRY));
        let by_number = || self.name(is_one().then_some(number)?.try_into().ok()?).into();
        by_name.map(Cow::Borrowed).or_else(by_number)
    }

    /// The name of a call; its number, if the list does not have it.
    pub(super) fn name(&self, number: u32) -> Cow<'static, str> {
        match self.0.get(&number) {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("call {number}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names() {
        let names = CallNames::new();
        for (number, name) in [
            (0, "read"),
            (9, "mmap"),
            (202, "futex"),
            (426, "io_uring_enter"),
            (469, "file_setattr"),
        ] {
            assert_eq!(names.name(number), name);
        }
        assert_eq!(names.name(999), "call 999");
    }

    #[test]
    fn a_call_is_found_in_its_stack() {
        let names = CallNames::new();
        let stack = ["tcp_sendmsg", "__sys_sendto", "__x64_sys_sendto", "do_syscall_64"];
        assert_eq!(names.in_stack(&stack, 0).as_deref(), Some("sendto"));
        assert_eq!(names.in_stack(&["do_syscall_64"], 44).as_deref(), Some("sendto"));
        assert_eq!(names.in_stack(&["asm_exc_page_fault"], 44), None, "the number means nothing");
        assert_eq!(names.in_stack(&["do_syscall_64"], u64::MAX), None);
    }
}
