//! Tells an operator how to mend a server that did not start. Callers are not told: hints repeat
//! parts of the configuration, though no values that are often secret.

use reqwest::Url;

use super::handshake::HandshakeError;
use super::start_error::StartError;
use crate::backend::connection::incoming::ECHOES;
use crate::backend::connection::{CloseReason, RequestError};
use crate::backend::stdio::process::ExitReason;
use crate::config::{Program, Upstream};

/// Words of programs that do not trust a certificate, or do not get through.
const CERTIFICATE: [&str; 7] = [
    "CERTIFICATE_VERIFY_FAILED",
    "unable to get local issuer certificate",
    "UNABLE_TO_GET_ISSUER_CERT",
    "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "SELF_SIGNED_CERT_IN_CHAIN",
    "self-signed certificate",
    "invalid peer certificate",
];
const NETWORK: [&str; 8] = [
    "ProxyError",
    "407 Proxy",
    "ETIMEDOUT",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "Temporary failure in name resolution",
    "dns error",
];
/// Variables that such programs look for, and that they do not see unless they are passed on.
const CERTIFICATE_VARIABLES: [&str; 4] =
    ["SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"];
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"];
/// A longer part of a path may be a key.
const PATH_PART_LEN_MAX: usize = 24;

/// Adds the hint for a program that did not start.
pub(super) fn of_program(
    error: StartError,
    program: &Program,
    exit: Option<&ExitReason>,
) -> StartError {
    let hint = of_network(&error, program)
        .or_else(|| of_arguments(&error, program))
        .or_else(|| of_relative_path(&error, program, exit?))
        .or_else(|| of_output(&error, exit));
    error.with_hint(hint)
}

/// Arguments that a shell would have split, and one that npx needs where nobody can answer it.
fn of_arguments(error: &StartError, program: &Program) -> Option<String> {
    if error.stderr.iter().any(|line| line.contains("no YES option")) {
        return Some("npx asks before it installs: write \"-y\" as the first of `args`".to_owned());
    }
    let first_word = |arg: &String| {
        let (first, _) = arg.split_once(' ')?;
        (first.starts_with('-') && !first.contains('=')).then(|| first.to_owned())
    };
    let first = program.args.iter().find_map(first_word)?;
    // The rest may be secret.
    Some(format!(
        "the argument that begins with `{first}` has several words: write each as a text of its \
         own in `args`"
    ))
}

/// Standard output that is not of MCP, or an end that nothing explains.
fn of_output(error: &StartError, exit: Option<&ExitReason>) -> Option<String> {
    if !error.stdout.is_empty() {
        let text = "it writes text to its standard output, which is for MCP messages only: if it \
                    is an MCP server, let it log to standard error";
        return Some(text.to_owned());
    }
    if error.detail == ECHOES {
        return Some("`command` and `args` must start an MCP server".to_owned());
    }
    (exit == Some(&ExitReason::Code(0))).then(|| {
        "an MCP server runs until its standard input is closed: look at `command` and `args`"
            .to_owned()
    })
}

/// A path that is relative to a directory in which the program does not start.
fn of_relative_path(error: &StartError, program: &Program, exit: &ExitReason) -> Option<String> {
    let here = std::env::current_dir().ok()?;
    let names = |path: &str| error.stderr.iter().any(|line| line.contains(path));
    // The private directory of a program is called `trunkline-` and a UUID.
    let is_missed = |arg: &str| {
        let places = error.stderr.iter().filter_map(|line| line.split_once("/trunkline-"));
        let mut paths = places.filter_map(|(_, rest)| rest.split_once('/'));
        paths.any(|(_, path)| path.starts_with(arg))
    };
    let is_relative = |arg: &str| {
        let is_marked = arg.starts_with("./") || arg.starts_with("../");
        let is_word = arg.is_empty() || arg.starts_with(['-', '/', '~']);
        is_marked || !is_word && (here.join(arg).is_file() || is_missed(arg))
    };
    // Some programs expand it themselves, and then name the full path.
    let home = std::env::var("HOME").unwrap_or_default();
    let is_tilde = |arg: &&String| arg.starts_with("~/") && !names(&arg.replacen('~', &home, 1));
    if let Some(arg) = program.args.iter().find(is_tilde) {
        return Some(format!("no shell expands `~` in the argument `{arg}`: write the full path"));
    }
    if program.cwd.is_some() || *exit == ExitReason::Code(0) {
        return None;
    }
    let arg = program.args.iter().find(|arg| is_relative(arg))?;
    Some(format!(
        "the argument `{arg}` is a relative path, and without `cwd` the program starts in an empty \
         directory: write the full path, or set `cwd` to the directory that it starts at"
    ))
}

