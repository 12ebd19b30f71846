//! Requests that are accepted as those of a replica.

use bytes::Bytes;
use reqwest::header::ACCEPT;
use tokio::time::advance;

use super::*;
use crate::cluster::testing::replica;

fn request() -> PeerRequest {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer tl_key"));
    headers.insert("mcp-session-id", HeaderValue::from_static("token"));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let (path, body) = ("/mcp/std".to_owned(), Bytes::from_static(b"{}"));
    PeerRequest { method: Method::POST, path, headers, body }
}

#[tokio::test]
async fn a_proof_is_valid_for_the_request_it_was_made_for() {
    let (one, other) = (replica("a key"), replica("a key"));
    let ProvenRequest { proof, headers: plain, .. } = one.prove(&other.me, &request());
    let opened = other.verify_proof(&proof, &Method::POST, "/mcp/std").unwrap();
    assert!(opened.matches_body(b"{}"));
    assert!(!opened.matches_body(b"{ }") && !opened.matches_body(b""));
    let mut restored = plain;
    restored.insert("x-api-key", HeaderValue::from_static("another caller's"));
    opened.restore_headers(&mut restored);
    assert_eq!(restored, request().headers);
}

#[tokio::test]
async fn a_proof_is_valid_for_nothing_else() {
    let (one, other, third) = (replica("a key"), replica("a key"), replica("a key"));
    let proof = one.prove(&other.me, &request()).proof;
    let check = |by: &Cluster, proof: &str, method: Method, path: &str| {
        by.verify_proof(proof, &method, path).map(|_| ()).unwrap_err()
    };
    assert_eq!(check(&third, &proof, Method::POST, "/mcp/std"), ProofError::NotForUs);
    assert_eq!(check(&one, &proof, Method::POST, "/mcp/std"), ProofError::NotForUs);
    for (method, path) in
        [(Method::GET, "/mcp/std"), (Method::POST, "/mcp"), (Method::POST, "/mcp/std/")]
    {
        assert_eq!(check(&other, &proof, method, path), ProofError::Invalid);
    }
    for forged in ["", "x", &proof[1..]] {
        assert_eq!(check(&other, forged, Method::POST, "/mcp/std"), ProofError::Invalid);
    }
    let stranger = replica("another key");
    let forged = stranger.prove(&other.me, &request()).proof;
    assert_eq!(check(&other, &forged, Method::POST, "/mcp/std"), ProofError::Invalid);
    // A text that the same keys sealed for another purpose is no proof.
    let token = one.sealer.seal(Purpose::Session, b"", b"{}");
    assert_eq!(check(&other, &token, Method::POST, "/mcp/std"), ProofError::Invalid);
}

#[tokio::test]
async fn a_proof_is_valid_for_half_a_minute_by_either_clock() {
    let (one, other) = (replica("a key"), replica("a key"));
    let check = |at: u64| {
        let proof = one.prove_at(&other.me, &request(), at).proof;
        other.verify_proof(&proof, &Method::POST, "/mcp/std").map(|_| ())
    };
    for at in [now() - 25_000, now(), now() + 25_000] {
        assert_eq!(check(at), Ok(()));
    }
    for at in [0, now() - 31_000, now() + 31_000, u64::MAX] {
        assert_eq!(check(at), Err(ProofError::Invalid));
    }
}

#[tokio::test]
async fn a_proof_is_accepted_once() {
    let (one, other) = (replica("a key"), replica("a key"));
    let check = |proof: &str| other.verify_proof(proof, &Method::POST, "/mcp/std").map(|_| ());
    let [first, second] = [(); 2].map(|()| one.prove(&other.me, &request()).proof);
    assert_eq!(check(&first), Ok(()));
    assert_eq!(check(&first), Err(ProofError::Invalid));
    assert_eq!(check(&second), Ok(()));
}

#[tokio::test]
async fn credentials_are_nowhere_to_be_read() {
    let (one, other) = (replica("a key"), replica("a key"));
    let plain = one.prove(&other.me, &request()).headers;
    assert_eq!(plain.len(), 1);
    assert_eq!(plain[ACCEPT], "*/*");
}

#[tokio::test]
async fn an_answer_is_accepted_only_from_the_replica_that_opened_the_proof() {
    let (one, other, stranger) = (replica("a key"), replica("a key"), replica("another key"));
    let [proven, another] = [(); 2].map(|()| one.prove(&other.me, &request()));
    let open = |by: &Cluster, proven: &ProvenRequest| {
        by.verify_proof(&proven.proof, &Method::POST, "/mcp/std").map_err(drop)
    };
    let opened = open(&other, &proven).unwrap();
    let signature = other.sign(&opened);
    assert!(one.is_signed(&signature, &other.me, &proven));
    // Neither for another request, nor by another replica, nor by one that only knows the id.
    assert!(!one.is_signed(&signature, &other.me, &another));
    assert!(!one.is_signed(&signature, &stranger.me, &proven));
    let forged = stranger.sign(&opened);
    assert!(!one.is_signed(&forged, &stranger.me, &proven));
    assert!(!one.is_signed(&other.me.id, &other.me, &proven));
}

#[tokio::test]
async fn only_the_first_session_is_sent() {
    let (one, other) = (replica("a key"), replica("a key"));
    let mut request = request();
    let long = HeaderValue::from_str(&"x".repeat(60_000)).unwrap();
    request.headers.append("mcp-session-id", long);
    let proven = one.prove(&other.me, &request);
    let opened = other.verify_proof(&proven.proof, &Method::POST, "/mcp/std").unwrap();
    let mut restored = HeaderMap::new();
    opened.restore_headers(&mut restored);
    assert_eq!(restored.get_all("mcp-session-id").iter().collect::<Vec<_>>(), ["token"]);
}

const SPAN: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_number_is_taken_once_for_a_span_at_least_and_not_remembered_for_ever() {
    let used = UsedProofs::new(SPAN);
    for (number, later) in (0..).zip([0, 1, 30, 59]) {
        // At different times within a span.
        advance(SPAN).await;
        assert!(used.insert(10 + number));
        advance(Duration::from_secs(later)).await;
        assert!(used.insert(number));
        advance(SPAN - Duration::from_millis(1)).await;
        assert!(!used.insert(number), "{later} s later");
    }
    advance(SPAN).await;
    assert!(used.insert(100));
    advance(SPAN).await;
    assert!(used.insert(101));
    let spans = used.spans.lock();
    assert_eq!((spans.now.len(), spans.before.len()), (1, 1));
}

#[tokio::test]
async fn when_full_no_proof_is_accepted() {
    let used = UsedProofs::new(SPAN);
    used.spans.lock().now.extend(0..PROOFS_MAX as u64);
    assert!(!used.insert(u64::MAX));
}
