use super::*;

fn verdicts(findings: &[bool]) -> Vec<Option<bool>> {
    let mut verdict = Verdict::default();
    findings.iter().map(|late| verdict.note(*late)).collect()
}

#[test]
fn three_late_pings_in_a_row_make_a_server_look_serial() {
    assert_eq!(verdicts(&[true, true, true]), [None, None, Some(true)]);
    let hiccups = [true, true, false, true, true, false, true];
    assert_eq!(verdicts(&hiccups), [None; 7]);
}

#[test]
fn three_prompt_pings_in_a_row_clear_it() {
    let found = verdicts(&[true, true, true, false, true, false, false, false, false]);
    assert_eq!(found[3..], [None, None, None, None, Some(false), None]);
}
