use super::*;

#[test]
fn a_mistake_is_shown_with_file_line_key_and_what_is_allowed() {
    let server = "\n[servers.std]\ncommand = \"x\"\n";
    let cases: &[(&str, &str, &[&str])] = &[
        ("listen = 8080", "1: `listen` ", &["such as \"127.0.0.1:8080\"", "8080"]),
        ("listen = \"host:80\"", "1: `listen` ", &["\"host:80\"", "only localhost"]),
        ("\nlisten", "2: not valid TOML", &["expected"]),
        ("\nmax_bdy = 1", "2: unknown key `max_bdy`; did you mean `max_body`?", &[]),
        ("lisen = \"x\"", "1: unknown key `lisen`; did you mean `listen`?", &[]),
        ("colour = 1", "1: unknown key `colour`, ", &["one of `listen`", "`max_body`"]),
        (
            "anonymous_tenant = \"a\"",
            "1: unknown key `anonymous_tenant`: `anonymous_tenant` belongs under `[auth]`",
            &[],
        ),
        (
            "[servers.x]\ncommand = npx",
            "2: not valid TOML: a text needs quotes: write `command = \"…\"`",
            &[],
        ),
        ("[sevrers.x]", "1: unknown key `sevrers`; did you mean `servers`?", &[]),
        ("[defaults]\npass_env = [\"A B\"]", "2: `defaults.pass_env` ", &["item 1 is \"A B\""]),
        ("max_body = \"1 cup\"", "1: `max_body` ", &["\"1 cup\"", "KiB, MiB or GiB"]),
        ("drain_timeout = \"0s\"", "1: `drain_timeout` ", &["longer than 0s"]),
        (
            "allowed_origins = \"x\"",
            "1: `allowed_origins` ",
            &["[\"https://app.example\"]", "a text"],
        ),
        ("allowed_origins = [\"*\"]", "1: `allowed_origins` ", &["no wildcard", "item 1 is \"*\""]),
        ("allowed_origins = [\"https://a/b\"]", "1: `allowed_origins` ", &["nothing after it"]),
        ("allowed_origins = [\"ftp://a\"]", "1: `allowed_origins` ", &["http or https", "ftp://a"]),
        ("allowed_hosts = [1]", "1: `allowed_hosts` ", &["item 1 is 1"]),
        ("allowed_hosts = [\"http://a\"]", "1: `allowed_hosts` ", &["item 1 is \"http://a\""]),
        ("auth = 1", "1: `auth` must be a table", &["an integer"]),
        ("[auth]\nkeys = 1", "2: unknown key `auth.keys`: `keys` belongs under `[secrets]`", &[]),
        ("[auth]\nanonymous_tenant = \"a b\"", "2: `auth.anonymous_tenant` ", &["\"a b\"", "A-Z"]),
        ("[auth]\nhash_key = \"x\"", "2: `auth.hash_key` ", &["at least 32", "it has 1 character"]),
        ("[store]\nurl = \"x:pw@y\"", "2: `store.url` ", &["\"sqlite://trunkline.db\" or"]),
        ("[limits]\nshared = \"x\"", "2: `limits.shared` ", &["redis://127.0.0.1:6379"]),
        ("[tenants.'a b']", "1: `a b` is not a valid tenant id", &["A-Z"]),
        ("[tenants.a]\nrate = \"1/m\"", "2: `tenants.a.rate` ", &["\"1/m\"", "such as \"100/s\""]),
        ("[tenants.a]\nrate = 5", "2: `tenants.a.rate` ", &["such as \"100/s\"", "it is 5"]),
        ("[tenants.a]\nburst = 5", "1: `tenants.a`: `burst` ", &["there is no `rate`"]),
        ("[tenants.a]\nweight = 101", "2: `tenants.a.weight` ", &["from 1 to 100", "101"]),
        ("[tenants.a]\nservers = [\"a b\"]", "2: `tenants.a.servers` ", &["`search/query`"]),
        (
            "[tenants.a]\nlimits.\"a b\" = {}",
            "2: `tenants.a.limits.a b` ",
            &["`a b` is not a pattern"],
        ),
        ("[tenants.a]\nlimits.std = {}", "1: `tenants.a`: ", &["`std` limits nothing"]),
        ("servers = []", "1: `servers` must be a table", &["a list"]),
        ("[servers.'a b']\ncommand = \"x\"", "1: `a b` is not a valid server id", &["A-Z"]),
        ("[servers.x]\nargs = []", "1: `servers.x.command` is missing", &["such as \"npx\""]),
        (
            "[servers.x]\ncommand = \"\"",
            "2: `servers.x.command` must be the program",
            &["it is \"\""],
        ),
        ("[servers.x]\nurl = \"http://\"", "2: `servers.x.url` ", &["http or https", "it is none"]),
        (
            "[servers.x]\nurl = \"localhost:3000/mcp\"",
            "2: `servers.x.url` ",
            &["and it has no scheme: write `http://` or `https://` in front"],
        ),
        ("[servers.x]\nurl = \"ftp://x\"", "2: `servers.x.url` ", &["begins with `ftp:`"]),
        ("[servers.x]\nurl = \"http://a:b@x\"", "2: `servers.x.url` ", &["into `headers`"]),
        ("[servers.x]\nurl = \"http://x\"\ncommand = \"x\"", "2: `servers.x` ", &["give one"]),
        ("[servers.x]\nurl = \"http://x\"\nargs = []", "3: `servers.x.args` ", &["has a `url`"]),
        (
            "[servers.x]\nurl = \"http://x\"\nheaders.Host = \"y\"",
            "3: `servers.x.headers.Host` ",
            &["sets itself"],
        ),
        (
            "[servers.x]\ncommand = \"x\"\nenv.K = \"${secret:T}\"",
            "1: `servers.x` ",
            &["`T`", "sharing = \"tenant\""],
        ),
        (
            "[servers.x]\ncommand = \"x\"\nexclusive = true\ninstances = 2",
            "1: `servers.x` ",
            &["`exclusive = true`", "`instances = 2`", "set `instances = 1`"],
        ),
        (
            "[servers.x]\ncommand = \"x\"\nmax_deadline = \"5s\"",
            "1: `servers.x` ",
            &["`max_deadline` of 5s", "less than its `timeout` of 30s", "set `timeout`"],
        ),
        (
            "[servers.x]\ncommand = \"x\"\nmax_timeout = \"5s\"",
            "1: `servers.x` ",
            &["`max_timeout` of 5s", "less than its `timeout` of 30s", "set `timeout`"],
        ),
    ];
    for (text, start, parts) in cases {
        let error = Setup::toml(text).error();
        assert_has(&error, &[&format!("trunkline.toml:{start}")]);
        assert_has(&error, parts);
    }
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "max_inflight = 1",
            "unknown key `servers.std.max_inflight`",
            &["did you mean `max_in_flight`?"],
        ),
        ("max_in_flight = 0", "`servers.std.max_in_flight` ", &["1 to 10000", "it is 0"]),
        ("timeout = \"30 parsecs\"", "`servers.std.timeout` ", &["ms, s, min or h", "\"30s\""]),
        ("start_timeout = \"25h\"", "`servers.std.start_timeout` ", &["at most \"24h\""]),
        ("start = \"soon\"", "`servers.std.start` ", &["\"eager\" or \"lazy\""]),
        ("instances = 0", "`servers.std.instances` ", &["from 1 to 64"]),
        ("instances = 65", "`servers.std.instances` ", &["from 1 to 64", "it is 65"]),
        ("sharing = \"all\"", "`servers.std.sharing` ", &["\"tenant\" or \"session\""]),
        ("rate = 20", "`servers.std.rate` ", &["such as \"100/s\""]),
        ("retry = true", "`servers.std.retry` ", &["\"never\" or \"safe\""]),
        ("pin = 1", "`servers.std.pin` ", &["true or false"]),
        ("recycle = { cals = 1 }", "unknown key `servers.std.recycle.cals`", &["`calls`"]),
        ("limits = { files = 0 }", "`servers.std.limits.files` ", &["from 1"]),
        ("sandbox = { connect = [0] }", "`servers.std.sandbox.connect` ", &["such as [443]"]),
        ("max_sessions = 0", "`servers.std.max_sessions` ", &["1 to 10000", "it is 0"]),
        ("idle_timeout = \"0s\"", "`servers.std.idle_timeout` ", &["longer than 0s"]),
        ("args = \"x\"", "`servers.std.args` ", &["list of texts", "a text"]),
        ("args = [\"x\", 2]", "`servers.std.args` ", &["item 2 is an integer"]),
        ("cwd = 1", "`servers.std.cwd` ", &["must be a text"]),
        ("env = { K = 1 }", "`servers.std.env.K` ", &["must be a text", "an integer"]),
        ("env = { '' = \"x\" }", "`servers.std.env.` ", &["not a variable's name"]),
        ("headers = {}", "`servers.std.headers` is for servers that have a `url`", &[]),
        ("init_timeout = \"5s\"", "`servers.std.init_timeout` is for servers", &[]),
    ];
    for (line, start, parts) in cases {
        let error = Setup::toml(&format!("{server}{line}")).error();
        assert!(!error.contains('\n'), "{error}");
        assert_has(&error, &[&format!("trunkline.toml:4: {start}")]);
        assert_has(&error, parts);
    }
}

