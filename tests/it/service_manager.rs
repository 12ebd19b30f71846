//! The gateway as a service of systemd with `Type=notify`.

use std::time::Duration;

use rustix::process::Signal;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

use crate::support::{Serving, Setup, in_time};

async fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 200];
    let length = in_time("word for the manager", manager.recv(&mut buffer)).await.unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

/// Returns the next word that is not the watchdog's.
async fn state(manager: &UnixDatagram) -> String {
    loop {
        let word = heard(manager).await;
        if word != "WATCHDOG=1" {
            return word;
        }
    }
}

async fn start(setup: Setup, manager: &str, watchdog: &[(&str, &str)]) -> Serving {
    let config = setup.write();
    let args = ["--config", config.to_str().unwrap()];
    let env = [&[("NOTIFY_SOCKET", manager)], watchdog].concat();
    Serving::start_in(setup, &args, &env).await
}

#[tokio::test]
async fn a_service_manager_is_told_of_each_state() {
    let setup = Setup::new().fake_with("fake", &["start=slow"], "");
    let path = setup.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut gateway = start(setup, path.to_str().unwrap(), &[]).await;
    // Other units may count on a gateway whose servers have been tried.
    assert_eq!(state(&manager).await, "READY=1");
    assert_eq!(gateway.get("/readyz").await.status, 200);
    gateway.signal(Signal::HUP);
    let word = state(&manager).await;
    assert!(word.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{word}");
    assert_eq!(state(&manager).await, "READY=1");
    gateway.signal(Signal::TERM);
    assert_eq!(state(&manager).await, "STOPPING=1");
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn a_watchdog_hears_of_a_gateway_that_runs() {
    let setup = Setup::new().std();
    let path = setup.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let time = [("WATCHDOG_USEC", "200000")];
    let mut gateway = start(setup, path.to_str().unwrap(), &time).await;
    for _ in 0..5 {
        while heard(&manager).await != "WATCHDOG=1" {}
    }
    gateway.freeze().await;
    // Words from before.
    while manager.try_recv(&mut [0; 200]).is_ok() {}
    assert!(timeout(Duration::from_secs(1), heard(&manager)).await.is_err());
    gateway.signal(Signal::CONT);
    while heard(&manager).await != "WATCHDOG=1" {}
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn a_watchdog_for_another_process_hears_nothing() {
    let setup = Setup::new().std();
    let path = setup.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let time = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
    let mut gateway = start(setup, path.to_str().unwrap(), &time).await;
    assert_eq!(heard(&manager).await, "READY=1");
    gateway.signal(Signal::TERM);
    assert_eq!(heard(&manager).await, "STOPPING=1");
    assert_eq!(gateway.ended().await, Some(0));
}
