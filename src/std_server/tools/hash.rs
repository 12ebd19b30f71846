//! `hash`: the SHA-2 digest of a text.

use std::fmt::Write;

use serde_json::json;
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::{Called, Outcome, ToolSpec};
use crate::std_server::tools::arguments::Misfit;

pub(super) const HASH: ToolSpec = ToolSpec {
    name: "hash",
    title: "Hash",
    description: "Computes the SHA-2 hash of a text's UTF-8 bytes, in lower-case hexadecimal.",
    required: &["algorithm", "text"],
    optional: &[],
    properties: || {
        json!({
            "algorithm": {"type": "string", "enum": ["sha256", "sha384", "sha512"]},
            "text": {"type": "string", "description": "The text to hash"},
        })
    },
    output: Some(|| json!({"algorithm": {"type": "string"}, "hex": {"type": "string"}})),
    run: |arguments| {
        let text = arguments.text("text")?;
        let algorithm = arguments.text("algorithm")?;
        let hex = match algorithm.as_ref() {
            "sha256" => hex(&Sha256::digest(text.as_bytes())),
            "sha384" => hex(&Sha384::digest(text.as_bytes())),
            "sha512" => hex(&Sha512::digest(text.as_bytes())),
            _ => {
                let why = "`algorithm` must be one of `sha256`, `sha384` and `sha512`";
                return Err(Misfit(why.to_owned()));
            }
        };
        Ok(Called::Done(Outcome::structured(json!({"algorithm": algorithm, "hex": hex}))))
    },
};

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(2 * digest.len()), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard() {
        for (algorithm, hex) in [
            ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "sha384",
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
                 8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                "sha512",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ] {
            let outcome = outcome("hash", &json!({"algorithm": algorithm, "text": "abc"}));
            assert_eq!(outcome.structured.unwrap(), json!({"algorithm": algorithm, "hex": hex}));
        }
    }

    #[test]
    fn other_algorithms_are_refused_with_the_known_ones() {
        let outcome = outcome("hash", &json!({"algorithm": "md5", "text": "abc"}));
        assert!(outcome.is_error && outcome.text.contains("`sha256`"), "{outcome:?}");
    }
}
