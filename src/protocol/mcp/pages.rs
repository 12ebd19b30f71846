//! Limits for lists that a server gives in pages.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

const PAGES_MAX: usize = 1_000;
/// Bytes of all pages of one list together.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// Counts the pages of one list.
#[derive(Debug, Default)]
pub struct Pages {
    len: usize,
    bytes: usize,
    /// Hashes of the cursors seen. Hashes, because a cursor can be as long as a whole answer.
    cursors: HashSet<u64>,
    hashing: RandomState,
}

impl Pages {
    /// Counts a page before anything of it is kept. Fails with the reason if the list is too large.
    pub fn count(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.len += 1;
        self.bytes += bytes;
        if self.bytes > BYTES_MAX { Err("its pages are over 32 MiB together") } else { Ok(()) }
    }

    /// Checks that the next page may be requested. Fails with the reason if not.
    pub fn follow(&mut self, cursor: &str) -> Result<(), &'static str> {
        if self.len >= PAGES_MAX {
            return Err("too many pages");
        }
        let is_new = self.cursors.insert(self.hashing.hash_one(cursor));
        if is_new { Ok(()) } else { Err("a page leads back to an earlier one") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_followed_until_there_are_too_many() {
        let mut pages = Pages::default();
        for page in 1..PAGES_MAX {
            assert_eq!((pages.count(1), pages.follow(&page.to_string())), (Ok(()), Ok(())));
        }
        assert_eq!((pages.count(1), pages.follow("next")), (Ok(()), Err("too many pages")));
    }

    #[test]
    fn a_page_that_leads_back_is_not_followed() {
        let mut pages = Pages::default();
        assert_eq!((pages.follow("a"), pages.follow("b")), (Ok(()), Ok(())));
        assert_eq!(pages.follow("a"), Err("a page leads back to an earlier one"));
    }

    #[test]
    fn pages_are_bounded_together() {
        let mut pages = Pages::default();
        assert_eq!((pages.count(BYTES_MAX / 2), pages.count(BYTES_MAX / 2)), (Ok(()), Ok(())));
        assert_eq!(pages.count(1), Err("its pages are over 32 MiB together"));
    }
}
