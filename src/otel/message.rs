//! Writes protobuf messages. Only what OTLP needs.

/// A message that is being written: fields by their numbers.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.number(u64::from(field) << 3 | wire_type);
    }

    /// Writes an integer, a boolean or a member of an enumeration.
    pub(super) fn integer(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.number(value);
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn fixed32(&mut self, field: u32, value: u32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub(super) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.number(value.len() as u64);
        self.0.extend(value);
    }

    pub(super) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// Writes a list of 8-byte values.
    pub(super) fn packed(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        self.message(field, |list| values.for_each(|value| list.0.extend(value.to_le_bytes())));
    }

    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.key(field, 2);
        let start = self.0.len();
        write(self);
        // The length comes first, and is known last.
        let len = (self.0.len() - start) as u64;
        let end = self.0.len();
        self.number(len);
        let width = self.0.len() - end;
        self.0[start..].rotate_right(width);
    }
}

/// Reads how many records a collector has rejected, and why, from its answer.
pub(super) fn rejected(response: &[u8]) -> (u64, String) {
    let partial = fields(response).find_map(|(field, value)| match (field, value) {
        (1, Value::Bytes(partial)) => Some(partial),
        _ => None,
    });
    let (mut count, mut reason) = (0, String::new());
    for field in fields(partial.unwrap_or_default()) {
        match field {
            (1, Value::Integer(rejected)) => count = rejected,
            (2, Value::Bytes(text)) => reason = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (count, reason)
}

enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Returns the fields of a message, up to the first that is malformed.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        let key = number(&mut message)?;
        let value = match key & 7 {
            0 => Value::Integer(number(&mut message)?),
            1 => message.split_off(..8).map(|_| Value::Fixed)?,
            2 => {
                let len = usize::try_from(number(&mut message)?).ok()?;
                Value::Bytes(message.split_off(..len)?)
            }
            5 => message.split_off(..4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn number(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
