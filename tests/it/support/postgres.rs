//! Real PostgreSQL servers, with data of their own that goes with them.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::Instant;
use trunkline::config::Secret;

use super::{LIMIT, missing, processes};

/// Starts a server and obeys: `down` stops it, `up` starts it again, and the end of its input,
/// which comes with the end of the tests however they end, stops it and removes its data.
/// PostgreSQL refuses to be run by root.
const KEEPER: &str = r#"
bin=$1 port=$2 as=
dir=$(mktemp -d)
if [ "$(id -u)" = 0 ]; then
  user=postgres; id "$user" >/dev/null 2>&1 || user=nobody
  chown "$user" "$dir"
  as="setpriv --reuid=$user --regid=$(id -g "$user") --clear-groups"
fi
cd "$dir"
echo hunter2 >password; chmod a+r password
start() {
  $as "$bin/pg_ctl" -D "$dir/data" -w -s -t 60 -l "$dir/log" -o "-p $port \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off \
    -c max_connections=200" start >&2 ||
    cat "$dir/log" >&2
  head -n 1 "$dir/data/postmaster.pid"
}
stop() {
  kill -CONT "$(head -n 1 "$dir/data/postmaster.pid")"
  $as "$bin/pg_ctl" -D "$dir/data" -w -s -m immediate stop >&2
}
trap '' INT TERM HUP
$as "$bin/initdb" -D "$dir/data" -U trunkline --auth=scram-sha-256 --pwfile=password \
  -N -E UTF8 --locale=C >initdb.log || cat initdb.log >&2
start
while read -r order; do
  case $order in
    down) stop; echo down ;;
    up) start ;;
  esac
done
stop
cd /; rm -rf "$dir"
"#;

/// A running server.
pub struct Postgres {
    port: u16,
    keeper: Mutex<Keeper>,
}

struct Keeper {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    server: i32,
}

impl Postgres {
    /// The server of all tests that do not stop it. Nothing if PostgreSQL is not installed; where
    /// it must be, that is a failure.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: LazyLock<Option<Postgres>> = LazyLock::new(Postgres::start);
        SHARED.as_ref()
    }

    /// A server to stop.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            missing("PostgreSQL is not installed");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(programs)
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut keeper = Keeper { child, orders, answers, server: 0 };
        keeper.server = keeper.answer().parse().expect("the process id of PostgreSQL");
        Some(Self { port, keeper: Mutex::new(keeper) })
    }

    /// The URL of a new database.
    pub async fn database(&self) -> Secret {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", MADE.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(self.url("postgres").expose()).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        connection.execute(create).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }

    fn url(&self, database: &str) -> Secret {
        Secret::new(format!("postgres://trunkline:hunter2@127.0.0.1:{}/{database}", self.port))
    }

    /// Stops all its processes in the middle of whatever they do: connections stay, and when this
    /// is done nobody answers.
    pub fn freeze(&self) {
        let server = self.keeper.lock().server;
        // The parent first, so that no more are born.
        processes::kill(server, Signal::STOP);
        wait_until_stopped(server);
        let children = processes::children_of(server);
        for child in &children {
            // It may have ended meanwhile.
            let _ = kill_process(Pid::from_raw(*child).unwrap(), Signal::STOP);
        }
        children.into_iter().for_each(wait_until_stopped);
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        let server = self.keeper.lock().server;
        processes::kill(server, Signal::CONT);
        for child in processes::children_of(server) {
            let _ = kill_process(Pid::from_raw(child).unwrap(), Signal::CONT);
        }
    }

    /// Ends it, as a crash would. Its data stays.
    pub fn down(&self) {
        let mut keeper = self.keeper.lock();
        keeper.order("down");
        assert_eq!(keeper.answer(), "down");
    }

    /// Starts it again at the same place.
    pub fn up(&self) {
        let mut keeper = self.keeper.lock();
        keeper.order("up");
        keeper.server = keeper.answer().parse().expect("the process id of PostgreSQL");
    }
}

impl Keeper {
    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        self.answers.next().expect("PostgreSQL did not start").unwrap()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Kills the server as soon as it is its turn.
fn wait_until_stopped(pid: i32) {
    let give_up = Instant::now() + LIMIT;
    while !processes::is_stopped(pid) {
        assert!(Instant::now() < give_up, "process {pid} does not stop");
        std::thread::yield_now();
    }
}

/// Returns the directory of PostgreSQL's programs, which Debian keeps out of the PATH.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let mut dirs = debian.chain(std::env::split_paths(&path));
    dirs.find(|dir| ["initdb", "pg_ctl", "postgres"].iter().all(|name| dir.join(name).is_file()))
}