/// A download that failed for want of a proxy or a certificate.
fn of_network(error: &StartError, program: &Program) -> Option<String> {
    let lines = || error.stderr.iter().chain(&error.stdout);
    let has = |words: &[&str]| lines().any(|line| words.iter().any(|word| line.contains(word)));
    let (is_certificate, is_network) = (has(&CERTIFICATE), has(&NETWORK));
    if !is_certificate && !is_network {
        return None;
    }
    let variables: &[&'static str] =
        if is_certificate { &CERTIFICATE_VARIABLES } else { &PROXY_VARIABLES };
    let set = variables.iter().filter(|name| std::env::var_os(name).is_some());
    let unseen: Vec<&str> = set.copied().filter(|name| !program.env.contains_key(*name)).collect();
    if !unseen.is_empty() {
        let list = unseen.join("\", \"");
        return Some(format!(
            "the program does not see `{}`, which Trunkline's environment has: pass them on with \
             `pass_env = [\"{list}\"]` under `[defaults]`",
            unseen.join("`, `")
        ));
    }
    let (what, names) = match is_certificate {
        true => ("certificates of its own", "\"SSL_CERT_FILE\", \"NODE_EXTRA_CA_CERTS\""),
        false => ("a proxy", "\"HTTPS_PROXY\", \"NO_PROXY\""),
    };
    Some(format!(
        "if this network has {what}, set the variables for it in Trunkline's environment, and pass \
         them on with `pass_env = [{names}]` under `[defaults]`"
    ))
}

/// Returns the detail of a failed handshake over HTTP.
pub(super) fn of_url(error: &HandshakeError, upstream: &Upstream) -> Option<String> {
    let url = shown(&upstream.url);
    match error {
        HandshakeError::Failed(RequestError::Http { status: 401 | 403, .. }) => Some(format!(
            "{error} to POST {url}: the server wants credentials, which go into `headers`, such as \
             `Authorization = \"Bearer ${{TOKEN}}\"`"
        )),
        HandshakeError::Failed(RequestError::Http { status, .. }) => Some(match status {
            408 | 425 | 429 => format!("{error} to POST {url}"),
            400..=499 | 501 => format!("{error} to POST {url}, {}", no_server_at(&upstream.url)),
            _ => format!(
                "{error} to POST {url}: the log of the server says why, or no MCP server is there: \
                 {}",
                path_advice(&upstream.url)
            ),
        }),
        // The older transport fails before it sends anything, and says itself what is wrong.
        HandshakeError::Failed(RequestError::Closed {
            reason: CloseReason::Protocol(_),
            written: true,
        }) => Some(format!("{error}, after POST {url}, {}", no_server_at(&upstream.url))),
        HandshakeError::Failed(RequestError::Closed { reason: CloseReason::Lost(_), .. }) => {
            Some(format!("{error} before it answered to POST {url}: is an MCP server there?"))
        }
        HandshakeError::Failed(RequestError::Unreached { detail, .. }) => {
            let advice = of_connect(detail, &upstream.url)?;
            Some(format!("{url} cannot be reached: {advice}"))
        }
        _ => None,
    }
}

/// Returns the hint for a server over HTTP that did not answer in time.
pub(super) fn of_silence(upstream: &Upstream) -> String {
    let url = shown(&upstream.url);
    format!("nothing came after POST {url}: is an MCP server there, and does it need longer?")
}

fn no_server_at(url: &Url) -> String {
    format!("so no MCP server is there: {}", path_advice(url))
}

fn path_advice(url: &Url) -> &'static str {
    match url.path().trim_end_matches('/').ends_with("/mcp") {
        true => "look at the path of `url`",
        false => "the path of `url` is often `/mcp`",
    }
}

