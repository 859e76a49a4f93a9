//! The functions at addresses of code: of the process, and of the kernel.
//!
//! Upstream:   `/proc/PID/maps` with the files that it names, and `/proc/kallsyms`.
//! Downstream: `cpu`.
//!
//! A file is read as soon as it is seen, so the process may end meanwhile.

use std::collections::HashMap;
use std::path::Path;

use addr2line::Context;
use addr2line::gimli::{self, Dwarf, EndianSlice, LittleEndian, SectionId};
use object::{
    CompressionFormat, Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _,
    SymbolKind,
};

use super::process::{Mapping, Process};

/// Symbols before an address that may contain it: several begin at one place, and some within
/// others.
const SYMBOLS_BACK: usize = 16;

/// The name of a mapping with code of the kernel for reading the clock.
const VDSO: &str = "[vdso]";

/// The symbols of the kernel.
#[derive(Debug)]
pub(super) struct KernelSymbols(Vec<(u64, Box<str>)>);

impl KernelSymbols {
    /// Reads them. Without the right to, there are none.
    pub(super) fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            // Addresses that are hidden read as 0.
            (is_code && address > 0).then_some((address, words.next()?.into()))
        };
        let mut symbols: Vec<(u64, Box<str>)> = text.lines().filter_map(symbol).collect();
        symbols.sort_unstable();
        Self(symbols)
    }

    /// These symbols. For tests.
    #[cfg(test)]
    pub(super) fn of(symbols: &[(u64, &str)]) -> Self {
        Self(symbols.iter().map(|(address, name)| (*address, (*name).into())).collect())
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The function that contains an address. Sizes are not known, so it is the last one that
    /// begins before.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(begin, _)| *begin <= address);
        Some(&self.0[after.checked_sub(1)?].1)
    }
}

/// A function in a symbol table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    begin: u64,
    end: u64,
    name: String,
}

/// Where a piece of a file is loaded to, relative to its other pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

/// A reader of debug information.
type Reader = EndianSlice<'static, LittleEndian>;

/// A file with code, and its symbols.
struct Object {
    segments: Vec<Segment>,
    symbols: Vec<Symbol>,
    debug: Option<Context<Reader>>,
}

/// The bytes of a section; nothing if there is none, or if it is compressed.
fn section(file: &object::File<'static>, name: &str) -> &'static [u8] {
    let Some(section) = file.section_by_name(name) else { return &[] };
    let range = section.compressed_file_range();
    let is_plain = range.is_ok_and(|range| range.format == CompressionFormat::None);
    if is_plain { section.data().unwrap_or_default() } else { &[] }
}

impl Object {
    fn open(path: &Path) -> Option<Self> {
        // It is needed until the process ends.
        let bytes: &'static [u8] = std::fs::read(path).ok()?.leak();
        let file = object::File::parse(bytes).ok()?;
        let segment = |segment: object::Segment<'_, '_>| {
            let (offset, bytes) = segment.file_range();
            Segment { offset, address: segment.address(), bytes }
        };
        let symbol = |symbol: object::Symbol<'_, '_>| {
            let (begin, end) = (symbol.address(), symbol.address().checked_add(symbol.size())?);
            let is_code = symbol.kind() == SymbolKind::Text && symbol.is_definition();
            let name = symbol.name().ok()?.to_owned();
            is_code.then_some(Symbol { begin, end, name })
        };
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let mut symbols: Vec<Symbol> = symbols.filter_map(symbol).collect();
        symbols.sort_unstable();
        let load = |id: SectionId| {
            Ok::<_, gimli::Error>(Reader::new(section(&file, id.name()), LittleEndian))
        };
        let debug = Dwarf::load(load).and_then(Context::from_dwarf);
        Some(Self { segments: file.segments().map(segment).collect(), symbols, debug: debug.ok() })
    }

    /// The symbol that contains an address.
    fn symbol(&self, address: u64) -> Option<&str> {
        let after = self.symbols.partition_point(|symbol| symbol.begin <= address);
        let before = self.symbols[..after].iter().rev().take(SYMBOLS_BACK);
        let mut found = before.filter(|symbol| address < symbol.end);
        found.next().map(|symbol| &symbol.name[..])
    }

    /// The functions at an offset of the file, the innermost first; none if it has no symbol there.
    fn frames(&self, offset: u64) -> Vec<Frame> {
        let is_in = |segment: &&Segment| offset.wrapping_sub(segment.offset) < segment.bytes;
        let Some(segment) = self.segments.iter().find(is_in) else { return Vec::new() };
        let address = segment.address.wrapping_add(offset - segment.offset);
        let mut found = Vec::new();
        let frames = self.debug.as_ref().map(|debug| debug.find_frames(address).skip_all_loads());
        if let Some(Ok(mut frames)) = frames {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned()));
                let source = frame.location.and_then(|at| Some(at.file?.to_owned()));
                found.extend(name.map(|name| Frame { name, source }));
            }
        }
        // The symbol has the whole name of the outermost function; debug information may not.
        if let Some(symbol) = self.symbol(address) {
            let name = addr2line::demangle_auto(symbol.into(), None).into_owned();
            match found.last_mut() {
                Some(outermost) => outermost.name = name,
                None => found.push(Frame { name, source: None }),
            }
        }
        found
    }
}