#[test]
fn beyond_this_machine_callers_without_a_key_must_be_asked_for() {
    let error = Setup::empty().listen("0.0.0.0:8080").error();
    assert_has(&error, &["[auth]", "anonymous_tenant = \"local\"", "0.0.0.0:8080"]);
    assert_has(&error, &["TRUNKLINE_AUTH__ANONYMOUS_TENANT=local"]);
    assert!(!error.contains('\n') && !error.contains("  "), "{error}");

    Setup::empty().listen("[::1]:8080").load();
    Setup::empty().listen("[::ffff:127.0.0.1]:8080").load();
    Setup::toml("[servers.a]\ncommand = \"cat\"\n").listen("0.0.0.0:8080").load();
    Setup::toml("[auth]\nanonymous_tenant = \"local\"").listen("0.0.0.0:8080").load();
    let setup = Setup::empty().listen("0.0.0.0:8080");
    setup.var("TRUNKLINE_AUTH__ANONYMOUS_TENANT", "local").load();
    let setup = Setup::empty().listen("0.0.0.0:8080");
    setup.var("TRUNKLINE_AUTH", "{ anonymous_tenant = \"local\" }").load();
}

#[test]
fn all_mistakes_of_a_file_are_told_in_one_run() {
    let error = Setup::toml(
        "lisen = \"x\"\nmax_body = \"1 cup\"\n[auth]\nhash_key = \"x\"\n\
         [tenants.a]\nrate = \"1/m\"\nweight = 0\n\
         [servers.x]\nargs = \"-y\"\ntimeot = \"3s\"\n[servers.y]\nurl = \"x\"\n",
    )
    .error();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 10, "{error}");
    assert_eq!(lines[0], "9 mistakes");
    for (line, start) in lines[1..].iter().zip([
        "1: unknown key `lisen`; did you mean `listen`?",
        "2: `max_body` must be ",
        "4: `auth.hash_key` must be ",
        "6: `tenants.a.rate` must be ",
        "7: `tenants.a.weight` must be ",
        "8: `servers.x.command` is missing: ",
        "9: `servers.x.args` must be ",
        "10: unknown key `servers.x.timeot`; did you mean `timeout`?",
        "12: `servers.y.url` must be ",
    ]) {
        assert!(line.starts_with(&format!("  trunkline.toml:{start}")), "{line}\n{error}");
    }
    let text = "lisen = 1\n[servers.x]\ncommand = npx\nargs = [-y, x]\ntimeout = 3 parsecs";
    let error = Setup::toml(text).error();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 6, "{error}");
    for (line, start) in lines[1..].iter().zip([
        "1: unknown key `lisen`; did you mean `listen`?",
        "3: not valid TOML: a text needs quotes: write `command = \"…\"`",
        "4: not valid TOML: each text of a list needs quotes: write `args = [\"…\", \"…\"]`",
        "5: not valid TOML: ",
        "5: `servers.x.timeout` must be ",
    ]) {
        assert!(line.starts_with(&format!("  trunkline.toml:{start}")), "{line}\n{error}");
    }
    let error = Setup::toml("[servers.x]\ncommand = npx\nargs = [-y, x]\ncwd = /srv").error();
    assert_eq!(
        error,
        "3 mistakes\n\
         \x20 trunkline.toml:2: not valid TOML: a text needs quotes: write `command = \"…\"`\n\
         \x20 trunkline.toml:3: not valid TOML: each text of a list needs quotes: write \
         `args = [\"…\", \"…\"]`\n\
         \x20 trunkline.toml:4: not valid TOML: a text needs quotes: write `cwd = \"…\"`"
    );
}

