//! Parts that all signals have: the resource, the scope and attributes.

use std::collections::BTreeMap;

use super::message::Message;
use super::metrics::now;

/// The gateway's own names of what no convention has a name for begin so.
pub(super) const TENANT: &str = "trunkline.tenant";
pub(super) const SERVER: &str = "trunkline.server";

/// Describes this process, in the form in which it is sent.
pub(super) struct Resource {
    attributes: Vec<(String, String)>,
    /// Since when counters count.
    pub(super) since: u64,
}

impl Resource {
    pub(super) fn new(attributes: &BTreeMap<String, String>) -> Self {
        Self { attributes: attributes.clone().into_iter().collect(), since: now() }
    }

    /// Writes an export request. The requests of all signals have the same form.
    pub(super) fn request(&self, write_records: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut request = Message::default();
        request.message(1, |of_resource| {
            of_resource.message(1, |resource| {
                let mut out = Attributes { of: resource, field: 1 };
                self.attributes.iter().for_each(|(name, value)| out.text(name, value));
            });
            of_resource.message(2, |of_scope| {
                of_scope.message(1, |scope| {
                    scope.text(1, "trunkline");
                    scope.text(2, env!("CARGO_PKG_VERSION"));
                });
                write_records(of_scope);
            });
        });
        request.into_bytes()
    }
}

/// Writes attributes into a message.
pub(super) struct Attributes<'a> {
    pub(super) of: &'a mut Message,
    /// The number of the field.
    pub(super) field: u32,
}

impl Attributes<'_> {
    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.add(name, |any| any.text(1, value));
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.add(name, |any| any.integer(3, value));
    }

    pub(super) fn double(&mut self, name: &str, value: f64) {
        self.add(name, |any| any.double(4, value));
    }

    pub(super) fn texts(&mut self, name: &str, values: &[String]) {
        self.add(name, |any| {
            any.message(5, |list| {
                values.iter().for_each(|value| list.message(1, |any| any.text(1, value)));
            });
        });
    }

    fn add(&mut self, name: &str, write: impl FnOnce(&mut Message)) {
        self.of.message(self.field, |pair| {
            pair.text(1, name);
            pair.message(2, write);
        });
    }
}
