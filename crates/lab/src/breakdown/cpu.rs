//! Time on a core: the shares of the parts in the samples of a process.
//!
//! Upstream:   `measure`, with the samples.
//! Downstream: `print`, and the file of `--json`.
//!
//! Invariants:
//! - I1  Each sample is in one part. The parts of [`OWN`] have all samples except those in
//!   interrupts, so their shares sum to 100 %.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::calls::CallNames;
use super::parts::{OWN, Part, Rules};
use super::symbols::{KernelSymbols, Place};

/// A sample of a thread on its core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sample {
    /// In the code of the process, at this address.
    User(u64),
    /// In the kernel.
    Kernel {
        /// The number of the system call, if the stack shows that it is in one.
        call: u64,
        /// The innermost frame first.
        stack: Vec<u64>,
    },
}

/// The samples of a process, equal ones counted.
pub(super) type Samples = HashMap<Sample, u64>;

/// The share of one part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Share {
    pub(super) part: Part,
    pub(super) samples: u64,
    /// Of the busy time.
    pub(super) percent: f64,
}

/// The share of a function, a system call or a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) samples: u64,
    /// Of the busy time.
    pub(super) percent: f64,
}

/// How often something happened, or why it was not counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Counted {
    pub(super) name: &'static str,
    pub(super) count: Option<u64>,
    /// Counts are multiples of this.
    pub(super) every: u64,
    pub(super) missing: Option<String>,
}

/// Where the time on a core went.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CpuView {
    pub(super) seconds: f64,
    pub(super) sample_ns: u64,
    pub(super) samples_lost: u64,
    /// Samples of the parts, times the interval: the busy time.
    pub(super) busy_s: f64,
    pub(super) samples: u64,
    /// Samples in the process's own code and libraries.
    pub(super) user_samples: u64,
    /// In softirqs and interrupts; not part of the busy time.
    pub(super) interrupt_samples: u64,
    pub(super) parts: Vec<Share>,
    /// The most frequent functions: of the process, and of the kernel in its system calls.
    pub(super) functions: Vec<Named>,
    /// The kernel's part by system call.
    pub(super) calls: Vec<Named>,
    /// The files without symbols.
    pub(super) without_symbols: Vec<Named>,
    pub(super) events: Vec<Counted>,
}

/// The samples of functions, calls and files, by name.
#[derive(Debug, Default)]
struct Tally(BTreeMap<(String, Part), u64>);

impl Tally {
    fn add(&mut self, name: String, part: Part, samples: u64) {
        *self.0.entry((name, part)).or_default() += samples;
    }

    fn top(self, all: u64, number: usize) -> Vec<Named> {
        let named =
            |((name, part), samples)| Named { name, part, samples, percent: percent(samples, all) };
        let mut rows: Vec<Named> = self.0.into_iter().map(named).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
        rows.truncate(number);
        rows
    }
}

/// The share in percent; 0 if there is nothing.
pub(super) fn percent(samples: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { samples as f64 * 100.0 / all as f64 }
}

/// The names that samples are sorted by.
pub(super) struct Names<'n, P: Fn(u64) -> Place> {
    pub(super) rules: &'n Rules,
    pub(super) kernel: &'n KernelSymbols,
    pub(super) calls: &'n CallNames,
    /// The functions at an address of the process.
    pub(super) place: P,
}

/// Sorts the samples of a window.
///
/// The facts of the window that are not in the samples (`seconds`, lost ones, events) are left for
/// the caller to fill in.
pub(super) fn view(
    samples: &Samples,
    sample_ns: u64,
    names: &Names<'_, impl Fn(u64) -> Place>,
    top: usize,
) -> CpuView {
    let Names { rules, kernel, calls, place } = names;
    let mut by_part: BTreeMap<Part, u64> = BTreeMap::new();
    let (mut functions, mut by_call, mut without) =
        (Tally::default(), Tally::default(), Tally::default());
    let mut user = 0;
    for (sample, number) in samples {
        match sample {
            Sample::User(address) => {
                user += number;
                let place = place(*address);
                let (part, name) = rules.of_user(&place.frames);
                *by_part.entry(part).or_default() += number;
                match name {
                    Some(name) => functions.add(name, part, *number),
                    None => without.add(place.file, part, *number),
                }
            }
            Sample::Kernel { call, stack } => {
                let functions_of = names_of(kernel, stack);
                let call = calls.in_stack(&functions_of, *call);
                let part = rules.of_kernel(&functions_of, call.as_deref());
                *by_part.entry(part).or_default() += number;
                match functions_of.first() {
                    Some(name) if part != Part::Interrupts => {
                        functions.add(format!("[kernel] {name}"), part, *number);
                        let call = call.map_or("in no call".to_owned(), Cow::into_owned);
                        by_call.add(call, part, *number);
                    }
                    Some(_) => {}
                    None => without.add("kernel".to_owned(), part, *number),
                }
            }
        }
    }
    let number_of = |part: &Part| by_part.get(part).copied().unwrap_or_default();
    let all: u64 = OWN.iter().map(number_of).sum();
    let share = |part: &Part| Share {
        part: *part,
        samples: number_of(part),
        percent: percent(number_of(part), all),
    };
    let interrupts = number_of(&Part::Interrupts);
    assert_eq!(all + interrupts, samples.values().sum::<u64>(), "I1");
    CpuView {
        seconds: 0.0,
        sample_ns,
        samples_lost: 0,
        busy_s: all as f64 * sample_ns as f64 / 1e9,
        samples: all,
        user_samples: user,
        interrupt_samples: interrupts,
        parts: OWN.iter().map(share).collect(),
        functions: functions.top(all, top),
        calls: by_call.top(all, top),
        without_symbols: without.top(all, top),
        events: Vec::new(),
    }
}

