use std::cell::{Cell, RefCell};

use super::*;
use crate::calls::batch::request::Batch;

/// Answers each call by its tool's name, and notes what happens.
#[derive(Default)]
struct Fake {
    running: Cell<usize>,
    running_max: Cell<usize>,
    made: RefCell<Vec<(usize, String)>>,
}

impl Fake {
    fn made(&self) -> Vec<usize> {
        self.made.borrow().iter().map(|(call, _)| *call).collect()
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Made,
    NotMade(NotMade),
}

struct Planned<'a>(&'a Fake, &'a Batch);

impl Callee for Planned<'_> {
    type Outcome = Outcome;

    async fn call(&self, call: usize, arguments: Result<Bytes, NotMade>) -> Ended<Outcome> {
        let Self(fake, batch) = self;
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(why) => {
                let outcome = Outcome::NotMade(why);
                return Ended { outcome, is_failed: true, result: None };
            }
        };
        let arguments = String::from_utf8(arguments.to_vec()).unwrap();
        fake.made.borrow_mut().push((call, arguments.clone()));
        fake.running.set(fake.running.get() + 1);
        fake.running_max.set(fake.running_max.get().max(fake.running.get()));
        tokio::task::yield_now().await;
        fake.running.set(fake.running.get() - 1);
        let (is_failed, result) = match &*batch.calls[call].tool {
            "echo" => (false, Some(arguments)),
            "fail" => (true, None),
            "is_error" => (true, Some(r#"{"why":"bad"}"#.to_owned())),
            "no_room" => (false, None),
            other => panic!("unknown tool {other}"),
        };
        Ended { outcome: Outcome::Made, is_failed, result: result.map(Bytes::from) }
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

/// Runs a batch; returns what was made, and the outcomes in the order of the request.
async fn run_batch(options: &str, calls: &[&str]) -> (Fake, Vec<Outcome>) {
    let body = format!("{{{options}\"calls\":[{}]}}", calls.join(","));
    let batch = Batch::parse(&body.into(), 1000).unwrap();
    let fake = Fake::default();
    let mut outcomes: Vec<Option<Outcome>> = batch.calls.iter().map(|_| None).collect();
    run(&batch, &Planned(&fake, &batch), 1000, |call, outcome| {
        assert!(outcomes[call].replace(outcome).is_none(), "call {call} ended twice");
    })
    .await;
    (fake, outcomes.into_iter().map(|outcome| outcome.expect("all calls end")).collect())
}

fn call(id: &str, tool: &str, rest: &str) -> String {
    format!(r#"{{"id":"{id}","server":"s","tool":"{tool}"{rest}}}"#)
}

#[tokio::test]
async fn calls_without_dependencies_start_in_the_order_of_the_request() {
    let calls: Vec<String> = (0..20).map(|id| call(&id.to_string(), "echo", "")).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let (fake, outcomes) = run_batch(r#""max_concurrency":3,"#, &calls).await;
    assert_eq!(fake.made(), (0..20).collect::<Vec<_>>());
    assert_eq!(fake.running_max.get(), 3);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Made));
}

#[tokio::test]
async fn a_call_waits_for_its_dependencies_and_gets_their_results() {
    let last = call("c", "echo", r#","arguments":{"x":{"$result":"b","pointer":"/n"}}"#);
    let middle = call(
        "b",
        "echo",
        r#","arguments":{"n":{"$result":"a","pointer":"/n"}},"depends_on":["a"]"#,
    );
    let first = call("a", "echo", r#","arguments":{"n":1.50}"#);
    let (fake, _) = run_batch("", &[&last, &middle, &first]).await;
    assert_eq!(
        *fake.made.borrow(),
        [
            (2, r#"{"n":1.50}"#.to_owned()),
            (1, r#"{"n":1.50}"#.to_owned()),
            (0, r#"{"x":1.50}"#.to_owned())
        ]
    );
}

#[tokio::test]
async fn a_failure_fails_all_that_depend_on_it_and_nothing_else() {
    for tool in ["fail", "is_error"] {
        let (fake, outcomes) = run_batch(
            "",
            &[
                &call("a", tool, ""),
                &call("b", "echo", r#","depends_on":["a"]"#),
                &call("c", "echo", r#","depends_on":["b"]"#),
                &call("d", "echo", ""),
                &call("e", "echo", r#","depends_on":["a"],"if_dependency_fails":"run""#),
            ],
        )
        .await;
        assert_eq!(fake.made(), [0, 3, 4]);
        assert_eq!(outcomes[1], Outcome::NotMade(NotMade::DependencyFailed { dependency: 0 }));
        assert_eq!(outcomes[2], Outcome::NotMade(NotMade::DependencyFailed { dependency: 1 }));
    }
}

#[tokio::test]
async fn a_reference_that_leads_nowhere_is_not_made_and_fails_its_dependents() {
    let reference =
        |of: &str| format!(r#","arguments":{{"x":{{"$result":"{of}","pointer":"/n"}}}}"#);
    let run_anyway = format!("{},\"if_dependency_fails\":\"run\"", reference("d"));
    let (fake, outcomes) = run_batch(
        "",
        &[
            &call("a", "echo", ""),
            &call("b", "echo", &reference("a")),
            &call("c", "echo", r#","depends_on":["b"]"#),
            &call("d", "no_room", ""),
            &call("e", "echo", &run_anyway),
            &call("f", "echo", r#","depends_on":["d"]"#),
        ],
    )
    .await;
    assert_eq!(fake.made(), [0, 3, 5]);
    assert_eq!(outcomes[1], Outcome::NotMade(NotMade::ResultMissing { dependency: 0 }));
    assert_eq!(outcomes[2], Outcome::NotMade(NotMade::DependencyFailed { dependency: 1 }));
    assert_eq!(outcomes[4], Outcome::NotMade(NotMade::ResultMissing { dependency: 3 }));
}

#[tokio::test]
async fn an_error_result_can_be_used_by_calls_that_run_after_a_failure() {
    let reference = r#","arguments":{"x":{"$result":"a","pointer":"/why"}},
                       "if_dependency_fails":"run""#;
    let (fake, _) =
        run_batch("", &[&call("a", "is_error", ""), &call("b", "echo", reference)]).await;
    assert_eq!(fake.made.borrow()[1].1, r#"{"x":"bad"}"#);
}

#[tokio::test]
async fn after_the_first_failure_a_batch_that_stops_starts_nothing() {
    let (fake, outcomes) = run_batch(
        r#""on_error":"stop","max_concurrency":1,"#,
        &[
            &call("a", "echo", ""),
            &call("b", "fail", ""),
            &call("c", "echo", ""),
            &call("d", "echo", r#","depends_on":["c"],"if_dependency_fails":"run""#),
        ],
    )
    .await;
    assert_eq!(fake.made(), [0, 1]);
    assert_eq!(outcomes[2], Outcome::NotMade(NotMade::Stopped { failed: 1 }));
    assert_eq!(outcomes[3], Outcome::NotMade(NotMade::Stopped { failed: 1 }));
}

#[tokio::test]
async fn composed_arguments_are_bounded() {
    let long = call("a", "echo", &format!(r#","arguments":{{"x":"{}"}}"#, "x".repeat(600)));
    let twice = call(
        "b",
        "echo",
        r#","arguments":{"x":{"$result":"a","pointer":""},"y":{"$result":"a","pointer":""}}"#,
    );
    let (_, outcomes) = run_batch("", &[&long, &twice]).await;
    assert_eq!(outcomes[1], Outcome::NotMade(NotMade::ArgumentsTooLarge));
}

#[test]
fn a_result_is_kept_only_until_the_last_call_that_needs_it_has_started() {
    let body = format!(
        r#"{{"calls":[{},{},{}]}}"#,
        call("a", "echo", ""),
        call("b", "echo", r#","depends_on":["a"]"#),
        call("c", "echo", r#","depends_on":["a"]"#)
    );
    let batch = Batch::parse(&body.into(), 10).unwrap();
    let mut progress = Progress::new(&batch);
    assert_eq!(progress.next_ready(), Some(0));
    progress.arguments(0, 100).unwrap();
    progress.end(0, false, Some(Bytes::from_static(b"{}")));
    progress.arguments(1, 100).unwrap();
    assert!(progress.calls[0].result.is_some());
    progress.end(1, false, Some(Bytes::from_static(b"{}")));
    assert!(progress.calls[1].result.is_none(), "nobody needs it");
    progress.arguments(2, 100).unwrap();
    assert!(progress.calls[0].result.is_none());
}
