//! The client's side of SCRAM-SHA-256.
//!
//! Upstream:   tests that log in.
//! Downstream: none. It shares no code with the server's side in `net`.
//!
//! Source: RFC 5802, RFC 7677.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The client's nonce.
const NONCE: &str = "abc";

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    hash.update(text);
    hash.finalize().into_bytes().into()
}

/// The client's first message. In `user`, `=2C` stands for a comma and `=3D` for an equals sign.
pub fn scram_first(user: &str) -> Vec<u8> {
    format!("n,,n={user},r={NONCE}").into_bytes()
}

/// The client's second message, after the first one of [`scram_first`] and the server's first one.
///
/// # Panics
/// If `server_first` is no such message.
pub fn scram_proof(user: &str, password: &str, server_first: &[u8]) -> Vec<u8> {
    scram_proof_with("n,,", user, password, server_first)
}

/// As [`scram_proof`], after a first message with this header.
///
/// # Panics
/// As [`scram_proof`].
pub fn scram_proof_with(header: &str, user: &str, password: &str, server_first: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(server_first).expect("text");
    let field =
        |name: &str| text.split(',').find_map(|field| field.strip_prefix(name)).expect("a field");
    let salt = STANDARD.decode(field("s=")).expect("base64");
    let iterations = field("i=").parse().expect("a number");
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, iterations, &mut salted);
    let client_key = hmac(&salted, b"Client Key");
    let without_proof = format!("c={},r={}", STANDARD.encode(header), field("r="));
    let signed = format!("n={user},r={NONCE},{text},{without_proof}");
    let signature = hmac(&Sha256::digest(client_key), signed.as_bytes());
    let proof: Vec<u8> = client_key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
    format!("{without_proof},p={}", STANDARD.encode(proof)).into_bytes()
}
