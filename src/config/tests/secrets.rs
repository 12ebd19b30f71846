use super::*;

const SECRET: &str = "hunter2";

fn with_env(env: &str) -> Setup {
    Setup::toml(&format!("[servers.a]\ncommand = \"x\"\nenv = {{ {env} }}\n")).var("TOKEN", SECRET)
}

#[test]
fn references_are_read_when_the_configuration_is() {
    let setup = with_env("A = \"<${TOKEN}>\", B = \"${file:key}\", C = \"$${TOKEN}\"");
    fs::write(setup.dir.path().join("key"), "from a file\n").unwrap();
    let config = setup.load();
    let variable = |name| variable(&config, "a", name);
    assert_eq!(variable("A"), "<hunter2>");
    assert_eq!(variable("B"), "from a file");
    assert_eq!(variable("C"), "${TOKEN}");
}

#[test]
fn what_only_a_tenant_knows_is_left_open_until_it_is_known() {
    let server = "[servers.a]\ncommand = \"x\"\nsharing = \"tenant\"\n\
                  env.A = \"<${TOKEN} ${secret:MINE}>\"\n";
    let error = Setup::toml(server).var("TOKEN", SECRET).error();
    assert_has(&error, &["server `a`", "secret `MINE`", "`[secrets]`"]);

    let keys = "[secrets]\nkeys = [\"0123456789abcdef0123456789abcdef\"]\n";
    let config = Setup::toml(&format!("{server}{keys}")).var("TOKEN", SECRET).load();
    assert_eq!(config.servers["a"].secrets().collect::<Vec<_>>(), ["MINE"]);
    let template = &program(&config, "a").env["A"];
    assert_eq!(template.fill(&Secrets::new()), Err(MissingSecret("MINE".to_owned())));
    let mine = Secrets::from([("MINE".to_owned(), Secret::new("${TOKEN}".to_owned()))]);
    assert_eq!(template.fill(&mine).unwrap().expose(), "<hunter2 ${TOKEN}>");
    assert!(!format!("{template:?}").contains(SECRET));
}

#[test]
fn a_reference_to_nothing_names_server_key_and_variable() {
    let error = with_env("K = \"${GONE}\"").error();
    assert_has(&error, &["trunkline.toml:3: `servers.a.env.K` ", "`GONE`, which is not set"]);
    let error = with_env("K = \"${file:/no/such/file}\"").error();
    assert_has(&error, &["`servers.a.env.K` ", "`/no/such/file`, which cannot be read"]);
}

#[test]
fn session_keys_are_long_enough_and_not_too_many() {
    let key = "0123456789abcdef0123456789abcdef";
    let setup = Setup::toml("session_keys = [\"${file:key}\", \"${OLD}\"]").var("OLD", key);
    fs::write(setup.dir.path().join("key"), format!("{key}+\r\n\n\n")).unwrap();
    let keys: Vec<_> =
        setup.load().session_keys.iter().map(|key| key.expose().to_owned()).collect();
    assert_eq!(keys, [&format!("{key}+"), key]);

    let short = Setup::toml("session_keys = [\"${KEY}\"]").var("KEY", &format!("{}\n", &key[1..]));
    assert_has(
        &short.error(),
        &["trunkline.toml:1: `session_keys` must be a list of at most 8 texts of at least 32"],
    );
    assert_has(&short.error(), &["openssl rand -base64 32", "item 1 has 31"]);
    let missing = Setup::toml(&format!("session_keys = [{key:?}, \"${{GONE}}\"]"));
    assert_has(
        &missing.error(),
        &["`session_keys` must be", "item 2 refers to", "`GONE`, which is not set"],
    );
    let many = Setup::toml(&format!("session_keys = {:?}", [key; 9]));
    assert_has(&many.error(), &["`session_keys` must be a list of at most 8 texts", "it has 9"]);
}

#[test]
fn keys_for_secrets_are_read_from_files_and_variables() {
    let key = "0123456789abcdef0123456789abcdef";
    let setup = Setup::toml("[secrets]\nkeys = [\"${file:key}\", \"${OLD}\"]").var("OLD", key);
    fs::write(setup.dir.path().join("key"), format!("{key}+\n")).unwrap();
    let keys: Vec<_> =
        setup.load().secrets.keys.iter().map(|key| key.expose().to_owned()).collect();
    assert_eq!(keys, [&format!("{key}+"), key]);
    fs::write(setup.dir.path().join("key"), &key[1..]).unwrap();
    assert_has(&setup.error(), &["`secrets.keys` must be", "at least 32", "item 1 has 31"]);
}

