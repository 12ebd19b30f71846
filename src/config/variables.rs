//! Settings from the environment: `TRUNKLINE_SECTION__KEY` overrides the files.

use super::error::{ConfigError, Mistakes, Place};
use super::tree::{Node, Table, Value};

const PREFIX: &str = "TRUNKLINE_";
/// Options of commands: the address of the gateway, the caller's key, and the file.
const NOT_SETTINGS: [&str; 3] = ["TRUNKLINE_URL", "TRUNKLINE_KEY", "TRUNKLINE_CONFIG"];

/// Puts the variables into the settings.
pub(super) fn overlay(settings: &mut Table, env: &[(String, String)]) -> Result<(), ConfigError> {
    let mut variables: Vec<_> = env
        .iter()
        .filter(|(name, _)| !NOT_SETTINGS.contains(&name.as_str()) && !is_service_link(name))
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, name, value)))
        .collect();
    // A whole table comes before the keys below it.
    variables.sort();
    let mut mistakes = Mistakes::default();
    for (path, name, value) in variables {
        let place = Place::Variable(name.as_str().into());
        if let Some(keys) = mistakes.take(keys(settings, path, &place)) {
            mistakes.take(set(settings, &keys, Node::new(Value::Text(value.clone()), place)));
        }
    }
    mistakes.check()
}

/// Recognises variables that Kubernetes sets beside a service named `trunkline`, such as
/// TRUNKLINE_SERVICE_HOST and TRUNKLINE_PORT_8080_TCP. No setting has such a name.
fn is_service_link(name: &str) -> bool {
    let numbered_port = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    !name.contains("__")
        && (name.ends_with("_SERVICE_HOST")
            || name.ends_with("_PORT")
            || name.contains("_SERVICE_PORT_")
            || name.split_once("_PORT_").is_some_and(numbered_port))
}

/// Splits `SERVERS__STD__MAX_IN_FLIGHT` into keys.
fn keys(settings: &Table, path: &str, place: &Place) -> Result<Vec<String>, ConfigError> {
    let mut keys: Vec<String> = path.splitn(4, "__").map(str::to_owned).collect();
    let is_server = keys.len() > 1 && keys[0].eq_ignore_ascii_case("servers");
    for depth in 0..keys.len() {
        match depth {
            1 if is_server => keys[1] = server_name(settings, &keys[1], place)?,
            // The name of a variable, of a header, or the pattern of a tenant's limit.
            3 if !is_server || ["env", "headers"].contains(&keys[2].as_str()) => {}
            _ => keys[depth].make_ascii_lowercase(),
        }
    }
    Ok(keys)
}

/// Returns the configured server that fits, since variables keep neither case nor hyphens.
fn server_name(settings: &Table, segment: &str, place: &Place) -> Result<String, ConfigError> {
    let servers = match settings.get("servers").map(|node| &node.value) {
        Some(Value::Table(servers)) => servers.keys().collect(),
        _ => Vec::new(),
    };
    if servers.iter().any(|name| *name == segment) {
        return Ok(segment.to_owned());
    }
    let plain = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    let mut fitting = servers.into_iter().filter(|name| plain(name) == plain(segment));
    match (fitting.next(), fitting.next()) {
        (None, _) => Ok(segment.to_ascii_lowercase()),
        (Some(name), None) => Ok(name.clone()),
        (Some(one), Some(other)) => {
            Err(place
                .error(format!("may mean the server `{one}` or `{other}`: rename one of them")))
        }
    }
}

fn set(settings: &mut Table, keys: &[String], node: Node) -> Result<(), ConfigError> {
    let (last, parents) = keys.split_last().expect("a split text has a part");
    let mut table = settings;
    for key in parents {
        let empty = || Node::table(Table::new(), node.place.clone());
        let parent = table.entry(key.clone()).or_insert_with(empty);
        table = parent.table_mut().ok_or_else(|| {
            node.place.error(format!("`{key}` is not a table, so there is no `{}`", keys.join(".")))
        })?;
    }
    table.insert(last.clone(), node);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_with_servers(names: &[&str]) -> Table {
        let empty = || Node::table(Table::new(), Place::BuiltIn);
        let servers = names.iter().map(|name| ((*name).to_owned(), empty())).collect();
        Table::from([("servers".to_owned(), Node::table(servers, Place::BuiltIn))])
    }

    fn keys_of(names: &[&str], path: &str) -> Result<String, ConfigError> {
        let settings = settings_with_servers(names);
        keys(&settings, path, &Place::Variable("X".into())).map(|keys| keys.join(" "))
    }

    #[test]
    fn only_what_others_have_named_keeps_its_case() {
        assert_eq!(keys_of(&[], "MAX_BODY").unwrap(), "max_body");
        assert_eq!(keys_of(&[], "AUTH__ANONYMOUS_TENANT").unwrap(), "auth anonymous_tenant");
        assert_eq!(keys_of(&[], "SERVERS__STD__ENV__My__Key").unwrap(), "servers std env My__Key");
        assert_eq!(keys_of(&[], "SERVERS__A__HEADERS__X_Y").unwrap(), "servers a headers X_Y");
        assert_eq!(keys_of(&[], "SERVERS__A__RECYCLE__CALLS").unwrap(), "servers a recycle calls");
    }

    #[test]
    fn a_configured_server_is_found_whatever_its_case_and_hyphens() {
        let names = ["Brave-Search", "std"];
        let keys = keys_of(&names, "SERVERS__BRAVE_SEARCH__CWD").unwrap();
        assert_eq!(keys, "servers Brave-Search cwd");
        assert_eq!(keys_of(&names, "SERVERS__NEW__CWD").unwrap(), "servers new cwd");
        assert_eq!(keys_of(&["a_b", "a-b"], "SERVERS__a-b__CWD").unwrap(), "servers a-b cwd");
        let error = keys_of(&["a_b", "a-b"], "SERVERS__A_B__CWD").unwrap_err().to_string();
        assert!(error.contains("`a-b` or `a_b`"), "{error}");
    }

    #[test]
    fn what_is_not_a_setting_is_left_alone() {
        let mut settings = Table::new();
        let env = [
            "PATH",
            "TRUNKLINE_URL",
            "TRUNKLINE_KEY",
            "TRUNKLINE_CONFIG",
            "TRUNKLINE_SERVICE_HOST",
            "TRUNKLINE_SERVICE_PORT",
            "TRUNKLINE_SERVICE_PORT_HTTP",
            "TRUNKLINE_PORT",
            "TRUNKLINE_PORT_8080_TCP_ADDR",
            "TRUNKLINE_OPS_SERVICE_HOST",
        ];
        let env = env.map(|name| (name.to_owned(), "x".to_owned()));
        overlay(&mut settings, &env).unwrap();
        assert!(settings.is_empty());
    }

    #[test]
    fn there_is_nothing_below_a_value() {
        let mut settings = Table::new();
        let env = [("TRUNKLINE_LISTEN", "x"), ("TRUNKLINE_LISTEN__PORT", "1")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let error = overlay(&mut settings, &env).unwrap_err().to_string();
        assert!(error.contains("TRUNKLINE_LISTEN__PORT: `listen` is not a table"), "{error}");
    }
}
