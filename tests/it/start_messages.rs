//! The exact sentences about servers that do not start: what is wrong, and what to write instead.

use std::fs;
use std::process::Output;

use axum::http::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Answer, HttpServer, Setup, python, trunkline, trunkline_with};

/// Returns the reason that `check` tells of a server.
fn reason(output: &Output, server: &str) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let begin = format!("{server} did not start: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&begin));
    line.unwrap_or_else(|| panic!("`{server}` is not in\n{text}")).to_owned()
}

fn program(setup: Setup, id: &str, command: &str, args: &[&str], settings: &str) -> Setup {
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    setup.server(id, command, &args, settings)
}

#[tokio::test]
async fn programs_that_cannot_be_started_as_they_are_written() {
    let mut setup = Setup::new();
    for (id, command, args, settings) in [
        ("echoes", "cat", &[][..], ""),
        ("done", "true", &[], ""),
        ("together", "python3 hunter2.py", &[], ""),
        ("home", "~/bin/x", &[], ""),
        ("docker", "sh", &["-c", "exit 125"], ""),
        ("words", "sh", &["-y hunter2"], ""),
        ("relative", "./srv", &[], ""),
        ("missing", "no-such-program", &[], "env.PATH = \"/no/bin\""),
        ("argument", python(), &["./srv.py"], ""),
        ("directory", "cat", &[], "cwd = \"~/x\""),
    ] {
        setup = program(setup, id, command, args, settings);
    }
    setup.write();
    let output = trunkline_with(&setup, &["check"], &[("HOME", "/home/u")]).await;
    let here = setup.dir.path().display().to_string();
    for (server, expected) in [
        (
            "echoes",
            "it repeats what it is sent, so it is no MCP server; `command` and `args` must start \
             an MCP server"
                .to_owned(),
        ),
        (
            "done",
            "it ended with exit code 0; an MCP server runs until its standard input is closed: \
             look at `command` and `args`"
                .to_owned(),
        ),
        (
            "together",
            "`command` has the program `python3` and its arguments in one text: write `command = \
             \"python3\"` and each argument as a text of its own in `args`"
                .to_owned(),
        ),
        (
            "home",
            "the program `~/bin/x` was not found: no shell expands `~`, so write `/home/u/bin/x`"
                .to_owned(),
        ),
        (
            "relative",
            format!(
                "the program `./srv` was not found in {here}, where Trunkline was started: write \
                 the full path"
            ),
        ),
        ("docker", "it ended with exit code 125".to_owned()),
        (
            "words",
            "it ended with exit code 2; the argument that begins with `-y` has several words: \
             write each as a text of its own in `args`"
                .to_owned(),
        ),
        (
            "missing",
            "the program `no-such-program` was not found on the PATH /no/bin: install it, or \
             write its full path"
                .to_owned(),
        ),
        (
            "argument",
            "it ended with exit code 2; the argument `./srv.py` is a relative path, and without \
             `cwd` the program starts in an empty directory: write the full path, or set `cwd` to \
             the directory that it starts at"
                .to_owned(),
        ),
        (
            "directory",
            format!(
                "`cwd` is {here}/~/x, and there is no such directory; no shell expands `~`, so \
                 write the full path"
            ),
        ),
    ] {
        assert_eq!(reason(&output, server), expected);
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hunter2"));
}

const PRINTS: &str = "echo '> app@1.0.0 dev'; printf 'Local: \\033[2J http://localhost\\n'; \
                      exec sleep 60";

#[tokio::test]
async fn text_on_standard_output_is_shown_with_what_that_output_is_for() {
    let told = "it did not answer in time (`start_timeout`); it writes text to its standard \
                output, which is for MCP messages only: if it is an MCP server, let it log to \
                standard error";
    let setup = program(Setup::new().std(), "web", "sh", &["-c", PRINTS], "start_timeout = \"3s\"");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    assert_eq!(reason(&output, "web"), told);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = "  stdout: > app@1.0.0 dev\n  stdout: Local: \\u{1b}[2J http://localhost\n";
    assert!(text.contains(lines), "{text}");

    let mut serving = setup.serve().await;
    let lines = json!(["> app@1.0.0 dev", "Local: \u{1b}[2J http://localhost"]);
    let key = serving.setup().new_admin_key().await;
    let request = serving.client.get(format!("http://{}/admin/v1/servers", serving.addr));
    let request = request.bearer_auth(key);
    let body = Answer::of(request).await.json();
    let server = body["servers"].as_array().unwrap().iter().find(|it| it["id"] == "web").unwrap();
    let failure = &server["instances"][0]["last_failure"];
    assert_eq!((&failure["detail"], &failure["stdout"]), (&json!(told), &lines));
    let logged = serving.log().into_iter().filter_map(|it| serde_json::from_str::<Value>(&it).ok());
    let line = logged.into_iter().find(|line| line["message"] == "server `web` did not start");
    let line = line.expect("the failure is logged");
    assert_eq!((&line["reason"], &line["stdout"]), (&json!(told), &lines));
    // Its callers get none of it.
    let answer = serving.get("/v1/servers/web").await;
    assert!(!answer.text().contains("app@1.0.0"), "{}", answer.text());
    serving.signal(Signal::TERM);
    serving.ended().await;
}

#[tokio::test]
async fn urls_at_which_no_server_is() {
    let (plain, encrypted) = (HttpServer::modern().await, HttpServer::encrypted(&[]).await);
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let web = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web_at = web.local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = silent.local_addr().unwrap();
    let app = axum::Router::<()>::new()
        .route("/page", axum::routing::post(async || axum::response::Html("<p>")))
        .route("/broken", axum::routing::post(async || StatusCode::BAD_GATEWAY))
        .route("/missing", axum::routing::post(async || StatusCode::NOT_IMPLEMENTED));
    let serving = tokio::spawn(async move { axum::serve(web, app).await });
    let https = plain.url("/mcp").replace("http:", "https:");
    let key = "k".repeat(40);
    let setup = Setup::new()
        .http("path", &format!("http://{web_at}/api?key=hunter2"), "")
        .http("hidden", &format!("http://{web_at}/{key}/mcp"), "")
        .http("page", &format!("http://{web_at}/page"), "")
        .http("broken", &format!("http://{web_at}/broken"), "")
        .http("missing", &format!("http://{web_at}/missing"), "")
        .http("silent", &format!("http://{silent_at}/mcp"), "init_timeout = \"1s\"")
        .http("scheme", &https, "")
        .http("nobody", &format!("http://{nobody}/mcp"), "")
        .http("certificate", &encrypted.url("/mcp"), "");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let port = plain.addr.port();
    for (server, expected) in [
        (
            "path",
            format!(
                "it answered with the HTTP status 404 to POST http://{web_at}/api, so no MCP \
                 server is there: the path of `url` is often `/mcp`"
            ),
        ),
        (
            "hidden",
            format!(
                "it answered with the HTTP status 404 to POST http://{web_at}/[hidden]/mcp, so no \
                 MCP server is there: look at the path of `url`"
            ),
        ),
        (
            "page",
            format!(
                "its answer is neither JSON nor a stream of events, after POST \
                 http://{web_at}/page, so no MCP server is there: the path of `url` is often `/mcp`"
            ),
        ),
        (
            "broken",
            format!(
                "it answered with the HTTP status 502 to POST http://{web_at}/broken: the log of \
                 the server says why, or no MCP server is there: the path of `url` is often `/mcp`"
            ),
        ),
        (
            "missing",
            format!(
                "it answered with the HTTP status 501 to POST http://{web_at}/missing, so no MCP \
                 server is there: the path of `url` is often `/mcp`"
            ),
        ),
        (
            "silent",
            format!(
                "it did not answer in time (`init_timeout`); nothing came after POST \
                 http://{silent_at}/mcp: is an MCP server there, and does it need longer?"
            ),
        ),
        (
            "scheme",
            format!(
                "{https} cannot be reached: port {port} speaks http, not https: write `url = \
                 \"{}\"`",
                plain.url("/mcp")
            ),
        ),
        (
            "nobody",
            format!(
                "http://{nobody}/mcp cannot be reached: nothing listens on port {} of 127.0.0.1: \
                 is the server started?",
                nobody.port()
            ),
        ),
    ] {
        assert_eq!(reason(&output, server), expected);
    }
    let certificate = reason(&output, "certificate");
    assert!(certificate.contains("its certificate is not trusted ("), "{certificate}");
    assert!(certificate.contains("`SSL_CERT_FILE` in Trunkline's environment"), "{certificate}");
    serving.abort();
}

#[tokio::test]
async fn a_download_that_fails_for_a_certificate_names_the_setting() {
    let line = "npm error code SELF_SIGNED_CERT_IN_CHAIN";
    let script = format!("echo '{line}' >&2; exit 1");
    let setup = program(Setup::new(), "npm", "sh", &["-c", &script], "");
    setup.write();
    let output = trunkline_with(&setup, &["check"], &[("NODE_EXTRA_CA_CERTS", "/x.pem")]).await;
    // Whoever tests may have others of these variables.
    let reason = reason(&output, "npm");
    assert!(
        reason.starts_with("it ended with exit code 1; the program does not see `"),
        "{reason}"
    );
    for part in
        ["`NODE_EXTRA_CA_CERTS`", "`, which Trunkline's environment has: pass ", "under `[de"]
    {
        assert!(reason.contains(part), "{part} is not in {reason}");
    }
}

#[tokio::test]
async fn warnings_and_servers_that_are_left_out_are_shown() {
    let setup = Setup::new().std().with_tenant("acme", "servers = [\"sdt\", \"std/ehco\"]");
    let clients = json!({"mcpServers": {
        "bad": {"command": 1}, "off": {"command": "x", "disabled": true},
        "my own": {"command": "trunkline", "args": ["std"]},
    }});
    fs::write(setup.dir.path().join("client.json"), clients.to_string()).unwrap();
    setup.write();
    let output = trunkline(&setup, &["check", "--mcp-config", "client.json"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for line in [
        "warning: client.json:1: server \"my own\" is called `my-own` here\n",
        "tenant `acme`: `servers` has `sdt`, which matches no server; did you mean `std`?\n",
        "warning: tenant `acme`: `std/ehco` matches no tool; did you mean `echo`?\n",
        "bad     FAILED  -           -           -        -  left out: client.json:1: ",
        "off     off     -           -           -        -  disabled in the client's file\n",
        "my-own: echo, ",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }

    let serving =
        crate::support::Serving::start_with(setup, &["--mcp-config", "client.json"]).await;
    serving.ready().await;
    let answer: Value = serde_json::from_str(&serving.get("/v1/servers").await.text()).unwrap();
    let servers = answer["servers"].as_array().unwrap();
    let state = |id: &str| {
        let server = servers.iter().find(|server| server["id"] == id).unwrap();
        (server["state"].as_str().unwrap(), server["reason"].as_str().unwrap_or_default())
    };
    assert_eq!(state("bad"), ("invalid", "its entry in the client's file has a mistake"));
    assert_eq!(state("off"), ("disabled", "the client's file disables it"));
    assert_eq!(state("my-own").0, "ready");
}

#[tokio::test]
async fn grants_that_match_nothing_are_told_by_command_and_at_the_start() {
    let setup = Setup::new().std();
    setup.write();
    let add = ["tenant", "add", "acme", "--create", "--servers", "sdt"];
    let output = trunkline(&setup, &add).await;
    let told = "tenant `acme`: `servers` has `sdt`, which matches no server; did you mean `std`?";
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.ends_with(&format!("warning: {told}\n")), "{stderr}");
    let serving = setup.serve().await;
    serving.logged(told).await;
}

#[tokio::test]
async fn discover_says_what_the_files_of_clients_would_add_and_no_secret() {
    let setup = Setup::new();
    let home = setup.dir.path().join("home");
    let write = |path: &str, text: &str| {
        let file = home.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(
        ".config/Claude/claude_desktop_config.json",
        r#"{"mcpServers": {"files": {"command": "npx", "args": ["hunter2", "x"],
            "env": {"TOKEN": "hunter2"}}, "off": {"command": "x", "disabled": true},
            "together": {"command": "npx hunter2"}}}"#,
    );
    write(
        ".codeium/windsurf/mcp_config.json",
        r#"{"mcpServers": {"web": {"serverUrl": "https://x.example/hunter2?key=hunter2",
            "headers": {"Authorization": "hunter2"}}, "bad": {"url": "hunter2"}}}"#,
    );
    write(".cursor/mcp.json", "{");
    fs::create_dir(setup.dir.path().join(".vscode")).unwrap();
    fs::write(setup.dir.path().join(".vscode/mcp.json"), r#"{"servers": {}}"#).unwrap();
    let output = trunkline_with(&setup, &["discover"], &[("HOME", home.to_str().unwrap())]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !text.contains("hunter2"), "{text}");
    for line in [
        "Claude Desktop: ",
        "  files: program `npx`, 2 arguments, variables TOKEN\n",
        "  off: disabled in the file\n",
        "  together: program `npx …`\n",
        "Windsurf: ",
        "  web: URL at https://x.example, headers authorization\n",
        "  bad: would be left out: ",
        "Cursor: ",
        "  cannot be used: ",
        "VS Code: ",
        "  no servers\n",
        "trunkline serve --mcp-config FILE\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let empty = setup.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::remove_file(setup.dir.path().join(".vscode/mcp.json")).unwrap();
    let output = trunkline_with(&setup, &["discover"], &[("HOME", empty.to_str().unwrap())]).await;
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("no file of Claude, Cursor"));
}
