//! Who calls, as a parameter of the handlers: none can forget to ask.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Uri, header};

use super::Front;
use crate::gateway::{CallError, Caller};

/// A caller that may call.
pub(super) struct Authenticated(pub(super) Caller);

impl FromRequestParts<Arc<Front>> for Authenticated {
    type Rejection = CallError;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, CallError> {
        refuse_web_pages(parts, front.is_local)?;
        let tenant = front.anonymous.clone().ok_or(CallError::Unauthenticated)?;
        Ok(Self(Caller { tenant }))
    }
}

/// A browser lets any page send requests to any address, this machine's own included; it says for whom in
/// `Origin`. A page can also give itself a name that leads to this machine; then `Host` is that name.
fn refuse_web_pages(parts: &Parts, is_local: bool) -> Result<(), CallError> {
    if let Some(origin) = parts.headers.get(header::ORIGIN)
        && !is_local_origin(origin)
    {
        return Err(CallError::Forbidden("requests of web pages are refused (`Origin`)"));
    }
    if is_local && !host(parts).is_some_and(|host| is_local_name(&host)) {
        return Err(CallError::Forbidden(
            "this gateway listens on this machine only, and `Host` must be `localhost` or a loopback address",
        ));
    }
    Ok(())
}

fn is_local_origin(origin: &HeaderValue) -> bool {
    let uri: Option<Uri> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
    uri.is_some_and(|uri| uri.scheme().is_some() && uri.host().is_some_and(is_local_name))
}

/// HTTP/1 has it in a header, HTTP/2 in the address.
fn host(parts: &Parts) -> Option<String> {
    if let Some(host) = parts.uri.host() {
        return Some(host.to_owned());
    }
    let host: Authority = parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok()?;
    Some(host.host().to_owned())
}

fn is_local_name(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn refused(uri: &str, headers: &[(&str, &str)], is_local: bool) -> bool {
        let request = headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| {
            request.header(*name, *value)
        });
        refuse_web_pages(&request.body(()).unwrap().into_parts().0, is_local).is_err()
    }

    #[test]
    fn web_pages_of_other_sites_are_refused_everywhere() {
        for origin in
            ["https://evil.example", "null", "http://127.0.0.1.evil.example", "localhost", ""]
        {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            assert!(
                refused("/", &headers, true) && refused("/", &headers, false),
                "{origin:?} was let in"
            );
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1:8080", "https://[::1]"] {
            assert!(
                !refused("/", &[("host", "localhost:8080"), ("origin", origin)], true),
                "{origin:?} was refused"
            );
        }
    }

    #[test]
    fn on_loopback_other_names_for_this_machine_are_refused() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080"] {
            assert!(!refused("/", &[("host", host)], true), "{host} was refused");
        }
        assert!(!refused("http://localhost:8080/", &[], true));
        assert!(refused("/", &[("host", "rebound.example:8080")], true));
        assert!(refused("http://rebound.example/", &[], true));
        assert!(refused("/", &[], true));
        assert!(!refused("/", &[("host", "gateway.example")], false));
    }
}
