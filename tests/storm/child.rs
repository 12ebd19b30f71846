//! A server on standard input and output that breaks every habit a client might rely on, except
//! one: its answers carry the mark of the call they are meant for.
//!
//! The server also checks the gateway's frames and complains of mistakes.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{RngExt, SeedableRng};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::time::Instant;

use crate::input::{self, Event};
use crate::misbehaviour::{self, Action, OnCancel, Treatment};

/// Messages read but not yet looked at.
const EVENTS_MAX: usize = 1024;
/// Writes answers of the same tick together, so that they come in bursts.
const TICK: Duration = Duration::from_millis(1);
/// A server that has been started more often than this no longer ends by itself: the gateway waits
/// longer each time, and the storm would spend its time waiting.
const OWN_ENDS_MAX: usize = 2;

/// `child SEED ERA LOG`: the log gets a line with the process id for each start.
pub fn run(args: &[String]) -> ExitCode {
    let [seed, era, log] = args else {
        eprintln!("usage: storm child SEED ERA LOG");
        return ExitCode::from(2);
    };
    let modern = era == "modern";
    let seed: u64 = seed.parse().expect("the driver gives a number");
    // An abort must not fill the disk.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let starts = note_start(log);
    let (sender, events) = sync_channel(EVENTS_MAX);
    let writer = Writer {
        seed,
        rng: SmallRng::seed_from_u64(seed ^ starts as u64),
        may_end: starts <= OWN_ENDS_MAX,
        scheduled: BTreeMap::new(),
        count: 0,
        began: Instant::now(),
        seen: HashMap::new(),
        complaints: complaints_of(Path::new(log)),
        modern,
        watched: BTreeMap::new(),
    };
    std::thread::spawn(move || writer.run(&events));
    input::read(modern, seed, &sender);
    ExitCode::SUCCESS
}

/// Returns the file of a server's complaints, by the file of its starts.
pub fn complaints_of(log: &Path) -> PathBuf {
    log.with_extension("complaints")
}

fn note_start(log: &str) -> usize {
    let mut file = OpenOptions::new().append(true).create(true).open(log).expect("the log opens");
    writeln!(file, "{}", std::process::id()).expect("the log can be written");
    std::fs::read_to_string(log).expect("the log can be read").lines().count()
}

struct Writer {
    seed: u64,
    /// For what belongs to no call: how writes are cut.
    rng: SmallRng,
    may_end: bool,
    /// By when it is due; the count keeps keys apart.
    scheduled: BTreeMap<(Duration, u64), Entry>,
    count: u64,
    began: Instant,
    /// The ids of all calls, and whether each was cancelled.
    seen: HashMap<u64, bool>,
    complaints: PathBuf,
    modern: bool,
    /// The resources of each subscription.
    watched: BTreeMap<u64, Vec<String>>,
}

struct Entry {
    /// The call it answers, if it does.
    id: Option<u64>,
    on_cancel: OnCancel,
    action: Action,
}

