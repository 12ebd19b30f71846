use std::time::Duration;

use super::*;

#[test]
fn a_call_shows_up_under_its_labels() {
    let metrics = Metrics::new();
    let echo = metrics.server("std").tools.of("echo");
    echo.record("ok", Duration::from_millis(1));
    echo.record("deadline_exceeded", Duration::from_millis(1));
    let text = String::from_utf8(metrics.render()).unwrap();
    for line in [
        r#"trunkline_calls_total{outcome="ok",server="std",tool="echo"} 1"#,
        r#"trunkline_calls_total{outcome="deadline_exceeded",server="std",tool="echo"} 1"#,
        r#"trunkline_call_seconds_count{server="std",tool="echo"} 2"#,
        "# HELP trunkline_calls_total Calls by outcome: ok, tool_error, cancelled, or an error",
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
}
