//! The section `replicas`.

use super::*;

const KEYS: &str = "session_keys = [\"0123456789abcdef0123456789abcdef\"]\n";

#[test]
fn without_an_address_to_listen_on_a_gateway_stands_alone() {
    assert_eq!(Setup::toml("").load().replicas, None);
    assert_eq!(Setup::toml("[replicas]").load().replicas, None);
    let listens = Setup::toml(&format!("{KEYS}[replicas]\nlisten = \"0.0.0.0:82\"")).load();
    let listen = ([0, 0, 0, 0], 82).into();
    assert_eq!(listens.replicas, Some(Replicas { listen, address: None }));
}

#[test]
fn replicas_need_keys_in_common_and_an_address_that_can_be_reached() {
    let error = Setup::toml("[replicas]\nlisten = \"0.0.0.0:82\"").error();
    assert_has(&error, &["trunkline.toml:1: `replicas.listen` needs `session_keys`", "the same"]);
    for address in ["0.0.0.0:82", "[::]:82", "10.0.0.3:0"] {
        let text = format!("{KEYS}[replicas]\nlisten = \"0.0.0.0:82\"\naddress = \"{address}\"");
        assert_has(&Setup::toml(&text).error(), &["trunkline.toml:4: `replicas.address` must be"]);
    }
    let error = Setup::toml(&format!("{KEYS}[replicas]\naddress = \"10.0.0.3:82\"")).error();
    assert_has(&error, &["`replicas.listen` is missing"]);
}
