//! Tells systemd about this process (`Type=notify`): ready, reloading, stopping, and alive, for its
//! watchdog.

use std::env;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

/// The service manager that started this process, if it wants to be told.
#[derive(Clone, Default)]
pub struct ServiceManager(Option<Arc<Channel>>);

struct Channel {
    socket: UnixDatagram,
    address: SocketAddr,
    /// The time after which the manager takes a silent process for stuck.
    watchdog: Option<Duration>,
    is_ready: AtomicBool,
}

/// A reload that the service manager knows of. Dropped, it is over.
pub(super) struct Reloading(ServiceManager);

impl ServiceManager {
    /// Returns the manager that `NOTIFY_SOCKET` and `WATCHDOG_USEC` name.
    pub fn of_environment() -> Self {
        let Some(path) = env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|time| is_ours && *time > 0);
        Self::open(path.as_bytes(), watchdog.map(Duration::from_micros)).unwrap_or_else(|error| {
            tracing::warn!("the service manager at NOTIFY_SOCKET cannot be told: {error}");
            Self::default()
        })
    }

    fn open(path: &[u8], watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match path.strip_prefix(b"@") {
            #[cfg(target_os = "linux")]
            Some(name) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let is_ready = AtomicBool::new(false);
        Ok(Self(Some(Arc::new(Channel { socket, address, watchdog, is_ready }))))
    }

    /// Says that every server has been tried. Until then, other units wait for this one.
    pub(super) fn tell_ready(&self) {
        let Some(channel) = &self.0 else { return };
        channel.is_ready.store(true, Ordering::Release);
        channel.tell("READY=1");
    }

    /// Says that the configuration is read again. A service that is still starting says nothing.
    pub(super) fn tell_reloading(&self) -> Option<Reloading> {
        let channel = self.0.as_ref().filter(|it| it.is_ready.load(Ordering::Acquire))?;
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).ok()?);
        channel.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
        Some(Reloading(self.clone()))
    }

    pub(super) fn tell_stopping(&self) {
        if let Some(channel) = &self.0 {
            channel.tell("STOPPING=1");
        }
    }

    /// Tells the watchdog twice in its time that tasks still run. Ends only without a watchdog.
    pub(super) async fn tell_alive(self) {
        let Some(channel) = self.0 else { return };
        let Some(time) = channel.watchdog else { return };
        let mut ticks = interval(time / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            channel.tell("WATCHDOG=1");
        }
    }
}

impl Channel {
    /// Sends without waiting: a manager that does not read must not stop the gateway.
    fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            tracing::warn!("the service manager was not told {state:?}: {error}");
        }
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.0.tell_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn abstract_addresses_are_reached() {
        let name = format!("trunkline-{}", uuid::Uuid::new_v4());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        ServiceManager::open(format!("@{name}").as_bytes(), None).unwrap().tell_stopping();
        assert_eq!(heard(&socket), "STOPPING=1");
    }

    #[test]
    fn a_reload_is_told_only_of_a_gateway_that_was_ready() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::open(path.as_os_str().as_bytes(), None).unwrap();
        assert!(manager.tell_reloading().is_none());
        manager.tell_ready();
        assert_eq!(heard(&socket), "READY=1");
        drop(manager.tell_reloading());
        assert!(heard(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(heard(&socket), "READY=1");
    }
}
