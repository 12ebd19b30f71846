use super::*;

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let setup = Setup::toml("listen = \"127.0.0.1:1\"\nmax_body = \"2KiB\"\n");
    assert_eq!(setup.load().listen.port(), 1);
    let setup = setup.var("TRUNKLINE_LISTEN", "127.0.0.1:2").var("TRUNKLINE_MAX_BODY", "4096");
    assert_eq!(setup.load().listen.port(), 2);
    assert_eq!(setup.load().max_body, 4096);
    assert_eq!(setup.listen("127.0.0.1:3").load().listen.port(), 3);
}

#[test]
fn a_bad_address_on_the_command_line_names_the_flag() {
    let error = Setup::empty().listen("8080").error();
    assert_has(&error, &["--listen: `listen` must be an IP address and a port", "\"8080\""]);
}

#[test]
fn a_value_is_read_as_its_setting_needs_it() {
    let config = Setup::empty()
        .var("TRUNKLINE_AUTH__ANONYMOUS_TENANT", "123")
        .var("TRUNKLINE_SERVERS__STD__MAX_IN_FLIGHT", "4")
        .var("TRUNKLINE_SERVERS__STD__ARGS", "[\"std\", \"-v\"]")
        .var("TRUNKLINE_SERVERS__STD__ENV", "{ A = \"1\" }")
        .var("TRUNKLINE_SERVERS__STD__ENV__api_KEY", "007")
        .var("TRUNKLINE_SERVERS__STD__START", "lazy")
        .var("TRUNKLINE_ALLOWED_HOSTS", "[\"gateway.example\"]")
        .var("TRUNKLINE_SESSION_KEYS", "[\"${KEY}\"]")
        .var("KEY", "0123456789abcdef0123456789abcdef")
        .load();
    assert_eq!(config.auth.anonymous_tenant.as_ref().unwrap().as_str(), "123");
    assert_eq!(config.allowed_hosts, [Host::parse("gateway.example").unwrap()]);
    assert_eq!(config.session_keys[0].expose(), "0123456789abcdef0123456789abcdef");
    let std = &config.servers["std"];
    assert_eq!(std.max_in_flight, 4);
    assert_eq!(program(&config, "std").args, ["std", "-v"]);
    assert_eq!(variable(&config, "std", "A"), "1");
    assert_eq!(variable(&config, "std", "api_KEY"), "007");
    assert_eq!(std.start, Start::Lazy);
}

#[test]
fn a_server_can_come_from_the_environment_alone() {
    let config = Setup::toml("").var("TRUNKLINE_SERVERS__FETCH__COMMAND", "uvx").load();
    assert_eq!(names(&config), ["fetch"]);
    assert_eq!(config.servers["fetch"].timeout, Duration::from_secs(30));
}

#[test]
fn a_variable_does_not_hide_a_mistake_in_the_file() {
    let setup = Setup::toml("servers = 5").var("TRUNKLINE_SERVERS__A__COMMAND", "x");
    assert_has(&setup.error(), &["`servers` is not a table"]);
}

#[test]
fn what_is_unknown_or_wrong_names_the_variable() {
    let cases = [
        ("TRUNKLINE_LISTN", "x", "unknown key `listn`"),
        ("TRUNKLINE_AUTH__KEY", "x", "unknown key `auth.key`"),
        ("TRUNKLINE_AUTH", "x", "`auth` must be a table"),
        ("TRUNKLINE_HEADER_TIMEOUT", "30", "ms, s, min or h"),
        ("TRUNKLINE_SERVERS__STD__MAX_IN_FLIGHT", "many", "1 to 10000"),
        ("TRUNKLINE_SERVERS__STD__MAX_IN_FLIGHT", "0", "1 to 10000"),
        ("TRUNKLINE_SERVERS__STD__ARGS", "std -v", "list of texts"),
        ("TRUNKLINE_SERVERS__STD__ENV", "{ K = 1 }", "`servers.std.env.K` must be a text"),
        ("TRUNKLINE_SERVERS__STD__URL", "http://x", "both `url` and `command`"),
        ("TRUNKLINE_SERVERS__STDD__TIMEOUT", "5s", "`servers.stdd.command` is missing"),
    ];
    for (name, value, problem) in cases {
        let error = Setup::empty().var(name, value).error();
        assert_has(&error, &[&format!("environment variable {name}: "), problem]);
    }
}
