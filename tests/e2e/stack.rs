//! The stack under test: its containers, what is done to them, and who calls.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::Client;
use serde_json::json;
use tokio::time::Instant;

use crate::Options;
use crate::caller::{Caller, Front};
use crate::calls::{Call, Outcome, Server, Tally};
use crate::docker::{docker, eventually};

/// The time for a container to be ready, and for the load balancer to send calls there.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// All gateways of a store follow within two seconds.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// The networks that a gateway is in, besides the one that it is called over.
pub const LINKS: [&str; 3] = ["db", "cache", "tools"];

/// Everything that runs.
pub struct Stack {
    project: String,
    /// The load balancer's address.
    pub balancer: String,
    /// The replicas.
    pub gateways: [Gateway; 2],
    pub http: Client,
    pub tally: Arc<Tally>,
    /// May use `std` and `everything`.
    pub amber: Tenant,
    /// May use `own` as well.
    pub blue: Tenant,
}

/// One replica.
pub struct Gateway {
    pub service: &'static str,
    pub container: String,
    /// The address of the replica past the load balancer.
    pub url: String,
    ops: String,
    http: Client,
}

#[derive(Clone)]
pub struct Tenant {
    pub name: &'static str,
    pub key: String,
}

impl Stack {
    /// The stack that was brought up for this run, with its first tenants.
    pub async fn find(options: &Options) -> Result<Self> {
        let http = Client::builder().no_proxy().build()?;
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let gateway = |n: usize, service| Gateway {
            service,
            container: format!("{}-{service}-1", options.project),
            url: local(options.gateways[n]),
            ops: local(options.ops[n]),
            http: http.clone(),
        };
        let nobody = |name| Tenant { name, key: String::new() };
        let mut stack = Self {
            project: options.project.clone(),
            balancer: local(options.port),
            gateways: [gateway(0, "gateway-1"), gateway(1, "gateway-2")],
            http: http.clone(),
            tally: Arc::default(),
            amber: nobody("amber"),
            blue: nobody("blue"),
        };
        stack.amber = stack.add_tenant("amber", &["--servers", "std,everything"]).await?;
        stack.blue = stack.add_tenant("blue", &["--servers", "std,everything,own"]).await?;
        Ok(stack)
    }

    /// Makes a tenant with one key, and waits until both replicas know it.
    pub async fn add_tenant(&self, name: &'static str, policy: &[&str]) -> Result<Tenant> {
        let tenant = self.make_tenant(name, policy).await?;
        for gateway in &self.gateways {
            self.is_known(&tenant, gateway).await?;
        }
        Ok(tenant)
    }

    /// Runs the command without waiting.
    pub async fn make_tenant(&self, name: &'static str, policy: &[&str]) -> Result<Tenant> {
        // The second one: what is cut off in a test is the first.
        let container = &self.gateways[1].container;
        let mut command = vec!["tenant", "add", name];
        command.extend(policy);
        trunkline(container, &command).await?;
        let key = trunkline(container, &["key", "create", name]).await?;
        Ok(Tenant { name, key })
    }

    /// Waits until a replica lets a tenant call; gives how long that took.
    pub async fn is_known(&self, tenant: &Tenant, gateway: &Gateway) -> Result<Duration> {
        let (caller, began) = (self.caller(tenant, &gateway.url), Instant::now());
        let what = format!("the key of {} is known to {}", tenant.name, gateway.service);
        let look = async || {
            let outcome = caller.call(&Call::echo(Server::Std)).await;
            (outcome == Outcome::Right).then_some(())
        };
        eventually(&what, KNOWN_WITHIN, look).await?;
        Ok(began.elapsed())
    }

    /// A caller over REST at an address.
    pub fn caller(&self, tenant: &Tenant, base: &str) -> Caller {
        Caller::new(&self.http, &self.tally, base, &tenant.key, Front::Rest)
    }

    /// A caller of any kind, through the load balancer.
    pub async fn caller_by(&self, tenant: &Tenant, front: Front) -> Result<Caller> {
        let caller = Caller::new(&self.http, &self.tally, &self.balancer, &tenant.key, front);
        match front {
            Front::Legacy => caller.open("/mcp", json!({})).await,
            Front::Rest | Front::Modern => Ok(caller),
        }
    }

