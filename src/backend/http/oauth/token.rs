//! An access token, and how long it is good for.

use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

use crate::common::secret::Secret;

/// A token is renewed this long before its end, or after nine tenths of its life if that is later.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// A refused token that is younger is not replaced, unless other scopes are asked for: the server
/// would refuse the next one, too. Half of a short life counts as long.
const REPLACED_AFTER: Duration = Duration::from_secs(5);

/// An access token.
pub(crate) struct Token {
    pub(crate) secret: Secret,
    /// The value of `Authorization`; sensitive.
    pub(in crate::backend::http) header: HeaderValue,
    obtained: Instant,
    /// `None` if the authorization server did not say.
    pub(crate) expires: Option<Instant>,
    /// When the next one is asked for. `None` if there is no better one.
    pub(crate) due: Option<Instant>,
    /// Counts the tokens of a tenant's connection.
    pub(super) version: i64,
}

impl Token {
    pub(super) fn new(
        token: &Secret,
        obtained: Instant,
        life: Option<Duration>,
        version: i64,
    ) -> Self {
        let header = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let mut header = header.expect("tokens are graphic ASCII");
        header.set_sensitive(true);
        let expires = life.map(|life| obtained + life);
        let due = life.map(|life| obtained + life.saturating_sub(RENEW_BEFORE.min(life / 10)));
        Self { secret: token.clone(), header, obtained, expires, due, version }
    }

    /// Ends the token with the one it was given for. No other would be good for longer.
    pub(super) fn until(self, end: Instant) -> Self {
        match self.expires {
            Some(expires) if expires <= end => self,
            _ => Self { expires: Some(end), due: None, ..self },
        }
    }

    pub(super) fn is_valid(&self, now: Instant) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns whether another one may do if the server refuses this one.
    pub(super) fn is_replaceable(&self) -> bool {
        let life = self.expires.map(|expires| expires.saturating_duration_since(self.obtained));
        let after = life.map_or(REPLACED_AFTER, |life| REPLACED_AFTER.min(life / 2));
        self.obtained.elapsed() >= after
    }

    /// Returns whether it is time for the next one.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_ends_with_the_one_it_was_given_for() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let token = |life| Token::new(&Secret::new("t".to_owned()), now, life, 0);
        let own = token(Some(seconds(1000)));
        assert!(!own.is_due(now + seconds(939)) && own.is_due(now + seconds(940)));
        let shorter = token(Some(seconds(1000))).until(now + seconds(100));
        assert!(shorter.is_valid(now + seconds(99)) && !shorter.is_valid(now + seconds(100)));
        // The next one would end at the same time.
        assert!(!shorter.is_due(now + seconds(99)));
        let longer = token(Some(seconds(10))).until(now + seconds(100));
        assert!(!longer.is_valid(now + seconds(10)) && longer.is_due(now + seconds(9)));
        assert!(!token(None).until(now + seconds(100)).is_valid(now + seconds(100)));
    }
}
