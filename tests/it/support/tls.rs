//! Serves TLS. The certificates in `tests/it/tls` are of a CA that nobody else trusts, for
//! 127.0.0.1 and localhost, until 2120; its key was thrown away.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls");

/// The CA, as a file for `SSL_CERT_FILE`.
pub fn ca() -> String {
    format!("{DIR}/ca.pem")
}

/// A certificate that has signed nothing.
pub fn other_ca() -> String {
    format!("{DIR}/server.pem")
}

/// Speaks these protocols (ALPN), the first that the client knows.
pub fn acceptor(protocols: &[&str]) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(format!("{DIR}/server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(format!("{DIR}/server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = config.with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