    /// Callers of all kinds in turn, through the load balancer.
    pub async fn callers(&self, tenant: &Tenant, count: usize) -> Result<Vec<Caller>> {
        let mut callers = vec![];
        for front in Front::ALL.into_iter().cycle().take(count) {
            callers.push(self.caller_by(tenant, front).await?);
        }
        Ok(callers)
    }

    /// The container of another service.
    pub fn container(&self, service: &str) -> String {
        format!("{}-{service}-1", self.project)
    }

    /// Cuts a replica off from what is in one of its networks.
    pub async fn cut(&self, gateway: &Gateway, network: &str) -> Result<()> {
        let network = format!("{}_{network}", self.project);
        docker(["network", "disconnect", &network, &gateway.container]).await?;
        Ok(())
    }

    /// Puts it back.
    pub async fn join(&self, gateway: &Gateway, network: &str) -> Result<()> {
        let network = format!("{}_{network}", self.project);
        docker(["network", "connect", &network, &gateway.container]).await?;
        Ok(())
    }

    /// Makes a replica anew, as `docs/operate/upgrade-and-backup.md` says, and waits until it is
    /// ready.
    pub async fn recreate(&self, gateway: &Gateway) -> Result<()> {
        let files = ["-f", "docker/compose.yml", "-f", "tests/e2e/compose.yml"];
        let up = ["up", "-d", "--no-deps", "--force-recreate", "--wait", gateway.service];
        let command = [&["compose", "-p", &self.project][..], &files, &up].concat();
        crate::docker::run(&command).await?;
        Ok(())
    }

    /// Undoes whatever a case that broke off has left.
    pub async fn heal(&self) -> Result<()> {
        for gateway in &self.gateways {
            let _ = docker(["unpause", &gateway.container]).await;
            for network in LINKS {
                let _ = self.join(gateway, network).await;
            }
            docker(["start", &gateway.container]).await?;
        }
        let _ = docker(["unpause", &self.container("everything")]).await;
        for gateway in &self.gateways {
            gateway.is_ready().await?;
        }
        Ok(())
    }

    /// Waits until a replica gets calls through the load balancer.
    pub async fn serves_again(&self, gateway: &Gateway) -> Result<Duration> {
        let (caller, began) = (self.caller(&self.amber, &self.balancer), Instant::now());
        let before = gateway.metric("trunkline_calls_total", "").await.unwrap_or_default();
        let look = async || {
            caller.call(&Call::echo(Server::Std)).await;
            let now = gateway.metric("trunkline_calls_total", "").await.ok()?;
            (now > before).then_some(())
        };
        eventually(&format!("calls reach {}", gateway.service), READY_WITHIN, look).await?;
        Ok(began.elapsed())
    }
}

impl Gateway {
    /// Waits until it says that it is ready.
    pub async fn is_ready(&self) -> Result<()> {
        let url = format!("{}/readyz", self.url);
        let look = async || {
            let answer = self.http.get(&url).timeout(Duration::from_secs(1)).send().await.ok()?;
            answer.status().is_success().then_some(())
        };
        eventually(&format!("{} is ready", self.service), READY_WITHIN, look).await
    }

    /// The sum of a metric over all its labels that contain a text.
    pub async fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let url = format!("{}/metrics", self.ops);
        let page = self.http.get(url).timeout(Duration::from_secs(5)).send().await?;
        let page = page.error_for_status()?.text().await?;
        let is_it = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']) && rest.contains(label))
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|it| it.parse::<f64>().ok());
        page.lines().filter(is_it).map(|line| value(line).context("no number")).sum()
    }

    /// How many calls it has now.
    pub async fn in_flight(&self) -> Result<usize> {
        Ok(self.metric("trunkline_calls_in_flight", "").await? as usize)
    }
}

/// A command of the gateway's own program, inside a container.
async fn trunkline(container: &str, args: &[&str]) -> Result<String> {
    // The program finds its configuration as `serve` does.
    let mut command = vec!["exec", container, "trunkline"];
    command.extend(args);
    crate::docker::run(&command).await
}
