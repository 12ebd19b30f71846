//! The forms of client files, each as the client's own documentation has it. The table is in
//! `docs/guide/client-files.md`.

use super::*;

/// The servers of a file at a path below the workspace.
fn client(path: &str, text: &str) -> Setup {
    let mut setup = Setup::empty().var("TOKEN", "t").var("HOME", "/home/u");
    let file = setup.dir.path().join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    setup.sources.mcp_file = Some(path.into());
    setup
}

fn upstream<'a>(config: &'a Config, server: &str) -> &'a Upstream {
    match &config.servers[server].transport {
        Transport::Http(upstream) => upstream,
        Transport::Stdio(_) => panic!("`{server}` has no URL"),
    }
}

fn header(config: &Config, server: &str, name: &str) -> String {
    let filled = upstream(config, server).headers[name].fill(&Secrets::new());
    filled.unwrap().expose().to_owned()
}

fn call<'a>(config: &'a Config, server: &str) -> (String, Vec<&'a str>) {
    let program = program(config, server);
    let args = program.args.iter().map(String::as_str).collect();
    (program.command.display().to_string(), args)
}

#[test]
fn claude_desktop() {
    let config = client(
        "claude_desktop_config.json",
        r#"{
          "globalShortcut": "",
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/u/Desktop"],
              "env": { "LOG": "1" }
            }
          }
        }"#,
    )
    .load();
    let (command, args) = call(&config, "filesystem");
    assert_eq!((&*command, args[2]), ("npx", "/home/u/Desktop"));
    assert_eq!(variable(&config, "filesystem", "LOG"), "1");
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn claude_code() {
    let setup = client(
        ".mcp.json",
        r#"{"mcpServers": {
          "api": {
            "type": "http",
            "url": "${API_BASE_URL:-https://api.example.com}/mcp",
            "headers": { "Authorization": "Bearer ${TOKEN}" }
          },
          "events": { "type": "sse", "url": "https://mcp.example.com/sse" },
          "db": {
            "type": "stdio",
            "command": "${PLUGIN:-/opt/db}/server",
            "args": ["--config", "${TOKEN}.json"],
            "env": { "CACHE": "${CACHE:-/tmp}" }
          }
        }}"#,
    );
    let config = setup.load();
    assert_eq!(upstream(&config, "api").url.as_str(), "https://api.example.com/mcp");
    assert_eq!(header(&config, "api", "authorization"), "Bearer t");
    assert_eq!(upstream(&config, "api").transport, UrlTransport::Auto);
    assert_eq!(upstream(&config, "events").transport, UrlTransport::Sse);
    assert_eq!(call(&config, "db"), ("/opt/db/server".to_owned(), vec!["--config", "t.json"]));
    assert_eq!(variable(&config, "db", "CACHE"), "/tmp");
}

#[test]
fn claude_code_keeps_servers_of_projects_in_one_file() {
    let mut setup = client(".claude.json", "{}");
    let here = setup.dir.path().display().to_string();
    let file = format!(
        r#"{{"numStartups": 5, "mcpServers": {{"everywhere": {{"command": "x"}}}}, "projects": {{
          "{here}": {{"mcpServers": {{"here": {{"command": "y"}}}}}},
          "/elsewhere": {{"mcpServers": {{"elsewhere": {{"command": "z"}}}}}}
        }}}}"#
    );
    fs::write(setup.dir.path().join(".claude.json"), file).unwrap();
    setup.sources.mcp_file = Some(".claude.json".into());
    assert_eq!(names(&setup.load()), ["everywhere", "here", "std"]);
}

#[test]
fn cursor() {
    let setup = client(
        ".cursor/mcp.json",
        r#"{"mcpServers": {
          "local-server": {
            "type": "stdio",
            "command": "python",
            "args": ["${workspaceFolder}/tools/mcp_server.py"],
            "env": { "API_KEY": "${env:TOKEN}" },
            "envFile": ".env"
          },
          "web-server": {
            "url": "http://localhost:3000/mcp",
            "headers": { "X-API-Key": "${env:TOKEN}" }
          }
        }}"#,
    );
    fs::write(setup.dir.path().join(".env"), "API_KEY=not this\nREGION=\"eu ${x}\"\n").unwrap();
    let config = setup.load();
    let (_, args) = call(&config, "local-server");
    assert_eq!(args, [setup.dir.path().join("tools/mcp_server.py").display().to_string()]);
    assert_eq!(variable(&config, "local-server", "API_KEY"), "t");
    assert_eq!(variable(&config, "local-server", "REGION"), "eu ${x}");
    assert_eq!(header(&config, "web-server", "x-api-key"), "t");
}