impl Writer {
    fn run(mut self, events: &Receiver<Event>) {
        loop {
            let wait = match self.scheduled.keys().next() {
                Some((due, _)) => due.saturating_sub(self.began.elapsed()),
                None => Duration::from_secs(1),
            };
            match events.recv_timeout(wait) {
                Ok(event) => {
                    self.take(event);
                    while let Ok(event) = events.try_recv() {
                        self.take(event);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.write_due().is_err() {
                return;
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Answered(line) => {
                self.schedule(Duration::ZERO, None, OnCancel::Ignore, Action::Write(line));
            }
            Event::Broken => self.complain("a line is no message"),
            Event::Call { id, mark, wants_progress } => {
                if self.seen.insert(id, false).is_some() {
                    self.complain("an id was used twice");
                }
                let Treatment { actions, on_cancel } =
                    misbehaviour::treat(self.seed, id, &mark, self.may_end);
                let progress = wants_progress.then(|| misbehaviour::progress(self.seed, id, &mark));
                for (delay, action) in progress.into_iter().flatten().chain(actions) {
                    self.schedule(delay, Some(id), on_cancel, action);
                }
                let told = self.watched.iter().choose(&mut self.rng);
                if let Some((of, uris)) = told.filter(|_| self.rng.random_ratio(1, 2))
                    && let Some(uri) = uris.choose(&mut self.rng).cloned()
                {
                    self.tell(*of, &uri);
                }
            }
            Event::Subscribed { id, uris, accepted } => {
                if self.seen.insert(id, false).is_some() {
                    self.complain("an id was used twice");
                }
                self.schedule(Duration::ZERO, None, OnCancel::Ignore, Action::Write(accepted));
                for uri in &uris {
                    self.tell(id, uri);
                }
                self.watched.insert(id, uris);
            }
            Event::Cancelled { id } => {
                match self.seen.insert(id, true) {
                    Some(false) => {}
                    Some(true) => self.complain("a call was cancelled twice"),
                    None => self.complain("a call was cancelled that was never made"),
                }
                self.watched.remove(&id);
                self.cancel(id);
            }
        }
    }

    /// Says in turns that a resource has changed, and for whom: a line about one tenant's
    /// subscription must reach no other.
    fn tell(&mut self, subscription: u64, uri: &str) {
        let of = if self.modern { Some(subscription) } else { None };
        for line in misbehaviour::told(of, uri) {
            let delay = Duration::from_millis(self.rng.random_range(0..5));
            self.schedule(delay, None, OnCancel::Ignore, Action::Write(line));
        }
    }

    fn complain(&self, complaint: &str) {
        let file = OpenOptions::new().append(true).create(true).open(&self.complaints);
        writeln!(file.expect("the file opens"), "{complaint}").expect("it can be written");
    }

    fn schedule(&mut self, delay: Duration, id: Option<u64>, on_cancel: OnCancel, action: Action) {
        let ticks = (self.began.elapsed() + delay).as_millis() / TICK.as_millis();
        let due = TICK * u32::try_from(ticks).expect("a storm is shorter than 49 days");
        self.count += 1;
        self.scheduled.insert((due, self.count), Entry { id, on_cancel, action });
    }

    fn cancel(&mut self, id: u64) {
        let of_call: Vec<_> = self
            .scheduled
            .iter()
            .filter(|(_, entry)| entry.id == Some(id))
            .map(|(key, entry)| (*key, entry.on_cancel))
            .collect();
        for (key, on_cancel) in of_call {
            match on_cancel {
                OnCancel::Ignore => {}
                OnCancel::Obey => drop(self.scheduled.remove(&key)),
                OnCancel::Delay(delay) => {
                    if let Some(entry) = self.scheduled.remove(&key) {
                        self.schedule(delay, None, OnCancel::Ignore, entry.action);
                    }
                }
            }
        }
    }

    fn write_due(&mut self) -> std::io::Result<()> {
        let later = self.scheduled.split_off(&(self.began.elapsed(), u64::MAX));
        let due = std::mem::replace(&mut self.scheduled, later);
        let mut burst = Vec::new();
        for entry in due.into_values() {
            match entry.action {
                Action::Write(line) => {
                    burst.extend_from_slice(line.as_bytes());
                    burst.push(b'\n');
                }
                Action::End(end) => {
                    // Dies in the middle of a line, where there is one.
                    let len = burst.len().saturating_sub(9);
                    self.write(&burst[..len])?;
                    burst.clear();
                    end.carry_out();
                }
            }
        }
        self.write(&burst)
    }

    /// Whole, or in pieces that end anywhere.
    fn write(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        let mut output = std::io::stdout().lock();
        while !bytes.is_empty() {
            let cut = if self.rng.random_ratio(1, 8) {
                self.rng.random_range(1..=bytes.len())
            } else {
                bytes.len()
            };
            let (piece, rest) = bytes.split_at(cut);
            output.write_all(piece)?;
            output.flush()?;
            bytes = rest;
        }
        Ok(())
    }
}
