//! Many connections for a while.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::exchange::Exchange;
use crate::options::Options;
use crate::pace::Pace;
use crate::target::Target;

/// The pause before a broken connection is opened again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Longer than any call may take.
const LATENCY_MAX: Duration = Duration::from_secs(100);

/// A load that is running.
pub struct Load {
    /// From when on calls count.
    pub begin: Instant,
    /// Until when.
    pub end: Instant,
    threads: Vec<JoinHandle<Result<Tally>>>,
}

/// The outcome of the calls. Failures count even while warming up.
pub struct Tally {
    /// In nanoseconds, one for each request that was answered.
    pub latencies: Histogram<u64>,
    /// More than answers, where one request makes many.
    pub calls: u64,
    pub errors: u64,
    pub mismatches: u64,
    /// Arrivals that no connection was free to take.
    pub left_over: u64,
}

/// Starts calling. Each thread has a runtime and a share of the connections of its own: nothing is
/// handed from thread to thread.
pub fn start(target: &Target, options: &Options) -> Result<Load> {
    let connections = options.connections.get();
    let threads = options.threads.get().min(connections);
    let begin = Instant::now() + options.warmup();
    let end = begin + options.duration();
    let interval = options.rate.map(|rate| Duration::from_secs(1) * threads as u32 / rate.get());
    let share =
        |thread: usize| thread * connections / threads..(thread + 1) * connections / threads;
    let spawn = |thread: usize| {
        let exchanges: Vec<_> =
            share(thread).map(|number| Exchange::new(target, options, number)).collect();
        let address = target.address();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let tally = Rc::new(RefCell::new(Tally::new()?));
            let tasks = LocalSet::new();
            let entered = runtime.enter();
            let pace = interval.map(Pace::new).transpose()?.map(Rc::new);
            for exchange in exchanges {
                let caller = Caller {
                    address,
                    exchange,
                    pace: pace.clone(),
                    counted: begin..end,
                    tally: tally.clone(),
                };
                tasks.spawn_local(caller.run());
            }
            drop(entered);
            if let Some(pace) = &pace {
                tasks.block_on(&runtime, pace.run(end))?;
            }
            runtime.block_on(tasks);
            if let Some(pace) = &pace {
                tally.borrow_mut().left_over = pace.left_over(end);
            }
            Ok(Rc::into_inner(tally).context("a caller is still there")?.into_inner())
        })
    };
    Ok(Load { begin, end, threads: (0..threads).map(spawn).collect() })
}

impl Load {
    /// Waits for the calls under way.
    pub fn finish(self) -> Result<Tally> {
        let mut sum = Tally::new()?;
        for thread in self.threads {
            let tally =
                thread.join().map_err(|_| anyhow!("a thread of the client broke down"))??;
            sum.latencies.add(tally.latencies)?;
            sum.calls += tally.calls;
            sum.errors += tally.errors;
            sum.mismatches += tally.mismatches;
            sum.left_over += tally.left_over;
        }
        Ok(sum)
    }
}

impl Tally {
    fn new() -> Result<Self> {
        let latencies = Histogram::new_with_max(LATENCY_MAX.as_nanos().try_into()?, 3)?;
        Ok(Self { latencies, calls: 0, errors: 0, mismatches: 0, left_over: 0 })
    }

    fn failed(&mut self, what: &str) {
        // One is enough to see what goes wrong.
        if self.errors == 0 {
            eprintln!("a call failed: {what}");
        }
        self.errors += 1;
    }
}

/// One connection.
struct Caller {
    address: std::net::SocketAddr,
    exchange: Exchange,
    pace: Option<Rc<Pace>>,
    counted: Range<Instant>,
    tally: Rc<RefCell<Tally>>,
}

impl Caller {
    async fn run(mut self) {
        while Instant::now() < self.counted.end {
            let error = match Client::connect(self.address).await {
                Ok(client) => match self.call_on(client).await {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            self.tally.borrow_mut().failed(&error.to_string());
            sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Calls until the end, or until the connection breaks.
    async fn call_on(&mut self, mut client: Client) -> std::io::Result<()> {
        loop {
            let due = match &self.pace {
                None => Instant::now(),
                Some(pace) => match pace.next().await {
                    Some(due) => due,
                    None => return Ok(()),
                },
            };
            if Instant::now() >= self.counted.end {
                return Ok(());
            }
            let answer = client.call(self.exchange.next()).await?;
            let took = due.elapsed();
            let mut tally = self.tally.borrow_mut();
            if answer.status != 200 {
                let body = String::from_utf8_lossy(answer.body);
                tally.failed(&format!("status {}: {body}", answer.status));
            } else if !self.exchange.is_own(answer.body) {
                tally.mismatches += 1;
            } else if self.counted.contains(&due) {
                tally.latencies.saturating_record(took.as_nanos().try_into().unwrap_or(u64::MAX));
                tally.calls += self.exchange.calls();
            }
        }
    }
}
