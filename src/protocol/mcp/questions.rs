//! Questions of servers to their clients: elicitation, sampling, roots. A legacy server asks with
//! a request of its own. A modern server answers with `input_required`, and gets the client's
//! answers with the client's next request. The questions themselves are alike in both eras.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::method;
use super::params::text_of;
use crate::protocol::jsonrpc::members::{MemberChange, Members, ObjectWriter, with_first_member};

pub const ELICIT: &str = "elicitation/create";
pub const SAMPLE: &str = "sampling/createMessage";
pub const LIST_ROOTS: &str = method::ROOTS_LIST;

/// The most questions of one result.
pub const QUESTIONS_MAX: usize = 64;
/// Of the legacy era: names a page that the client opens for its user.
const ELICITATION_ID: &str = "elicitationId";

/// The questions that a client can be asked, by its capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Askable {
    form: bool,
    url: bool,
    sampling: bool,
    sampling_tools: bool,
    roots: bool,
}

impl Askable {
    /// Reads a client's capabilities: a JSON object.
    pub fn of(capabilities: &str) -> Self {
        let names = ["elicitation", "sampling", "roots"];
        if !names.iter().any(|name| capabilities.contains(name)) {
            return Self::default();
        }
        let Ok(able) = serde_json::from_str::<Value>(capabilities) else { return Self::default() };
        let elicitation = able["elicitation"].as_object();
        let (form, url) = match elicitation {
            Some(modes) => {
                let url = modes.get("url").is_some_and(Value::is_object);
                // Without a mode it is forms, as in 2025-06-18.
                (!url || modes.contains_key("form"), url)
            }
            None => (false, false),
        };
        let sampling = able["sampling"].is_object();
        let sampling_tools = sampling && able["sampling"]["tools"].is_object();
        Self { form, url, sampling, sampling_tools, roots: able["roots"].is_object() }
    }

    /// Returns whether the client can be asked anything.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// Returns whether the client can be asked for something other than its roots.
    pub fn can_answer(&self) -> bool {
        self.form || self.url || self.sampling
    }

    /// Declares the questions to a server: a JSON object.
    pub fn declare(&self) -> String {
        let mut able = json!({});
        if self.form || self.url {
            able["elicitation"] = json!({});
        }
        if self.form {
            able["elicitation"]["form"] = json!({});
        }
        if self.url {
            able["elicitation"]["url"] = json!({});
        }
        if self.sampling {
            able["sampling"] = json!({});
        }
        if self.sampling_tools {
            able["sampling"]["tools"] = json!({});
        }
        if self.roots {
            able["roots"] = json!({});
        }
        able.to_string()
    }

    /// Checks that the client can be asked a question. The error says what the client lacks.
    pub fn check(&self, asked: &str, params: Option<&str>) -> Result<(), &'static str> {
        let members = params.and_then(|params| Members::parse(params).ok());
        let get = |name: &str| members.as_ref().and_then(|members| members.get(name));
        let is_url = get("mode").and_then(text_of).is_some_and(|mode| mode == "url");
        match asked {
            ELICIT if is_url && self.url || !is_url && self.form => Ok(()),
            ELICIT if is_url => Err("its client does not declare `elicitation` by `url`"),
            ELICIT => Err("its client does not declare `elicitation` by `form`"),
            SAMPLE if get("tools").is_some() && !self.sampling_tools => {
                Err("its client does not declare `sampling` with `tools`")
            }
            SAMPLE if self.sampling => Ok(()),
            SAMPLE => Err("its client does not declare `sampling`"),
            LIST_ROOTS if self.roots => Ok(()),
            LIST_ROOTS => Err("its client does not declare `roots`"),
            _ => Err("the protocol knows no such question"),
        }
    }
}

/// A question of a modern server.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its name in the result, and of its answer.
    pub name: String,
    pub method: &'static str,
    /// A JSON object.
    params: String,
    /// Whether a legacy client needs an id of the page that it is to open.
    needs_id: bool,
}

/// A result that asks.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub questions: Vec<Question>,
    /// Wanted back with the answers: a JSON string.
    pub state: Option<String>,
}

impl Asked {
    /// Reads a result of the type `input_required`. The error says what is wrong with it.
    pub fn read(result: &str) -> Result<Self, &'static str> {
        let members = Members::parse(result).map_err(|_| "the result that asks is ambiguous")?;
        let state = match members.get("requestState") {
            Some(state) if text_of(state).is_none() => {
                return Err("the `requestState` of its result is not a string");
            }
            state => state.map(|state| state.get().to_owned()),
        };
        let Some(requests) = members.get("inputRequests") else {
            return Ok(Self { questions: vec![], state });
        };
        let requests = Members::parse(requests.get());
        let requests =
            requests.map_err(|_| "the `inputRequests` of its result are no questions")?;
        if requests.iter().count() > QUESTIONS_MAX {
            return Err("its result asks too many questions");
        }
        let questions: Option<_> = requests.iter().map(|it| Question::read(it.0, it.1)).collect();
        let questions = questions.ok_or("a question of its result makes no sense")?;
        Ok(Self { questions, state })
    }
}

impl Question {
    fn read(name: &str, request: &RawValue) -> Option<Self> {
        let members = Members::parse(request.get()).ok()?;
        let method = text_of(members.get("method")?)?;
        let method = [ELICIT, SAMPLE, LIST_ROOTS].into_iter().find(|known| *known == method)?;
        let text = members.get("params").map_or("{}", RawValue::get);
        let params = Members::parse(text).ok()?;
        let is_url = params.get("mode").and_then(text_of).is_some_and(|mode| mode == "url");
        let needs_id = is_url && params.get(ELICITATION_ID).is_none();
        Some(Self { name: name.to_owned(), method, params: text.to_owned(), needs_id })
    }

