//! Seals the keys that callbacks are signed with, bound to their tenant.

use super::signature::SigningKey;
use crate::common::ids::TenantName;
use crate::common::seal::{Purpose, Sealer};
use crate::config::Secret;
use crate::tenants::secrets::{InvalidSecret, Resealed};

/// Separates these keys from other uses of the same secret.
const KEY_LABEL: &[u8] = b"trunkline callback secrets 1\0";

/// The first of `[secrets] keys` seals, all open.
pub struct SigningKeyring(Option<Sealer>);

impl SigningKeyring {
    pub fn new(keys: &[Secret]) -> Self {
        Self((!keys.is_empty()).then(|| Sealer::labelled(KEY_LABEL, keys)))
    }

    pub fn seal(&self, tenant: &TenantName, key: &SigningKey) -> Result<String, InvalidSecret> {
        let sealer = self.0.as_ref().ok_or(InvalidSecret::NoKeys)?;
        let (context, plain) = (tenant.as_str().as_bytes(), key.expose());
        Ok(sealer.seal(Purpose::CallbackSecret, context, plain.as_bytes()))
    }

    /// Returns the key, if one of the keys here sealed it for this tenant.
    pub fn open(&self, tenant: &TenantName, sealed: &str) -> Option<SigningKey> {
        let context = tenant.as_str().as_bytes();
        let plain = self.0.as_ref()?.open(Purpose::CallbackSecret, context, sealed)?;
        SigningKey::parse(std::str::from_utf8(&plain).ok()?)
    }

    /// Seals the same key with the first key here.
    pub fn reseal(&self, tenant: &TenantName, sealed: &str) -> Resealed {
        let Some(sealer) = &self.0 else { return Resealed::Unreadable };
        let context = tenant.as_str().as_bytes();
        match sealer.open_by(Purpose::CallbackSecret, context, sealed) {
            None => Resealed::Unreadable,
            Some((0, _)) => Resealed::Already,
            Some((_, plain)) => {
                Resealed::Anew(sealer.seal(Purpose::CallbackSecret, context, &plain))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring(keys: &[&str]) -> SigningKeyring {
        let keys: Vec<_> = keys.iter().map(|key| Secret::new((*key).to_owned())).collect();
        SigningKeyring::new(&keys)
    }

    #[test]
    fn a_sealed_key_opens_for_its_tenant_and_can_be_sealed_anew() {
        let (acme, other) = ("acme", "other");
        let [acme, other] = [acme, other].map(|name| TenantName::parse(name).unwrap());
        let key = SigningKey::generate();
        let sealed = keyring(&["old"]).seal(&acme, &key).unwrap();
        assert!(!sealed.contains(&key.expose()));
        let both = keyring(&["new", "old"]);
        assert_eq!(both.open(&acme, &sealed).unwrap().expose(), key.expose());
        assert!(both.open(&other, &sealed).is_none());
        let Resealed::Anew(anew) = both.reseal(&acme, &sealed) else { panic!() };
        assert_eq!(keyring(&["new"]).open(&acme, &anew).unwrap().expose(), key.expose());
        assert_eq!(both.reseal(&acme, &anew), Resealed::Already);
        assert_eq!(keyring(&["third"]).reseal(&acme, &sealed), Resealed::Unreadable);
        assert!(matches!(keyring(&[]).seal(&acme, &key), Err(InvalidSecret::NoKeys)));
    }
}
