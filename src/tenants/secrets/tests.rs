use super::*;
use crate::common::ids::{ServerId, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::config::Secret;
use crate::store::SealedSecret;

fn keyring(keys: &[&str]) -> Keyring {
    let keys: Vec<_> = keys.iter().map(|key| secret(key)).collect();
    Keyring::new(&keys)
}

fn secret(text: &str) -> Secret {
    Secret::new(text.to_owned())
}

fn tenant(id: &str) -> TenantId {
    TenantId::testing(id)
}

fn server(id: &str) -> ServerId {
    ServerId::parse(id).unwrap()
}

#[test]
fn a_sealed_value_opens_in_its_own_place_and_in_no_other() {
    let keyring = keyring(&["a"]);
    let (acme, globex, one, two) = (tenant("acme"), tenant("globex"), server("one"), server("two"));
    let label = Label { tenant: acme.name(), server: &one, name: "TOKEN" };
    let sealed = keyring.seal(label, &secret("hunter2")).unwrap();
    assert!(!sealed.contains("hunter2"));
    assert_eq!(keyring.open(label, &sealed), Some(secret("hunter2")));
    for changed in [
        Label { tenant: globex.name(), ..label },
        Label { server: &two, ..label },
        Label { name: "OTHER", ..label },
    ] {
        assert_eq!(keyring.open(changed, &sealed), None, "{changed}");
        assert_eq!(keyring.reseal(changed, &sealed), Resealed::Unreadable, "{changed}");
    }
}

#[test]
fn parts_of_a_label_do_not_run_into_each_other() {
    let keyring = keyring(&["a"]);
    let (a, ab, b, bc) = (tenant("a"), tenant("a-b"), server("b"), server("b-c"));
    let one = Label { tenant: a.name(), server: &bc, name: "D" };
    let other = Label { tenant: ab.name(), server: &b, name: "D" };
    let sealed = keyring.seal(one, &secret("x")).unwrap();
    assert_eq!(keyring.open(other, &sealed), None);
}

#[test]
fn session_keys_of_the_same_text_open_nothing() {
    let (acme, one) = (tenant("acme"), server("one"));
    let label = Label { tenant: acme.name(), server: &one, name: "TOKEN" };
    let sealed = keyring(&["a"]).seal(label, &secret("x")).unwrap();
    let sessions = Sealer::new(&[secret("a")]);
    assert_eq!(sessions.open(Purpose::TenantSecret, &keyring::context(label), &sealed), None);
}

#[test]
fn only_what_an_older_key_has_sealed_is_sealed_again() {
    let (acme, one) = (tenant("acme"), server("one"));
    let label = Label { tenant: acme.name(), server: &one, name: "TOKEN" };
    let (old, both, new) = (keyring(&["old"]), keyring(&["new", "old"]), keyring(&["new"]));
    let by_old = old.seal(label, &secret("x")).unwrap();
    let Resealed::Anew(by_new) = both.reseal(label, &by_old) else { panic!("it was not") };
    assert_eq!(new.open(label, &by_new), Some(secret("x")));
    assert_eq!(old.open(label, &by_new), None);
    assert_eq!(both.reseal(label, &by_new), Resealed::Already);
    assert_eq!(new.reseal(label, &by_old), Resealed::Unreadable);
}

#[test]
fn invalid_secrets_are_refused_without_showing_them() {
    let keyring = keyring(&["a"]);
    let (acme, one) = (tenant("acme"), server("one"));
    let seal = |name: &str, value: &str| {
        let label = Label { tenant: acme.name(), server: &one, name };
        keyring.seal(label, &secret(value)).map(drop)
    };
    let long = "N".repeat(NAME_LEN_MAX + 1);
    for bad in ["", "1A", "A-B", "A B", "Ä", "A\0", &long] {
        assert!(matches!(seal(bad, "x"), Err(InvalidSecret::Name(_))), "{bad:?}");
    }
    assert_eq!(seal(&long[1..], "x"), Ok(()));
    assert_eq!(seal("_a1", &"v".repeat(VALUE_LEN_MAX)), Ok(()));
    for bad in ["", "hunter2\0", &"hunter2".repeat(VALUE_LEN_MAX)] {
        let error = seal("A", bad).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let label = Label { tenant: acme.name(), server: &one, name: "A" };
    assert_eq!(Keyring::new(&[]).seal(label, &secret("x")), Err(InvalidSecret::NoKeys));
}

#[test]
fn the_vault_keeps_the_latest_and_says_what_is_missing() {
    let vault = Vault::new(keyring(&["a"]));
    let (acme, one) = (tenant("acme"), server("one"));
    let sealed = |name: &str, version| {
        let label = Label { tenant: acme.name(), server: &one, name };
        let text = vault.keyring().seal(label, &secret(name)).unwrap();
        let (tenant, server, name) = (acme.clone(), one.clone(), name.to_owned());
        SealedSecret { tenant, server, name, sealed: text, version }
    };
    let names = ["A".to_owned(), "B".to_owned()];
    let opened = || vault.open(&acme, &one, vault.sealed_set(&acme, &one).as_ref(), &names);
    assert_eq!(opened(), Err(names.to_vec()));
    let both = || [sealed("A", 1), sealed("B", 2)];
    vault.replace(2, both().into());
    assert_eq!(opened().unwrap()["B"], secret("B"));
    // An older revision is ignored.
    vault.replace(1, vec![sealed("A", 1)]);
    assert!(opened().is_ok());

    let before = vault.sealed_set(&acme, &one);
    vault.replace(3, both().into());
    assert!(SealedSet::is_same(before.as_ref(), vault.sealed_set(&acme, &one).as_ref(), &names));
    vault.replace(4, vec![sealed("A", 4), sealed("B", 2)]);
    let after = vault.sealed_set(&acme, &one);
    assert!(!SealedSet::is_same(before.as_ref(), after.as_ref(), &names));
    assert!(SealedSet::is_same(before.as_ref(), after.as_ref(), &names[1..]));
    vault.replace(5, vec![sealed("B", 2)]);
    assert_eq!(opened(), Err(vec!["A".to_owned()]));
}
