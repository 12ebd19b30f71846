//! Seals `requestState`, which a modern server wants back with the client's next request. It passes
//! through the client. Sealed, it is accepted only from the same tenant, with the same request,
//! before it expires.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::common::ids::TenantId;
use crate::common::seal::{PLAIN_LEN_MAX, Purpose, Sealer};

/// How long a client may take to come back: it may have to ask a person first.
const VALID_FOR: Duration = Duration::from_secs(60 * 60);
const EXPIRY_LEN: usize = 8;

/// Seals and opens the state of one request. Few requests need it, so nothing is computed before.
pub(crate) struct RequestState {
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) tenant: TenantId,
    pub(crate) server: String,
    pub(crate) method: &'static str,
    /// The tool, prompt or resource that the request names.
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: Option<Bytes>,
}

impl RequestState {
    fn digest(&self) -> Vec<u8> {
        let arguments = self.arguments.as_deref().map(without_space).unwrap_or_default();
        let tenant = self.tenant.unique_text();
        let texts = [&*tenant, &self.server, self.method, &self.name];
        let mut hash = Sha256::new();
        for part in texts.map(str::as_bytes).into_iter().chain([&*arguments]) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().to_vec()
    }

    /// Returns `None` if the state is too long.
    pub(crate) fn seal(&self, state: &str) -> Option<String> {
        let expiry = (now() + VALID_FOR).as_secs().to_be_bytes();
        let plain = [&expiry, state.as_bytes()].concat();
        (plain.len() <= PLAIN_LEN_MAX)
            .then(|| self.sealer.seal(Purpose::RequestState, &self.digest(), &plain))
    }

    /// Seals the place of a call that goes on until its client sends this request again.
    pub(crate) fn seal_call(&self, place: &[u8]) -> String {
        self.sealer.seal(Purpose::ParkedCall, &self.digest(), place)
    }

    /// Returns `None` if the text was not sealed for this request.
    pub(crate) fn open_call(&self, sealed: &str) -> Option<Vec<u8>> {
        self.sealer.open(Purpose::ParkedCall, &self.digest(), sealed)
    }

    /// Returns `None` if the text was not sealed for this request, or has expired.
    pub(crate) fn open(&self, sealed: &str) -> Option<String> {
        let plain = self.sealer.open(Purpose::RequestState, &self.digest(), sealed)?;
        let (expiry, state) = plain.split_first_chunk::<EXPIRY_LEN>()?;
        if u64::from_be_bytes(*expiry) < now().as_secs() {
            return None;
        }
        String::from_utf8(state.to_vec()).ok()
    }
}

/// Removes the space between the tokens of JSON. Any other difference counts, even between two
/// numbers of the same value.
fn without_space(json: &[u8]) -> Vec<u8> {
    let mut compact = Vec::with_capacity(json.len());
    let (mut in_text, mut is_escaped) = (false, false);
    for &byte in json {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' if !in_text => continue,
            b'"' if !is_escaped => in_text = !in_text,
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped;
        compact.push(byte);
    }
    compact
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(sealer: &Arc<Sealer>, tenant: &str, name: &str, arguments: &str) -> RequestState {
        RequestState {
            sealer: sealer.clone(),
            tenant: TenantId::testing(tenant),
            server: "std".to_owned(),
            method: "tools/call",
            name: name.to_owned(),
            arguments: Some(Bytes::copy_from_slice(arguments.as_bytes())),
        }
    }

    #[test]
    fn state_is_accepted_only_with_the_same_request_of_the_same_tenant() {
        let sealer = Arc::new(Sealer::random());
        let ours = state(&sealer, "acme", "deploy", r#"{"a":1,"b":2}"#);
        let sealed = ours.seal("where we were").unwrap();
        assert_eq!(ours.open(&sealed).as_deref(), Some("where we were"));
        let spaced = state(&sealer, "acme", "deploy", "{ \"a\":1,\n\"b\": 2 }");
        assert!(spaced.open(&sealed).is_some());
        for other in [
            state(&sealer, "other", "deploy", r#"{"a":1,"b":2}"#),
            state(&sealer, "acme", "destroy", r#"{"a":1,"b":2}"#),
            state(&sealer, "acme", "deploy", r#"{"a":1,"b":3}"#),
            state(&sealer, "acme", "deploy", r#"{"a":1,"b":2,"b":2}"#),
        ] {
            assert_eq!(other.open(&sealed), None);
        }
        assert_eq!(ours.open(&format!("{sealed}x")), None);
        assert_eq!(ours.seal(&"x".repeat(PLAIN_LEN_MAX)), None);
        // A server that writes what the gateway would has written a state all the same.
        let call = ours.seal_call(b"place");
        assert_eq!(ours.open_call(&call).as_deref(), Some(&b"place"[..]));
        assert_eq!((ours.open(&call), ours.open_call(&sealed)), (None, None));
        assert_eq!(state(&sealer, "other", "deploy", r#"{"a":1,"b":2}"#).open_call(&call), None);
    }
}
