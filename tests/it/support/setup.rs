//! A configuration in the making.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use tempfile::TempDir;
use trunkline::common::ids::TenantName;
use trunkline::config::{self, Config, Secret, Sources};
use trunkline::store::{Actor, KeyOwner, Store, StoreError};
use uuid::Uuid;

use super::fake::{Fake, PROGRAM};
use super::{Gateway, Serving, TRUNKLINE, eventually};

/// Collects what the configuration file will say, and starts the gateway that reads it.
#[derive(Clone)]
pub struct Setup {
    pub dir: Arc<TempDir>,
    /// In the environment of every process the gateway starts, so that all of them can be found.
    pub mark: String,
    top: String,
    auth: String,
    store: String,
    tenants: String,
    servers: String,
    raw: String,
}

impl Setup {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("sqlite://{}", dir.path().join("trunkline.db").display());
        Self {
            dir: Arc::new(dir),
            store,
            mark: Uuid::new_v4().to_string(),
            top: "listen = \"127.0.0.1:0\"\n".to_owned(),
            auth: String::new(),
            tenants: String::new(),
            servers: String::new(),
            raw: String::new(),
        }
        .tenant("local")
    }

    /// Serves callers at an address that is not loopback.
    pub fn listening_everywhere(mut self) -> Self {
        self.top = self.top.replace("listen = \"127.0.0.1:0\"", "listen = \"0.0.0.0:0\"");
        self
    }

    /// Listens on an address that nobody else has, so that it is known beforehand.
    pub fn on_own_address(self) -> Self {
        let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
        let c = c.clamp(1, 254);
        let top = self.top.replace("127.0.0.1:0", &format!("127.{a}.{b}.{c}:8080"));
        Self { top, ..self }
    }

    /// One or more settings of the gateway itself.
    pub fn set(mut self, settings: &str) -> Self {
        self.top += &format!("{settings}\n");
        self
    }

    /// Nobody may call without a key.
    pub fn without_anonymous(mut self) -> Self {
        self.auth.clear();
        self
    }

    /// The tenant of anonymous callers.
    pub fn tenant(mut self, id: &str) -> Self {
        self.auth = format!("[auth]\nanonymous_tenant = {id:?}\n");
        self
    }

    /// A tenant, with what it may do.
    pub fn with_tenant(mut self, id: &str, policy: &str) -> Self {
        write!(self.tenants, "[tenants.{id}]\n{policy}\n").unwrap();
        self
    }

    /// Keeps tenants, keys and usage in another store than a file of its own.
    pub fn with_store(self, url: &Secret) -> Self {
        Self { store: url.expose().to_owned(), ..self }
    }

    /// The store, beside whatever else uses it. A busy machine may need longer than the few seconds
    /// that a store has to answer.
    pub async fn store(&self) -> Store {
        let url = Secret::new(self.store.clone());
        let open = async || match Store::open(&url, None).await {
            Err(StoreError::Unavailable(_)) => None,
            opened => Some(opened.unwrap()),
        };
        eventually("the store", open).await
    }

    /// A new key of a tenant's.
    pub async fn new_key(&self, tenant: &str) -> String {
        let owner = KeyOwner::Tenant(TenantName::parse(tenant).unwrap());
        let key = self.store().await.create_key(&Actor::cli("test"), &owner, None, None).await;
        key.unwrap().key.expose().to_owned()
    }

    /// A new key of an administrator's.
    pub async fn new_admin_key(&self) -> String {
        let (store, actor) = (self.store().await, Actor::cli("test"));
        let key = store.create_key(&actor, &KeyOwner::Admin, None, None).await;
        key.unwrap().key.expose().to_owned()
    }

    /// The bundled server, as `std`.
    pub fn std(self) -> Self {
        self.server("std", "trunkline", &["std".to_owned()], "")
    }

    /// The server that misbehaves on demand.
    pub fn fake(self, id: &str) -> Self {
        self.fake_with(id, &[], "")
    }

    /// Adds the fake server with options and settings.
    pub fn fake_with(self, id: &str, options: &[&str], settings: &str) -> Self {
        let mut args: Vec<String> = ["-I", "-S", "-X", "utf8", PROGRAM].map(str::to_owned).to_vec();
        args.extend(Fake::new(self.dir.path(), id).args());
        args.extend(options.iter().map(|option| (*option).to_owned()));
        self.server(id, python(), &args, settings)
    }

    /// Takes all tenants away again.
    pub fn without_tenants(self) -> Self {
        Self { tenants: String::new(), ..self }
    }

    /// Starts the gateway without any server.
    pub fn without_servers(self) -> Self {
        Self { servers: String::new(), ..self }
    }

    /// Any program.
    pub fn server(mut self, id: &str, command: &str, args: &[String], settings: &str) -> Self {
        let mark = &self.mark;
        write!(
            self.servers,
            "[servers.{id}]\ncommand = {command:?}\nargs = {args:?}\nenv.TEST_MARK \
             = {mark:?}\n{settings}\n"
        )
        .unwrap();
        self
    }

    /// A server of which only these settings are known.
    pub fn raw_server(mut self, id: &str, settings: &str) -> Self {
        write!(self.servers, "[servers.{id}]\n{settings}\n").unwrap();
        self
    }

    /// Any tables.
    pub fn raw(mut self, tables: &str) -> Self {
        self.raw += tables;
        self
    }

    /// Takes the tables of [`Setup::raw`] away again.
    pub fn without_raw(self) -> Self {
        Self { raw: String::new(), ..self }
    }

    /// Starts the gateway and waits until every server has been tried.
    pub async fn start(self) -> Gateway {
        let gateway = self.start_at_once().await;
        gateway.ready().await;
        gateway
    }

    /// Starts the gateway.
    pub async fn start_at_once(self) -> Gateway {
        Gateway::start(self).await
    }

    /// Starts the program with this configuration, and waits until every server has been tried.
    pub async fn serve(self) -> Serving {
        self.serve_with(&[]).await
    }

    /// Starts the program with more variables in its environment.
    pub async fn serve_with(self, env: &[(&str, &str)]) -> Serving {
        let serving = Serving::start(self, env).await;
        serving.ready().await;
        serving
    }

    /// Writes the configuration file.
    pub fn write(&self) -> PathBuf {
        let path = self.dir.path().join("trunkline.toml");
        std::fs::write(&path, self.text()).unwrap();
        path
    }

    /// Returns the configuration file's text.
    pub fn text(&self) -> String {
        let store = format!("[store]\nurl = {:?}\n", self.store);
        let parts = [&self.top, &self.auth, &store, &self.tenants, &self.servers, &self.raw];
        parts.map(String::as_str).concat()
    }

    /// Writes the configuration file, and says where it is.
    pub fn sources(&self) -> Sources {
        Sources {
            file: Some(self.write()),
            mcp_file: None,
            listen: None,
            env: vec![],
            working_dir: self.dir.path().to_owned(),
            own_program: Path::new(TRUNKLINE).to_owned(),
        }
    }

    /// The configuration, as `trunkline serve` would read it.
    pub fn config(&self) -> Config {
        config::load(&self.sources()).unwrap()
    }
}

/// The interpreter itself: the one on the PATH may be a script that looks for it.
pub fn python() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let ask = ["-I", "-c", "import sys; print(sys.executable)"];
        let output = Command::new("python3").args(ask).output().expect("python3 is needed");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    });
    &PYTHON
}
