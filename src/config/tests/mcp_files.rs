use super::*;

const FILES: &str = r#"{
  "theme": "dark",
  "mcpServers": {
    "files": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "files"],
      "env": { "TOKEN": "${TOKEN}" },
      "cwd": null,
      "autoApprove": ["read"]
    },
    "off": { "url": "http://x", "disabled": true }
  }
}"#;

#[test]
fn a_clients_file_adds_its_servers_with_our_defaults() {
    let config = Setup::empty().mcp(FILES).var("TOKEN", "t").load();
    assert_eq!(names(&config), ["files", "std"]);
    let files = program(&config, "files");
    assert_eq!(files.command, Path::new("npx"));
    assert_eq!(files.args, ["-y", "files"]);
    assert_eq!(variable(&config, "files", "TOKEN"), "t");
    assert_eq!((files.cwd.as_ref(), config.servers["files"].max_in_flight), (None, 64));
    assert_eq!(config.warnings, ["mcp.json:10: `autoApprove` of server `files` is not used"]);
}

#[test]
fn the_environment_reaches_its_servers_too() {
    let setup = Setup::empty().mcp(FILES).var("TOKEN", "t");
    let config = setup.var("TRUNKLINE_SERVERS__FILES__TIMEOUT", "5s").load();
    assert_eq!(config.servers["files"].timeout, Duration::from_secs(5));
}

#[test]
fn the_other_common_name_of_the_list_is_understood() {
    let config = Setup::empty().mcp(r#"{"servers": {"a": {"command": "x"}}}"#).load();
    assert_eq!(names(&config), ["a", "std"]);
}

#[test]
fn its_server_replaces_the_built_in_one_but_none_of_the_files() {
    let text = "{\"mcpServers\": {\n\"std\": {\"command\": \"x\"}}}";
    let config = Setup::empty().mcp(text).load();
    assert_eq!(program(&config, "std").command, Path::new("x"));
    assert_eq!(program(&config, "std").args, [""; 0]);

    let error = Setup::toml("\n[servers.std]\ncommand = \"y\"").mcp(text).error();
    assert_has(&error, &["mcp.json:2: server `std` is also at trunkline.toml:2"]);
}

#[test]
fn servers_over_http_are_taken_over_by_whatever_name() {
    for server in [
        r#""url": "http://x/mcp""#,
        r#""type": "http", "serverUrl": "http://x/mcp""#,
        r#""type": "streamable-http", "httpUrl": "http://x/mcp""#,
    ] {
        let server =
            format!(r#"{{{server}, "headers": {{"Authorization": "Bearer ${{TOKEN}}"}}}}"#);
        let setup = Setup::empty().mcp(&format!("{{\"mcpServers\": {{\"far\": {server}}}}}"));
        let config = setup.var("TOKEN", "t").load();
        let Transport::Http(far) = &config.servers["far"].transport else { panic!("a program") };
        assert_eq!(far.url.as_str(), "http://x/mcp");
        assert_eq!(far.headers["authorization"], Template::plain("Bearer t"));
    }
}

#[test]
fn transports_that_are_not_spoken_are_refused_with_a_way_on() {
    for server in [r#"{"type": "sse", "url": "http://x"}"#, r#"{"type": "ws", "command": "x"}"#] {
        let error = Setup::empty().mcp(&format!("{{\"mcpServers\":\n{{\"far\": {server}}}}}"));
        let error = error.error();
        assert_has(&error, &["mcp.json:2: server `far`", "stdio or Streamable HTTP"]);
        assert_has(&error, &["remove it", "\"disabled\": true"]);
    }
}

#[test]
fn mistakes_are_shown_with_file_and_line() {
    let cases = [
        ("{\n\"mcpServers\": {,}}", "mcp.json:2: not valid JSON: "),
        ("", "mcp.json:1: not valid JSON: "),
        ("{}", "mcp.json:1: no `mcpServers` in it; the file should look like {\"mcpServers\": "),
        ("[]", "mcp.json:1: no `mcpServers` in it"),
        ("{\"mcpServers\": 1}", "mcp.json:1: `mcpServers` must be a table, and it is a number"),
        ("{\"mcpServers\": {\n\"a\": 1}}", "mcp.json:2: `mcpServers.a` must be a table"),
        ("{\"mcpServers\": {\n\"a b\": {}}}", "mcp.json:2: `a b` is not a valid server id"),
        ("{\"mcpServers\": {\n\"a\": {}}}", "mcp.json:2: `servers.a.command` is missing"),
        (
            "{\"mcpServers\": {\"a\": {\n\"command\": 1}}}",
            "mcp.json:2: `servers.a.command` must be",
        ),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\",\n\"args\": [null]}}}",
            "mcp.json:2: `servers.a.args` must be a list of texts, such as [\"--verbose\"], \
             and item 1 is null",
        ),
        ("{\"mcpServers\": {\"a\": {\n\"disabled\": 1}}}", "mcp.json:2: `mcpServers.a.disabled` "),
    ];
    for (text, start) in cases {
        let error = Setup::empty().mcp(text).error();
        assert!(error.starts_with(start), "{error}");
    }
    let mut setup = Setup::empty();
    setup.sources.mcp_file = Some("gone.json".into());
    assert_has(&setup.error(), &["cannot read gone.json: "]);
}

#[test]
fn a_file_of_brackets_is_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_has(&Setup::empty().mcp(&deep).error(), &["recursion limit"]);
}
