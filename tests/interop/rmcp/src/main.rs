//! The Rust SDK. In the modern era it is never told so: it asks the server, as a client in the wild
//! would.
//!
//!     trunkline-interop BASE_URL EXPECTED_JSON legacy|modern

mod checks;
mod session;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::checks::Endpoint;
use crate::session::Session;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T = ()> = Result<T, Failure>;

/// Longer than any check should take: a check that hangs fails.
const CHECK_TIME_MAX: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Outcome<ExitCode> {
    let mut args = std::env::args().skip(1);
    let base = args.next().ok_or("BASE_URL is missing")?;
    let expected: Value =
        serde_json::from_slice(&std::fs::read(args.next().ok_or("EXPECTED_JSON is missing")?)?)?;
    let era = args.next().unwrap_or_else(|| "legacy".to_owned());

    let mut failed = 0;
    for endpoint in expected["endpoints"].as_array().into_iter().flatten() {
        let path = endpoint["path"].as_str().unwrap_or_default();
        let mut connected = None;
        let connecting = async {
            let session = Session::connect(&format!("{base}{path}"), &era).await?;
            let (version, wanted) = (session.version(), expected["versions"][&era].as_str());
            connected = Some(session);
            same(version.as_deref(), wanted)
        };
        failed += check(path, "connect", connecting).await;
        if let Some(session) = connected {
            let endpoint = Endpoint::new(&expected, endpoint, &session);
            failed += endpoint.check_all().await;
            failed += check(path, "close", session.close()).await;
        }
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Runs one check and prints its line. Returns how many failed: none or one.
async fn check(path: &str, name: &str, work: impl Future<Output = Outcome>) -> usize {
    let outcome = match tokio::time::timeout(CHECK_TIME_MAX, work).await {
        Ok(outcome) => outcome,
        Err(elapsed) => Err(elapsed.into()),
    };
    match &outcome {
        Ok(()) => println!("ok {path} {name}"),
        Err(error) => println!("FAIL {path} {name}: {:.300}", error.to_string()),
    }
    usize::from(outcome.is_err())
}

fn same<T: PartialEq + std::fmt::Debug>(actual: T, wanted: T) -> Outcome {
    if actual == wanted { Ok(()) } else { Err(format!("{actual:?} is not {wanted:?}").into()) }
}

fn contains(text: &str, part: &Value) -> Outcome {
    let part = part.as_str().unwrap_or_default();
    if text.contains(part) { Ok(()) } else { Err(format!("{text:.200} has no {part:?}").into()) }
}
