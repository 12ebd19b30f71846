//! A list as clients get it: rendered once, in pages that are sent without a copy.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::Hasher;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use siphasher::sip::SipHasher;

use crate::protocol::mcp::results::Caching;

/// A page ends at either.
const PAGE_ITEMS: usize = 1000;
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// A complete list, in JSON.
pub(crate) struct RenderedList {
    pages: Vec<Page>,
    fingerprint: String,
    pub(crate) caching: Caching,
}

struct Page {
    /// The index of its first item.
    start: usize,
    /// An object with the items, left open: `{"tools":[…]`.
    json: Bytes,
}

impl RenderedList {
    /// Renders items, which are JSON, in pages with cursors.
    pub(crate) fn paged(member: &str, items: &[impl AsRef<str>], caching: Caching) -> Self {
        Self::render(member, items, caching, PAGE_ITEMS, PAGE_BYTES)
    }

    /// Renders items, which are JSON, in one page.
    pub(crate) fn whole(member: &str, items: &[impl AsRef<str>], caching: Caching) -> Self {
        Self::render(member, items, caching, usize::MAX, usize::MAX)
    }

    fn render(
        member: &str,
        items: &[impl AsRef<str>],
        caching: Caching,
        items_max: usize,
        bytes_max: usize,
    ) -> Self {
        let fingerprint = fingerprint(items);
        let (mut pages, mut start) = (vec![], 0);
        loop {
            let mut len = 0;
            let fits = items[start..].iter().take(items_max).take_while(|item| {
                len += item.as_ref().len() + 1;
                len <= bytes_max
            });
            // An item that is larger than a page has one for itself.
            let end = items.len().min(start + fits.count().max(1));
            let len: usize = items[start..end].iter().map(|item| item.as_ref().len() + 1).sum();
            let mut json = String::with_capacity(len + member.len() + fingerprint.len() + 48);
            json += &format!("{{\"{member}\":[");
            for (index, item) in items[start..end].iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                json += item.as_ref();
            }
            json.push(']');
            if end < items.len() {
                json += &format!(",\"nextCursor\":\"{end}-{fingerprint}\"");
            }
            pages.push(Page { start, json: json.into() });
            start = end;
            if end == items.len() {
                return Self { pages, fingerprint, caching };
            }
        }
    }

    /// Returns the first page, or the one after a cursor: an object that is left open. A cursor is
    /// valid only for the list it was made for.
    pub(crate) fn page(&self, cursor: Option<&str>) -> Option<Bytes> {
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let (start, fingerprint) = cursor.split_once('-')?;
                start.parse().ok().filter(|_| fingerprint == self.fingerprint)?
            }
        };
        self.pages.iter().find(|page| page.start == start).map(|page| page.json.clone())
    }

    /// Returns the memory that it takes, roughly.
    pub(crate) fn len(&self) -> usize {
        self.pages.iter().map(|page| page.json.len()).sum()
    }
}

fn fingerprint(items: &[impl AsRef<str>]) -> String {
    let mut hash = SipHasher::new();
    for item in items {
        hash.write(item.as_ref().as_bytes());
        hash.write_u8(0);
    }
    format!("{:x}", hash.finish())
}

/// A body of several pieces, whose length is known.
struct Pieces(VecDeque<Bytes>);

/// Returns a body of several pieces that are not copied together.
pub(crate) fn body_of(pieces: impl IntoIterator<Item = Bytes>) -> Body {
    Body::new(Pieces(pieces.into_iter().filter(|piece| !piece.is_empty()).collect()))
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_cut_into_pages_that_follow_each_other() {
        let items: Vec<String> = (0..7).map(|n| format!("{{\"n\":{n}}}")).collect();
        let list = RenderedList::render("tools", &items, Caching::ANY, 3, usize::MAX);
        let mut cursor: Option<String> = None;
        let mut seen = vec![];
        loop {
            let page = list.page(cursor.as_deref()).unwrap();
            let page = format!("{}}}", std::str::from_utf8(&page).unwrap());
            let page: serde_json::Value = serde_json::from_str(&page).unwrap();
            let tools = page["tools"].as_array().unwrap();
            assert!(tools.len() <= 3);
            seen.extend(tools.iter().map(|tool| tool["n"].as_u64().unwrap()));
            let Some(next) = page.get("nextCursor") else { break };
            cursor = next.as_str().map(str::to_owned);
        }
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
        let other = RenderedList::render("tools", &items[1..], Caching::ANY, 3, usize::MAX);
        assert!(other.page(cursor.as_deref()).is_none());
        assert!(list.page(Some("2-x")).is_none());
    }

    #[test]
    fn a_page_ends_at_its_bytes_and_holds_one_item_at_least() {
        let items = ["\"aaaa\"", "\"bb\"", "\"cc\"", "\"d\""];
        let list = RenderedList::render("x", &items, Caching::ANY, 9, 10);
        let pages: Vec<_> = list.pages.iter().map(|page| page.start).collect();
        assert_eq!(pages, [0, 1, 3]);
        let tiny = RenderedList::render("x", &items, Caching::ANY, 9, 1);
        assert_eq!(tiny.pages.len(), 4);
        let none = RenderedList::paged("x", &[] as &[&str], Caching::ANY);
        assert_eq!(none.page(None).unwrap(), "{\"x\":[]");
    }
}