#[test]
fn vs_code() {
    let setup = client(
        ".vscode/mcp.json",
        r#"{
          // Asked for when a server starts.
          "inputs": [
            { "type": "promptString", "id": "region", "default": "eu" },
            { "type": "promptString", "id": "api-key", "password": true },
          ],
          "servers": {
            "playwright": {
              "type": "stdio", /* the default */
              "command": "npx",
              "args": ["-y", "@microsoft/mcp-server-playwright", "${input:region}"],
            },
            "github": { "type": "http", "url": "https://api.githubcopilot.com/mcp" },
            "perplexity": {
              "type": "stdio",
              "command": "npx",
              "env": { "API_KEY": "${input:api-key}" },
            },
          },
        }"#,
    );
    let config = setup.load();
    assert_eq!(names(&config), ["github", "playwright", "std"]);
    assert_eq!(call(&config, "playwright").1[2], "eu");
    let [left_out] = &config.left_out[..] else { panic!("{:?}", config.left_out) };
    assert_eq!(left_out.id.as_str(), "perplexity");
    let LeftOutReason::Invalid(mistake) = &left_out.reason else { panic!("{left_out:?}") };
    assert_eq!(
        mistake,
        ".vscode/mcp.json:17: `mcpServers.perplexity.env.API_KEY` refers to the input `api-key`, \
         which only an editor can ask for: write `${NAME}` instead, and set that variable of the \
         environment"
    );
    assert_eq!(config.warnings, [format!("server `perplexity` is left out: {mistake}")]);
}

#[test]
fn vs_code_settings() {
    let text =
        r#"{"editor.fontSize": 13, "mcp": {"inputs": [], "servers": {"a": {"command": "x"}}}}"#;
    assert_eq!(names(&client("settings.json", text).load()), ["a", "std"]);
}

#[test]
fn windsurf() {
    let setup = client(
        "mcp_config.json",
        r#"{"mcpServers": {
          "remote-http-mcp": {
            "serverUrl": "https://mcp.example.com/mcp",
            "headers": { "API_KEY": "Bearer ${env:TOKEN}", "X-Key": "${file:key.txt}" }
          },
          "git": { "command": "py", "args": ["-m", "mcp_server_git"], "disabled": true }
        }}"#,
    );
    fs::write(setup.dir.path().join("key.txt"), "from a file\n").unwrap();
    let config = setup.load();
    assert_eq!(header(&config, "remote-http-mcp", "api_key"), "Bearer t");
    assert_eq!(header(&config, "remote-http-mcp", "x-key"), "from a file");
    assert_eq!(config.left_out[0].id.as_str(), "git");
    assert_eq!(config.left_out[0].reason, LeftOutReason::Disabled);
}

#[test]
fn zed() {
    let config = client(
        "settings.json",
        r#"{
          "theme": "One Dark",
          // Servers of the agent.
          "context_servers": {
            "local-mcp-server": {
              "source": "custom", "enabled": true,
              "command": "some-command", "args": ["arg-1"], "env": {}
            },
            "older": {
              "command": { "path": "node", "args": ["/srv/x.js"], "env": { "A": "1" } }
            },
            "remote": {
              "url": "https://x.example/mcp", "headers": { "Authorization": "Bearer x" }
            },
            "off": { "enabled": false, "command": "x" },
          },
        }"#,
    )
    .load();
    assert_eq!(names(&config), ["local-mcp-server", "older", "remote", "std"]);
    assert_eq!(call(&config, "older"), ("node".to_owned(), vec!["/srv/x.js"]));
    assert_eq!(variable(&config, "older", "A"), "1");
    assert_eq!(config.left_out[0].reason, LeftOutReason::Disabled);
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn cline() {
    let config = client(
        "cline_mcp_settings.json",
        r#"{"mcpServers": {
          "local-server": {
            "command": "python", "args": ["/path/to/server.py"],
            "env": { "RETRIES": 3, "VERBOSE": true, "RATIO": 1.50 },
            "alwaysAllow": ["tool1"], "disabled": false, "timeout": 60
          },
          "remote-server": {
            "type": "streamableHttp", "url": "https://x.example/mcp", "timeout": 30000
          }
        }}"#,
    )
    .load();
    assert_eq!(variable(&config, "local-server", "RETRIES"), "3");
    assert_eq!(variable(&config, "local-server", "VERBOSE"), "true");
    assert_eq!(variable(&config, "local-server", "RATIO"), "1.50");
    assert_eq!(config.servers["local-server"].timeout, Duration::from_secs(60));
    assert_eq!(config.servers["remote-server"].timeout, Duration::from_secs(30));
    let warnings = config.warnings.join("\n");
    assert_has(&warnings, &["`timeout` 60 of server `local-server` is taken as 60 s"]);
    assert_has(&warnings, &["`alwaysAllow` of server `local-server` is not used"]);
}

