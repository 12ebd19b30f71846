//! Hostile callers in a thread of their own: with the neighbour's, its figures would be those of a
//! busy driver.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setpriority_process, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

/// Attackers have processors of their own elsewhere. Here they get what nobody else wants.
const NICE: i32 = 19;
/// Connections that are opened side by side: some may have to wait.
const LANES: usize = 8;
/// The time until a connection that does not take its bytes is left as it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connections that are opened one after the other, each with the same bytes.
pub struct Flood {
    pub address: SocketAddr,
    /// The connections that are kept. The oldest go.
    pub kept: usize,
    pub every: Duration,
    pub bytes: Vec<u8>,
}

impl Flood {
    /// Opens connections until the set is dropped.
    pub fn start(self) -> JoinSet<()> {
        raise_descriptors();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::spawn(move || {
            let _ = setpriority_process(None, NICE);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (since, opened) = (Instant::now(), Arc::new(AtomicU64::new(0)));
            runtime.block_on(async {
                let mut lanes = JoinSet::new();
                for _ in 0..LANES {
                    lanes.spawn(self.lane(opened.clone()));
                }
                let _ = stopped.await;
            });
            let (opened, time) = (opened.load(Ordering::Relaxed), since.elapsed().as_secs_f64());
            eprintln!("{opened} connections in {time:.1} s, {:.0} a second", opened as f64 / time);
            io::Result::Ok(())
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _stop = stop;
            pending::<()>().await;
        });
        tasks
    }

    fn lane(&self, opened: Arc<AtomicU64>) -> impl Future<Output = ()> + use<> {
        let (address, kept, bytes) = (self.address, self.kept / LANES, self.bytes.clone());
        let mut next = interval(self.every * LANES as u32);
        async move {
            let mut connections = VecDeque::new();
            loop {
                next.tick().await;
                if let Ok(stream) = open(address, &bytes).await {
                    connections.push_back(stream);
                    opened.fetch_add(1, Ordering::Relaxed);
                }
                if connections.len() > kept {
                    connections.pop_front();
                }
            }
        }
    }
}

async fn open(address: SocketAddr, bytes: &[u8]) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Closed connections leave no trace: there are not ports enough for that.
    socket.set_zero_linger()?;
    let mut stream = socket.connect(address).await?;
    let _ = timeout(PATIENCE, stream.write_all(bytes)).await;
    Ok(stream)
}

/// Allows this process as many connections as the system does.
pub fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
