//! Changes between two configurations.

use std::collections::BTreeMap;

use super::{Difference, Setup};

#[test]
fn a_difference_names_what_is_other_and_counts_what_is_not() {
    let before = BTreeMap::from([("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    let after = BTreeMap::from([("b", 2), ("c", 33), ("d", 44), ("e", 5)]);
    let difference = Difference::between(&before, &after).to_string();
    assert_eq!(difference, "1 added (e), 2 changed (c, d), 1 removed (a), 1 unchanged");
    assert_eq!(Difference::between(&after, &after).to_string(), "4 unchanged");
}

#[test]
fn what_needs_a_restart_is_named_and_stays_as_it_was() {
    let before = Setup::toml("drain_delay = \"1s\"\nmax_body = \"1MiB\"").load();
    let after = "drain_delay = \"2s\"\nmax_body = \"2MiB\"\n[store]\nurl = \"sqlite://x\"\n";
    let after = Setup::toml(after).load();
    let (at_once, needs_restart) = before.changed_settings(&after);
    assert_eq!(
        (at_once, needs_restart),
        (vec!["drain_delay".into()], vec!["max_body".into(), "store.url".into()])
    );
    let listens = "session_keys = [\"0123456789abcdef0123456789abcdef\"]\n\
                   [replicas]\nlisten = \"127.0.0.1:82\"";
    let listens = Setup::toml(listens).load();
    let (_, named) = before.changed_settings(&listens);
    assert!(named.iter().any(|key| key == "replicas"), "{named:?}");
    let in_force = before.renewed(after.clone());
    assert_eq!(in_force.drain_delay, after.drain_delay);
    assert_eq!((in_force.max_body, &in_force.store.url), (before.max_body, &before.store.url));
}
