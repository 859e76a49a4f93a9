//! A client that writes its own records of TLS 1.3: rustls pads none, and splits no message.
//!
//! The inner plain text of a record is its content, its type, and zeros (RFC 8446, 5.2). rustls
//! appends a type to what it encrypts, so content, type and zeros with the type 0 are a padded
//! record.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::cipher::{AeadKey, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::crypto::tls13::OkmBlock;
use rustls::{ContentType, KeyLog, ProtocolVersion};

/// The type of a record with a message of the handshake, or of its change.
pub(crate) const HANDSHAKE: u8 = 22;
/// The type of a record with data.
pub(crate) const DATA: u8 = 23;

/// The secrets of a client, by the names of the key log.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl Secrets {
    /// A forger with the keys of one of the secrets.
    pub(crate) fn forger(&self, label: &str) -> Forger {
        let secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Forger::new(secrets.get(label).expect("the handshake is that far"))
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.insert(label.to_string(), secret.to_vec());
    }
}

/// Writes records with the keys of a client.
pub(crate) struct Forger {
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Forger {
    fn new(secret: &[u8]) -> Self {
        let suite = TLS13_AES_256_GCM_SHA384.tls13().expect("TLS 1.3");
        let expander = suite.hkdf_provider.expander_for_okm(&OkmBlock::new(secret));
        // HKDF-Expand-Label (RFC 8446, 7.1): the length, the label, no context.
        let expand = |label: &[u8], output: &mut [u8]| {
            let length = (output.len() as u16).to_be_bytes();
            let label_length = [(6 + label.len()) as u8];
            let info: [&[u8]; 5] = [&length, &label_length, b"tls13 ", label, &[0]];
            expander.expand_slice(&info, output).expect("a short output");
        };
        let (mut key, mut iv) = ([0; 32], [0; 12]);
        expand(b"key", &mut key);
        expand(b"iv", &mut iv);
        let encrypter = suite.aead_alg.encrypter(AeadKey::from(key), Iv::new(iv));
        Self { encrypter, sequence: 0 }
    }

    /// A record with `content` and `padding` zeros behind its type.
    pub(crate) fn record(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        assert!(padding > 0, "the last zero is the type that rustls appends");
        let inner = [content, &[kind], &vec![0; padding - 1]].concat();
        let message = OutboundPlainMessage {
            typ: ContentType::Unknown(0),
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(&inner),
        };
        let record = self.encrypter.encrypt(message, self.sequence).expect("keys").encode();
        self.sequence += 1;
        record
    }
}
