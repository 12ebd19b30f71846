//! One client: a connection, another to say that it no longer wants an answer, and its sessions.

use std::collections::HashMap;
use std::mem::take;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use tokio::time::sleep;
use trunkline::protocol::mcp::Era;

use super::fronts::Front;
use super::message::{Inspection, refusal};
use super::request::{self, Call, Endpoint};
use super::wire::{Connection, Events};
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::report::Tally;
use crate::worker::leave;

const NO_ANSWER: &str = "the stream ended without it";

/// One client. It makes one call at a time.
pub struct Client {
    front: Arc<Front>,
    /// The tenant of [`Front::tenancy`] that the sessions belong to.
    tenancy: u64,
    tally: Arc<Tally>,
    calls: Line,
    /// A second connection for messages during a call: HTTP/1 answers in order.
    asides: Line,
    /// Sessions of the legacy era: each is for one endpoint.
    sessions: HashMap<Endpoint, String>,
}

/// A connection that is opened again after it has ended.
#[derive(Default)]
struct Line(Option<Connection>);

impl Client {
    pub fn new(front: &Arc<Front>, tally: Arc<Tally>) -> Self {
        let (calls, asides) = (Line::default(), Line::default());
        let (front, tenancy) = (front.clone(), front.tenancy());
        Self { front, tenancy, tally, calls, asides, sessions: HashMap::new() }
    }

    /// Makes a call as planned.
    pub async fn call(&mut self, plan: &Plan, server: usize) -> Outcome {
        let began = self.front.tenancy();
        if began != self.tenancy && began.is_multiple_of(2) {
            self.leave_sessions(began).await;
        }
        let call = Call::new(plan, server);
        let outcome = match call.manner.era {
            Era::Modern => self.call_modern(plan, &call).await,
            Era::Legacy => self.call_legacy(plan, &call).await,
        };
        let outcome = outcome.unwrap_or_else(|error| {
            self.calls.hang_up();
            Outcome::Wrong(format!("got no answer: {error}"))
        });
        // The call of a tenant that is removed may fail in any way.
        let is_remade = self.front.tenancy() != self.tenancy;
        match outcome {
            Outcome::Wrong(_) if is_remade => Outcome::Removed,
            outcome => outcome,
        }
    }

    /// Goes on as the next tenant of the name, for which the sessions of before must be no good.
    async fn leave_sessions(&mut self, tenancy: u64) {
        self.tenancy = tenancy;
        self.calls.hang_up();
        self.asides.hang_up();
        for (endpoint, session) in take(&mut self.sessions) {
            let Ok(connection) = self.calls.open(self.front.address).await else { return };
            let status = connection.status(request::ping(endpoint, &session)).await;
            if status.is_ok_and(|status| status.is_success()) {
                self.tally.fault("a session is good for the next tenant of its name".to_owned());
            }
        }
    }

    /// Hanging up is what gives a modern call up.
    async fn call_modern(&mut self, plan: &Plan, call: &Call) -> Result<Outcome, String> {
        let answered = self.unless_hung_up(plan, call, call.modern()).await?;
        Ok(answered.unwrap_or_else(|| {
            self.tally.hung_up.add(1);
            Outcome::Cancelled
        }))
    }

    /// Sends a call and waits for its answer; `None` if the client hangs up before.
    async fn unless_hung_up(
        &mut self,
        plan: &Plan,
        call: &Call,
        request: Request<Full<Bytes>>,
    ) -> Result<Option<Outcome>, String> {
        let connection = self.calls.open(self.front.address).await?;
        tokio::select! {
            biased;
            answer = exchange(connection, call, request, &self.tally) => {
                Ok(Some(match answer? {
                    Exchanged::LeftUnread => {
                        self.calls.hang_up();
                        Outcome::Cancelled
                    }
                    answer => answer.outcome().ok_or(NO_ANSWER)?,
                }))
            }
            () = leave(plan.cancel) => {
                self.calls.hang_up();
                Ok(None)
            }
        }
    }

