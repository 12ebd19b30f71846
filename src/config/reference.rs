//! Renders the reference page: every setting with its default, what is allowed, and its sentence.

use super::difference::RELOADED;
use super::oauth::{IdentityProvider, OAuth, UpstreamOAuth};
use super::section::{Section, Settings};
use super::server::{ChildLimits, Program, Recycle, Sandbox, ServerConfig, Upstream};
use super::settings::{
    Auth, BatchConfig, CallsConfig, Config, Defaults, LimitsConfig, LogConfig, Replicas,
    SecretKeys, StoreConfig,
};
use super::tenants::{TenantConfig, TenantLimit};
use super::toolsets::{ArgumentOverride, ResultOverride, ToolOverride, ToolsetConfig};

/// Every section, in the order of the page.
pub(super) static SECTIONS: &[Section] = &[
    Config::SECTION,
    Auth::SECTION,
    OAuth::SECTION,
    StoreConfig::SECTION,
    LimitsConfig::SECTION,
    Replicas::SECTION,
    CallsConfig::SECTION,
    BatchConfig::SECTION,
    LogConfig::SECTION,
    Defaults::SECTION,
    SecretKeys::SECTION,
    TenantConfig::SECTION,
    TenantLimit::SECTION,
    ServerConfig::SECTION,
    Program::SECTION,
    ChildLimits::SECTION,
    Sandbox::SECTION,
    Upstream::SECTION,
    UpstreamOAuth::SECTION,
    IdentityProvider::SECTION,
    Recycle::SECTION,
    ToolsetConfig::SECTION,
    ToolOverride::SECTION,
    ArgumentOverride::SECTION,
    ResultOverride::SECTION,
];

const INTRODUCTION: &str = r#"# Configuration

Trunkline reads `trunkline.toml` in its working directory, or the file that `--config` names. A file
needs only the settings that it changes. An unknown key or a wrong value stops the start, with file,
line and what is allowed.

An environment variable overrides the file: `TRUNKLINE_LISTEN`, `TRUNKLINE_STORE__URL`,
`TRUNKLINE_SERVERS__STD__TIMEOUT`. `--listen` overrides both. `--mcp-config` adds the servers of an
MCP client's file.

Durations have a unit: ms, s, min or h. Sizes are bytes or have one: KiB, MiB, GiB, KB, MB or GB.

A text may hold references if it is a key, the URL of a database, or a value of `env` or `headers`:
`${NAME}` is an environment variable, `${file:/path}` the content of a file, `$${` a plain `${`.

Without a file, the configuration is:

"#;

/// Returns the page in Markdown.
pub fn reference() -> String {
    let mut page = format!(
        "{INTRODUCTION}```toml\n{}```\n\nChanges of tenants, servers, toolsets and these settings \
         take effect while Trunkline runs:\n`{}`. All others need a restart.\n",
        super::WITHOUT_FILE,
        RELOADED.join("`, `")
    );
    for section in SECTIONS {
        page.push_str(&render(section));
    }
    page
}

fn render(section: &Section) -> String {
    let mut text = match section.header.split_once(' ') {
        Some((table, words)) => format!("\n## `[{table}]` {words}\n\n"),
        None if section.header.is_empty() => "\n## Top level\n\n".to_owned(),
        None => format!("\n## `[{}]`\n\n", section.header),
    };
    for line in section.about {
        text.push_str(line.trim());
        text.push('\n');
    }
    text.push_str("\n| key | default | allowed | meaning |\n|---|---|---|---|\n");
    for setting in section.settings {
        let default = match setting.default {
            Some(default) => format!("`{default}`"),
            None if setting.is_optional() => "unset".to_owned(),
            None => "required".to_owned(),
        };
        let sentences: Vec<_> = setting.sentences.iter().map(|line| line.trim()).collect();
        let (key, allowed) = (setting.key, setting.kind.allowed());
        text.push_str(&format!("| `{key}` | {default} | {allowed} | {} |\n", sentences.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kind::Kind;

    #[test]
    fn every_section_is_on_the_page() {
        for setting in SECTIONS.iter().flat_map(|section| section.settings) {
            if let Kind::Section(section) = setting.kind {
                assert!(SECTIONS.iter().any(|it| it.header == section.header), "{}", setting.key);
            }
        }
    }

    #[test]
    fn the_page_has_every_setting_with_its_default_and_its_sentence() {
        let page = reference();
        for line in [
            "| `listen` | `\"127.0.0.1:8080\"` | an IP address and a port, such as ",
            "| `timeout` | `\"30s\"` | a number with ms, s, min or h, such as \"30s\", ",
            "| `instances` | `1` | a whole number from 1 to 64 | Instances of the program ",
        ] {
            assert!(page.contains(line), "{line} is missing from\n{page}");
        }
        for line in page.lines().filter(|line| !line.starts_with('|')) {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let cells = |line: &str| line.matches(" |").count();
        assert!(page.lines().filter(|line| line.starts_with("| ")).all(|line| cells(line) == 4));
    }
}
