//! An update of a resource, as a server tells of it, and the resources that it is a part of.

use std::iter::once;

use super::mailbox::UpdateDetails;
use crate::protocol::jsonrpc::members::{Members, write_name};
use crate::protocol::mcp::meta;

/// The separators of a URI that are looked at. A server can write as many as it likes.
const SEPARATORS_MAX: usize = 64;
/// Longer parameters are cut down to the URI.
const DETAILS_LEN_MAX: usize = 16 * 1024;

pub(crate) struct Update<'a> {
    pub(crate) uri: &'a str,
    pub(crate) details: Option<UpdateDetails>,
}

impl<'a> Update<'a> {
    /// An update without anything but its URI.
    pub(crate) fn plain(uri: &'a str) -> Self {
        Self { uri, details: None }
    }

    /// Reads the `params` of an update of this resource.
    pub(crate) fn read(uri: &'a str, params: &str) -> Self {
        Self { uri, details: (params.len() <= DETAILS_LEN_MAX).then(|| details(params)).flatten() }
    }

    /// Returns the resources that contain this one, itself included: those whose URI ends before or
    /// after a separator of its own.
    pub(crate) fn containing(&self) -> impl Iterator<Item = &'a str> {
        let uri = self.uri;
        let separators = uri.match_indices(['/', '?', '#']).map(|(at, _)| at).take(SEPARATORS_MAX);
        once(uri).chain(separators.flat_map(|at| [&uri[..at], &uri[..=at]]))
    }
}

/// Returns the members of `params` beside the URI, if there are any. Ambiguous ones are left out.
fn details(params: &str) -> Option<UpdateDetails> {
    let members = Members::parse(params).ok()?;
    let mut details = UpdateDetails::default();
    for (name, value) in members.iter() {
        match name {
            "uri" => {}
            "_meta" => {
                let of_server = Members::parse(value.get()).ok()?;
                for (name, value) in of_server.iter().filter(|(it, _)| *it != meta::SUBSCRIPTION_ID)
                {
                    write_member(&mut details.meta, name, value.get());
                }
            }
            name => write_member(&mut details.others, name, value.get()),
        }
    }
    (details != UpdateDetails::default()).then_some(details)
}

fn write_member(out: &mut String, name: &str, value: &str) {
    out.push(',');
    write_name(out, name);
    out.push(':');
    out.push_str(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_a_part_of_those_that_end_at_its_separators() {
        let update = Update::plain("test://dir/a?b#c");
        let containing: Vec<_> = update.containing().collect();
        for uri in [
            "test://dir/a?b#c",
            "test://dir",
            "test://dir/",
            "test://dir/a",
            "test://dir/a?",
            "test://dir/a?b",
            "test://dir/a?b#",
        ] {
            assert!(containing.contains(&uri), "{uri}");
        }
        for uri in ["test://di", "test://dir/a?b#c/", "dir"] {
            assert!(!containing.contains(&uri), "{uri}");
        }
        let long = "/".repeat(1_000_000);
        assert_eq!(Update::plain(&long).containing().count(), 1 + 2 * SEPARATORS_MAX);
    }

    #[test]
    fn members_beside_the_uri_are_kept_but_for_the_gateways_own_subscription() {
        let params = r#"{"uri":"a","title":"A", "_meta":{"x/y":[1],
            "io.modelcontextprotocol/subscriptionId":7}}"#;
        let details = Update::read("a", params).details.unwrap();
        assert_eq!((&*details.others, &*details.meta), (r#","title":"A""#, r#","x/y":[1]"#));
        for plain in [
            r#"{"uri":"a"}"#,
            r#"{"uri":"a","_meta":{"io.modelcontextprotocol/subscriptionId":7}}"#,
            r#"{"uri":"a","_meta":{}}"#,
            r#"{"uri":"a","x":1,"x":2}"#,
        ] {
            assert_eq!(Update::read("a", plain).details, None, "{plain}");
        }
        let long = format!(r#"{{"uri":"a","x":"{}"}}"#, "y".repeat(DETAILS_LEN_MAX));
        assert_eq!(Update::read("a", &long).details, None);
    }
}
