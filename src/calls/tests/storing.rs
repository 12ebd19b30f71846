use super::*;

fn sealer(keys: &[&str]) -> Sealer {
    let keys: Vec<_> = keys.iter().map(|key| Secret::new((*key).to_owned())).collect();
    Sealer::labelled(KEY_LABEL, &keys)
}

#[test]
fn long_texts_are_sealed_in_pieces_that_cannot_be_exchanged_or_lost() {
    let (sealer, id) = (sealer(&["a"]), CallId::generate());
    let text = "{".repeat(2 * PLAIN_LEN_MAX + 1);
    let sealed = seal(&sealer, id, Part::Answer, &text);
    assert_eq!(open(&sealer, id, Part::Answer, &sealed).unwrap(), text);
    assert_eq!(open(&sealer, CallId::generate(), Part::Answer, &sealed), None);
    assert_eq!(open(&sealer, id, Part::Arguments, &sealed), None);
    let (first, rest) = sealed.split_once(PIECES).unwrap();
    let (second, third) = rest.split_once(PIECES).unwrap();
    let second = second.to_owned();
    for bad in [
        first.to_owned(),
        format!("{first}.{second}"),
        format!("{first}.{third}.{second}"),
        format!("~{second}.{third}"),
    ] {
        assert_eq!(open(&sealer, id, Part::Answer, &bad), None);
    }
}

#[test]
fn a_text_can_be_opened_by_an_older_key_and_not_by_another() {
    let id = CallId::generate();
    let sealed = seal(&sealer(&["old"]), id, Part::Answer, "{}");
    assert!(open(&sealer(&["new", "old"]), id, Part::Answer, &sealed).is_some());
    assert!(open(&sealer(&["new"]), id, Part::Answer, &sealed).is_none());
}
