//! Reads `WWW-Authenticate: Bearer …` (RFC 6750, RFC 9728).

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};

use super::discovery::is_scope;
use super::request::is_code;

const SCOPES_MAX: usize = 32;
const INSUFFICIENT_SCOPE: &str = "insufficient_scope";

/// The wishes of a server that has refused a token.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    pub scopes: Vec<String>,
    /// The address of the server's metadata.
    pub metadata: Option<Url>,
    error: Option<String>,
}

impl Challenge {
    /// Returns whether the server has refused a token for want of scopes.
    pub fn wants_scopes(&self) -> bool {
        self.error.as_deref() == Some(INSUFFICIENT_SCOPE)
    }

    /// Returns the error code, if it is one.
    pub fn code(&self) -> Option<&str> {
        self.error.as_deref().filter(|code| is_code(code))
    }

    /// Reads a refusal that another token may turn into an answer: 401, or 403 for want of scopes.
    /// Nothing was executed then.
    pub fn read(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|it| it.to_str().ok());
        let challenge = values.into_iter().find_map(Self::parse);
        match status {
            StatusCode::UNAUTHORIZED => Some(challenge.unwrap_or_default()),
            StatusCode::FORBIDDEN => challenge.filter(Self::wants_scopes),
            _ => None,
        }
    }

    fn parse(value: &str) -> Option<Self> {
        let at = value.to_ascii_lowercase().find("bearer")?;
        let mut rest = value[at + "bearer".len()..].trim_start();
        let mut challenge = Self::default();
        while let Some((name, after)) = rest.split_once('=') {
            let name = name.trim_matches([' ', ',']);
            // A name with a space in it begins another challenge.
            if name.contains(' ') {
                break;
            }
            let (value, after) = match after.trim_start().strip_prefix('"') {
                Some(quoted) => unquoted(quoted)?,
                None => {
                    let end = after.find([',', ' ']).unwrap_or(after.len());
                    (after[..end].to_owned(), &after[end..])
                }
            };
            rest = after;
            match name.to_ascii_lowercase().as_str() {
                "scope" => challenge.scopes = scopes(&value),
                "resource_metadata" => challenge.metadata = Url::parse(&value).ok(),
                "error" => challenge.error = Some(value),
                _ => {}
            }
        }
        Some(challenge)
    }
}

/// Reads the rest of a quoted text, and returns what follows it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

fn scopes(text: &str) -> Vec<String> {
    text.split(' ').filter(|scope| is_scope(scope)).take(SCOPES_MAX).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, value: &str) -> Option<Challenge> {
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, value.parse().unwrap())]);
        Challenge::read(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn a_challenge_names_scopes_and_metadata() {
        let value = "Bearer error=\"invalid_token\", scope=\"a b:c\" , \
             resource_metadata=\"https://x.example/.well-known/p?q=1,2\", Basic realm=\"x\"";
        let challenge = read(401, value).unwrap();
        assert_eq!(challenge.scopes, ["a", "b:c"]);
        let metadata = challenge.metadata.unwrap();
        assert_eq!(metadata.as_str(), "https://x.example/.well-known/p?q=1,2");
        assert_eq!(read(401, "bearer scope=a").unwrap().scopes, ["a"]);
        for odd in ["Basic realm=x", "Bearer", "Bearer scope=\"a", "Bearer =,=", "Bearer scope"] {
            assert_eq!(read(401, odd).unwrap().scopes, [] as [&str; 0], "{odd}");
        }
    }

    #[test]
    fn only_a_403_for_want_of_scopes_can_be_mended() {
        assert_eq!(read(403, "Bearer error=\"invalid_request\""), None);
        let challenge = read(403, "Bearer error=\"insufficient_scope\", scope=\"w\"").unwrap();
        assert_eq!(challenge.scopes, ["w"]);
        assert_eq!(read(500, "Bearer scope=\"w\""), None);
    }
}
