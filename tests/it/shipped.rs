//! The files shipped beside the program: configurations that it can read, and timeouts that fit
//! each other.

use std::fs;
use std::path::Path;
use std::time::Duration;

use trunkline::config::{self, Config, Sources};

use crate::support::TRUNKLINE;

fn shipped(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The file in the config map.
fn of_config_map() -> String {
    let map = shipped("kubernetes/config-map.yaml");
    let (_, block) = map.split_once("trunkline.toml: |\n").unwrap();
    block.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect()
}

/// Reads a configuration as the image has it read, with what its engine would put beside it.
fn loaded(text: &str, more: &[(&str, &str)]) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let secrets = [
        ("store-url", "postgres://trunkline:password@db.example/trunkline"),
        ("limits-url", "rediss://cache.example:6379"),
        ("db-password", "password"),
        ("session-key", "0123456789abcdef0123456789abcdef"),
        ("hash-key", "0123456789abcdef0123456789abcdef"),
        ("secrets-key", "0123456789abcdef0123456789abcdef"),
        ("cache-password", "0123456789abcdef0123456789abcdef"),
    ];
    for (name, value) in secrets {
        fs::write(dir.path().join(name), value).unwrap();
    }
    let here = format!("${{file:{}/", dir.path().display());
    let text = text.replace("${file:/run/secrets/trunkline/", &here);
    let text = text.replace("${file:/run/secrets/", &here);
    let file = dir.path().join("trunkline.toml");
    fs::write(&file, text).unwrap();
    let image = [("TRUNKLINE_LISTEN", "0.0.0.0:8080"), ("TRUNKLINE_OPS_LISTEN", "0.0.0.0:8081")];
    let dockerfile = shipped("docker/Dockerfile");
    for (name, value) in image {
        assert!(dockerfile.contains(&format!("{name}={value}")), "{name}");
    }
    let env = image.iter().chain(more).map(|(name, value)| (name.to_string(), value.to_string()));
    config::load(&Sources {
        file: Some(file),
        mcp_file: None,
        listen: None,
        env: env.collect(),
        working_dir: dir.path().to_owned(),
        own_program: TRUNKLINE.into(),
    })
    .unwrap()
}

/// The word after another one.
fn after<'a>(text: &'a str, word: &str) -> &'a str {
    let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("{word:?} is not there"));
    rest.split_whitespace().next().unwrap()
}

fn seconds(text: &str) -> Duration {
    match text.strip_suffix("ms") {
        Some(number) => Duration::from_millis(number.parse().unwrap()),
        None => Duration::from_secs(text.strip_suffix('s').unwrap().parse().unwrap()),
    }
}

#[test]
fn the_image_by_itself_lets_in_only_those_who_have_a_key() {
    let text = shipped("docker/image.toml");
    let config = loaded(&text, &[]);
    assert_eq!(config.auth.anonymous_tenant, None);
    assert_eq!(config.store.url.expose(), "sqlite:///data/trunkline.db");
    assert_eq!(config.servers.keys().map(|id| id.as_str()).collect::<Vec<_>>(), ["std"]);
    let config = loaded(&text, &[("TRUNKLINE_AUTH__ANONYMOUS_TENANT", "local")]);
    assert_eq!(config.auth.anonymous_tenant.unwrap().as_str(), "local");
}

#[test]
fn replicas_have_in_common_what_they_need() {
    for (text, anonymous) in [(shipped("docker/trunkline.toml"), true), (of_config_map(), false)] {
        let config = loaded(&text, &[]);
        assert!(config.store.url.expose().starts_with("postgres://trunkline:password@"));
        assert!(config.limits.shared.is_some());
        assert_eq!((config.session_keys.len(), config.secrets.keys.len()), (1, 1));
        assert!(config.auth.hash_key.is_some());
        assert_eq!(config.auth.anonymous_tenant.is_some(), anonymous);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
}

#[test]
fn nobody_looks_away_too_late_or_loses_patience_too_early() {
    let config = loaded(&shipped("docker/trunkline.toml"), &[]);
    let balancer = shipped("docker/haproxy.cfg");
    let server = balancer.lines().find(|line| line.contains("default-server")).unwrap();
    let (inter, fall) = (seconds(after(server, "inter ")), after(server, "fall "));
    let check = seconds(after(&balancer, "timeout check "));
    let notices = (inter + check) * fall.parse().unwrap();
    assert!(config.drain_delay > notices, "{:?}, {notices:?}", config.drain_delay);

    let patience = seconds(after(&shipped("docker/compose.yml"), "stop_grace_period: "));
    let takes = config.drain_delay + config.drain_timeout + Duration::from_secs(11);
    assert!(patience > takes, "{patience:?}, {takes:?}");
}

#[test]
fn the_load_balancer_waits_for_as_long_as_calls_may_take() {
    let config = loaded(&shipped("docker/trunkline.toml"), &[]);
    let waits = seconds(after(&shipped("docker/haproxy.cfg"), "timeout server "));
    for (id, server) in &config.servers {
        let longest = server.timeout.max(server.max_timeout.unwrap_or_default());
        assert!(waits > longest, "{id}: {waits:?}, {longest:?}");
    }
}

#[test]
fn image_and_manifests_have_the_programs_version() {
    let version = env!("CARGO_PKG_VERSION");
    let dockerfile = shipped("docker/Dockerfile");
    assert_eq!(after(&dockerfile, "ARG VERSION="), version);
    assert_eq!(after(&shipped("kubernetes/kustomization.yaml"), "newTag: "), version);
    let chart = shipped("kubernetes/chart/Chart.yaml");
    assert_eq!(after(&chart, "\nversion: "), version);
    assert_eq!(after(&chart, "appVersion: ").trim_matches('"'), version);
}

#[test]
fn the_service_of_the_package_can_read_its_configuration_and_has_time_to_end() {
    let text = shipped("packaging/deb/trunkline.toml");
    let config = loaded(&text, &[("TRUNKLINE_LISTEN", "127.0.0.1:8080")]);
    assert_eq!(config.store.url.expose(), "sqlite:///var/lib/trunkline/trunkline.db");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    // The settings that are only suggested are valid, too.
    let suggested = text.replace("\n#[", "\n[").replace("\n#ops", "\nops");
    let suggested = suggested.replace("\n#command", "\ncommand").replace("\n#args", "\nargs");
    let suggested = suggested.replace("\n#url", "\nurl");
    assert_eq!(loaded(&suggested, &[]).servers.len(), 3);
    let unit = shipped("packaging/deb/trunkline.service");
    let takes = config.drain_delay + config.drain_timeout + Duration::from_secs(11);
    assert!(seconds(after(&unit, "TimeoutStopSec=")) > takes);
    assert_eq!(after(&unit, "Type="), "notify");
    // Otherwise systemd would end the servers together with the gateway, in the midst of calls.
    assert_eq!(after(&unit, "KillMode="), "mixed");
}
