use super::*;
use crate::common::offload::testing::is_offloaded;
use crate::common::offload::{LONG, Offload};

#[test]
fn only_a_long_page_is_offloaded() {
    let read = |len: usize| async move {
        let around = "{\"prompts\":[\"\"]}".len();
        let page = format!("{{\"prompts\":[\"{}\"]}}", "x".repeat(len - around));
        let list = Listing { items: vec![], caching: Caching::ANY, held: vec![] };
        let Ok((list, None)) = list.with_page(&Offload::new(), page.into(), KINDS[1]).await else {
            panic!("it is a page")
        };
        assert_eq!(list.items.len(), 1);
    };
    assert!(!is_offloaded(read(LONG)));
    assert!(is_offloaded(read(LONG + 1)));
}
