//! Programs that get an access token in a file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::connect::{Browser, gateway as public};
use crate::hardening::{PROGRAM, boxed, done, run_by_nobody};
use crate::sandbox::{can, sandboxed};
use crate::support::{
    AuthorizationServer, Setup, TokenEndpoint, eventually, python, refused, within,
};

const READ: &str = "open(__import__('os').environ['TOKEN_FILE']).read()";
const PATH: &str = "__import__('os').environ['TOKEN_FILE']";

fn oauth(endpoint: &TokenEndpoint) -> String {
    format!(
        "\n[servers.box.oauth]\nclient_id = \"gateway\"\nclient_secret = \"s3cret\"\n\
         issuer = {:?}\nvariable = \"TOKEN_FILE\"\n",
        endpoint.url()
    )
}

#[tokio::test]
async fn a_program_reads_its_token_which_is_replaced_in_time() {
    let endpoint = TokenEndpoint::start().await;
    endpoint.set_answer(json!({"expires_in": 2}));
    let gateway = boxed(&[], &oauth(&endpoint)).start().await;
    assert_eq!(done(&gateway, READ).await, "token-1");
    let asked = &endpoint.asked()[0];
    assert_eq!((asked.get("grant_type"), asked.get("resource")), ("client_credentials", ""));
    let path = done(&gateway, PATH).await;
    let (path, directory) = (Path::new(&path), Path::new(&path).parent().unwrap());
    let modes =
        format!("[oct(__import__('os').stat(p).st_mode)[-3:] for p in ({path:?}, {directory:?})]");
    assert_eq!(done(&gateway, &modes).await, "['600', '700']");
    // No variable has the token itself.
    let has = "any('token-' in it for it in __import__('os').environ.values())";
    assert_eq!(done(&gateway, has).await, "False");
    endpoint.set_answer(json!({"expires_in": 3600}));
    eventually("another token", async || (done(&gateway, READ).await == "token-2").then_some(()))
        .await;
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    gateway.stop().await;
    assert!(!directory.exists());
    assert_eq!(endpoint.asked().len(), 2);
}

#[tokio::test]
async fn a_program_in_a_sandbox_reads_it_and_can_change_nothing_of_it() {
    if !can(3) {
        return;
    }
    let endpoint = TokenEndpoint::start().await;
    let gateway = sandboxed(&[], "write = []").raw(&oauth(&endpoint)).start().await;
    assert_eq!(done(&gateway, READ).await, "token-1");
    let write = format!("open({PATH}, 'w').write('x')");
    assert_eq!(done(&gateway, &write).await, "PermissionError Permission denied");
    gateway.stop().await;
}

#[tokio::test]
async fn the_user_of_a_program_reads_it_and_can_put_nothing_in_its_place() {
    let Some(setup) = run_by_nobody(&[]) else { return };
    let endpoint = TokenEndpoint::start().await;
    let gateway = setup.raw(&oauth(&endpoint)).start().await;
    assert_eq!(done(&gateway, READ).await, "token-1");
    for code in [
        format!("import os\nos.rename({PATH}, {PATH} + 'x')"),
        format!("import os\nos.listdir(os.path.dirname({PATH}))"),
    ] {
        assert_eq!(done(&gateway, &code).await, "PermissionError Permission denied", "{code}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_it_when_the_gateway_is_killed() {
    let endpoint = TokenEndpoint::start().await;
    let serving = boxed(&[], &oauth(&endpoint)).serve().await;
    let path = serving.call("box", "do", json!({"code": PATH})).await.tool_text();
    let directory = Path::new(&path).parent().unwrap();
    assert!(directory.exists());
    serving.signal(Signal::KILL);
    eventually("removed", async || (!directory.exists()).then_some(())).await;
}

#[tokio::test]
async fn without_a_token_the_program_does_not_start_and_its_callers_are_told_no_host() {
    let endpoint = TokenEndpoint::start().await;
    endpoint.refuse(401);
    let gateway = boxed(&[], &oauth(&endpoint)).start_at_once().await;
    let refusal = gateway.call("box", "do", json!({"code": "1"})).await;
    assert_eq!(refusal.problem(), refused(503, "server_unavailable").for_now());
    assert!(refusal.detail().ends_with("the gateway has no access token for it"), "{refusal:?}");
    endpoint.refuse(200);
    // Longer than a server in quarantine waits for its next start.
    within(Duration::from_secs(60), "it has started", async || {
        (gateway.call("box", "do", json!({"code": "1"})).await.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn each_tenants_program_has_the_token_of_its_own_account() {
    let issuer = AuthorizationServer::start().await;
    let args = ["-I", "-S", "-X", "utf8", PROGRAM].map(str::to_owned);
    let settings = format!(
        "sharing = \"tenant\"\n[servers.web.oauth]\ngrant = \"authorization_code\"\n\
         issuer = {:?}\nvariable = \"TOKEN_FILE\"\n",
        issuer.url()
    );
    let grants = "servers = [\"*\"]";
    let setup: Setup = public().with_tenant("acme", grants).with_tenant("globex", grants);
    let gateway = setup.server("web", python(), &args, &settings).start().await;
    for (tenant, person) in [("acme", "alice"), ("globex", "bob")] {
        let key = gateway.new_key(tenant).await;
        let api = gateway.with_key(&key);
        let read = async || api.call("web", "do", json!({"code": READ})).await;
        assert_eq!(read().await.problem(), refused(409, "connect_required"));
        Browser::of(&api, &key).await.connect(&issuer, person).await;
        let text = read().await.tool_text();
        assert!(text.starts_with(&format!("access-{person}-")), "{text}");
    }
    gateway.stop().await;
}
