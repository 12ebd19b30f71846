//! The misbehaviour of the server, and the outcome of its calls.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::figure::Figure;
use crate::neighbour::quantile_ms;
use crate::target::{Answer, Bad, LONG, Target};

/// Calls of a server that is not there, and how soon they must be refused.
const REFUSALS: usize = 200;
const REFUSAL_MS_MAX: f64 = 5.0;
/// `start_timeout` of the one that is silent, in seconds, and how much later that must be known.
const START_TIMEOUT_S: f64 = 2.0;
const NOTICED_S: f64 = 1.0;
/// Deadline, grace and the time for a sign of life, in seconds; and how much longer it may take.
const STOPPED_S_MAX: f64 = 1.0 + 5.0 + 5.0 + NOTICED_S;
/// One that does not read is found after ten seconds; it is looked for once a second.
const DEAF_S_MAX: f64 = 10.0 + 2.0;
/// The longest answer that is passed on (`max_response`), and what stands around its text.
const ANSWER_LEN_MAX: usize = 16 << 20;
const AROUND: usize = 200;
/// When to give up.
const PATIENCE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
pub enum Trouble {
    Crash,
    Missing,
    Mute,
    Stopped,
    Deaf,
    Stderr,
    Endless,
    Large,
    Garbage,
}

impl Trouble {
    pub const ALL: [Self; 9] = [
        Self::Crash,
        Self::Missing,
        Self::Mute,
        Self::Stopped,
        Self::Deaf,
        Self::Stderr,
        Self::Endless,
        Self::Large,
        Self::Garbage,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "one that crashes whenever it is started",
            Self::Missing => "a program that is not there",
            Self::Mute => "one that says nothing when it is started (start_timeout 2 s)",
            Self::Stopped => "one that is stopped (SIGSTOP), with ten calls on it of 1 s each",
            Self::Deaf => "one that does not read its input, with calls of 512 KiB",
            Self::Stderr => "one that floods standard error",
            Self::Endless => "one that answers with a line of 1 GiB",
            Self::Large => "one whose answers are as large as allowed, and larger",
            Self::Garbage => "one that floods its output with what is no message",
        }
    }

    /// By how much the gateway's memory may grow meanwhile.
    pub fn growth_max_mib(self) -> Option<f64> {
        match self {
            Self::Stderr => Some(32.0),
            Self::Endless => Some(64.0),
            _ => None,
        }
    }

    pub fn server(self) -> Bad {
        match self {
            Self::Crash => Bad { option: Some("start=fail"), ..Bad::default() },
            Self::Missing => Bad { command: Some("/no/such/program"), ..Bad::default() },
            Self::Mute => Bad {
                option: Some("start=mute"),
                settings: "start_timeout = \"2s\"",
                command: None,
            },
            _ => Bad::default(),
        }
    }

    /// Has it happen; gives what is to be seen of it.
    pub async fn cause(self, target: &Target, quick: bool) -> Result<Vec<Figure>> {
        match self {
            Self::Crash | Self::Missing => no_server(target).await,
            Self::Mute => mute(target).await,
            Self::Stopped => stopped(target).await,
            Self::Deaf => deaf(target).await,
            Self::Stderr => stderr(target, quick).await,
            Self::Endless => endless(target).await,
            Self::Large => large(target).await,
            Self::Garbage => garbage(target).await,
        }
    }
}

async fn no_server(target: &Target) -> Result<Vec<Figure>> {
    let began = Instant::now();
    target.call("raw", "{}".to_owned(), LONG).await?;
    while began.elapsed() < PATIENCE && target.view().await?["state"] != "quarantined" {
        sleep(POLL).await;
    }
    let (known_after, starts) = (began.elapsed().as_secs_f64(), target.starts() as f64);
    let (mut times, mut wrong) = (vec![], 0);
    for _ in 0..REFUSALS {
        let answer = target.call("raw", "{}".to_owned(), LONG).await?;
        wrong += usize::from(!is_refused(&answer));
        times.push(answer.took);
    }
    Ok(vec![
        Figure::new("from the first call to quarantine", known_after, "s", None),
        Figure::new("processes started until then", starts, "", 5.0),
        Figure::new("p99 of 200 refusals", quantile_ms(times, 0.99), "ms", REFUSAL_MS_MAX),
        Figure::none("not 503 server_unavailable with Retry-After", wrong),
    ])
}

fn is_refused(answer: &Answer) -> bool {
    answer.is_error(503, "server_unavailable") && answer.says_when_to_come_back
}

async fn mute(target: &Target) -> Result<Vec<Figure>> {
    let calls = (0..20).map(|_| target.call("raw", "{}".to_owned(), LONG));
    let answers = join_all(calls).await;
    let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
    let longest = answers.iter().map(|answer| answer.took.as_secs_f64()).fold(0.0, f64::max);
    let wrong = answers.iter().filter(|answer| !is_refused(answer)).count();
    let most = START_TIMEOUT_S + NOTICED_S;
    Ok(vec![
        Figure::new("longest wait of 20 calls until they are told", longest, "s", most),
        Figure::none("not 503 server_unavailable with Retry-After", wrong),
    ])
}

async fn stopped(target: &Target) -> Result<Vec<Figure>> {
    let before = pid(target).await?;
    let process = before.parse().ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(process, Signal::STOP)?;
    let began = Instant::now();
    let calls = (0..10).map(|_| target.call("raw", "{}".to_owned(), DEADLINE));
    let answers = join_all(calls).await.into_iter().collect::<Result<Vec<_>>>()?;
    let wrong = answers.iter().filter(|it| !it.is_error(504, "deadline_exceeded")).count();
    let (back, untyped) = works_again(target, &before, began).await?;
    Ok(vec![
        Figure::new("until another has taken its place", back, "s", STOPPED_S_MAX),
        Figure::none("calls not answered 504 deadline_exceeded", wrong),
        Figure::none("answers without a code until then", untyped),
    ])
}