/// The functions in a stack of the kernel. All frames but the innermost are addresses of the
/// instruction after a call, which may belong to the next function.
fn names_of<'k>(kernel: &'k KernelSymbols, stack: &[u64]) -> Vec<&'k str> {
    let address = |(index, at): (usize, &u64)| if index == 0 { *at } else { at.saturating_sub(1) };
    stack.iter().enumerate().map(address).filter_map(|at| kernel.name(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::parts::TABLE;
    use super::super::symbols::Frame;
    use super::*;

    const SEND: u64 = 0x2000;
    const CALL: u64 = 0x3000;
    const TIMER: u64 = 0x4000;
    const ENTRY: u64 = 0x5000;

    fn kernel() -> KernelSymbols {
        KernelSymbols::of(&[
            (SEND, "udp_sendmsg"),
            (CALL, "__x64_sys_sendto"),
            (TIMER, "asm_sysvec_apic_timer_interrupt"),
            (ENTRY, "do_syscall_64"),
        ])
    }

    fn place(address: u64) -> Place {
        let frames = match address {
            1 => vec![Frame::named("hash")],
            2 => vec![Frame::named("inlined"), Frame::named("malloc")],
            _ => Vec::new(),
        };
        Place { frames, file: "libx.so".to_owned() }
    }

    fn view_of(samples: &Samples) -> CpuView {
        let (rules, calls) = (Rules::read(TABLE, "any").expect("the table"), CallNames::new());
        let names = Names { rules: &rules, kernel: &kernel(), calls: &calls, place };
        view(samples, 1_000_000, &names, 20)
    }

    #[test]
    fn every_sample_has_one_part_and_shares_sum_to_all() {
        let in_kernel = |call, stack: &[u64]| Sample::Kernel { call, stack: stack.to_vec() };
        let view = view_of(&Samples::from([
            (Sample::User(1), 50),
            (Sample::User(2), 20),
            (Sample::User(3), 5),
            (in_kernel(0, &[SEND + 4, CALL + 1, ENTRY + 9]), 15),
            (in_kernel(39, &[ENTRY + 2]), 10),
            (in_kernel(44, &[SEND, TIMER + 8, CALL + 8]), 7),
        ]));
        let found: Vec<(Part, u64)> = view.parts.iter().map(|it| (it.part, it.samples)).collect();
        let wanted = [
            (Part::Network, 15),
            (Part::Concurrency, 0),
            (Part::Memory, 20),
            (Part::KeyValue, 50),
            (Part::Other, 10),
            (Part::NoSymbol, 5),
        ];
        assert_eq!(found, wanted);
        assert_eq!(view.parts.iter().map(|it| it.percent).sum::<f64>(), 100.0);
        assert_eq!((view.samples, view.interrupt_samples, view.user_samples), (100, 7, 75));
        assert_eq!(view.busy_s, 0.1);
        let (function, call) = (&view.functions[0], &view.calls[0]);
        assert_eq!((&function.name[..], function.samples), ("hash", 50));
        assert_eq!((&call.name[..], call.part, call.percent), ("sendto", Part::Network, 15.0));
        assert_eq!(&view.calls[1].name[..], "getpid", "the entry to a call, by its number");
        assert_eq!(view.without_symbols[0].name, "libx.so");
    }

    /// The instruction after a call at the very end of a function belongs to the next one.
    #[test]
    fn a_caller_is_found_by_the_byte_before_its_return_address() {
        assert_eq!(names_of(&kernel(), &[SEND, TIMER]), ["udp_sendmsg", "__x64_sys_sendto"]);
    }

    #[test]
    fn a_process_that_never_ran_has_no_shares() {
        let view = view_of(&Samples::default());
        assert!(view.parts.iter().all(|it| it.percent == 0.0) && view.busy_s == 0.0);
    }
}