#[test]
fn roo_code() {
    let setup = client(
        ".roo/mcp.json",
        r#"{"mcpServers": {
          "server 1": {
            "command": "node", "args": ["build/index.js"], "cwd": "packages/server",
            "env": { "KEY": "${env:TOKEN}" }, "watchPaths": ["x"]
          },
          "server.2": { "type": "streamable-http", "url": "https://x.example/mcp" },
          "relative": { "command": "./bin/run", "args": ["data/x"] },
          "new data": { "command": "x", "args": ["--db-path", "new.db"] },
          "no data": { "command": "x", "args": ["x@1.0", "http://x/a.json", "-v.db"] }
        }}"#,
    );
    let base = setup.dir.path();
    fs::create_dir(base.join("data")).unwrap();
    fs::write(base.join("data/x"), "").unwrap();
    let config = setup.load();
    assert_eq!(names(&config), ["new-data", "no-data", "relative", "server-1", "server-2", "std"]);
    let warnings = config.warnings.join("\n");
    assert_has(&warnings, &["server \"server 1\" is called `server-1` here"]);
    assert_has(&warnings, &["server \"server.2\" is called `server-2` here"]);
    assert_eq!(program(&config, "server-1").cwd, Some(base.join("packages/server")));
    assert_eq!(program(&config, "relative").command, base.join("./bin/run"));
    assert_eq!(program(&config, "relative").cwd.as_deref(), Some(base));
    assert_eq!(program(&config, "new-data").cwd.as_deref(), Some(base));
    assert_eq!(program(&config, "no-data").cwd, None);
}

#[test]
fn gemini_cli() {
    let config = client(
        ".gemini/settings.json",
        r#"{"mcp": {"allowed": ["a"]}, "mcpServers": {
          "pythonTools": {
            "command": "python", "args": ["-m", "my_mcp_server"],
            "env": { "API_KEY": "$TOKEN", "LITERAL": "cost: $5" },
            "timeout": 15000, "trust": false, "includeTools": ["safe_tool"]
          },
          "httpServer": { "httpUrl": "http://localhost:3000/mcp", "timeout": 5000 },
          "sseServer": { "url": "http://localhost:8080/sse" }
        }}"#,
    )
    .load();
    assert_eq!(variable(&config, "pythonTools", "API_KEY"), "t");
    assert_eq!(variable(&config, "pythonTools", "LITERAL"), "cost: $5");
    assert_eq!(config.servers["pythonTools"].timeout, Duration::from_secs(15));
    assert_eq!(upstream(&config, "sseServer").transport, UrlTransport::Auto);
    assert_has(&config.warnings.join("\n"), &["`includeTools` of server `pythonTools`"]);
}

#[test]
fn opencode() {
    let text = |list: &str| {
        client(
            "opencode.jsonc",
            &format!(r#"{{"$schema": "https://opencode.ai/config.json", {list}}}"#),
        )
    };
    let config = text(
        r#""mcp": {
          "my-local": {
            "type": "local", "command": ["bun", "x", "my-mcp"], "enabled": true,
            "environment": { "KEY": "{env:TOKEN}" },
          },
          "my-remote": { "type": "remote", "url": "https://x.example", "enabled": false },
        }"#,
    )
    .load();
    assert_eq!(call(&config, "my-local"), ("bun".to_owned(), vec!["x", "my-mcp"]));
    assert_eq!(variable(&config, "my-local", "KEY"), "t");
    assert_eq!(config.left_out[0].id.as_str(), "my-remote");

    let newer =
        r#""mcp": {"servers": {"a": {"type": "local", "command": ["x"], "disabled": true}}}"#;
    assert_eq!(text(newer).load().left_out[0].reason, LeftOutReason::Disabled);
}

#[test]
fn copilot_cli() {
    let config = client(
        "mcp-config.json",
        r#"{"mcpServers": {
          "playwright": {
            "type": "local", "command": "npx", "args": ["@playwright/mcp@latest"],
            "env": { "KEY": "${TOKEN}" }, "tools": ["*"]
          },
          "context7": {
            "type": "http", "url": "https://mcp.context7.com/mcp",
            "headers": { "CONTEXT7_API_KEY": "${TOKEN}" }, "tools": ["*"]
          }
        }}"#,
    )
    .load();
    assert_eq!(call(&config, "playwright").1, ["@playwright/mcp@latest"]);
    assert_eq!(header(&config, "context7", "context7_api_key"), "t");
}
