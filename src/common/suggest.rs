//! Finds the name that was probably meant.

/// Names that differ in more than this part of their characters are different names.
const DIFFERENT: usize = 3;

/// Returns the candidate that is closest to a name, if one is close.
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name_lower = name.to_lowercase();
    let distance = |other: &&str| strsim::osa_distance(&name_lower, &other.to_lowercase());
    let near = candidates.into_iter().map(|other| (distance(&other), other));
    let near = near.filter(|(distance, _)| *distance <= name.chars().count().max(3) / DIFFERENT);
    near.min_by_key(|(distance, _)| *distance).map(|(_, other)| other)
}

/// Returns "; did you mean `std`?" if a candidate is close, and else nothing.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    closest(name, candidates).map_or_else(String::new, |it| format!("; did you mean `{it}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let keys = ["listen", "ops_listen", "max_body", "max_response", "auth"];
        for (name, meant) in [
            ("lisen", Some("listen")),
            ("Listen", Some("listen")),
            ("max_bdy", Some("max_body")),
            ("atuh", Some("auth")),
            ("rate", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest(name, keys), meant, "{name}");
        }
        assert_eq!(did_you_mean("sdt", ["std"]), "; did you mean `std`?");
    }
}
