//! Tests of the readers of traces: of each format, and of files in none of them.

use std::io::Write as _;

use super::*;

fn parse(text: &str) -> Result<Trace, String> {
    Trace::parse_any(text.as_bytes(), 1.0, None)
}

#[test]
fn records_keys_and_facts_are_read() {
    let trace =
        parse("10,a,1,100,1,get,0\n10,b,c,3,50,1,set,60\n12,a,1,100,2,delete,0\n").expect("valid");
    assert_eq!(trace.key_count(), 2);
    assert_eq!((trace.key(0), trace.key(1)), (&b"a"[..], &b"b,c"[..]));
    let (key, operation) = (1, Operation::Set);
    assert_eq!(trace.records[1], Record { key, object_bytes: 53, ttl_s: 60, operation });
    assert_eq!(trace.facts.footprint_bytes, 1 + 100 + 3 + 50);
    assert_eq!(trace.facts.operations, vec![("get", 1), ("set", 1), ("delete", 1)]);
}

#[test]
fn requests_of_one_second_are_spread_over_it() {
    let trace = parse("5,a,1,1,1,get,0\n5,a,1,1,1,get,0\n7,a,1,1,1,get,0\n6,a,1,1,1,get,0\n")
        .expect("valid");
    assert_eq!(trace.offsets_ns, [0, 500_000_000, 2_000_000_000, 2_500_000_000], "I2");
}

#[test]
fn sizes_are_scaled_and_the_limit_holds() {
    let text = "0,a,1,101,1,get,0\n0,b,1,10,1,get,0\n";
    let trace = Trace::parse_any(text.as_bytes(), 0.5, Some(1)).expect("valid");
    assert_eq!((trace.records.len(), trace.value_bytes(&trace.records[0])), (1, 51));
}

#[test]
fn what_cannot_be_read_is_said_with_its_line() {
    for (text, words) in [
        ("0,a,1,1,1,get,0\n0,a,1\n", "line 2: not seven fields"),
        ("0,a,1,1,1,steal,0\n", "line 1: 'steal' is not an operation"),
        ("0,a,1,x,1,get,0\n", "line 1: 'x' is not a size"),
        ("0,a,1,1,1,get,\n", "line 1: '' is not a TTL"),
        // A trace in microseconds, of a year: its ns do not fit into 64 bits.
        (
            "5,a,1,1,1,get,0\n31536000000005,a,1,1,1,get,0\n",
            "line 2: '31536000000005' is not a time in seconds: it is 31536000000000 after the \
             first one, '5'",
        ),
    ] {
        assert_eq!(parse(text).map(|_| ()), Err(words.to_owned()));
    }
}

