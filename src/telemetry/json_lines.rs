//! Formats an event of the log as one line of JSON, with lists as lists.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use serde::Serialize;
use tracing::field::{DebugValue, Field, Visit, debug};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Fields that the bridge from the `log` crate adds to the place that it names.
const OF_BRIDGE: &str = "log.";

pub(super) struct JsonLines;

/// A list of lines, as the value of a field. Its text is a list in JSON.
pub struct Lines(Vec<String>);

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).unwrap_or_default())
    }
}

/// Returns lines as the value of a field, or `None` if there are none.
pub fn lines(lines: &[String]) -> Option<DebugValue<Lines>> {
    (!lines.is_empty()).then(|| debug(Lines(lines.to_vec())))
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields { json: String::new(), target: None };
        event.record(&mut fields);
        let metadata = event.metadata();
        let target = fields.target.as_deref().unwrap_or(metadata.target());
        writeln!(
            writer,
            "{{\"timestamp\":\"{:.6}\",\"level\":\"{}\"{},\"target\":{}}}",
            Timestamp::now(),
            metadata.level(),
            fields.json,
            json(target)
        )
    }
}

/// The fields of an event, each after a comma.
struct Fields {
    json: String,
    target: Option<String>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        let _ = write!(self.json, ",{}:{value}", json(field.name()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let is_list = text.starts_with('[') && serde_json::from_str::<Vec<String>>(&text).is_ok();
        self.add(field, &if is_list { text } else { json(&text) });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name().strip_prefix(OF_BRIDGE) {
            Some("target") => self.target = Some(value.to_owned()),
            Some(_) => {}
            None => self.add(field, &json(value)),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !field.name().starts_with(OF_BRIDGE) {
            self.add(field, &value.to_string());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, &json(&value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, &value.to_string());
    }
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_list_of_lines_is_a_list_and_all_else_is_what_it_is() {
        let written = Written::default();
        let writer = written.clone();
        let layer = layer().with_writer(move || writer.clone()).event_format(JsonLines);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let stderr = vec!["a \"b\"\u{1b}".to_owned(), "c".to_owned()];
            let reason = "no\nluck";
            tracing::warn!(
                %reason, count = 3, share = 0.5, is_up = true, stderr = lines(&stderr),
                stdout = lines(&[]),
                "it `{}`", "ended"
            );
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        let timestamp = line.as_object_mut().unwrap().remove("timestamp").unwrap();
        assert_eq!(timestamp.as_str().unwrap().len(), "2026-11-01T00:00:00.000000Z".len());
        assert_eq!(
            line,
            json!({
                "level": "WARN", "message": "it `ended`", "reason": "no\nluck", "count": 3,
                "share": 0.5, "is_up": true, "stderr": ["a \"b\"\u{1b}", "c"],
                "target": "trunkline::telemetry::json_lines::tests",
            })
        );
    }
}
