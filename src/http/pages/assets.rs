//! The files of the live pages, compressed into the program by `build.rs`.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;

/// Everything is from the gateway itself, and no code or style stands in the page.
const PAGE_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'";

struct Asset {
    name: &'static str,
    content_type: &'static str,
    gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/live_page.rs"));

/// Serves a file that a page loads.
pub(super) fn file(Path(name): Path<String>) -> Response<Body> {
    page(&name)
}

pub(super) fn page(name: &str) -> Response<Body> {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, ETAG),
    ];
    (headers, asset.gzip).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
        assert!(bytes <= 150 * 1024, "{bytes} bytes");
        assert!(ASSETS.len() >= 6, "a file is missing");
    }
}
