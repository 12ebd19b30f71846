//! Names on the endpoint that combines all servers: the server's id comes first.
//!
//! A server's id has no `__` and does not end in `_`, so the first `__` of a name is the separator.
//! Clients and models accept tool names of at most 64 plain characters. A tool whose name does not
//! fit gets a shortened name that ends in a digest of the whole. To map an exposed tool name back,
//! look it up in the result of [`exposed_tool_names`], which keeps the order.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest tool name that common clients accept.
pub const EXPOSED_LEN_MAX: usize = 64;
const SEPARATOR: &str = "__";
/// Hexadecimal digits of the digest (40 bits), few enough to leave space for the name itself.
const DIGEST_LEN: usize = 10;
/// The scheme of resource URIs on the combined endpoint.
const RESOURCE_SCHEME: &str = "trunkline:";
/// Schemes that clients know resources by: these URIs keep theirs, and the server's id comes next.
const KEPT_SCHEMES: [&str; 2] = ["ui://", "skill://"];

/// Returns the exposed names of a server's tools, in the order of `tools`.
///
/// No two tools get the same name unless `tools` has duplicates, even if a server tries to cause
/// it. A name that fits is always kept; a tool that would be shortened to it gets another digest.
pub fn exposed_tool_names<'a>(server: &str, tools: impl Iterator<Item = &'a str>) -> Vec<String> {
    let tools: Vec<&str> = tools.collect();
    let mut exposed: Vec<String> = tools
        .iter()
        .map(|tool| if fits(server, tool) { join(server, tool) } else { String::new() })
        .collect();
    let mut misfits: Vec<usize> = (0..tools.len()).filter(|at| exposed[*at].is_empty()).collect();
    if misfits.is_empty() {
        return exposed;
    }
    let mut taken: HashSet<String> = exposed.iter().filter(|n| !n.is_empty()).cloned().collect();
    // Sorted by name, so that the names do not depend on the server's order.
    misfits.sort_by_key(|at| tools[*at]);
    for at in misfits {
        exposed[at] = (0..)
            .map(|attempt| shortened(server, tools[at], attempt))
            .find(|name| !taken.contains(name))
            .expect("there are more attempts than names");
        taken.insert(exposed[at].clone());
    }
    exposed
}

/// Returns the exposed name of a prompt, or of anything else without a length limit.
pub fn join(server: &str, name: &str) -> String {
    format!("{server}{SEPARATOR}{name}")
}

/// Splits an exposed name into the server and the rest.
pub fn split(exposed: &str) -> Option<(&str, &str)> {
    exposed.split_once(SEPARATOR).filter(|(server, _)| !server.is_empty())
}

/// Returns the exposed URI of a resource. The original URI follows unchanged, unless its scheme
/// must stay first.
pub fn resource_uri(server: &str, uri: &str) -> String {
    for scheme in KEPT_SCHEMES {
        if let Some(rest) = uri.strip_prefix(scheme) {
            return format!("{scheme}{server}/{rest}");
        }
    }
    format!("{RESOURCE_SCHEME}{server}/{uri}")
}

/// Splits an exposed URI into the server and the original URI.
pub fn split_resource_uri(uri: &str) -> Option<(&str, Cow<'_, str>)> {
    let kept = KEPT_SCHEMES.into_iter().find(|scheme| uri.starts_with(scheme));
    let (server, rest) = uri.strip_prefix(kept.unwrap_or(RESOURCE_SCHEME))?.split_once('/')?;
    let original = match kept {
        Some(scheme) => Cow::Owned(format!("{scheme}{rest}")),
        None => Cow::Borrowed(rest),
    };
    (!server.is_empty()).then_some((server, original))
}

fn fits(server: &str, tool: &str) -> bool {
    !tool.is_empty()
        && server.len() + SEPARATOR.len() + tool.len() <= EXPOSED_LEN_MAX
        && tool.chars().all(is_plain)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./-".contains(c)
}