#[test]
fn a_configuration_is_printed_without_its_secrets() {
    let config = with_env("A = \"${TOKEN}\", B = \"hunter2\"").load();
    let text = format!("{config:?} {config:#?}");
    assert_has(&text, &["\"A\": Template { parts: [Text([secret])] }", "\"B\": Template"]);
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn no_error_contains_a_secret() {
    let mcp =
        |server: &str| Setup::empty().mcp(&format!("{{\"mcpServers\": {{\"a\": {server}}}}}"));
    let setups = [
        with_env("K = \"hunter2${GONE}\""),
        with_env("K = \"hunter2${\""),
        with_env("K = \"${hunter2!}\""),
        with_env("K = \"${TOKEN}${GONE}\""),
        with_env("K = [\"hunter2\"]"),
        with_env("K = \"hunter2"),
        with_env("K = hunter2"),
        with_env("K = \"hunter2\\q\""),
        with_env("K = \"hunter2\", K = \"hunter2\""),
        Setup::toml("[servers.a]\ncommand = \"x\"\nenv = \"hunter2\""),
        Setup::toml("[servers.a]\ncommand = \"x\"\nargs = \"hunter2\""),
        Setup::toml("[servers.a]\ncommand = \"x\"\nAPI_KEY = \"hunter2\""),
        Setup::toml("session_keys = \"hunter2\""),
        Setup::toml("session_keys = [\"hunter2\"]"),
        Setup::toml("session_keys = [\"hunter2${\"]"),
        Setup::empty().var("TRUNKLINE_SESSION_KEYS", "hunter2"),
        Setup::empty().var("TRUNKLINE_SESSION_KEYS", "[\"hunter2\"]"),
        Setup::empty().var("TRUNKLINE_SERVERS__STD__ENV", "hunter2"),
        Setup::empty().var("TRUNKLINE_SERVERS__STD__ENV", "{ K = \"hunter2\", 1 }"),
        Setup::empty().var("TRUNKLINE_SERVERS__STD__ENV__K", "hunter2${"),
        Setup::empty().var("TRUNKLINE_SERVERS__STD__ARGS", "--key hunter2"),
        mcp("{\"command\": \"x\", \"env\": {\"K\": \"hunter2${\"}}"),
        mcp("{\"command\": \"x\", \"env\": {\"K\": [\"hunter2\"]}}"),
        mcp("{\"command\": \"x\", \"env\": \"hunter2\"}"),
        mcp("{\"command\": \"x\", \"env\": {\"K\": \"hunter2\n\"}}"),
        mcp("{\"command\": \"x\", \"args\": \"hunter2\"}"),
        mcp("{\"url\": \"http://hunter2@x\"}"),
        mcp("\"hunter2\""),
    ];
    for setup in setups {
        let text = match load(&setup.sources) {
            Err(error) => format!("{error} {error:?}"),
            // A mistake in a client's file leaves out its server.
            Ok(config) => {
                assert!(!config.left_out.is_empty());
                format!("{:?} {:?}", config.warnings, config.left_out)
            }
        };
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn secrets_that_other_programs_can_read_are_warned_of() {
    let warnings = |of_a: &str, others: &str| {
        let keys = "[secrets]\nkeys = [\"0123456789abcdef0123456789abcdef\"]\n";
        let a = format!(
            "[servers.a]\ncommand = \"x\"\nsharing = \"tenant\"\n\
             env.A = \"${{secret:MINE}}\"\n{of_a}\n"
        );
        let std = "[servers.std]\ncommand = \"trunkline\"\nargs = [\"std\"]\n";
        Setup::toml(&format!("{keys}{a}{std}{others}")).load().warnings
    };
    let other = "[servers.b]\ncommand = \"y\"\n";
    let told = warnings("", other);
    assert_has(&told.join("\n"), &["`servers.a.env`", "`sandbox`", "those of `a`, `b`"]);
    assert_has(&warnings("sandbox = {}", other).join("\n"), &["those of `b`"]);
    // One user for all tenants' processes of a server.
    assert_has(&warnings("user = \"u\"", other).join("\n"), &["those of `a`"]);
    let none: [&str; 0] = [];
    assert_eq!(warnings("sandbox = {}", &format!("{other}sandbox = {{}}")), none);
    assert_eq!(warnings("sandbox = {}\nuser = \"u\"", other), none);
    let elsewhere = "[servers.b]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    assert_eq!(warnings("sandbox = {}", elsewhere), none);
}