    /// Returns the parameters as the server wrote them.
    pub fn params(&self) -> &str {
        &self.params
    }

    /// Returns the parameters for a legacy client: a JSON object. `id` is new.
    pub fn legacy_params(&self, id: &str) -> String {
        match self.needs_id {
            true => with_first_member(&self.params, ELICITATION_ID, &json!(id).to_string()),
            false => self.params.clone(),
        }
    }
}

/// Writes the members that bring answers back: `,"name":value` each. The answers are JSON.
pub fn answered(answers: &[(String, String)], state: Option<&str>) -> String {
    let mut members = String::new();
    if !answers.is_empty() {
        let len = answers.iter().map(|(name, answer)| name.len() + answer.len() + 8).sum();
        let mut responses = ObjectWriter::with_capacity(len);
        answers.iter().for_each(|(name, answer)| responses.member(name, answer));
        members += ",\"inputResponses\":";
        members += &responses.finish();
    }
    if let Some(state) = state {
        members += ",\"requestState\":";
        members += state;
    }
    members
}

/// Writes the result that asks a modern client the question of a legacy server. `state` is plain
/// text, `params` JSON.
pub fn input_required(name: &str, method: &str, params: &str, state: &str) -> String {
    let members = Members::parse(params);
    // Of the legacy era alone.
    let params = members.map(|members| {
        let drop = |name: &str, _| match name {
            ELICITATION_ID | "task" => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        members.rewrite(drop, &[])
    });
    let params = params.unwrap_or_else(|_| "{}".to_owned());
    let (name, method, state) = (json!(name), json!(method), json!(state));
    format!(
        "{{\"resultType\":\"input_required\",\"inputRequests\":{{{name}:{{\"method\":{method},\
         \"params\":{params}}}}},\"requestState\":{state}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_asked_what_it_declares_alone() {
        let url = Some(r#"{"mode":"url","message":"m"}"#);
        let tools = Some(r#"{"messages":[],"tools":[]}"#);
        for (capabilities, form, by_url, sample, with_tools, roots) in [
            ("{}", false, false, false, false, false),
            (r#"{"elicitation":{}}"#, true, false, false, false, false),
            (r#"{"elicitation":{"form":{}}}"#, true, false, false, false, false),
            (r#"{"elicitation":{"url":{}}}"#, false, true, false, false, false),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, true, true, false, false, false),
            (r#"{"sampling":{}}"#, false, false, true, false, false),
            (r#"{"sampling":{"tools":{}}}"#, false, false, true, true, false),
            (r#"{"roots":{"listChanged":true}}"#, false, false, false, false, true),
            (
                r#"{"elicitation":true,"sampling":1,"roots":null}"#,
                false,
                false,
                false,
                false,
                false,
            ),
        ] {
            let able = Askable::of(capabilities);
            let can = |method, params| able.check(method, params).is_ok();
            assert_eq!(can(ELICIT, Some(r#"{"message":"m"}"#)), form, "{capabilities}");
            assert_eq!(can(ELICIT, url), by_url, "{capabilities}");
            assert_eq!(can(SAMPLE, Some("{}")), sample, "{capabilities}");
            assert_eq!(can(SAMPLE, tools), with_tools, "{capabilities}");
            assert_eq!(can(LIST_ROOTS, None), roots, "{capabilities}");
            assert!(!can("tools/call", None));
            assert_eq!(Askable::of(&able.declare()), able, "{capabilities}");
        }
    }

    #[test]
    fn questions_of_a_modern_server_are_read_for_a_legacy_client() {
        let asked = Asked::read(
            r#"{"resultType":"input_required","requestState":"a\"b","inputRequests":{
                "q":{"method":"elicitation/create","params":{"message":"?","x":1.50}},
                "u":{"method":"elicitation/create","params":{"mode":"url","url":"u"}},
                "r":{"method":"roots/list"}}}"#,
        )
        .unwrap();
        let [form, url, roots] = &asked.questions[..] else { panic!("{asked:?}") };
        assert_eq!(form.legacy_params("7"), r#"{"message":"?","x":1.50}"#);
        assert_eq!(url.legacy_params("7"), r#"{"elicitationId":"7","mode":"url","url":"u"}"#);
        assert_eq!((roots.method, roots.params()), (LIST_ROOTS, "{}"));
        let answers = [("q".to_owned(), r#"{"action":"decline"}"#.to_owned())];
        assert_eq!(
            answered(&answers, asked.state.as_deref()),
            r#","inputResponses":{"q":{"action":"decline"}},"requestState":"a\"b""#
        );
        for odd in [
            r#"{"requestState":7}"#,
            r#"{"inputRequests":[]}"#,
            r#"{"inputRequests":{"a":{"method":"tools/call"}}}"#,
            r#"{"inputRequests":{"a":{}}}"#,
            r#"{"inputRequests":{},"inputRequests":{}}"#,
        ] {
            assert!(Asked::read(odd).is_err(), "{odd}");
        }
        let many: Vec<_> =
            (0..=QUESTIONS_MAX).map(|n| format!(r#""{n}":{{"method":"roots/list"}}"#)).collect();
        assert!(Asked::read(&format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","))).is_err());
    }

    #[test]
    fn a_question_of_a_legacy_server_is_written_for_a_modern_client() {
        let params = r#"{"message":"?","elicitationId":"x","task":{"ttl":1},"y":1.50}"#;
        let written = input_required("q", ELICIT, params, "sealed");
        let question = r#"{"method":"elicitation/create","params":{"message":"?","y":1.50}}"#;
        assert!(written.contains(&format!(r#""inputRequests":{{"q":{question}}}"#)), "{written}");
        let written: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(written["resultType"], "input_required");
        assert_eq!(written["requestState"], "sealed");
    }
}
