//! Callers, a limit, and a server, event by event.

use std::collections::VecDeque;
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::backend::instance::adaptive::{Adaptive, Started};

pub(super) const MAX: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum Server {
    /// Runs the first so many, one after another.
    Workers(usize),
    /// Runs all at once on so many cores.
    Cores(f64),
}

/// Runs all at once, each as if it were alone.
pub(super) const CONCURRENT: Server = Server::Workers(usize::MAX);

#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// So many, each with the next call as soon as it has an answer.
    Callers(usize),
    /// So many calls in a second, whenever.
    PerSecond(f64),
}

/// A tool, and what a call of it takes where nothing else runs, in seconds.
pub(super) type Work = fn(&mut StdRng) -> (&'static str, f64);

/// The outcome of some time.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) per_second: f64,
    /// The work done in each second, in seconds: unlike the number of calls, it has no luck in it.
    pub(super) work: f64,
    /// Calls that ended per call that came; more than 1 if earlier ones ended, too.
    pub(super) of_those_who_came: f64,
    /// Means over the time.
    pub(super) in_flight: f64,
    pub(super) limit: f64,
    /// The limit at twenty moments.
    pub(super) limits: Vec<u32>,
}

struct Call {
    tool: &'static str,
    left: f64,
    started: Option<Started>,
}

pub(super) struct Simulation {
    pub(super) server: Server,
    pub(super) load: Load,
    pub(super) work: Work,
    /// Nothing: the maximum always.
    adaptive: Option<Adaptive>,
    random: StdRng,
    began: Instant,
    now: f64,
    next_arrival: f64,
    arrived: u32,
    worked: f64,
    next_check: f64,
    waiting: VecDeque<Call>,
    running: Vec<Call>,
}

impl Simulation {
    pub(super) fn new(server: Server, load: Load, work: Work, seed: u64) -> Self {
        let mut new = Self {
            server,
            load,
            work,
            adaptive: Some(Adaptive::new(MAX)),
            random: StdRng::seed_from_u64(seed),
            began: Instant::now(),
            now: 0.0,
            next_arrival: f64::INFINITY,
            arrived: 0,
            worked: 0.0,
            next_check: 0.0,
            waiting: VecDeque::new(),
            running: vec![],
        };
        match load {
            Load::Callers(callers) => (0..callers).for_each(|_| new.arrive()),
            Load::PerSecond(_) => new.next_arrival = 0.0,
        }
        new
    }

    /// Returns a simulation with the maximum always.
    pub(super) fn ideal(mut self) -> Self {
        self.adaptive = None;
        self
    }

    fn limit(&self) -> u32 {
        self.adaptive.as_ref().map_or(MAX, |adaptive| adaptive.state.lock().limit().now)
    }

    fn instant(&self) -> Instant {
        self.began + Duration::from_secs_f64(self.now)
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        let (tool, left) = (self.work)(&mut self.random);
        self.waiting.push_back(Call { tool, left, started: None });
    }

    /// Goes on for so many seconds.
    pub(super) fn run(&mut self, seconds: f64) -> Outcome {
        let (from, until) = (self.now, self.now + seconds);
        let (mut outcome, mut ended, arrived) = (Outcome::default(), 0, self.arrived);
        let worked = self.worked;
        while self.now < until {
            while self.running.len() < self.limit() as usize
                && let Some(mut call) = self.waiting.pop_front()
            {
                let now = self.instant();
                call.started = self.adaptive.as_ref().map(|it| it.begin(call.tool, now));
                self.running.push(call);
            }
            let before = self.now;
            let (in_flight, limit) = (self.running.len() as f64, f64::from(self.limit()));
            ended += u32::from(self.step(until));
            let passed = (self.now - before) / seconds;
            outcome.in_flight += in_flight * passed;
            outcome.limit += limit * passed;
            while outcome.limits.len() < ((self.now - from) / seconds * 20.0) as usize {
                outcome.limits.push(self.limit());
            }
        }
        outcome.per_second = f64::from(ended) / seconds;
        outcome.work = (self.worked - worked) / seconds;
        outcome.of_those_who_came = f64::from(ended) / f64::from(self.arrived - arrived);
        outcome
    }

    /// Goes on to the next event. Tells whether a call has ended.
    fn step(&mut self, until: f64) -> bool {
        let (count, speed) = self.speed();
        let (mut first, mut least) = (None, f64::INFINITY);
        for (n, call) in self.running[..count].iter().enumerate() {
            if call.left < least {
                (first, least) = (Some(n), call.left);
            }
        }
        let end = self.now + least / speed;
        let next = end.min(self.next_arrival).min(self.next_check).min(until);
        let done = (next - self.now) * speed;
        self.worked += done * count as f64;
        for call in &mut self.running[..count] {
            call.left = (call.left - done).max(0.0);
        }
        self.now = next;
        if next == self.next_check {
            let now = self.instant();
            self.adaptive.as_ref().map(|it| it.check(now));
            self.next_check += 1.0;
        } else if next == self.next_arrival {
            self.arrive();
            let Load::PerSecond(rate) = self.load else { unreachable!("callers do not arrive") };
            self.next_arrival += exponential(&mut self.random, 1.0 / rate);
        } else if next == end {
            let Some(n) = first else { unreachable!("it has an end") };
            let Call { started, .. } = self.running.remove(n);
            if let (Some(adaptive), Some(started)) = (&self.adaptive, started) {
                adaptive.end(started, self.instant(), true);
            }
            if let Load::Callers(_) = self.load {
                self.arrive();
            }
            return true;
        }
        false
    }

    /// How many of those in flight run, and how fast.
    fn speed(&self) -> (usize, f64) {
        let in_flight = self.running.len();
        match self.server {
            Server::Workers(workers) => (in_flight.min(workers), 1.0),
            Server::Cores(cores) => (in_flight, (cores / in_flight.max(1) as f64).min(1.0)),
        }
    }
}

pub(super) fn exponential(random: &mut StdRng, mean: f64) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}