async fn deaf(target: &Target) -> Result<Vec<Figure>> {
    let before = pid(target).await?;
    let deaf = target.call("deaf", "{}".to_owned(), DEADLINE);
    let rest = async {
        while !target.log().contains("\"deaf\",\"arguments\"") {
            sleep(POLL).await;
        }
        let began = Instant::now();
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(512 << 10));
        let calls = (0..4).map(|_| target.call("raw", large.clone(), LONG));
        let answers = join_all(calls).await.into_iter().collect::<Result<Vec<_>>>()?;
        let again = works_again(target, &before, began).await?;
        anyhow::Ok((answers, again))
    };
    let (deaf, rest) = tokio::join!(deaf, rest);
    let (mut answers, (back, untyped)) = rest?;
    answers.push(deaf?);
    // Those that were never written may be made by the one that takes its place.
    let wrong = answers.iter().filter(|it| it.status != 200 && it.code.is_none()).count();
    let ended = answers.iter().filter(|it| it.is_error(502, "backend_exited")).count();
    Ok(vec![
        Figure::new("until another has taken its place", back, "s", DEAF_S_MAX),
        Figure::none("answers without a code", wrong + untyped),
        Figure::new("of the five calls: 502 backend_exited", ended as f64, "", None),
    ])
}

async fn stderr(target: &Target, quick: bool) -> Result<Vec<Figure>> {
    let kib = if quick { 100_000 } else { 1_000_000 };
    let answer = target.call("stderr", format!("{{\"kib\":{kib}}}"), LONG).await?;
    let wrong = usize::from(answer.text().as_deref() != Some("written"));
    Ok(vec![
        Figure::new("written", f64::from(kib) / 1024.0, "MiB", None),
        Figure::new("until the call is answered", answer.took.as_secs_f64(), "s", None),
        Figure::none("calls that failed", wrong),
    ])
}

async fn endless(target: &Target) -> Result<Vec<Figure>> {
    let before = pid(target).await?;
    let began = Instant::now();
    let answer = target.call("endless", format!("{{\"bytes\":{}}}", 1 << 30), LONG).await?;
    let (back, untyped) = works_again(target, &before, began).await?;
    Ok(vec![
        Figure::new("until the call is answered", answer.took.as_secs_f64(), "s", None),
        Figure::none("not 502 backend_protocol", count(!answer.is_error(502, "backend_protocol"))),
        Figure::new("until another has taken its place", back, "s", PATIENCE.as_secs_f64()),
        Figure::none("answers without a code until then", untyped),
    ])
}

async fn large(target: &Target) -> Result<Vec<Figure>> {
    let (mut broken, mut wrong) = (0, 0);
    let arguments = |bytes: usize| format!("{{\"bytes\":{bytes}}}");
    for n in 0..20 {
        let bytes = ANSWER_LEN_MAX - AROUND;
        let answer = target.call("big", arguments(bytes), LONG).await?;
        broken += count(answer.text().is_none_or(|text| text.len() != bytes));
        if n == 10 {
            let answer = target.call("big", arguments(ANSWER_LEN_MAX), LONG).await?;
            wrong = count(!answer.is_error(502, "backend_too_large"));
        }
    }
    Ok(vec![
        Figure::none("of 20 answers of nearly 16 MiB: not whole", broken),
        Figure::none("larger ones that were not 502 backend_too_large", wrong),
        Figure::none("further processes", target.starts() - 1),
    ])
}

async fn garbage(target: &Target) -> Result<Vec<Figure>> {
    let mut figures = vec![];
    for (what, arguments) in [
        ("20,000 lines: until another has taken its place", "{\"lines\":20000}"),
        ("20 lines of 1 MiB: the same", "{\"lines\":20,\"len\":1048576}"),
    ] {
        let before = pid(target).await?;
        let began = Instant::now();
        let answer = target.call("garbage_flood", arguments.to_owned(), LONG).await?;
        let (back, untyped) = works_again(target, &before, began).await?;
        let wrong = count(!answer.is_error(502, "backend_protocol")) + untyped;
        figures.push(Figure::new(what, back, "s", PATIENCE.as_secs_f64()));
        figures.push(Figure::none("not 502 backend_protocol, or without a code", wrong));
    }
    Ok(figures)
}

fn count(wrong: bool) -> usize {
    usize::from(wrong)
}

/// The process that answers.
async fn pid(target: &Target) -> Result<String> {
    target.call("pid", "{}".to_owned(), LONG).await?.text().context("it does not answer")
}

/// Waits until another process answers; gives how long after the beginning that was, in seconds,
/// and how many answers until then were neither a result nor an error with a code.
async fn works_again(target: &Target, before: &str, began: Instant) -> Result<(f64, usize)> {
    let mut untyped = 0;
    while began.elapsed() < PATIENCE {
        let answer = target.call("pid", "{}".to_owned(), DEADLINE).await?;
        match answer.text() {
            Some(pid) if pid != before => return Ok((began.elapsed().as_secs_f64(), untyped)),
            text => untyped += count(text.is_none() && answer.code.is_none()),
        }
        sleep(POLL).await;
    }
    Ok((f64::INFINITY, untyped))
}