/// A function of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) name: String,
    /// Its source file, if there is debug information.
    pub(super) source: Option<String>,
}

impl Frame {
    /// A function of which only the name is known.
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), source: None }
    }

    /// Whether the name lacks its module, as that of inlined functions of Rust does: `read` may be
    /// any of many functions then.
    pub(super) fn is_short(&self) -> bool {
        let is_rust = self.source.as_ref().is_some_and(|source| source.ends_with(".rs"));
        is_rust && !self.name.contains("::")
    }
}

/// The functions at an address, and the file that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The innermost first: several where the compiler has inlined; none if there is no symbol.
    pub(super) frames: Vec<Frame>,
    /// The file name, without its folder.
    pub(super) file: String,
}

/// The symbols of a process.
#[derive(Default)]
pub(super) struct UserSymbols {
    mappings: Vec<Mapping>,
    /// By the path of the mapping.
    objects: HashMap<String, Option<Object>>,
}

impl UserSymbols {
    /// Opens the files that the process has code of now, in addition to those of earlier calls.
    pub(super) fn look(&mut self, process: &Process) {
        for mapping in process.code() {
            if !self.objects.contains_key(&mapping.path) && mapping.path.starts_with('/') {
                let files = process.files_of(&mapping);
                let object = files.iter().find_map(|path| Object::open(path));
                self.objects.insert(mapping.path.clone(), object);
            }
            if !self.mappings.contains(&mapping) {
                self.mappings.push(mapping);
            }
        }
    }

    /// The functions at an address.
    pub(super) fn place(&self, address: u64) -> Place {
        let mut mappings = self.mappings.iter().rev();
        let Some(mapping) = mappings.find(|it| (it.begin..it.end).contains(&address)) else {
            return Place { frames: Vec::new(), file: "no file".to_owned() };
        };
        let file = mapping.path.rsplit('/').next().unwrap_or_default().to_owned();
        let object = self.objects.get(&mapping.path).and_then(Option::as_ref);
        let frames = match object {
            Some(object) => object.frames(address - mapping.begin + mapping.offset),
            None if mapping.path == VDSO => vec![Frame::named(VDSO)],
            None => Vec::new(),
        };
        Place { frames, file }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_code_has_the_name_that_begins_before_it() {
        let text = "\
ffffffff81000100 t second
ffffffff81000000 T first
ffffffff81000080 D data
ffffffffa0000000 t of_module\t[module]
0000000000000000 T hidden
";
        let symbols = KernelSymbols::parse(text);
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_00ff), Some("first"), "data is no code");
        assert_eq!(symbols.name(0xffff_ffff_8100_0100), Some("second"));
        assert_eq!(symbols.name(0xffff_ffff_a000_0005), Some("of_module"));
        assert_eq!(symbols.name(5), None, "a hidden address names nothing");
        assert!(KernelSymbols::parse("0000000000000000 T hidden\n").is_empty());
    }

    /// A function whose address is known to this process.
    #[inline(never)]
    fn a_function_with_a_name(number: u64) -> u64 {
        std::hint::black_box(number) + 1
    }

    #[test]
    fn a_function_of_this_process_is_found() {
        assert_eq!(a_function_with_a_name(1), 2);
        let process = Process::open(std::process::id()).expect("it runs");
        let mut symbols = UserSymbols::default();
        symbols.look(&process);
        let place = symbols.place(a_function_with_a_name as *const () as u64);
        let name = &place.frames.last().expect("a frame").name;
        assert!(name.contains("::a_function_with_a_name"), "with its module: {place:?}");
        let nowhere = Place { frames: Vec::new(), file: "no file".to_owned() };
        assert_eq!(symbols.place(1), nowhere);
    }
}
