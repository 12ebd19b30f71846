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

    let config = Setup::toml("\n[servers.std]\ncommand = \"y\"").mcp(text).load();
    assert_eq!(program(&config, "std").command, Path::new("y"));
    assert_has(
        &config.warnings.join("\n"),
        &["mcp.json:2: server `std` is left out, since there is one at trunkline.toml:2: rename"],
    );
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

/// Returns the ids and mistakes of the servers that are left out.
fn left_out(config: &Config) -> Vec<(&str, &str)> {
    let mut left_out = vec![];
    for server in &config.left_out {
        left_out.push(match &server.reason {
            LeftOutReason::Invalid(mistake) => (server.id.as_str(), mistake.as_str()),
            LeftOutReason::Disabled => (server.id.as_str(), "disabled"),
        });
    }
    left_out.sort_unstable();
    left_out
}

#[test]
fn one_bad_entry_is_left_out_and_the_others_start() {
    let text = r#"{"mcpServers": {
        "bad": {"type": "ws", "command": "x"},
        "worse": {"command": 1, "args": "x"},
        "unset": {"command": "x", "env": {"A": "${GONE}", "B": "${env:GONE_TOO}"}},
        "off": {"disabled": true},
        "good": {"command": "x"}
    }}"#;
    let config = Setup::empty().mcp(text).load();
    assert_eq!(names(&config), ["good", "std"]);
    let left_out = left_out(&config);
    assert_eq!(
        left_out[0],
        ("bad", "mcp.json:2: `mcpServers.bad.type` must be \"stdio\", \"http\" or \"sse\"")
    );
    assert_eq!(left_out[1], ("off", "disabled"));
    assert_has(left_out[2].1, &["`servers.unset.env.A` must be", "`GONE`, which is not set"]);
    assert_has(left_out[2].1, &["`servers.unset.env.B` must be", "`GONE_TOO`, which is not set"]);
    assert_has(left_out[3].1, &["mcp.json:3: `servers.worse.command` must be the program"]);
    assert_has(left_out[3].1, &["; mcp.json:3: `servers.worse.args` must be a list of texts"]);
    assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
    assert_has(&config.warnings[0], &["server `bad` is left out: mcp.json:2: "]);
}

#[test]
fn a_key_that_is_misspelt_is_told_with_what_was_meant() {
    let config = Setup::empty().mcp(r#"{"mcpServers": {"a": {"comand": "x"}}}"#).load();
    let told = "mcp.json:1: `comand` of server `a` is not used; did you mean `command`?";
    assert!(config.warnings.iter().any(|it| it == told), "{:?}", config.warnings);
}

#[test]
fn mistakes_are_shown_with_file_and_line() {
    let cases = [
        ("{\n\"mcpServers\": {;}}", "mcp.json:2: not valid JSON: "),
        ("", "mcp.json:1: not valid JSON: "),
        ("{}", "mcp.json:1: no `mcpServers` in it; the file should look like {\"mcpServers\": "),
        ("[]", "mcp.json:1: no `mcpServers` in it"),
        ("{\"mcpServers\": 1}", "mcp.json:1: `mcpServers` must be a table, and it is an integer"),
    ];
    for (text, start) in cases {
        let error = Setup::empty().mcp(text).error();
        assert!(error.starts_with(start), "{error}");
    }
    let cases = [
        ("{\"mcpServers\": {\n\"a\": 1}}", "mcp.json:2: `mcpServers.a` must be a table"),
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
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\",\n\"envFile\": \"gone\"}}}",
            "mcp.json:2: `mcpServers.a.envFile` names the file ",
        ),
    ];
    for (text, start) in cases {
        let config = Setup::empty().mcp(text).load();
        assert!(left_out(&config)[0].1.starts_with(start), "{:?}", config.left_out);
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
