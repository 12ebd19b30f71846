//! Decides what the server does with a call. Drawn from the seed and the call's mark alone, so that
//! it does not depend on the order of arrival. Weighted towards errors: that is where answers get
//! mixed up.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use trunkline::protocol::mcp::{meta, method};

use crate::plan::{MAX_RESPONSE, rng};

/// An action at some moment.
pub enum Action {
    /// One line.
    Write(String),
    /// The last thing it does.
    End(End),
}

/// How the server ends.
#[derive(Clone, Copy)]
pub enum End {
    Exit(i32),
    Abort,
    Kill,
    /// Closes its output and lives on.
    Mute,
}

/// The fate of an answer after a cancel.
#[derive(Clone, Copy)]
pub enum OnCancel {
    Ignore,
    Obey,
    /// Sent when everybody has forgotten the call.
    Delay(Duration),
}

/// All that is done with one call.
pub struct Treatment {
    pub actions: Vec<(Duration, Action)>,
    pub on_cancel: OnCancel,
}

/// How long the server reads nothing when it meets this call.
pub fn pause(seed: u64, mark: &str) -> Option<Duration> {
    let mut rng = rng((seed, mark, "pause"));
    rng.random_ratio(1, 3000).then(|| Duration::from_millis(rng.random_range(5..40)))
}

/// Decides what is done with a call.
pub fn treat(seed: u64, id: u64, mark: &str, may_end: bool) -> Treatment {
    let mut rng = rng((seed, mark, "call"));
    let on_cancel = match rng.random_range(0..4) {
        0 => OnCancel::Obey,
        1 => OnCancel::Delay(millis(&mut rng, 40, 200)),
        _ => OnCancel::Ignore,
    };
    let delay = match rng.random_range(0..1000) {
        0..5 => return Treatment { actions: vec![], on_cancel },
        5..20 => millis(&mut rng, 30, 250),
        _ => millis(&mut rng, 0, 4),
    };
    let mut actions = vec![];
    let mut at = |delay, line| actions.push((delay, Action::Write(line)));
    if rng.random_ratio(1, 25) {
        at(delay, garbage(&mut rng, id, mark));
    }
    if rng.random_ratio(1, 40) {
        at(delay, own_message(&mut rng, id, mark));
    }
    if rng.random_ratio(1, 40) {
        at(delay, forgery(&mut rng, id));
    }
    let answer = answer(&mut rng, id, mark);
    if rng.random_ratio(1, 25) {
        at(delay + millis(&mut rng, 0, 120), answer.clone());
    }
    if rng.random_ratio(1, 40) {
        // Not the same again, but something else for the same call.
        let other = self::answer(&mut rng, id, mark);
        at(delay + millis(&mut rng, 0, 120), other);
    }
    at(delay, answer);
    if may_end && rng.random_ratio(1, 2500) {
        let end = match rng.random_range(0..5) {
            0 => End::Exit(0),
            1 => End::Exit(3),
            2 => End::Abort,
            3 => End::Kill,
            _ => End::Mute,
        };
        actions.push((delay, Action::End(end)));
    }
    Treatment { actions, on_cancel }
}

/// Progress of a call that asked for it: before its answer, and after; and some that is nobody's.
pub fn progress(seed: u64, id: u64, mark: &str) -> Vec<(Duration, Action)> {
    let mut rng = rng((seed, mark, "progress"));
    let count = rng.random_range(0..4);
    let line = |step: u32, rng: &mut SmallRng| {
        let (token, mark) = match rng.random_range(0..20) {
            0 => ((id ^ 1 << rng.random_range(20..52)).to_string(), "forged"),
            1 => (format!("\"{id}\""), "forged"),
            _ => (id.to_string(), mark),
        };
        format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\
             \"params\":{{\"progress\":{step},\"progressToken\":{token},\"message\":\"{mark}\"}}}}"
        )
    };
    let steps = 1..=count;
    steps.map(|step| (millis(&mut rng, 0, 8), Action::Write(line(step, &mut rng)))).collect()
}

/// The update of a watched resource, and a log line about that, which names the resource.
pub fn told(subscription: Option<u64>, uri: &str) -> [String; 2] {
    let meta = subscription.map_or(json!({}), |id| json!({meta::SUBSCRIPTION_ID: id}));
    let line = |method, params| json!({"jsonrpc": "2.0", "method": method, "params": params});
    [
        line(method::RESOURCE_UPDATED, json!({"uri": uri, "_meta": meta})).to_string(),
        line(method::LOG_MESSAGE, json!({"level": "error", "data": uri})).to_string(),
    ]
}

