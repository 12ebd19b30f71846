//! Follows the compressed fields in a head of HTTP/2 (HPACK, RFC 7541), without decoding them.
//!
//! h2 keeps the fields that a client asks it to remember in a table of 4 KiB. It copies most of
//! them. The values of pseudo-headers, such as `:path`, stay in the buffer that was read, and an
//! entry of 40 bytes keeps all of it. So those entries are counted.

/// Static entries whose values are not copied: `:authority`, `:path` and `:scheme`.
const AUTHORITY: usize = 1;
const PATHS_AND_SCHEMES: std::ops::RangeInclusive<usize> = 4..=7;
/// The number of the newest entry of the table.
const NEWEST: usize = 62;
/// The first byte of a compressed name that begins with a colon, without its last bit.
const COMPRESSED_COLON: u8 = 0xb8;

/// The state in which one head leaves the next, and the place in a head.
#[derive(Debug, Default)]
pub(super) struct HeaderBlock {
    /// A bit for each of the last 128 entries, more than the table has room for; the newest is the
    /// lowest. Set if the entry may keep a buffer.
    table: u128,
    place: Place,
    field: Field,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    FieldStart,
    /// An integer of several bytes.
    Integer {
        of: Integer,
        value: usize,
        shift: u32,
    },
    LengthStart(Text),
    /// Inside a name or value, of which so many bytes are left.
    Inside(Text, usize),
}

/// The meaning of an integer.
#[derive(Clone, Copy, Debug)]
enum Integer {
    WholeField,
    TableSize,
    Name,
    Length(Text),
}

#[derive(Clone, Copy, Debug)]
enum Text {
    /// A name of which nothing was read yet.
    NewName {
        is_compressed: bool,
    },
    Name,
    Value,
}

#[derive(Debug, Default)]
struct Field {
    is_inserted: bool,
    is_pinned: bool,
}

impl HeaderBlock {
    /// Returns how many entries of the table may each keep a buffer, at most.
    pub(super) fn pinned_entries(&self) -> usize {
        self.table.count_ones() as usize
    }

    /// Notes that the head is complete.
    pub(super) fn ends(&mut self) {
        self.place = Place::FieldStart;
    }

    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let [byte, rest @ ..] = bytes {
            bytes = rest;
            match self.place {
                Place::FieldStart => self.field_starts(*byte),
                Place::Integer { of, value, shift } => {
                    // h2 ends the connection if an integer is longer than five bytes.
                    let value = value + (usize::from(byte & 0x7f) << shift.min(28));
                    if byte & 0x80 == 0 {
                        self.integer(of, value);
                    } else {
                        self.place = Place::Integer { of, value, shift: shift + 7 };
                    }
                }
                Place::LengthStart(text) => {
                    let text = match text {
                        Text::Value => Text::Value,
                        _ => Text::NewName { is_compressed: byte & 0x80 != 0 },
                    };
                    self.integer_starts(Integer::Length(text), *byte, 0x7f);
                }
                Place::Inside(text, left) => {
                    if let Text::NewName { is_compressed } = text {
                        let is_colon = match is_compressed {
                            true => byte & 0xfe == COMPRESSED_COLON,
                            false => *byte == b':',
                        };
                        self.field.is_pinned = is_colon;
                    }
                    let skipped = (left - 1).min(rest.len());
                    bytes = &rest[skipped..];
                    let text = if let Text::Value = text { Text::Value } else { Text::Name };
                    self.inside(text, left - 1 - skipped);
                }
            }
        }
    }

    fn field_starts(&mut self, byte: u8) {
        self.field = Field { is_inserted: byte & 0xc0 == 0x40, is_pinned: false };
        let (of, mask) = match byte {
            0x80.. => (Integer::WholeField, 0x7f),
            0x40.. => (Integer::Name, 0x3f),
            0x20.. => (Integer::TableSize, 0x1f),
            _ => (Integer::Name, 0x0f),
        };
        self.integer_starts(of, byte, mask);
    }

    fn integer_starts(&mut self, of: Integer, byte: u8, mask: u8) {
        let value = usize::from(byte & mask);
        if byte & mask < mask {
            self.integer(of, value);
        } else {
            self.place = Place::Integer { of, value, shift: 0 };
        }
    }

    fn integer(&mut self, of: Integer, value: usize) {
        match (of, value) {
            (Integer::WholeField, _) => self.place = Place::FieldStart,
            (Integer::TableSize, size) => {
                if size == 0 {
                    self.table = 0;
                }
                self.place = Place::FieldStart;
            }
            (Integer::Name, 0) => self.place = Place::LengthStart(Text::Name),
            (Integer::Name, index) => {
                self.field.is_pinned = self.is_pinned(index);
                self.place = Place::LengthStart(Text::Value);
            }
            (Integer::Length(text), len) => self.inside(text, len),
        }
    }

    fn is_pinned(&self, index: usize) -> bool {
        let is_pinned_in_table =
            |age: usize| age < u128::BITS as usize && self.table >> age & 1 == 1;
        index == AUTHORITY
            || PATHS_AND_SCHEMES.contains(&index)
            || index.checked_sub(NEWEST).is_some_and(is_pinned_in_table)
    }

    /// Goes on inside a text, or behind it if nothing is left of it.
    fn inside(&mut self, text: Text, left: usize) {
        self.place = match (text, left) {
            (text, 1..) => Place::Inside(text, left),
            (Text::Value, 0) => {
                if self.field.is_inserted {
                    self.table = self.table << 1 | u128::from(self.field.is_pinned);
                }
                Place::FieldStart
            }
            (_, 0) => Place::LengthStart(Text::Value),
        };
    }
}
