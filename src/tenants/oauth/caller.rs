//! A caller's own token, after it was verified: servers that are called in the caller's name need
//! it, to be exchanged for one of theirs.

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::common::secret::Secret;

/// Goes to the identity provider that exchanges it, and to nobody else.
pub struct CallerToken {
    secret: Secret,
    hash: [u8; 32],
    /// When it ends.
    pub expires: Instant,
}

impl CallerToken {
    pub fn new(token: &str, expires: Instant) -> Self {
        let hash = Sha256::digest(token).into();
        Self { secret: Secret::new(token.to_owned()), hash, expires }
    }

    /// Returns the token, to be given to the identity provider alone.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns what tells this token from all others. Two tokens of one person may have different
    /// rights, so they are two.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }
}