/// Returns as much of the name as fits, and a digest of all of it.
fn shortened(server: &str, tool: &str, attempt: u32) -> String {
    let room = EXPOSED_LEN_MAX.saturating_sub(server.len() + SEPARATOR.len() + 1 + DIGEST_LEN);
    let readable: String =
        tool.chars().take(room).map(|c| if is_plain(c) { c } else { '_' }).collect();
    let mut digest = Sha256::new_with_prefix(tool);
    if attempt > 0 {
        // UTF-8 has no such byte, so no other tool's name continues like this.
        digest.update([0xff]);
        digest.update(attempt.to_be_bytes());
    }
    let mut name = format!("{server}{SEPARATOR}{readable}_");
    for byte in &digest.finalize()[..DIGEST_LEN / 2] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exposed(tools: &[&str]) -> Vec<String> {
        exposed_tool_names("files", tools.iter().copied())
    }

    #[test]
    fn names_that_fit_stay_readable() {
        let longest = "x".repeat(EXPOSED_LEN_MAX - "files__".len());
        assert_eq!(
            exposed(&["read", "a.b/c-d_e", "a__b", "_", &longest]),
            [
                "files__read",
                "files__a.b/c-d_e",
                "files__a__b",
                "files___",
                &format!("files__{longest}")
            ]
        );
    }

    #[test]
    fn names_that_do_not_fit_are_shortened_and_marked() {
        let long = "x".repeat(EXPOSED_LEN_MAX);
        let names = exposed(&["größe", "gr__e", &long, "", "a b"]);
        assert_eq!(names[0], "files__gr__e_d353a2671b");
        assert_eq!(names[1], "files__gr__e");
        assert_eq!(names[2].len(), EXPOSED_LEN_MAX);
        assert!(names[2].starts_with("files__xxxxxx"));
        assert_eq!(names[3], "files___e3b0c44298");
        assert!(names[4].starts_with("files__a_b_"));
    }

    #[test]
    fn a_tool_named_like_the_short_form_of_another_keeps_its_name() {
        let first = exposed(&["a b"]).remove(0);
        let (_, taken) = split(&first).unwrap();
        for tools in [["a b", taken], [taken, "a b"]] {
            let names = exposed(&tools);
            let of = |tool: &str| &names[tools.iter().position(|other| *other == tool).unwrap()];
            assert_eq!(of(taken), &first);
            assert!(of("a b").starts_with("files__a_b_") && of("a b") != &first);
        }
    }

    #[test]
    fn the_first_separator_splits() {
        assert_eq!(split("files__read"), Some(("files", "read")));
        assert_eq!(split("files____read"), Some(("files", "__read")));
        assert_eq!(split("my_files__a__b"), Some(("my_files", "a__b")));
        assert_eq!(split("files__"), Some(("files", "")));
        for name in ["read", "files_read", "__read", ""] {
            assert_eq!(split(name), None, "{name}");
        }
    }

    #[test]
    fn resource_uris_carry_the_original() {
        let uri = resource_uri("files", "file:///a/b?c#d");
        assert_eq!(uri, "trunkline:files/file:///a/b?c#d");
        assert_eq!(split_resource_uri(&uri), Some(("files", "file:///a/b?c#d".into())));
        for (own, exposed) in [
            ("ui://clock/page.html", "ui://files/clock/page.html"),
            ("skill://acme/refunds/SKILL.md", "skill://files/acme/refunds/SKILL.md"),
            ("ui://", "ui://files/"),
            // A scheme in other letters is another one to clients.
            ("UI://x", "trunkline:files/UI://x"),
        ] {
            assert_eq!(resource_uri("files", own), exposed);
            assert_eq!(split_resource_uri(exposed), Some(("files", own.into())));
        }
        // The long form works for these, too.
        assert_eq!(split_resource_uri("trunkline:a/ui://x"), Some(("a", "ui://x".into())));
        for uri in
            ["file:///a", "trunkline:files", "trunkline:/x", "Trunkline:files/x", "", "ui://x"]
        {
            assert_eq!(split_resource_uri(uri), None, "{uri}");
        }
    }

    fn server_id() -> impl Strategy<Value = String> {
        "[A-Za-z0-9][A-Za-z0-9-]{0,14}(_[A-Za-z0-9-]{1,15})?"
    }

    fn tool_name() -> impl Strategy<Value = String> {
        prop_oneof!["[ab_ é./-]{0,4}", ".{0,80}", "[a-z]{28,66}", "x{60,70}[é ]?"]
    }

    proptest! {
        #[test]
        fn names_and_uris_come_back(
            server in server_id(), name in "(ui://|skill://)?(.{0,20}|[_/:]{0,6})",
        ) {
            let joined = join(&server, &name);
            prop_assert_eq!(split(&joined), Some((&*server, &*name)));
            let uri = resource_uri(&server, &name);
            prop_assert_eq!(split_resource_uri(&uri), Some((&*server, name.as_str().into())));
        }

        /// Holds also for a server that knows how names are shortened and uses the short forms.
        #[test]
        fn no_two_tools_share_a_name(
            server in server_id(),
            tools in prop::collection::hash_set(tool_name(), 0..12),
            rounds in 0..3,
        ) {
            let mut tools: Vec<String> = tools.into_iter().collect();
            for _ in 0..rounds {
                let hostile = exposed_tool_names(&server, tools.iter().map(String::as_str));
                tools.extend(hostile.iter().map(|name| split(name).unwrap().1.to_owned()));
                tools.sort();
                tools.dedup();
            }
            let names = exposed_tool_names(&server, tools.iter().map(String::as_str));
            prop_assert_eq!(names.len(), tools.len());
            prop_assert_eq!(names.iter().collect::<HashSet<_>>().len(), tools.len());
            for name in &names {
                prop_assert!(name.len() <= EXPOSED_LEN_MAX, "{}", name);
                prop_assert!(name.chars().all(is_plain), "{}", name);
                prop_assert_eq!(split(name).unwrap().0, &*server);
            }
            tools.reverse();
            let mut backwards = exposed_tool_names(&server, tools.iter().map(String::as_str));
            backwards.reverse();
            prop_assert_eq!(names, backwards);
        }
    }
}
