use std::collections::BTreeMap;

use super::*;
use crate::backend::testing::options;

/// Longer than any test waits.
const A_MINUTE: Duration = Duration::from_secs(60);

fn upstream(url: &str) -> Upstream {
    Upstream {
        url: url.parse().unwrap(),
        headers: BTreeMap::new(),
        init_timeout: A_MINUTE,
        redirect_hosts: vec![],
    }
}

impl Link {
    /// To a server that is not there.
    pub(super) fn to_nowhere() -> Self {
        let upstream = upstream("http://127.0.0.1:9/mcp");
        let (connection, _) = Connection::new(options(), true);
        Self {
            connection,
            client: Client::new(&upstream, &Secrets::new(), 1).unwrap(),
            init_timeout: upstream.init_timeout,
            message_len_max: 1024,
            session: OnceLock::new(),
        }
    }
}
