//! Calls of a legacy client at a modern server that asks for input. The gateway puts each question
//! to the client of the session, and makes the call again with its answers.
//!
//! Each time counts as a call of the tenant. All of them, and the client's answers, share the
//! deadline of the first one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::common::ids::CallId;
use crate::gateway::{Call, CallError, Caller, Executed, Held, Reply};
use crate::http::AppState;
use crate::http::mcp::session::{Replica, Session};
use crate::protocol::jsonrpc::framing::{DEPTH_MAX, deeper_than};
use crate::protocol::mcp::questions::{Asked, ELICIT, Question, answered};
use crate::protocol::mcp::results::ResultKind;
use crate::tenants::limits::{Admission, Cost, RateStatus};

/// The most times that one call is made.
const ROUNDS_MAX: u32 = 32;
/// The pause before a call is made again for a server that asks nothing.
const PAUSE: Duration = Duration::from_secs(1);
/// An answer that says that nobody has answered.
const NO_ANSWER: &str = r#"{"action":"cancel"}"#;

/// Makes an admitted call, and again with the client's answers as long as the server asks.
pub(super) async fn call(
    app: &AppState,
    session: &Arc<Session>,
    caller: &Caller,
    mut admission: Admission,
    mut call: Call,
) -> Result<Reply, CallError> {
    let first = std::mem::take(&mut call.others);
    call.others.clone_from(&first);
    for _ in 0..ROUNDS_MAX {
        let reply = match app.gateway.call(caller, admission, &call).await {
            Ok(reply) if reply.kind == ResultKind::InputRequired => reply,
            Ok(reply) => return Ok(reply),
            Err(error) => return Err(after_questions(error, call.others.len() > first.len())),
        };
        let text = std::str::from_utf8(&reply.result).expect("checked by the gateway");
        let asked = Asked::read(text).map_err(CallError::protocol)?;
        drop(reply);
        let (answers, held) = ask(app, session, &call, &asked).await?;
        call.others = first.clone() + &answered(&answers, asked.state.as_deref());
        call.size += call.others.len();
        call.held = held.or(call.held);
        // Each time is a call of its own, in the log and to limits.
        (call.id, call.arrived, call.traced) = (CallId::generate(), Instant::now(), None);
        admission = match caller.tenant.admit(Cost::Call).await {
            Ok(admission) => admission,
            Err(refusal) => return Err(after_questions(refusal.into(), true)),
        };
    }
    Err(cannot("its server asks again and again"))
}

/// Puts all questions to the client, and waits for its answers.
async fn ask(
    app: &AppState,
    session: &Arc<Session>,
    call: &Call,
    asked: &Asked,
) -> Result<(Vec<(String, String)>, Option<Held>), CallError> {
    if asked.questions.is_empty() {
        sleep_until(call.deadline.min(Instant::now() + PAUSE)).await;
        return Ok((vec![], None));
    }
    let askable = session.askable().map(|(askable, _)| *askable).unwrap_or_default();
    let mut open = vec![];
    for question in &asked.questions {
        askable.check(question.method, Some(question.params())).map_err(cannot)?;
        let permit = app.question_quota.take(&session.tenant);
        let permit =
            permit.ok_or_else(|| cannot("too many questions of your tenant's are open"))?;
        let replica = Replica::this(app.cluster.as_ref());
        let put = session.ask(question, call.listener.as_ref(), &app.sealer, replica);
        let put = put.ok_or_else(|| {
            cannot("its client reads no stream on which it could be asked, or has too much to read")
        })?;
        open.push((question, put, permit));
    }
    let (mut answers, mut held, mut len) = (vec![], None, 0);
    for (question, mut put, _permit) in open {
        let late = |_| CallError::DeadlineExceeded { executed: Executed::Unknown };
        let answer = tokio::select! {
            answer = timeout_at(call.deadline, &mut put.answer) => answer.map_err(late)?,
            () = app.closing.cancelled() => return Err(cannot("the gateway is shutting down")),
        };
        let answer = answer.map_err(|_| cannot("its session has ended"))?;
        held = answer.held.or(held);
        len += answer.outcome.as_ref().map_or(0, String::len);
        if len > app.max_body {
            return Err(cannot("its client's answers are longer than `max_body`"));
        }
        answers.push((question.name.clone(), answer_of(question, answer.outcome)?));
    }
    Ok((answers, held))
}

/// Returns the client's answer in the form of the modern era, which has no errors.
fn answer_of(question: &Question, outcome: Result<String, String>) -> Result<String, CallError> {
    match outcome {
        Ok(answer) if !answer.starts_with('{') || deeper_than(answer.as_bytes(), DEPTH_MAX) => {
            Err(cannot("its client's answer is no object, or nested too deep"))
        }
        Ok(answer) => Ok(answer),
        Err(_) if question.method == ELICIT => Ok(NO_ANSWER.to_owned()),
        Err(error) => {
            let message = serde_json::from_str::<Value>(&error).unwrap_or_default();
            let message = message["message"].as_str().unwrap_or("an error");
            let message: String = message.chars().take(200).collect();
            let reason = format!("its client has answered `{}` with: {message}", question.method);
            Err(CallError::InputRequired { reason: reason.into() })
        }
    }
}

fn cannot(reason: &'static str) -> CallError {
    CallError::InputRequired { reason: reason.into() }
}

/// Says that the tool may have run, if the call was made before.
fn after_questions(error: CallError, was_made: bool) -> CallError {
    if !was_made || error.executed() != Executed::No {
        return error;
    }
    let rate_status = error.rate_status().cloned().unwrap_or_else(RateStatus::default);
    CallError::Attempted {
        attempts: error.attempts().max(1),
        executed: Executed::Unknown,
        rate_status,
        last: Box::new(error.into_last()),
    }
}