/// Records of `oracleGeneral`: second, object, bytes, place of the next.
fn oracle(records: &[(u32, u64, u32, i64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(second, object, size, next) in records {
        bytes.extend(second.to_le_bytes());
        bytes.extend(object.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    bytes
}

fn parse_bytes(bytes: &[u8]) -> Result<Trace, String> {
    Trace::parse_any(bytes, 1.0, None)
}

#[test]
fn records_of_oracle_general_are_gets_of_their_objects() {
    let big = u64::MAX - 1;
    let bytes = oracle(&[(7, 42, 100, 3), (7, big, 1 << 20, -1), (9, 42, 100, i64::MAX)]);
    let trace = Trace::parse_any(&bytes[..], 0.5, None).expect("valid");
    assert_eq!(trace.key(0), b"42");
    assert_eq!(trace.key(1), big.to_string().as_bytes());
    let (key, operation) = (1, Operation::Get);
    assert_eq!(trace.records[1], Record { key, object_bytes: 1 << 19, ttl_s: 0, operation });
    assert_eq!(trace.records[2].key, 0);
    assert_eq!(trace.offsets_ns, [0, 500_000_000, 2_000_000_000], "I2");
    let cut = parse_bytes(&bytes[..60]).map(|_| ());
    assert_eq!(cut, Err("record 3: the file ends within it".into()));
    let two = Trace::parse_any(&bytes[..60], 1.0, Some(2)).expect("valid");
    assert_eq!((two.records.len(), two.facts.oddities.cut_objects), (2, 0));
    let late = oracle(&[(0x0101_0101, 42, 100, -1)]);
    assert_eq!(parse_bytes(&late).expect("valid").key(0), b"42");
    assert_eq!(parse_bytes(b"5,a,1,1,1,get,0\n").expect("valid").key(0), b"a");
}

/// The bytes of a record are those of the object with its key. 7,496 objects of 40 bytes have keys
/// of one to four digits.
#[test]
fn an_object_of_oracle_general_takes_the_bytes_that_its_record_says() {
    let records: Vec<_> = (0..7_496).map(|object| (1, object, 40, -1)).collect();
    let trace = parse_bytes(&oracle(&records)).expect("valid");
    assert_eq!(trace.facts.footprint_bytes, 299_840);
    let stored = |record: &Record| trace.key(record.key).len() + trace.value_bytes(record) as usize;
    assert!(trace.records.iter().all(|record| record.object_bytes == 40 && stored(record) == 40));
    // A server cannot store less than the key.
    let trace = parse_bytes(&oracle(&[(1, 12_345, 3, -1), (1, 7, 0, -1)])).expect("valid");
    assert_eq!((trace.facts.footprint_bytes, trace.value_bytes(&trace.records[0])), (3, 0));
    let oddities = &trace.facts.oddities;
    assert_eq!((oddities.short_objects, oddities.empty_objects), (2, 1));
}

/// Anonymized keys have other lengths than those that the service used.
#[test]
fn the_column_of_key_sizes_counts_and_not_the_length_of_the_key() {
    let trace = parse("0,a,30,100,1,get,0\n0,bcd,1,7,1,get,0\n0,x,1,5,1,get,0\n").expect("valid");
    assert_eq!(trace.facts.footprint_bytes, 130 + 8 + 6);
    let stored: Vec<u32> = trace.records.iter().map(|record| trace.value_bytes(record)).collect();
    assert_eq!(stored, [129, 5, 5]);
    assert_eq!(trace.facts.oddities.other_key_sizes, 2);
    for key_size in ["x", "", "65537"] {
        let error = parse(&format!("0,a,{key_size},1,1,get,0\n")).expect_err("no size");
        assert!(error.ends_with("is not the size of a key"), "{error}");
    }
}

#[test]
fn heads_and_impossible_keys_are_left_out_and_counted() {
    let trace = parse("timestamp,key\n0,a b,3,1,1,get,0\n0,c,1,1,1,incr,0\n").expect("valid");
    assert_eq!((trace.facts.oddities.forbidden_keys, trace.records.len()), (1, 1));
    assert_eq!(trace.key_use(0), KeyUse { is_counter: true, is_loose: true });
}

/// Whatever is changed or left out is counted, with a sentence.
#[test]
fn requests_that_are_not_replayed_as_they_stand_are_counted() {
    let long_key = "k".repeat(251);
    let long_line = "k".repeat(3 * LINE_BYTES_MAX);
    let text = format!(
        "\u{feff}5,a,1,1,1,get,0\n5,{long_key},251,1,1,get,0\n5,,0,1,1,get,0\n5,{long_line}\n\
         7,b,1,1073741825,1,get,0\n6,c,1,1,1,get,4294967296\n4,d,1,1,1,get,0\n"
    );
    let trace = parse(&text).expect("valid");
    let keys: Vec<&[u8]> = (0..4).map(|key| trace.key(key)).collect();
    assert_eq!(keys, [b"a", b"b", b"c", b"d"]);
    let expected = Oddities {
        empty_keys: 1,
        long_keys: 1,
        long_lines: 1,
        cut_values: 1,
        cut_ttls: 1,
        backward_times: 2,
        ..Oddities::default()
    };
    assert_eq!(trace.facts.oddities, expected);
    let sentences = expected.sentences();
    assert_eq!(sentences.len(), 6, "{sentences:?}");
    assert!(sentences[0].starts_with("1 request left out: "), "{sentences:?}");
    assert!(parse("5,a,1,1,1,get,0\n").expect("valid").facts.oddities.sentences().is_empty());
    // A head has no numbers, so nothing else is taken for one.
    for text in ["-1,a,1,1,1,get,0\n", "1.5,a,1,1,1,get,0\n", " 1,a,1,1,1,get,0\n"] {
        let error = parse(text).expect_err("refused");
        assert!(error.contains("line 1: ") && error.contains("a timestamp"), "{error}");
    }
}

/// Each file is valid in its own format, or a part of one that is.
#[test]
fn files_in_other_formats_are_refused() {
    let refused = |bytes: &[u8], words: &str| {
        let error = parse_bytes(bytes).map(|trace| trace.facts).expect_err(words);
        assert!(error.contains(words), "{words} in {error}");
    };
    refused(b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\x02\0!\x01\x16\0\0\0\x74\x2f\xe5\xa3", "xz");
    refused(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x33\xd0\x49\xd4\x31\xd4\x31\0\0\0\0\0\0\0", "gzip");
    refused(b"BZh91AY&SY", "bzip2");
    refused(b"\xff\xfe0\0,\0a\0", "UTF-16");
    refused(b"<!DOCTYPE html>\n<html>\n", "line 2: not seven fields");
    // The text without its mark, 24 bytes by 24.
    let utf16: Vec<u8> = b"0,a,1,1,1,get,0\n0,b,1,1,1,get,0\n0,c,1,1,1,get\n"
        .iter()
        .copied()
        .flat_map(|byte| [byte, 0])
        .collect();
    refused(&utf16[..72], "not in oracleGeneral format");
    // VSCSI: sequence number, bytes, segments, command, version, block, time; 32 bytes each. 96
    // bytes are four records of 24.
    let vscsi: Vec<u8> = (0..60_u64)
        .flat_map(|at| {
            let words = [at as u32, 4_096, 1, 0x0001_0028];
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.extend((42_932_745 + at * 17 % 5).to_le_bytes());
            bytes.extend((5_633_898_000 + at * 1_000).to_le_bytes());
            bytes
        })
        .collect();
    refused(&vscsi[..960], "not in oracleGeneral format");
    refused(&[0; 48], "not in oracleGeneral format");
}

/// A record that comes where none was announced, and an announced one that does not come.
#[test]
fn a_binary_trace_that_contradicts_itself_is_refused() {
    for (records, words) in [
        (vec![(1, 5, 9, -1), (1, 5, 9, -1)], "record 2: the record before of its object"),
        (vec![(1, 5, 9, 4), (1, 5, 9, -1)], "announces record 4"),
        (vec![(1, 5, 9, 2), (1, 6, 9, -1), (1, 7, 9, -1)], "record 2 is announced"),
        (vec![(1, 5, 9, 0)], "next record as 0"),
        (vec![(1, 5, 9, 1 << 40)], "next record as 1099511627776"),
    ] {
        let error = parse_bytes(&oracle(&records)).map(|_| ()).expect_err(words);
        assert!(error.contains(words), "{words} in {error}");
    }
    // Places count from 0 or from 1. A part of a trace is read, and said to be one.
    for next in [1, 2] {
        let whole = oracle(&[(1, 5, 9, next), (1, 5, 9, 77)]);
        let trace = parse_bytes(&whole).expect("valid");
        assert_eq!(trace.facts.oddities, Oddities { cut_objects: 1, ..Oddities::default() });
        assert!(trace.facts.oddities.sentences()[0].contains("the file is cut"));
    }
}

#[test]
fn a_compressed_trace_that_is_cut_or_twice_compressed_is_refused() {
    let read = |bytes: &[u8]| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("written");
        Trace::read(file.path(), 1.0, None).map(|trace| trace.facts.requests)
    };
    let text = (0..9_999).map(|at| format!("0,{at},4,9,1,get,0\n")).collect::<String>();
    let once = zstd::encode_all(text.as_bytes(), 1).expect("compressed");
    assert_eq!(read(&once), Ok(9_999));
    // A frame that is skipped, as parallel tools write it before the first one.
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], &once[..]].concat();
    assert_eq!(read(&skipped), Ok(9_999));
    assert!(read(&once[..once.len() - 10]).expect_err("cut").contains("incomplete"));
    let twice = zstd::encode_all(&once[..], 1).expect("compressed");
    assert!(read(&twice).expect_err("twice").contains("compressed twice"));
}