/// Explains why no connection could be made.
fn of_connect(causes: &str, url: &Url) -> Option<String> {
    let (host, port) = (url.host_str()?, url.port_or_known_default()?);
    if causes.contains("InvalidContentType") {
        let mut plain = url.clone();
        let _ = plain.set_scheme("http");
        let _ = plain.set_port(Some(port));
        return Some(format!(
            "port {port} speaks http, not https: write `url = \"{}\"`",
            shown(&plain)
        ));
    }
    if causes.contains("Connection refused") {
        return Some(format!("nothing listens on port {port} of {host}: is the server started?"));
    }
    if causes.contains("dns error") || causes.contains("failed to lookup address") {
        return Some(format!("no address is known for the host `{host}`"));
    }
    causes.contains("invalid peer certificate").then(|| {
        format!(
            "its certificate is not trusted ({causes}): `SSL_CERT_FILE` in Trunkline's environment \
             names a file with the CA certificates to trust"
        )
    })
}

/// Returns a URL without its parts that may be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let parts = url.path_segments().into_iter().flatten();
    let parts: Vec<_> =
        parts.map(|part| if part.len() > PATH_PART_LEN_MAX { "[hidden]" } else { part }).collect();
    let path = parts.join("/");
    url.set_path(&path);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_keys() {
        let shown = |url: &str| shown(&url.parse().unwrap());
        assert_eq!(shown("https://a.example/mcp?key=hunter2#x"), "https://a.example/mcp");
        let key = "s".repeat(40);
        assert_eq!(shown(&format!("http://a/{key}/mcp")), "http://a/[hidden]/mcp");
    }

    #[test]
    fn a_failed_download_names_what_to_pass_on() {
        let failed = |line: &str| {
            let mut error = StartError::new("it ended with exit code 1", "it ended");
            error.stderr = vec![line.to_owned()];
            of_program(error, &Program::default(), Some(&ExitReason::Code(1))).detail
        };
        for line in ["npm error code SELF_SIGNED_CERT_IN_CHAIN", "invalid peer certificate: x"] {
            let detail = failed(line);
            assert!(detail.contains("pass_env = [\"") && detail.contains("[defaults]"), "{detail}");
        }
        assert!(failed("npm error code EAI_AGAIN").contains("_PROXY\""));
        assert_eq!(failed("TypeError: x is undefined"), "it ended");
    }

    #[test]
    fn arguments_that_are_wrong_are_named() {
        let failed = |args: &[&str], line: &str| {
            let mut error = StartError::new("", "it ended");
            error.stderr = vec![line.to_owned()];
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            let program = Program { args, ..Program::default() };
            of_program(error, &program, Some(&ExitReason::Code(1))).detail
        };
        assert_eq!(
            failed(&["-y hunter2"], ""),
            "it ended; the argument that begins with `-y` has several words: write each as a text \
             of its own in `args`"
        );
        assert_eq!(
            failed(&["x"], "npm error npx canceled due to missing packages and no YES option: [x]"),
            "it ended; npx asks before it installs: write \"-y\" as the first of `args`"
        );
        let told = "it ended; the argument `x.py` is a relative path, and without `cwd`";
        let line = "can't open file '/tmp/trunkline-0a1b2c3d-0a1b-0a1b/x.py': [Errno 2]";
        assert!(failed(&["x.py"], line).starts_with(told), "{}", failed(&["x.py"], line));
        let home = std::env::var("HOME").unwrap();
        assert!(failed(&["~/x"], "no ~/x").contains("no shell expands `~`"));
        assert_eq!(failed(&["~/x"], &format!("{home}/x is not there")), "it ended");
        for args in [&["-e", "a b"][..], &["--header=A: b"], &["x.py"]] {
            assert_eq!(failed(args, ""), "it ended");
        }
    }
}
