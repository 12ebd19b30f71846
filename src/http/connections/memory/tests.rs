use super::*;

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [len[1], len[2], len[3], kind, flags, 0, 0, 0, 1];
    [&head, payload].concat()
}

/// A head that is complete.
fn head(fields: &[u8]) -> Vec<u8> {
    frame(1, 0x4, fields)
}

/// A field that the table is to keep, with a name of the static table.
fn inserted(name: u8, value: &str) -> Vec<u8> {
    [&[0x40 | name, value.len() as u8], value.as_bytes()].concat()
}

/// A field that the table is to keep, with a name that it spells out.
fn inserted_new(name: &str, value: &str) -> Vec<u8> {
    [&[0x40, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

const PATH: u8 = 4;
const ACCEPT: u8 = 19;

/// Feeds all in parts of this length, after the preface.
fn read(meter: &mut Meter, bytes: &[u8], part: usize) -> usize {
    bytes.chunks(part).map(|part| meter.read(part, false)).last().unwrap_or_default()
}

fn http2() -> Meter {
    let mut meter = Meter::default();
    assert_eq!(meter.read(&PREFACE[..20], true), BARE);
    assert_eq!(meter.read(&PREFACE[20..], true), HTTP2);
    meter
}

/// Returns the memory after these bytes, which must not depend on how they are cut.
fn after(bytes: &[u8]) -> usize {
    let [whole, halves, single] = [SHORT, 100, 1].map(|part| read(&mut http2(), bytes, part));
    assert_eq!([whole, halves], [single; 2]);
    whole
}

#[test]
fn the_protocol_is_found_by_the_first_bytes() {
    for (first, expected) in [("G", HTTP1), ("P", BARE), ("PRI * HTTP/1.1", HTTP1), ("", BARE)] {
        assert_eq!(Meter::default().read(first.as_bytes(), true), expected, "{first:?}");
    }
    let mut meter = Meter::default();
    assert_eq!(meter.read(b"P", true), BARE);
    assert_eq!(meter.read(b"OST / HTTP/1.1\r\n", true), HTTP1);
}

#[test]
fn a_long_head_of_http1_counts_also_if_it_comes_in_small_parts() {
    let mut meter = Meter::default();
    let line = [b'x'; 100];
    let sizes: Vec<_> = (0..60).map(|_| meter.read(&line, true)).collect();
    assert_eq!((sizes[0], sizes[59]), (HTTP1, HTTP1 + LONG_READ));
    let mut meter = Meter::default();
    assert!((0..60).all(|_| meter.read(&line, false) == HTTP1), "short requests");
    assert_eq!(meter.read(&[b'x'; 5000], false), HTTP1 + LONG_READ);
}

#[test]
fn an_unfinished_head_counts_until_it_ends() {
    // A field that goes on and on.
    let start = [&[0, 1, b'x', 0x7f, 0xff, 0xff, 0x7f][..], &[b'a'; 3000]].concat();
    let begun = frame(1, 0, &start);
    assert_eq!(after(&begun), HTTP2);
    let longer = [begun.clone(), frame(9, 0, &[b'a'; 3000])].concat();
    assert_eq!(after(&longer), HTTP2 + 2 * HEAD_STEP);
    let longest = [begun, frame(9, 0, &[b'a'; 16_000]), frame(9, 0, &[b'a'; 16_000])].concat();
    assert_eq!(after(&longest), HTTP2 + 6 * HEAD_STEP);
    let ended = [longest, frame(9, 0x4, b"")].concat();
    assert_eq!(after(&ended), HTTP2);
}

#[test]
fn entries_that_keep_buffers_are_counted() {
    let copied = [inserted(ACCEPT, "text/plain"), inserted_new("x-own", "value")].concat();
    assert_eq!(after(&head(&copied)), HTTP2, "their values are copied");
    let mut kept = inserted(PATH, "/healthz");
    assert_eq!(after(&head(&kept)), HTTP2 + PINNED_BUFFER);
    kept.extend(inserted_new(":path", "/healthz"));
    assert_eq!(after(&head(&kept)), HTTP2 + 2 * PINNED_BUFFER);
    kept.extend([0x40, 0x82, 0xb8, 0x40, 1, b'/']);
    assert_eq!(after(&head(&kept)), HTTP2 + 3 * PINNED_BUFFER, "with a compressed name");
    // A copied one becomes the newest, so the name of the newest but one is `:path`.
    kept.extend(inserted(ACCEPT, "x"));
    kept.extend([[0x40 | 0x3f, 0, 1, b'/'], [0x40 | 0x3f, 0, 1, b'x']].concat());
    assert_eq!(after(&head(&kept)), HTTP2 + 4 * PINNED_BUFFER);
    let forgotten = [kept, vec![0x20]].concat();
    assert_eq!(after(&head(&forgotten)), HTTP2);
}

#[test]
fn entries_count_no_longer_than_the_table_has_room() {
    let mut fields = vec![];
    (0..1000).for_each(|_| fields.extend(inserted(PATH, "/")));
    assert_eq!(after(&head(&fields)), HTTP2 + 128 * PINNED_BUFFER);
    (0..128).for_each(|_| fields.extend(inserted(ACCEPT, "x")));
    assert_eq!(after(&head(&fields)), HTTP2);
}

#[test]
fn other_frames_and_padding_hold_no_fields() {
    let field = inserted(PATH, "/");
    let data = frame(0, 0x4, &field);
    assert_eq!(after(&[data.clone(), data].concat()), HTTP2);
    // The length of the padding, a priority, the field, and padding that looks like another one.
    let padded = [&[field.len() as u8][..], &[0x44; 5], &field, &field].concat();
    assert_eq!(after(&frame(1, 0x4 | 0x8 | 0x20, &padded)), HTTP2 + PINNED_BUFFER);
    assert_eq!(after(&[frame(1, 0x4, b""), head(&field)].concat()), HTTP2 + PINNED_BUFFER);
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut bytes = vec![];
    let mut state = 1_u32;
    for _ in 0..200_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((state >> 24) as u8);
    }
    for part in [1, 7, 1000] {
        read(&mut http2(), &bytes, part);
        let mut frames = http2();
        for chunk in bytes.chunks(16_000) {
            read(&mut frames, &head(chunk), part);
        }
    }
}
