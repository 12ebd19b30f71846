use std::collections::BTreeMap;

use tokio::net::TcpListener;

use super::*;
use crate::backend::connection::CloseReason;
use crate::backend::testing::options;
use crate::config::UrlTransport;
use crate::protocol::mcp::ProtocolVersion;

const A_MINUTE: Duration = Duration::from_secs(60);

fn upstream(url: &str) -> Upstream {
    Upstream {
        url: url.parse().unwrap(),
        headers: BTreeMap::new(),
        init_timeout: A_MINUTE,
        redirect_hosts: vec![],
        transport: UrlTransport::Auto,
        oauth: None,
    }
}

impl HttpEndpoint {
    /// Returns an endpoint whose server does not exist.
    pub(super) fn unreachable() -> Self {
        Self::of(Connection::new(options(), true).0)
    }

    /// Returns an endpoint over a connection whose outgoing frames the test reads.
    pub(super) fn of(connection: Arc<Connection>) -> Self {
        let upstream = upstream("http://127.0.0.1:9/mcp");
        Self {
            connection,
            client: Client::new(&upstream, &Secrets::new(), None, 1).unwrap(),
            init_timeout: upstream.init_timeout,
            message_len_max: 1024,
            session: OnceLock::new(),
            refusal_probe: RefusalProbe::default(),
        }
    }
}

#[tokio::test]
async fn closing_does_not_wait_for_a_server_that_never_accepts_initialized() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let (connection, driving) = open(&upstream(&url), &Secrets::new(), None, options()).unwrap();
    connection.set_version(ProtocolVersion::LATEST_LEGACY);
    connection.notify(requests::initialized());
    let _never_answered = listener.accept().await.unwrap();
    connection.close(&CloseReason::Stopped);
    timeout(A_MINUTE / 6, driving).await.expect("the driver waits for the server").unwrap();
}
