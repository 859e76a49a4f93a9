//! When a certificate expires.
//!
//! Upstream:   `certificates`, with the certificates of the server that were read.
//! Downstream: the statistics of TLS.
//!
//! ```text
//! Certificate: SEQUENCE
//!   TBSCertificate: SEQUENCE
//!     version [0]          may lack
//!     serialNumber         INTEGER
//!     signature, issuer    SEQUENCE, SEQUENCE
//!     validity             SEQUENCE of two times: not before, not after
//! ```
//!
//! rustls checks a certificate when it is used, but tells no times of it.
//!
//! Invariants:
//! - E1  A certificate that is not of this form has no expiry. Each element lies within the one
//!   around it.
//!
//! Source: RFC 5280, section 4.1; DER by ITU-T X.690.

/// Tags of DER.
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The most bytes of a length behind its first one. Certificates are shorter than 4 GiB.
const LENGTH_BYTES_MAX: usize = 4;

/// The Unix second after which a certificate is not valid. `None` if it cannot be told (E1).
pub(crate) fn expires_s(certificate: &[u8]) -> Option<u64> {
    let mut whole = certificate;
    let mut certificate = take(&mut whole, SEQUENCE)?;
    let mut signed = take(&mut certificate, SEQUENCE)?;
    let _version = take(&mut signed, VERSION);
    let _serial = take(&mut signed, INTEGER)?;
    let _signature = take(&mut signed, SEQUENCE)?;
    let _issuer = take(&mut signed, SEQUENCE)?;
    let mut validity = take(&mut signed, SEQUENCE)?;
    let _not_before = take_time(&mut validity)?;
    take_time(&mut validity)
}

/// Takes the first element of `from` if it has this tag, and returns its content.
fn take<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&[found, first], rest) = from.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let count = usize::from(first & 0x7F);
    let (length, rest) = match first {
        0..0x80 => (count, rest),
        _ if count <= LENGTH_BYTES_MAX => {
            let (length, rest) = rest.split_at_checked(count)?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some(content)
}

/// Takes a time: `YYMMDDHHMMSSZ` of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn take_time(from: &mut &[u8]) -> Option<u64> {
    let (text, year_digits) = match take(from, UTC_TIME) {
        Some(text) => (text, 2),
        None => (take(from, GENERALIZED_TIME)?, 4),
    };
    let (year, rest) = text.strip_suffix(b"Z")?.split_at_checked(year_digits)?;
    let year = match (number(year)?, year_digits) {
        (year @ 0..50, 2) => 2000 + year,
        (year, 2) => 1900 + year,
        (year, _) => year,
    };
    let (pairs, []) = rest.as_chunks::<2>() else { return None };
    let pairs: Vec<u64> = pairs.iter().map(|pair| number(pair)).collect::<Option<_>>()?;
    let [month @ 1..=12, day @ 1..=31, hour, minute, second] = pairs[..] else { return None };
    // A time of before 1970 is over, too.
    let days = days_to(year, month, day).unwrap_or(0);
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |sum, digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

/// The days from the first day of 1970 to a day. `None` if that comes before.
fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    // Years that begin in March, so that the leap day is the last one.
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    days.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("a name");
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_end_is_that_of_the_certificate_in_both_forms_of_times() {
        for (year, month, day, expires) in [
            (1970, 1, 1, 0),
            (2000, 2, 29, 951_782_400),
            (2026, 11, 27, 1_795_737_600),
            (2049, 12, 31, 2_524_521_600),
            (2050, 1, 1, 2_524_608_000),
            (2400, 3, 1, 13_574_649_600),
        ] {
            assert_eq!(expires_s(&certificate(year, month, day)), Some(expires), "{year}");
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_no_panic() {
        let whole = certificate(2030, 1, 1);
        for end in 0..whole.len() {
            let _cut = expires_s(&whole[..end]);
            for byte in [0, 0x7F, 0x80, 0x84, 0xFF] {
                let mut changed = whole.clone();
                changed[end] = byte;
                let _changed = expires_s(&changed); // E1
            }
        }
        assert_eq!(expires_s(&whole[..whole.len() - 1]), None);
        assert_eq!(expires_s(b""), None);
    }
}
