use super::*;
use crate::common::policy::{CallbackHost, Grant, Grants, Limit, Pattern, Policy};
use crate::config::reference::SECTIONS;
use crate::config::section::Setting;

const SERVER: &str = "[servers.a]\ncommand = \"cat\"\n";

#[test]
fn without_a_file_the_bundled_server_is_open_to_this_machine() {
    let config = Setup::empty().load();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.auth.anonymous_tenant, Some(TenantName::parse("local").unwrap()));
    assert_eq!(config.origin.to_string(), "built-in defaults");
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(names(&config), ["std"]);
    let std = program(&config, "std");
    assert_eq!(std.command, Path::new("/opt/trunkline"));
    assert_eq!(std.args, ["std", "--max-concurrent", "64"]);
}

#[test]
fn the_defaults_are_those_that_are_documented() {
    let config = Setup::toml(SERVER).load();
    assert!(config.ops_listen.is_none() && config.allowed_origins.is_empty());
    assert!(config.allowed_hosts.is_empty() && config.session_keys.is_empty());
    assert_eq!(config.header_timeout, Duration::from_secs(10));
    let drain = (config.drain_delay, config.drain_timeout);
    assert_eq!(drain, (Duration::ZERO, Duration::from_secs(30)));
    assert_eq!((config.max_body, config.max_response), (1 << 20, 16 << 20));
    assert_eq!((config.limits.unsent_per_tenant, config.limits.unsent), (32 << 20, 128 << 20));
    let expected = ServerConfig {
        transport: Transport::Stdio(Program { command: "cat".into(), ..Program::default() }),
        instances: 1,
        max_in_flight: 64,
        adaptive: false,
        rate: None,
        era: EraChoice::Auto,
        sharing: Sharing::Shared,
        sharing_is_explicit: false,
        max_sessions: 100,
        sessionless: false,
        max_tenants: 100,
        idle_timeout: Duration::from_secs(600),
        start: Start::Eager,
        exclusive: false,
        recycle: Recycle::default(),
        timeout: Duration::from_secs(30),
        max_deadline: None,
        max_timeout: None,
        tell_deadline: false,
        start_timeout: Duration::from_secs(60),
        retry: Retry::Never,
        attempt_timeout: None,
        pin: false,
        validate: false,
        tasks: false,
        task_after: Duration::from_secs(5),
    };
    assert_eq!(config.servers["a"], expected);
    let far = Setup::toml("[servers.far]\nurl = \"https://far.example/mcp\"").load();
    let Transport::Http(far) = &far.servers["far"].transport else { panic!("it has a URL") };
    assert_eq!(far.init_timeout, Duration::from_secs(5));
}

#[test]
fn the_defaults_written_to_a_file_change_nothing() {
    let written = |headers: &[&str]| {
        let of_headers = SECTIONS.iter().filter(|section| headers.contains(&section.header));
        let settings = of_headers.flat_map(|section| section.settings);
        let line = |it: &Setting| Some(format!("{} = {}\n", it.key, it.default?));
        let own = |it: &&Setting| !["auth", "servers", "args"].contains(&it.key);
        settings.filter(own).filter_map(line).collect::<String>()
    };
    let (top, server) =
        (written(&[""]), written(&["servers.NAME", "servers.NAME with a `command`"]));
    let text = format!("{top}{WITHOUT_FILE}{server}");
    let mut from_file = Setup::toml(&text).load();
    from_file.servers.values_mut().for_each(|server| server.sharing_is_explicit = false);
    let built_in = Setup::empty().load();
    // These two depend on whether there is a file.
    let (origin, store) = (built_in.origin.clone(), built_in.store.clone());
    assert_eq!(Config { origin, store, ..from_file }, built_in);
}