fn answer(rng: &mut SmallRng, id: u64, mark: &str) -> String {
    let text = format!("\"content\":[{{\"type\":\"text\",\"text\":\"{mark}\"}}]");
    let outcome = match rng.random_range(0..1000) {
        0..140 => format!(
            "\"result\":{{{text},\"structuredContent\":{{\"mark\":\"{mark}\"}},\"isError\":true}}"
        ),
        140..280 => {
            let code = [-32000, -32602, -32603, -32700][rng.random_range(0..4)];
            format!(
                "\"error\":{{\"code\":{code},\"message\":\"{mark}\",\"data\":{{\"mark\":\"{mark}\
                 \"}}}}"
            )
        }
        // Over the length up to which the gateway copies bodies.
        280..288 => padded(&text, mark, rng.random_range(9_000..30_000)),
        288..290 => padded(&text, mark, MAX_RESPONSE + 1000),
        290..293 => format!("\"error\":{{\"message\":\"{mark}\"}}"),
        293..296 => format!("\"result\":[\"{mark}\"]"),
        296..298 => {
            "\"result\":{\"resultType\":\"input_required\",\"inputRequests\":{}}".to_owned()
        }
        298..300 => "\"result\":{},\"error\":{\"code\":1,\"message\":\"both\"}".to_owned(),
        _ => format!("\"result\":{{{text},\"structuredContent\":{{\"mark\":\"{mark}\"}}}}"),
    };
    if rng.random_ratio(1, 2) {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{outcome}}}")
    } else {
        format!("{{{outcome},\"id\":{id},\"jsonrpc\":\"2.0\"}}")
    }
}

/// Long, and the mark's all the way through.
fn padded(text: &str, mark: &str, len: usize) -> String {
    let padding = vec![format!("\"{mark}\""); len / (mark.len() + 3)].join(",");
    format!(
        "\"result\":{{{text},\"structuredContent\":{{\"mark\":\"{mark}\
         \",\"padding\":[{padding}]}}}}"
    )
}

/// An answer to a call that nobody made. Its mark is nobody's: delivered to anyone, it is seen.
fn forgery(rng: &mut SmallRng, id: u64) -> String {
    let id = match rng.random_range(0..7) {
        0 => format!("\"{id}\""),
        1 => format!("{id}.0"),
        2 => format!("-{id}"),
        3 => "null".to_owned(),
        4 => (id ^ 1 << rng.random_range(20..52)).to_string(),
        5 => (id | 1 << 60).to_string(),
        _ => rng.random_range(1 << 40..1_u64 << 53).to_string(),
    };
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[{{\"type\":\"text\",\
         \"text\":\"forged\"}}],\"structuredContent\":{{\"mark\":\"forged\"}}}}}}"
    )
}

fn garbage(rng: &mut SmallRng, id: u64, mark: &str) -> String {
    match rng.random_range(0..8) {
        0 => "Server listening, all is well".to_owned(),
        1 => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":"),
        2 => "\n  \n\r".to_owned(),
        3 => format!("[{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}]"),
        4 => format!("\"{mark}\""),
        5 => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"id\":{id},\"result\":{{}}}}"),
        6 => format!("{{\"jsonrpc\":\"1.0\",\"id\":{id},\"result\":{{}}}}"),
        _ => format!("{{\"id\":{id}}}{{\"id\":{id}}}"),
    }
}

/// A request or notification of the server's own. Its requests have the ids of calls: the two
/// directions number theirs independently.
fn own_message(rng: &mut SmallRng, id: u64, mark: &str) -> String {
    let rest = match rng.random_range(0..60) {
        0..15 => format!("\"id\":{id},\"method\":\"ping\""),
        15..30 => format!("\"id\":{id},\"method\":\"roots/list\""),
        30..35 => {
            format!("\"id\":\"{mark}\",\"method\":\"sampling/createMessage\",\"params\":{{}}")
        }
        35..47 => format!(
            "\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{id}\
             ,\"progress\":1,\"message\":\"{mark}\"}}"
        ),
        47..59 => format!(
            "\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\
             \"data\":\"{mark}\"}}"
        ),
        _ => "\"method\":\"notifications/tools/list_changed\"".to_owned(),
    };
    format!("{{\"jsonrpc\":\"2.0\",{rest}}}")
}

fn millis(rng: &mut SmallRng, min: u64, max: u64) -> Duration {
    Duration::from_millis(rng.random_range(min..max))
}

impl End {
    /// Does not return, except for [`End::Mute`].
    pub fn carry_out(self) {
        match self {
            Self::Exit(code) => std::process::exit(code),
            Self::Abort => std::process::abort(),
            Self::Kill => drop(kill_process(getpid(), Signal::KILL)),
            Self::Mute => {
                let null = std::fs::File::create("/dev/null").expect("it is always there");
                rustix::stdio::dup2_stdout(&null).expect("both are open");
            }
        }
    }
}
