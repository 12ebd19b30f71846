//! Reloads the configuration while the gateway runs: when its files change ([`ConfigWatch`]) and on
//! request.
//!
//! The whole configuration is loaded and checked as at the start, with the same environment and
//! command line. It is applied only if it is free of mistakes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::config_watch::ConfigWatch;
use super::service_manager::ServiceManager;
use crate::config::{Config, Difference};
use crate::events::{Event, Kinds};
use crate::gateway::Gateway;
use crate::telemetry::metrics::ConfigMetrics;
use crate::tenants::Directory;
use crate::tenants::connections::Connections;

const POLL_EVERY: Duration = Duration::from_secs(1);

pub struct Reload {
    pub watch: ConfigWatch,
    /// Requests a reload.
    pub asked: Arc<Notify>,
    /// The configuration in force.
    pub config: Arc<ArcSwap<Config>>,
    pub gateway: Arc<Gateway>,
    pub directory: Arc<Directory>,
    pub connections: Arc<Connections>,
    pub metrics: ConfigMetrics,
    pub service_manager: ServiceManager,
}

impl Reload {
    /// Runs for ever.
    pub async fn run(&mut self) {
        loop {
            tokio::select! {
                // Polls too, so that the next poll does not report the contents that are loaded
                // now.
                () = self.asked.notified() => drop(self.watch.poll().await),
                () = sleep(POLL_EVERY) => if !self.watch.poll().await { continue },
            }
            let _reloading = self.service_manager.tell_reloading();
            match self.read().await {
                Ok(new) => self.apply(new),
                Err(problem) => {
                    self.metrics.failed.inc();
                    tracing::error!("the configuration is invalid, and stays as it was: {problem}");
                    self.gateway.events().tell(Kinds::CONFIGURATION, || {
                        Event::ConfigurationRejected { problem: problem.into() }
                    });
                }
            }
        }
    }

    async fn read(&mut self) -> Result<Config, String> {
        let new = self.watch.read().await.map_err(|error| error.to_string())?;
        let (now, then) = (&new.origin, &self.config.load().origin);
        if now != then {
            return Err(format!("it would come from {now}, not from {then}: that needs a restart"));
        }
        Ok(new)
    }

    fn apply(&self, new: Config) {
        let before = self.config.load_full();
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        let servers = Difference::between(&before.servers, &new.servers);
        let tenants = Difference::between(&before.tenants, &new.tenants);
        let toolsets = Difference::between(&before.toolsets, &new.toolsets);
        let (settings, needs_restart) = before.changed_settings(&new);
        let after = Arc::new(before.renewed(new));
        self.config.store(after.clone());
        self.connections.set_servers(&after);
        self.gateway.apply(&after);
        self.gateway.registry().set_left_out(after.left_out.clone());
        self.directory.set_config(&after);
        self.metrics.note_loaded();
        let settings = if settings.is_empty() { "none".to_owned() } else { settings.join(", ") };
        tracing::info!(
            "configuration read again: servers: {servers}; toolsets: {toolsets}; \
             tenants: {tenants}; other settings changed: {settings}"
        );
        self.gateway.events().tell(Kinds::CONFIGURATION, || Event::ConfigurationChanged {
            servers: servers.to_string().into(),
            toolsets: toolsets.to_string().into(),
            tenants: tenants.to_string().into(),
            settings: settings.as_str().into(),
        });
        if !needs_restart.is_empty() {
            tracing::warn!("changed, but needs a restart: {}", needs_restart.join(", "));
        }
        if after.auth.oauth.is_none() {
            self.directory.warn_if_nobody_can_call();
        }
    }
}
