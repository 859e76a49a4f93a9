//! SCRAM-SHA-256, as the server: the client proves that it knows a password, without sending it.
//!
//! Upstream:   `sasl`, with the two messages of a client.
//! Downstream: `users` has the salted verifiers.
//!
//! ```text
//! client: n,,n=USER,r=NONCE                    server: r=NONCE SERVER_NONCE,s=SALT,i=ITERATIONS
//! client: c=biws,r=NONCE SERVER_NONCE,p=PROOF  server: v=SIGNATURE
//! ```
//!
//! `n,,` is the header, and `biws` is the header in base64. A client may also send `n,a=USER,`.
//!
//! Source: RFC 5802, RFC 7677.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr_iter;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::users::{
    HASH_BYTES, Hash, SCRAM_ITERATIONS, ScramKeys, ScramProof, Users, Verifier, keyed_hash,
};

/// A client that was sent the server's first message.
#[derive(Debug)]
pub(super) struct Challenge {
    /// The hash of the user's name.
    name: Hash,
    /// The client's first message without its header.
    client_first: Vec<u8>,
    /// The header of the client's first message, which its second one repeats in base64.
    header: Vec<u8>,
    /// Both nonces.
    nonce: Vec<u8>,
    /// The server's first message.
    server_first: Vec<u8>,
}

impl Challenge {
    /// Reads the client's first message. `None` if it is malformed, asks for channel binding or to
    /// act as another user. The server's nonce is the one with this `number`.
    pub(super) fn new(users: &Users, message: &[u8], number: u64) -> Option<Self> {
        let mut commas = memchr_iter(b',', message);
        let (first, second) = (commas.next()?, commas.next()?);
        let (header, bare) = message.split_at(second + 1);
        // `n`: the client supports no channel binding. `y`: it would, but thinks that we do not.
        if !matches!(&header[..first], b"n" | b"y") {
            return None;
        }
        let mut fields = bare.split(|byte| *byte == b',');
        let user = unescaped(fields.next()?.strip_prefix(b"n=")?)?;
        // Cyrus SASL, and so libmemcached, names the user here, too.
        let acts_as = &header[first + 1..second];
        if !acts_as.is_empty() && unescaped(acts_as.strip_prefix(b"a=")?)? != user {
            return None;
        }
        let client_nonce = fields.next()?.strip_prefix(b"r=")?;
        if client_nonce.is_empty() || !client_nonce.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let server_nonce = STANDARD.encode(users.nonce(number));
        let nonce = [client_nonce, server_nonce.as_bytes()].concat();
        let salt = STANDARD.encode(users.salt_of(&user));
        let text = format!(",s={salt},i={SCRAM_ITERATIONS}");
        let server_first = [b"r=", &nonce[..], text.as_bytes()].concat();
        debug_assert!(nonce.len() > client_nonce.len(), "a recorded proof fits no other nonce");
        debug_assert!(header.ends_with(b","), "the client signs what is behind the header");
        let (client_first, header) = (bare.to_vec(), header.to_vec());
        let name = users.name_of(&user);
        Some(Self { name, client_first, header, nonce, server_first })
    }

    /// A challenge of known parts: the client's first message without its header, the header, both
    /// nonces, and the server's first message.
    #[cfg(test)]
    pub(super) fn of_parts(parts: [&str; 4]) -> Self {
        let [client_first, header, nonce, server_first] =
            parts.map(|part| part.as_bytes().to_vec());
        Self { name: [0; HASH_BYTES], client_first, header, nonce, server_first }
    }

    /// The server's first message.
    pub(super) fn message(&self) -> &[u8] {
        &self.server_first
    }

    /// The hash of the name of the user who was challenged.
    pub(super) fn name(&self) -> &Hash {
        &self.name
    }

    /// Reads the client's second message, and checks its proof against the passwords of the user.
    /// Returns what was proved and the server's second message, or `None` if the proof is wrong,
    /// the user is unknown, or the message is malformed.
    pub(super) fn verify(
        &self,
        verifier: &Verifier,
        message: &[u8],
    ) -> Option<(ScramProof, Vec<u8>)> {
        debug_assert!(self.server_first.len() > self.nonce.len(), "the client was challenged");
        let proof_start = message.windows(3).rposition(|three| three == b",p=")?;
        let (without_proof, proof) = message.split_at(proof_start);
        let mut fields = without_proof.split(|byte| *byte == b',');
        let header = fields.next()?.strip_prefix(b"c=")?;
        let nonce = fields.next()?.strip_prefix(b"r=")?;
        let is_same = header == STANDARD.encode(&self.header).as_bytes() && nonce == self.nonce;
        let proof: [u8; HASH_BYTES] = STANDARD.decode(&proof[3..]).ok()?.try_into().ok()?;

        let signed = [&self.client_first, &b","[..], &self.server_first, b",", without_proof];
        let signed = signed.concat();
        // Each password is checked, so that the time does not tell which one it was.
        let mut proved = None;
        for keys in verifier {
            if bool::from(proves(keys, &proof, &signed)) && is_same {
                proved = Some(keys);
            }
        }
        let keys = proved?;
        let server_signature = keyed_hash(&keys.server_key, &[&signed]);
        let message = [b"v=", STANDARD.encode(server_signature).as_bytes()].concat();
        Some((ScramProof { name: self.name, stored_key: keys.stored_key }, message))
    }
}

/// Whether a proof is that of the password with these keys.
fn proves(keys: &ScramKeys, proof: &Hash, signed: &[u8]) -> Choice {
    let signature = keyed_hash(&keys.stored_key, &[signed]);
    let mut client_key = *proof;
    client_key.iter_mut().zip(signature).for_each(|(byte, mask)| *byte ^= mask);
    let stored_key: Hash = Sha256::digest(client_key).into();
    stored_key.ct_eq(&keys.stored_key) & keys.is_known
}

/// A name in which `=2C` stands for a comma and `=3D` for an equals sign. `None` for any other use
/// of an equals sign.
fn unescaped(name: &[u8]) -> Option<Vec<u8>> {
    let mut pieces = name.split(|byte| *byte == b'=');
    let mut text = pieces.next()?.to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2)?;
        text.push(match code {
            b"2C" => b',',
            b"3D" => b'=',
            _ => return None,
        });
        text.extend_from_slice(rest);
    }
    debug_assert!(text.len() <= name.len(), "a code is longer than its character");
    Some(text)
}
