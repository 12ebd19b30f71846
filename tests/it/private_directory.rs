//! The private directory of a server that cannot be made.

use std::fs;
use std::time::Duration;

use crate::support::{Setup, within};

/// Longer than a server in quarantine waits for its next start.
const HEALED_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_server_starts_as_soon_as_its_private_directory_can_be_made() {
    let setup = Setup::new().fake("fake");
    let parent = setup.dir.path().join("away");
    let gateway = setup.serve_with(&[("TMPDIR", parent.to_str().unwrap())]).await;
    let server = gateway.get("/v1/servers/fake").await.json();
    // Paths of the machine are not for callers.
    assert_eq!(server["reason"], "its private directory could not be made");
    let cause = "No such file or directory (os error 2); make room there";
    let expected = format!("its private directory cannot be made in {}: {cause}", parent.display());
    gateway.logged(&expected).await;

    fs::create_dir(&parent).unwrap();
    within(HEALED_WITHIN, "the server has started", async || {
        (gateway.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
}
