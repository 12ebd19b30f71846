use super::*;
use crate::common::ids::{ServerId, TenantGeneration, TenantId};
use crate::common::seal::{Purpose, Sealer};
use crate::config::Secret;
use crate::store::{Actor, ChangedSecrets, SealedSecret, SecretsCursor, Store};
use crate::tenants::secrets::by_tenant::TenantSecrets;

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

fn changed(revision: i64, tenants: Option<&[&str]>, secrets: Vec<SealedSecret>) -> ChangedSecrets {
    let names = |of: &[&str]| of.iter().map(|of| tenant(of).name().clone()).collect();
    let cursor = SecretsCursor { epoch: 0, revision };
    ChangedSecrets { cursor, tenants: tenants.map(names), secrets }
}

fn sealed(vault: &Vault, of: &TenantId, name: &str, version: i64) -> SealedSecret {
    let server = server("one");
    let label = Label { tenant: of.name(), server: &server, name };
    let sealed = vault.keyring().seal(label, &secret(name)).unwrap();
    let (tenant, name) = (of.clone(), name.to_owned());
    SealedSecret { tenant, server, name, sealed, version }
}

#[test]
fn the_vault_keeps_the_latest_and_says_what_is_missing() {
    let vault = Vault::new(keyring(&["a"]));
    let (acme, one) = (tenant("acme"), server("one"));
    let sealed = |name: &str, version| sealed(&vault, &acme, name, version);
    let replace = |revision, secrets| vault.apply(changed(revision, None, secrets));
    let names = ["A".to_owned(), "B".to_owned()];
    let opened = || vault.open(&acme, &one, vault.sealed_set(&acme, &one).as_ref(), &names);
    assert_eq!(opened(), Err(names.to_vec()));
    let both = || [sealed("A", 1), sealed("B", 2)];
    replace(2, both().into());
    assert_eq!(opened().unwrap()["B"], secret("B"));
    // An older revision is ignored.
    replace(1, vec![sealed("A", 1)]);
    assert!(opened().is_ok());

    let before = vault.sealed_set(&acme, &one);
    replace(3, both().into());
    assert!(SealedSet::is_same(before.as_ref(), vault.sealed_set(&acme, &one).as_ref(), &names));
    replace(4, vec![sealed("A", 4), sealed("B", 2)]);
    let after = vault.sealed_set(&acme, &one);
    assert!(!SealedSet::is_same(before.as_ref(), after.as_ref(), &names));
    assert!(SealedSet::is_same(before.as_ref(), after.as_ref(), &names[1..]));
    replace(5, vec![sealed("B", 2)]);
    assert_eq!(opened(), Err(vec!["A".to_owned()]));
}

#[test]
fn a_change_replaces_the_secrets_of_its_tenants_alone() {
    let vault = Vault::new(keyring(&["a"]));
    let one = server("one");
    let tenants: Vec<_> = (0..1000).map(|n| tenant(&format!("t{n}"))).collect();
    let all = tenants.iter().map(|of| sealed(&vault, of, "A", 1)).collect();
    vault.apply(changed(1, None, all));
    let version =
        |of: &TenantId| vault.sealed_set(of, &one).map(|set| SealedSet::version(Some(&set), "A"));
    let before: Vec<_> = tenants.iter().map(|of| vault.sealed_set(of, &one).unwrap()).collect();
    vault.apply(changed(3, Some(&["t7", "t8"]), vec![sealed(&vault, &tenants[7], "A", 2)]));
    assert_eq!((version(&tenants[7]), version(&tenants[8])), (Some(Some(2)), None));
    for (of, before) in tenants.iter().zip(&before).skip(9) {
        assert!(std::sync::Arc::ptr_eq(before, &vault.sealed_set(of, &one).unwrap()));
    }
    // An older change that was read more slowly.
    vault.apply(changed(2, Some(&["t8"]), vec![sealed(&vault, &tenants[8], "A", 2)]));
    assert_eq!((version(&tenants[8]), vault.cursor().unwrap().revision), (None, 3));
    // The next tenant of a name has nothing of the one before.
    let next = tenants[7].name().clone().of(TenantGeneration::from_number(2));
    assert!(vault.sealed_set(&next, &one).is_none());
    vault.apply(changed(4, Some(&["t7"]), vec![sealed(&vault, &next, "A", 4)]));
    assert_eq!((version(&tenants[7]), version(&next)), (None, Some(Some(4))));
}

#[tokio::test]
async fn what_a_tenant_changes_has_nobody_elses_secrets_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let url = secret(&format!("sqlite://{}", dir.path().join("trunkline.db").display()));
    let store = Store::open(&url, None).await.unwrap();
    let secrets = TenantSecrets::open(store.clone(), &[secret("a")]).await.unwrap();
    let (acme, globex, one) = (tenant("acme"), tenant("globex"), server("one"));
    let set = async |of: &TenantId, value: &str| {
        let label = Label { tenant: of.name(), server: &one, name: "TOKEN" };
        let sealed = secrets.vault().keyring().seal(label, &secret(value)).unwrap();
        store.set_secret(&Actor::cli("test"), label, &sealed).await.unwrap();
        secrets.load().await.unwrap();
    };
    set(&acme, "1").await;
    set(&globex, "1").await;
    // The store knows no tenant of these names, so their generation is none.
    let of = |tenant: &TenantId| tenant.name().clone().of(TenantGeneration::from_number(0));
    let held = |tenant: &TenantId| secrets.vault().sealed_set(&of(tenant), &one).unwrap();
    let (of_acme, of_globex) = (held(&acme), held(&globex));
    set(&globex, "2").await;
    assert!(std::sync::Arc::ptr_eq(&of_acme, &held(&acme)));
    assert!(!std::sync::Arc::ptr_eq(&of_globex, &held(&globex)));
}
