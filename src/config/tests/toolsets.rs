//! `[toolsets.*]`.

use super::*;

fn toolset(settings: &str) -> String {
    format!("[servers.web]\ncommand = \"x\"\n[toolsets.a]\n{settings}\n")
}

#[test]
fn a_toolset_has_tools_and_changes_of_them() {
    let config = Setup::toml(&toolset(
        "tools = [\"web/fetch\", \"web/r*\"]\nsearch = true\n\
         [toolsets.a.override.\"web/fetch\"]\nname = \"read_page\"\n\
         arguments = { n = { fixed = [1, 2.5, \"x\"] }, b = { hidden = true } }\n\
         result = { max_bytes = \"64KiB\", pointer = \"/structuredContent/text\" }\n",
    ))
    .load();
    assert_eq!(config.warnings, [] as [&str; 0]);
    let toolset = config.toolsets.values().next().unwrap();
    let (server, tool, changes) = toolset.overrides().next().unwrap();
    assert_eq!((server, tool, changes.name.as_deref()), ("web", "fetch", Some("read_page")));
    assert_eq!(changes.arguments["n"].fixed, Some(serde_json::json!([1, 2.5, "x"])));
    assert_eq!(changes.result.max_bytes, Some(64 * 1024));
}

#[test]
fn mistakes_name_what_is_wrong() {
    let other = "[toolsets.a.override.\"web/fetch\"]\n";
    for (settings, part) in [
        ("tools = [\"a b\"]".to_owned(), "`toolsets.a.tools` must be a list of servers"),
        (String::new(), "`toolsets.a.tools` is missing"),
        (format!("tools = [\"web/x\"]\n{other}"), "`web/fetch`, which none of its `tools` selects"),
        (
            format!(
                "tools = [\"web\"]\n{other}name = \"x\"\n\
                 [toolsets.a.override.\"web/b\"]\nname = \"x\""
            ),
            "gives one name, `x`, to two tools: `web/b` and `web/fetch`",
        ),
        (
            format!("tools = [\"web/b\", \"web/fetch\"]\n{other}name = \"web__b\""),
            "gives one name, `web__b`, to two tools: `web/fetch` and `web/b`",
        ),
        (format!("tools = [\"web\"]\n{other}name = \"a b\""), "must be 1 to 64 characters"),
        (format!("tools = [\"web\"]\n{other}name = \"call_tool\""), "not `search_tools` or"),
        (
            format!("tools = [\"web\"]\n{other}result.pointer = \"text\""),
            "`toolsets.a.override.web/fetch.result.pointer` must be a JSON Pointer",
        ),
        (
            format!("tools = [\"web\"]\n{other}arguments.n = {{ fixed = 1, hidden = true }}"),
            "the argument `n` of `web/fetch` in two ways",
        ),
        (
            format!("tools = [\"web\"]\n{other}arguments.n.fixed = 2026-01-01"),
            "`toolsets.a.override.web/fetch.arguments.n.fixed` must be a value that JSON has",
        ),
        (
            "tools = [\"web\"]\n[toolsets.a.override.\"web/*\"]".to_owned(),
            "names no tool: write a server and a tool",
        ),
    ] {
        let error = Setup::toml(&toolset(&settings)).error();
        assert!(error.contains(part), "{settings}: {error}");
    }
}

#[test]
fn what_is_not_configured_is_warned_of() {
    let text = toolset("tools = [\"gone/x\", \"web\", \"*/y\"]");
    let text = format!("{text}[tenants.t]\nservers = [\"toolset:b\"]\n");
    let config = Setup::toml(&text).load();
    assert_eq!(
        config.warnings,
        [
            "`toolsets.a.tools` names `gone/x`, and there is no such server",
            "`tenants.t.servers` names the toolset `b`, and there is none",
        ]
    );
}
