//! The texts of a record as the store has them: sealed if there are keys, and long answers in
//! parts.

use std::sync::Arc;

use bytes::Bytes;

use crate::common::ids::CallId;
use crate::common::offload::Offload;
use crate::common::seal::{PLAIN_LEN_MAX, Purpose, Sealer};
use crate::config::Secret;
use crate::store::{Store, StoreError, StoredCall};

/// Longer texts are kept beside their record, in parts of this length.
const INLINE_LEN_MAX: usize = 1 << 20;
/// Separates these keys from other uses of the same secret.
const KEY_LABEL: &[u8] = b"trunkline kept calls 1\0";
/// A sealed text begins with this; arguments, results and problems are objects, and do not.
const SEALED: char = '~';
const PIECES: char = '.';

/// Seals and opens texts. Without keys, leaves them as they are.
pub(super) struct Vault {
    sealer: Option<Arc<Sealer>>,
    store: Store,
    offload: Offload,
}

/// The kind of a text, which a sealed one is bound to.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Arguments = 1,
    Answer = 2,
}

/// An answer as its record has it.
pub(super) struct StoredText {
    pub(super) inline: Option<String>,
    pub(super) parts: i64,
    /// The bytes that count for the tenant.
    pub(super) len: i64,
}

impl Vault {
    pub(super) fn new(keys: &[Secret], store: Store, offload: Offload) -> Self {
        let sealer = (!keys.is_empty()).then(|| Arc::new(Sealer::labelled(KEY_LABEL, keys)));
        Self { sealer, store, offload }
    }

    pub(super) async fn seal(&self, id: CallId, part: Part, text: String) -> String {
        let Some(sealer) = self.sealer.clone() else { return text };
        self.offload.run_if_long(text.len(), move || seal(&sealer, id, part, &text)).await
    }

    /// Returns `None` for a text that was sealed for another call, or by a key that is gone.
    pub(super) async fn open(&self, id: CallId, part: Part, text: String) -> Option<Bytes> {
        if !text.starts_with(SEALED) {
            return Some(Bytes::from(text));
        }
        let sealer = self.sealer.clone()?;
        self.offload.run_if_long(text.len(), move || open(&sealer, id, part, &text)).await
    }

    /// Prepares an answer for its record; writes a long one to the store.
    pub(super) async fn put_answer(
        &self,
        id: CallId,
        answer: &Bytes,
    ) -> Result<StoredText, StoreError> {
        let text = String::from_utf8_lossy(answer).into_owned();
        let sealed = self.seal(id, Part::Answer, text).await;
        let len = i64::try_from(sealed.len()).unwrap_or(i64::MAX);
        if sealed.len() <= INLINE_LEN_MAX {
            return Ok(StoredText { inline: Some(sealed), parts: 0, len });
        }
        let (mut parts, mut rest) = (0, sealed.as_str());
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(INLINE_LEN_MAX));
            self.store.put_result_part(id, parts, part).await?;
            (parts, rest) = (parts + 1, after);
        }
        Ok(StoredText { inline: None, parts, len })
    }

    /// Returns the answer of a record; `None` if it was evicted, or cannot be opened.
    pub(super) async fn answer(&self, record: &StoredCall) -> Result<Option<Bytes>, StoreError> {
        let text = match &record.result {
            Some(text) => Some(text.clone()),
            None if record.parts > 0 => self.store.result_parts(record.id, record.parts).await?,
            None => None,
        };
        match text {
            Some(text) => Ok(self.open(record.id, Part::Answer, text).await),
            None => Ok(None),
        }
    }
}

fn seal(sealer: &Sealer, id: CallId, part: Part, text: &str) -> String {
    let pieces = text.as_bytes().chunks(PLAIN_LEN_MAX);
    let (count, mut sealed) = (pieces.len(), String::from(SEALED));
    for (at, piece) in pieces.enumerate() {
        if at > 0 {
            sealed.push(PIECES);
        }
        sealed += &sealer.seal(Purpose::KeptCall, &context(id, part, at, count), piece);
    }
    sealed
}

fn open(sealer: &Sealer, id: CallId, part: Part, text: &str) -> Option<Bytes> {
    let pieces: Vec<_> = text.strip_prefix(SEALED)?.split(PIECES).collect();
    let mut whole = Vec::with_capacity(text.len() / 4 * 3);
    for (at, piece) in pieces.iter().enumerate() {
        let context = context(id, part, at, pieces.len());
        whole.extend(sealer.open(Purpose::KeptCall, &context, piece)?);
    }
    Some(Bytes::from(whole))
}

/// Binds a piece to its call, its kind and its place, so that pieces cannot be exchanged or lost.
fn context(id: CallId, part: Part, at: usize, count: usize) -> Vec<u8> {
    format!("{id} {} {at} {count}", part as u8).into_bytes()
}

#[cfg(test)]
#[path = "tests/storing.rs"]
mod tests;
