//! Remembers which session a token opened, so that not every request has to open its token.
//!
//! An entry is no proof: the session must still be among the live ones, and belong to the caller.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Session;
use crate::common::ids::TenantId;
use crate::http::mcp::Scope;

const SHARDS: usize = 32;
/// The most tokens per shard. The token of a further session is opened for each of its requests,
/// which costs some microseconds.
const TOKENS_MAX: usize = 64;
/// The longest token that is remembered. Usual ones take some 300 bytes.
const TOKEN_LEN_MAX: usize = 1024;
/// The length of the end of a token that holds its seal, in characters of base64.
const END_LEN: usize = 22;

#[derive(Default)]
pub(super) struct OpenedTokens {
    /// By the ends of the tokens, which are their seals: hashing whole tokens costs more than all
    /// else here. In shards by their hash, so that callers do not share one lock.
    shards: [Mutex<HashMap<String, OpenedToken>>; SHARDS],
    hasher: RandomState,
}

struct OpenedToken {
    token: String,
    scope: Scope,
    session: Weak<Session>,
}

impl OpenedTokens {
    /// Returns the session of a token that was opened for this tenant at this endpoint, unless the
    /// token has expired.
    pub(super) fn get(
        &self,
        tenant: &TenantId,
        scope: &Scope,
        token: &str,
        now: u64,
    ) -> Option<Arc<Session>> {
        let shard = self.shard(token).lock();
        let opened = shard.get(end_of(token)).filter(|opened| opened.token == token)?;
        if opened.scope != *scope {
            return None;
        }
        let session = opened.session.upgrade()?;
        (session.tenant == *tenant && session.expires >= now).then_some(session)
    }

    pub(super) fn add(&self, scope: &Scope, token: &str, session: &Arc<Session>) {
        if token.len() > TOKEN_LEN_MAX {
            return;
        }
        let mut shard = self.shard(token).lock();
        if shard.len() >= TOKENS_MAX {
            shard.retain(|_, opened| opened.session.strong_count() > 0);
        }
        if shard.len() < TOKENS_MAX {
            let (scope, session) = (scope.clone(), Arc::downgrade(session));
            let opened = OpenedToken { token: token.to_owned(), scope, session };
            shard.insert(end_of(token).to_owned(), opened);
        }
    }

    /// Forgets the tokens of sessions that are no longer live.
    pub(super) fn sweep(&self) {
        for shard in &self.shards {
            shard.lock().retain(|_, opened| opened.session.strong_count() > 0);
        }
    }

    fn shard(&self, token: &str) -> &Mutex<HashMap<String, OpenedToken>> {
        &self.shards[self.hasher.hash_one(end_of(token)) as usize % SHARDS]
    }
}

fn end_of(token: &str) -> &str {
    token.get(token.len().saturating_sub(END_LEN)..).unwrap_or(token)
}