#[test]
fn a_file_decides_alone_who_may_call_and_what() {
    let setup = Setup::toml(SERVER);
    let config = setup.load();
    assert_eq!(names(&config), ["a"]);
    assert_eq!(config.auth.anonymous_tenant, None);
    assert_eq!(config.warnings, [] as [String; 0]);
    assert_eq!(config.origin, setup.dir.path().join("trunkline.toml").display().to_string());
}

#[test]
fn an_empty_file_is_a_configuration_without_servers() {
    let config = Setup::toml("").load();
    assert!(config.servers.is_empty());
    assert_has(&config.warnings.join("\n"), &["no servers are configured"]);
}

#[test]
fn every_key_of_a_file_is_used() {
    let text = r#"
        listen = "0.0.0.0:80"
        ops_listen = "localhost:81"
        allowed_origins = ["https://app.example"]
        allowed_hosts = ["gateway.example", "gateway.example:81"]
        session_keys = ["0123456789abcdef0123456789abcdef"]
        public_url = "https://gateway.example"
        header_timeout = "1s"
        max_connections_per_peer = 7
        drain_delay = "2s"
        drain_timeout = "3s"
        max_body = "4KiB"
        max_response = 5000
        legacy_sse = true
        [auth]
        anonymous_tenant = "us"
        hash_key = "fedcba9876543210fedcba9876543210"
        oauth.issuer = "https://id.example"
        oauth.audience = "https://gateway.example/mcp"
        oauth.jwks_url = "https://id.example/keys"
        oauth.tenant_claim = "tenant"
        [store]
        url = "postgres://db/trunkline"
        [limits]
        shared = "redis://cache"
        unsent_per_tenant = "6MiB"
        unsent = "7MiB"
        [replicas]
        listen = "0.0.0.0:82"
        address = "10.0.0.3:82"
        [calls]
        ttl = "1h"
        max_records = 12
        max_bytes = "4GiB"
        synchronous = "full"
        callback_networks = ["10.1.0.0/16"]
        [batch]
        max_calls = 50
        max_results = 4096
        [log]
        calls = "all"
        file = "calls.log"
        [defaults]
        pass_env = ["LANG_OF_US"]
        [secrets]
        keys = ["abcdefghabcdefghabcdefghabcdefgh"]
        [tenants.acme]
        rate = "100/s"
        burst = 200
        max_in_flight = 50
        weight = 2
        servers = ["std", "search/*"]
        limits."search/query" = { rate = "5/min", max_in_flight = 3 }
        callback_hosts = ["Hooks.example"]
        [tenants.plain]
        [servers.a-b]
        command = "npx"
        args = ["-y", "x"]
        env = { K = "v" }
        cwd = "/srv"
        user = "mcp"
        limits = { files = 64, file_size = "1MiB", memory = "2GiB", processes = 5 }
        sandbox.read = ["/usr"]
        sandbox.write = ["/data"]
        sandbox.connect = [443]
        sandbox.syscalls = false
        sandbox.optional = true
        instances = 4
        max_in_flight = 6
        adaptive = true
        rate = "20/s"
        era = "legacy"
        sharing = "session"
        max_sessions = 9
        sessionless = true
        idle_timeout = "10s"
        max_tenants = 8
        start = "lazy"
        recycle = { calls = 10, age = "1h", memory = "1GiB" }
        timeout = "7s"
        max_deadline = "11s"
        max_timeout = "9s"
        tell_deadline = true
        start_timeout = "8s"
        retry = "safe"
        attempt_timeout = "2s"
        validate = true
        tasks = true
        task_after = "4s"
        pin = true
        [servers.far]
        url = "https://far.example/mcp?x=1"
        headers = { X-Team = "t" }
        init_timeout = "3s"
        redirect_hosts = ["near.example"]
        transport = "auto"
        exclusive = true
        sharing = "tenant"
        [servers.far.oauth]
        grant = "authorization_code"
        client_id = "gateway"
        private_key = "k" # or client_secret; variable, identity_provider, subject_type
        key_id = "k1"
        issuer = "https://id.example"
        token_url = "https://id.example/token"
        authorize_url = "https://id.example/ask"
        scopes = ["a"]
        resource = "https://far.example"
        networks = ["10.0.0.0/8"]
        [toolsets.t]
        tools = ["a-b"]
        search = true
        [toolsets.t.override."a-b/x"]
        name = "y"
        description = "Y"
        arguments = { p = { fixed = 1 }, q = { hidden = true } }
        result = { max_bytes = "1KiB", pointer = "/a" }
    "#;
    for setting in SECTIONS.iter().flat_map(|section| section.settings) {
        assert!(text.contains(setting.key), "{}", setting.key);
    }
    let secs = Duration::from_secs;
    let server = ServerConfig {
        transport: Transport::Stdio(Program {
            command: "npx".into(),
            args: vec!["-y".to_owned(), "x".to_owned()],
            env: BTreeMap::from([("K".to_owned(), Template::plain("v"))]),
            cwd: Some("/srv".into()),
            user: Some("mcp".to_owned()),
            limits: ChildLimits {
                files: Some(64),
                file_size: Some(1 << 20),
                memory: Some(2 << 30),
                processes: Some(5),
            },
            sandbox: Some(Sandbox {
                read: vec!["/usr".into()],
                write: vec!["/data".into()],
                connect: Some(vec![443]),
                syscalls: false,
                optional: true,
            }),
            oauth: None,
        }),
        instances: 4,
        max_in_flight: 6,
        adaptive: true,
        rate: "20/s".parse().ok(),
        era: EraChoice::Legacy,
        sharing: Sharing::Session,
        sharing_is_explicit: true,
        max_sessions: 9,
        sessionless: true,
        max_tenants: 8,
        idle_timeout: secs(10),
        start: Start::Lazy,
        exclusive: false,
        recycle: Recycle { calls: Some(10), age: Some(secs(3600)), memory: Some(1 << 30) },
        timeout: secs(7),
        max_deadline: Some(secs(11)),
        max_timeout: Some(secs(9)),
        tell_deadline: true,
        start_timeout: secs(8),
        retry: Retry::Safe,
        attempt_timeout: Some(secs(2)),
        pin: true,
        validate: true,
        tasks: true,
        task_after: secs(4),
    };
    let host = |text| Host::parse(text).unwrap();
    let far = Upstream {
        transport: UrlTransport::Auto,
        url: "https://far.example/mcp?x=1".parse().unwrap(),
        headers: BTreeMap::from([("x-team".to_owned(), Template::plain("t"))]),
        init_timeout: secs(3),
        oauth: Some(Box::new(UpstreamOAuth {
            grant: crate::config::Grant::AuthorizationCode,
            client_id: Some("gateway".to_owned()),
            private_key: Some(Secret::new("k".to_owned())),
            key_id: Some("k1".to_owned()),
            issuer: Some("https://id.example".parse().unwrap()),
            token_url: Some("https://id.example/token".parse().unwrap()),
            authorize_url: Some("https://id.example/ask".parse().unwrap()),
            scopes: vec!["a".to_owned()],
            resource: Some("https://far.example".to_owned()),
            networks: vec!["10.0.0.0/8".parse().unwrap()],
            ..UpstreamOAuth::default()
        })),
        redirect_hosts: vec![host("near.example")],
    };
    let pattern = |text| Pattern::parse(text).unwrap();
    let grant = |text| Grant::parse(text).unwrap();
    let limited = |rate: &str, burst, max_in_flight| Limit {
        rate: rate.parse().ok(),
        burst,
        max_in_flight: Some(max_in_flight),
    };
    let acme = Policy {
        limit: limited("100/s", Some(200), 50),
        weight: 2,
        servers: Grants::new(vec![grant("std"), grant("search/*")]),
        limits: BTreeMap::from([(pattern("search/query"), limited("5/min", None, 3))]),
        callback_hosts: vec![CallbackHost::parse("hooks.example").unwrap()],
    };
    let tenants = [("acme", acme), ("plain", Policy::new())];
    let secret = |text: &str| Secret::new(text.to_owned());
    let setup = Setup::toml(text);
    // Its tenants may use servers that it does not have.
    let loaded = Config { warnings: vec![], ..setup.load() };
    let far = ServerConfig {
        transport: Transport::Http(far),
        exclusive: true,
        sharing: Sharing::Tenant,
        sharing_is_explicit: true,
        ..Setup::toml(SERVER).load().servers["a"].clone()
    };
    let expected = Config {
        otel: Otel::default(),
        // Compared in a test of their own.
        toolsets: loaded.toolsets.clone(),
        listen: ([0, 0, 0, 0], 80).into(),
        ops_listen: Some(([127, 0, 0, 1], 81).into()),
        allowed_origins: vec![WebOrigin::parse("https://app.example").unwrap()],
        allowed_hosts: vec![host("gateway.example"), host("gateway.example:81")],
        session_keys: vec![secret("0123456789abcdef0123456789abcdef")],
        public_url: Some("https://gateway.example".to_owned()),
        header_timeout: secs(1),
        max_connections_per_peer: Some(7),
        drain_delay: secs(2),
        drain_timeout: secs(3),
        max_body: 4096,
        max_response: 5000,
        legacy_sse: true,
        auth: Auth {
            anonymous_tenant: Some(TenantName::parse("us").unwrap()),
            hash_key: Some(secret("fedcba9876543210fedcba9876543210")),
            oauth: Some(OAuth {
                issuer: "https://id.example".to_owned(),
                audience: "https://gateway.example/mcp".to_owned(),
                jwks_url: "https://id.example/keys".parse().unwrap(),
                tenant_claim: "/tenant".to_owned(),
                client_id: None,
            }),
        },
        store: StoreConfig {
            url: secret("postgres://db/trunkline"),
            earlier_url: None,
            state_dir: None,
        },
        limits: LimitsConfig {
            shared: Some(secret("redis://cache")),
            unsent_per_tenant: 6 << 20,
            unsent: 7 << 20,
        },
        replicas: Some(Replicas {
            listen: ([0, 0, 0, 0], 82).into(),
            address: Some(([10, 0, 0, 3], 82).into()),
        }),
        tenants: tenants.map(|(id, policy)| (TenantName::parse(id).unwrap(), policy)).into(),
        calls: CallsConfig {
            ttl: secs(3600),
            max_records: 12,
            max_bytes: 4 << 30,
            synchronous: Synchronous::Full,
            callback_networks: vec!["10.1.0.0/16".parse().unwrap()],
        },
        batch: BatchConfig { max_calls: 50, max_results: 4096 },
        log: LogConfig { calls: LoggedCalls::All, file: Some("calls.log".into()) },
        defaults: Defaults { pass_env: vec!["LANG_OF_US".to_owned()] },
        secrets: SecretKeys { keys: vec![secret("abcdefghabcdefghabcdefghabcdefgh")] },
        servers: [("a-b", server), ("far", far)]
            .map(|(id, server)| (ServerId::parse(id).unwrap(), server))
            .into(),
        origin: setup.dir.path().join("trunkline.toml").display().to_string(),
        warnings: Vec::new(),
        left_out: vec![],
    };
    assert_eq!(loaded, expected);
}

#[test]
fn a_file_that_is_asked_for_must_be_there() {
    let mut setup = Setup::empty();
    setup.sources.file = Some("conf/gone.toml".into());
    assert_has(&setup.error(), &["cannot read conf/gone.toml: "]);
    let mut setup = Setup::toml(SERVER);
    setup.sources.file = Some("trunkline.toml".into());
    assert_eq!(names(&setup.load()), ["a"]);
}
