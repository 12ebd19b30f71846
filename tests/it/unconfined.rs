//! The warning of servers that could end the gateway for several tenants.

use nix::unistd::{Uid, User};

use crate::support::{Serving, Setup, eventually, trunkline};

const ALL: &str = "servers = [\"*\"]";

fn warnings(gateway: &Serving, server: &str) -> usize {
    let text = format!("several tenants use server `{server}`");
    gateway.log().iter().filter(|line| line.contains(&text)).count()
}

async fn warned(gateway: &Serving, server: &str) {
    eventually("warned", async || (warnings(gateway, server) > 0).then_some(())).await;
}

#[tokio::test]
async fn servers_that_could_end_the_gateway_for_several_tenants_are_named_once() {
    let me = User::from_uid(Uid::current()).unwrap().unwrap().name;
    let setup = Setup::new()
        .without_anonymous()
        .with_tenant("one", ALL)
        .with_tenant("other", "servers = [\"b-many\", \"std\"]")
        .fake("a-one-tenants")
        .fake_with("a-trusted", &[], &format!("user = {me:?}"))
        .fake("b-many")
        .std();
    let gateway = setup.clone().serve().await;
    warned(&gateway, "b-many").await;
    // A configuration brings one more, and changes another.
    let more = setup.fake("c-new").with_tenant("third", "servers = [\"c-new\", \"a-trusted\"]");
    more.write();
    warned(&gateway, "c-new").await;
    for quiet in ["a-one-tenants", "a-trusted", "std"] {
        assert_eq!(warnings(&gateway, quiet), 0, "{quiet}");
    }
    // The store brings one more tenant.
    let config = more.write();
    let args = ["tenant", "add", "fourth", "--servers", "a-*", "--config"];
    let added = trunkline(&more, &[&args[..], &[config.to_str().unwrap()]].concat()).await;
    assert!(added.status.success(), "{added:?}");
    warned(&gateway, "a-one-tenants").await;
    assert_eq!(warnings(&gateway, "a-trusted"), 0);
    for once in ["a-one-tenants", "b-many", "c-new"] {
        assert_eq!(warnings(&gateway, once), 1, "{once}");
    }
}