    /// A legacy call goes on when its client hangs up, and is given up only if the client says so.
    async fn call_legacy(&mut self, plan: &Plan, call: &Call) -> Result<Outcome, String> {
        let session = match self.session(call.endpoint()).await? {
            Ok(session) => session,
            Err(refused) => return Ok(refused),
        };
        let request = call.legacy(&session);
        if !call.manner.says_so {
            let answered = self.unless_hung_up(plan, call, request).await?;
            return Ok(answered.unwrap_or(Outcome::Cancelled));
        }
        let connection = self.calls.open(self.front.address).await?;
        let mut answer = pin!(exchange(connection, call, request, &self.tally));
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer?.outcome().ok_or(NO_ANSWER)?),
            () = leave(plan.cancel) => {}
        }
        let (aside, cancelled) =
            (self.asides.open(self.front.address).await?, call.cancelled(&session));
        // Both at once: the answer may be on its way already.
        let (outcome, status) = tokio::join!(answer, aside.status(cancelled));
        if status? != StatusCode::ACCEPTED {
            return Err("a notification was not accepted".to_owned());
        }
        Ok(match outcome?.outcome() {
            None => {
                self.tally.fell_silent.add(1);
                Outcome::Cancelled
            }
            // It was not made, and is not wanted any more.
            Some(Outcome::Unavailable { .. }) => Outcome::Cancelled,
            Some(outcome) => outcome,
        })
    }

    /// The session for an endpoint, or why there is none.
    async fn session(&mut self, endpoint: Endpoint) -> Result<Result<String, Outcome>, String> {
        if let Some(session) = self.sessions.get(&endpoint) {
            return Ok(Ok(session.clone()));
        }
        let connection = self.calls.open(self.front.address).await?;
        let response = connection.send(request::initialize(endpoint)).await?;
        let session = response.headers().get("mcp-session-id").cloned();
        let body = connection.whole(response.into_body()).await?;
        if let Some(refused) = refusal(&body) {
            return Ok(Err(refused));
        }
        let session = session.as_ref().and_then(|session| session.to_str().ok());
        let session = session.ok_or("a session has no id")?.to_owned();
        // While the tenant is removed, nobody knows whose session it is.
        if self.front.tenancy() == self.tenancy {
            self.sessions.insert(endpoint, session.clone());
        }
        Ok(Ok(session))
    }
}

impl Line {
    async fn open(&mut self, address: SocketAddr) -> Result<&mut Connection, String> {
        let connection = match self.0.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(address).await?,
        };
        Ok(self.0.insert(connection))
    }

    fn hang_up(&mut self) {
        self.0 = None;
    }
}

impl Connection {
    /// Sends what is answered by a status alone.
    async fn status(&mut self, request: Request<Full<Bytes>>) -> Result<StatusCode, String> {
        let response = self.send(request).await?;
        let status = response.status();
        self.whole(response.into_body()).await?;
        Ok(status)
    }
}

/// The end of an exchange.
enum Exchanged {
    /// With an answer, or a stream without one.
    Read(Option<Outcome>),
    /// The client read the head of the answer, and no more.
    LeftUnread,
}

impl Exchanged {
    fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Read(outcome) => outcome,
            Self::LeftUnread => None,
        }
    }
}

/// Sends a call and looks at everything that comes back.
async fn exchange(
    connection: &mut Connection,
    call: &Call,
    request: Request<Full<Bytes>>,
    tally: &Tally,
) -> Result<Exchanged, String> {
    let response = connection.send(request).await?;
    let content_type = response.headers().get("content-type");
    let content_type = content_type.map(|value| value.as_bytes().to_owned()).unwrap_or_default();
    let status = response.status();
    let mut body = response.into_body();
    if status == StatusCode::NOT_FOUND {
        return Err("the session has ended".to_owned());
    }
    if let Some(unread) = call.manner.unread {
        // Nobody moves the connection meanwhile, so the rest of the answer stays where it is.
        sleep(unread).await;
        if call.manner.hangs_up && call.manner.era == Era::Modern {
            tally.unread.add(1);
            return Ok(Exchanged::LeftUnread);
        }
        tally.read_late.add(1);
    }
    let mut inspection = Inspection { call, tally, outcome: None };
    match content_type.as_slice() {
        b"application/json" => inspection.take(&connection.whole(body).await?),
        b"text/event-stream" => {
            tally.streams.add(1);
            let mut events = Events::default();
            while let Some(piece) = connection.next(&mut body).await? {
                for message in events.add(&piece)? {
                    inspection.take(&message);
                }
            }
            if !events.is_whole() {
                return Err("the stream was cut off".to_owned());
            }
        }
        other => {
            let content_type = String::from_utf8_lossy(other);
            let text = connection.whole(body).await?;
            let text = String::from_utf8_lossy(&text);
            return Err(format!("status {status}, {content_type:?}: {text:.200}"));
        }
    }
    Ok(Exchanged::Read(inspection.outcome))
}