#[test]
fn files_of_the_other_kind_are_told_apart() {
    let error = Setup::toml("{\"mcpServers\": {}}").error();
    assert_eq!(
        error,
        "trunkline.toml:1: it is JSON, not TOML: the file of an MCP client goes to `--mcp-config`"
    );
    let error = Setup::empty().mcp("[servers.x]\ncommand = \"x\"\n").error();
    assert_eq!(
        error,
        "mcp.json:1: it is TOML, not JSON: Trunkline's own configuration goes to `--config`"
    );
}

#[test]
fn grants_limits_and_tenants_that_match_nothing_are_warned_of() {
    let warnings = |tenant: &str| {
        let text = format!("[servers.std]\ncommand = \"x\"\n[tenants.acme]\n{tenant}");
        Setup::toml(&text).load().warnings
    };
    assert_eq!(
        warnings(""),
        ["trunkline.toml:3: tenant `acme`: it may use no server: grant some, or all with `*`, in \
          `servers`"]
    );
    assert_eq!(
        warnings("servers = [\"sdt\", \"s*\", \"far/x\"]\nlimits.\"stt/echo\".rate = \"1/s\""),
        [
            "trunkline.toml:3: tenant `acme`: `servers` has `sdt`, which matches no server; did \
             you mean `std`?",
            "trunkline.toml:3: tenant `acme`: `servers` has `far/x`, which matches no server",
            "trunkline.toml:3: tenant `acme`: `limits` has `stt/echo`, which matches no server; \
             did you mean `std`?",
        ]
    );
    assert_eq!(warnings("servers = [\"std/echo\"]"), [""; 0]);
}

#[test]
fn every_program_gets_the_variables_that_are_passed_on() {
    let text = "[defaults]\npass_env = [\"HTTPS_PROXY\", \"UNSET\"]\n\
                [servers.a]\ncommand = \"x\"\n[servers.b]\ncommand = \"x\"\n\
                env.HTTPS_PROXY = \"own\"\n[servers.c]\nurl = \"http://x\"";
    let setup = Setup::toml(text).var("HTTPS_PROXY", "http://p ${X}").var("OTHER", "x");
    let config = setup.mcp(r#"{"mcpServers": {"d": {"command": "x"}}}"#).load();
    for server in ["a", "d"] {
        assert_eq!(variable(&config, server, "HTTPS_PROXY"), "http://p ${X}");
        assert_eq!(program(&config, server).env.len(), 1);
    }
    assert_eq!(variable(&config, "b", "HTTPS_PROXY"), "own");
}
