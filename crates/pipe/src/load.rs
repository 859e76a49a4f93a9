//! Loads the program into the kernel and attaches it to an interface.
//!
//! Upstream:   `kachel` at its start, while it has the rights.
//! Downstream: the kernel, through `aya`. In the server, only this file knows `aya`.
//!
//! Invariants:
//! - L1  Program, maps and link are not pinned, so they go when the process ends.
//! - L2  The sizes of the maps in the object are those of `layout`.

use std::os::fd::AsFd as _;

use aya::maps::{Map, MapData};
use aya::programs::{TestRun as _, TestRunOptions, Xdp, XdpMode};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use kachel_host::SharedWords;

use crate::layout::{COUNTS_WORDS, LANES_MAX, SETTINGS_WORDS, SLOT_WORDS, WAYS};
use crate::table::{Memory, Pipe, bucket_count};

/// The program, as `bpf/build` has made it.
static OBJECT: &[u8] = include_bytes_aligned!("../../../bpf/pipe.o");

/// The most cores whose packets are counted: as many as Linux knows on x86-64.
const CORES_MAX: usize = 8192;

/// Why the pipe is not to be had on this machine.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel does not take the program, or this process has no right to load it.
    #[error("the kernel does not take the program: {0}")]
    Refused(String),
    /// The memory that the program shares cannot be mapped.
    #[error("memory of the program cannot be mapped: {0}")]
    Unmapped(#[from] std::io::Error),
    /// The program cannot be attached to the interface.
    #[error("{interface}: {reason}")]
    Unattached {
        /// The name of the interface.
        interface: String,
        /// The reason that the kernel gives.
        reason: String,
    },
    /// The order of loads and stores is that of x86-64.
    #[error("the pipe is for x86-64 only")]
    OtherProcessor,
}

/// Where the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the network stack, because the driver cannot.
    Generic,
}

impl Mode {
    /// Its name, in the log and in `stats pipe`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// The result of a run of the program on a packet that a test has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The packet goes on to the kernel, as it is now.
    Passed(Vec<u8>),
    /// This packet is sent back.
    Answered(Vec<u8>),
    /// Anything else.
    Other(u32),
}

/// The program in the kernel. It goes when this is dropped (L1).
#[derive(Debug)]
pub struct Program {
    object: Ebpf,
    /// The number of the descriptor of its link to an interface.
    link: Option<u32>,
}

/// The facts that the kernel tells of a descriptor of this process. It needs no right.
fn about_descriptor(number: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()
}

/// The number of the descriptor of the link of a program to an interface.
fn find_link(program_id: u32) -> Option<u32> {
    let is_it = |about: &str| {
        let has = |name, value: &str| fact(about, name) == Some(value);
        has("link_type", "xdp") && has("prog_id", &program_id.to_string())
    };
    let numbers = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|number| about_descriptor(*number).is_some_and(|about| is_it(&about)))
}

/// A fact about a descriptor, by its name.
fn fact<'a>(about: &'a str, name: &str) -> Option<&'a str> {
    let mut values = about.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().map(str::trim)
}

/// The causes of an error, behind it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    // The log of the verifier has many lines.
    text.lines().next().unwrap_or_default().to_string()
}

fn refused(error: impl std::error::Error) -> LoadError {
    LoadError::Refused(with_causes(&error))
}

fn map_data<'o>(object: &'o Ebpf, name: &str) -> &'o MapData {
    match object.map(name) {
        Some(Map::Array(data)) => data,
        _ => panic!("L2: the object has an array {name}"),
    }
}

impl Program {
    /// Loads the program with a table in at most `memory_bytes`.
    ///
    /// Errors: the kernel does not take the program, or not from this process.
    pub fn load(memory_bytes: u64) -> Result<(Self, Pipe), LoadError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(LoadError::OtherProcessor);
        }
        let buckets = bucket_count(memory_bytes);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = cores.next_power_of_two().min(LANES_MAX);
        // The program counts by the number of its core, which may be more than are in use.
        let counted = nr_cpus().map_or(CORES_MAX, |cores| cores.clamp(1, CORES_MAX));
        let slots = buckets * WAYS as u32;
        let mut object = EbpfLoader::new()
            .map_max_entries("buckets", buckets)
            .map_max_entries("slots", slots)
            .map_max_entries("hits", slots * lanes as u32)
            .map_max_entries("counts", counted as u32)
            .load(OBJECT)
            .map_err(refused)?;
        Self::xdp(&mut object).load().map_err(refused)?;
        let map = |name: &str, words: usize| {
            let fd = map_data(&object, name).fd();
            SharedWords::map(fd.as_fd(), words)
        };
        let slots = slots as usize;
        let memory = Memory {
            settings: map("settings", SETTINGS_WORDS)?,
            buckets: map("buckets", slots)?,
            slots: map("slots", slots * SLOT_WORDS)?,
            hits: map("hits", slots * lanes)?,
            counts: map("counts", COUNTS_WORDS * counted)?,
        };
        Ok((Self { object, link: None }, Pipe::new(memory, buckets)))
    }

    fn xdp(object: &mut Ebpf) -> &mut Xdp {
        let program = object.program_mut("pipe").expect("the object has the program");
        program.try_into().expect("it is a program for XDP")
    }

    /// Attaches the program to an interface: in its driver if that can run it, else in the network
    /// stack.
    ///
    /// Errors: there is no such interface, or it has a program already.
    pub fn attach(&mut self, interface: &str) -> Result<Mode, LoadError> {
        assert!(self.link.is_none(), "it is attached once");
        let program = Self::xdp(&mut self.object);
        let mut mode = Mode::Native;
        if program.attach(interface, XdpMode::Driver).is_err() {
            mode = Mode::Generic;
            program.attach(interface, XdpMode::Skb).map_err(|error| LoadError::Unattached {
                interface: interface.to_string(),
                reason: with_causes(&error),
            })?;
        }
        self.link = program.info().ok().and_then(|info| find_link(info.id()));
        Ok(mode)
    }

    /// Whether the program has lost its interface: the interface is gone, or an administrator has
    /// detached the link. Cost: a file of the kernel, which waits for changes to interfaces.
    pub fn is_detached(&self) -> bool {
        let about = self.link.and_then(about_descriptor);
        about.is_some_and(|about| fact(&about, "ifindex") == Some("0"))
    }

    /// Runs the program on a packet (`BPF_PROG_TEST_RUN`). For tests.
    ///
    /// Errors: the kernel refuses.
    pub fn try_packet(&mut self, packet: &[u8]) -> Result<Trial, LoadError> {
        let mut out = vec![0; packet.len() + 1024];
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let result = Self::xdp(&mut self.object).test_run(options).map_err(refused)?;
        out.truncate(result.data_size_out as usize);
        Ok(match result.return_value {
            2 => Trial::Passed(out),
            3 => Trial::Answered(out),
            other => Trial::Other(other),
        })
    }
}
