//! Questions of a server to the callers of its calls. A legacy server does not say which of its
//! calls a question is about. Over HTTP the stream says so, and elsewhere there must be one call.

use super::call_notifications::{CallNotification, NotificationSender, Passed};
use super::in_flight::{InFlightCall, InFlightCalls};
use super::incoming::ExpectedAnswers;
use crate::backend::changes::recipients::ServerRequest;

const NOT_ASKABLE: &str = "the caller cannot be asked: it has gone, or is no MCP client of the \
                           modern era that declares such questions";

impl InFlightCalls {
    /// Passes a question to the caller of the call that it is about, or refuses it.
    pub(super) fn ask(&self, question: ServerRequest, expected: ExpectedAnswers) {
        let refused = match self.asked(expected) {
            Ok(listener) if !listener.takes_questions() => NOT_ASKABLE,
            Ok(listener) => {
                let passed = CallNotification::Question(Box::new(question.clone()));
                match listener.send(passed) {
                    Passed::On => return,
                    _ => "the caller cannot be asked: too much waits for it already",
                }
            }
            Err(why) => why,
        };
        question.refuse(refused);
    }

    /// Returns the listener of the call that a question is about.
    fn asked(&self, expected: ExpectedAnswers) -> Result<NotificationSender, &'static str> {
        let table = self.table.lock();
        let is_call = |call: &&InFlightCall| call.permits.is_some() && call.claim.is_some();
        let call = match expected {
            ExpectedAnswers::To(id) => table.calls.get(&id).filter(is_call),
            ExpectedAnswers::Any | ExpectedAnswers::None => {
                let mut calls = table.calls.values().filter(is_call);
                let first = calls.next();
                if calls.next().is_some() {
                    return Err("nobody can be asked: the question may be about several calls");
                }
                first
            }
        };
        let call = call.ok_or("nobody can be asked: the question is about no call")?;
        call.listener.clone().ok_or(NOT_ASKABLE)
    }
}
