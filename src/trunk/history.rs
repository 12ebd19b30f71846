//! The last 15 minutes, second by second: how many calls of whom were at each server, how many
//! waited, and how many were refused. And the use of slots in the last hour.
//!
//! Only the busiest pairs of server and tenant of each second are kept one by one, so that memory
//! is bounded, whatever tenants do: [`SECONDS_MAX`] times [`PAIRS_MAX`] pairs take at most 16 MiB.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::refusals::{Refused, Second};
use crate::common::ids::{ServerId, TenantId, TenantName};
use crate::registry::Registry;

const SECONDS_MAX: usize = 15 * 60;
const PAIRS_MAX: usize = 256;
/// The pairs whose use of slots is kept, minute by minute.
const USES_MAX: usize = 4096;
const MINUTES: usize = 60;

/// One second of a server and a tenant.
#[derive(Clone, Debug)]
pub struct Pair {
    pub server: ServerId,
    pub tenant: TenantName,
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub running: u32,
    pub waiting: u32,
    pub longest_wait_ms: u32,
    pub refused: Refused,
}

/// All servers and tenants in one second.
#[derive(Clone, Debug)]
pub struct Sample {
    /// In seconds since 1970.
    pub at: i64,
    /// The busiest first.
    pub pairs: Box<[Pair]>,
    /// All other pairs together, and how many there were.
    pub rest: Counts,
    pub rest_pairs: usize,
    pub all: Counts,
}

/// The seconds that a tenant's calls held slots of a server, minute by minute.
#[derive(Clone, Copy)]
struct Use {
    /// By the minute since 1970, modulo [`MINUTES`].
    minutes: [u32; MINUTES],
    last: i64,
}

/// The seconds that a tenant's calls held slots of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    pub server: String,
    pub tenant: String,
    pub minute: u64,
    pub five_minutes: u64,
    pub hour: u64,
}

#[derive(Default)]
pub struct History {
    seconds: VecDeque<Sample>,
    uses: HashMap<(ServerId, TenantName), Use>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.running = self.running.saturating_add(other.running);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.longest_wait_ms = self.longest_wait_ms.max(other.longest_wait_ms);
        self.refused.add(other.refused);
    }

    fn rank(&self) -> u64 {
        let Refused { own, other } = self.refused;
        [self.running, self.waiting, own, other].into_iter().map(u64::from).sum()
    }
}

impl Sample {
    /// Counts the calls of all servers now.
    pub fn take(registry: &Registry, refused: Second) -> Self {
        let mut by_pair: HashMap<(ServerId, TenantName), Counts> = HashMap::new();
        let now = Instant::now();
        for server in registry.servers() {
            let id = server.id();
            let mut running: HashMap<TenantId, u32> = HashMap::new();
            let shared = server.backends();
            let cells = shared.iter().flat_map(|it| it.cells()).map(|(_, cell)| cell);
            for backend in cells.chain(shared.iter().cloned()) {
                backend.count_calls(&mut running);
                for waiting in backend.queue().waiting() {
                    let pair = (id.clone(), waiting.tenant.name().clone());
                    let counts = by_pair.entry(pair).or_default();
                    counts.waiting += u32::try_from(waiting.calls).unwrap_or(u32::MAX);
                    let wait = millis(now.duration_since(waiting.since));
                    counts.longest_wait_ms = counts.longest_wait_ms.max(wait);
                }
            }
            for (tenant, calls) in running {
                by_pair.entry((id.clone(), tenant.name().clone())).or_default().running += calls;
            }
        }
        let mut rest = Counts { refused: refused.rest, ..Counts::default() };
        for ((server, tenant), refused) in refused.by_pair {
            // Callers may invent names of servers.
            match registry.get(&server) {
                Some(server) => {
                    by_pair.entry((server.id().clone(), tenant)).or_default().refused.add(refused);
                }
                None => rest.refused.add(refused),
            }
        }
        Self::of(Timestamp::now().as_second(), by_pair, rest)
    }

    fn of(at: i64, by_pair: HashMap<(ServerId, TenantName), Counts>, mut rest: Counts) -> Self {
        let mut pairs: Vec<_> = by_pair
            .into_iter()
            .map(|((server, tenant), counts)| Pair { server, tenant, counts })
            .collect();
        pairs.sort_unstable_by_key(|pair| Reverse(pair.counts.rank()));
        let mut all = rest;
        pairs.iter().for_each(|pair| all.add(&pair.counts));
        let rest_pairs = pairs.len().saturating_sub(PAIRS_MAX);
        pairs.iter().skip(PAIRS_MAX).for_each(|pair| rest.add(&pair.counts));
        pairs.truncate(PAIRS_MAX);
        Self { at, pairs: pairs.into(), rest, rest_pairs, all }
    }
}

impl History {
    pub fn push(&mut self, sample: Sample) {
        for pair in &sample.pairs {
            if pair.counts.running > 0 {
                self.note_use(&pair.server, &pair.tenant, pair.counts.running, sample.at / 60);
            }
        }
        if self.seconds.len() == SECONDS_MAX {
            self.seconds.pop_front();
        }
        self.seconds.push_back(sample);
    }

    fn note_use(&mut self, server: &ServerId, tenant: &TenantName, seconds: u32, minute: i64) {
        if self.uses.len() >= USES_MAX {
            self.uses.retain(|_, it| minute - it.last < MINUTES as i64);
        }
        let has_room = self.uses.len() < USES_MAX;
        let pair = (server.clone(), tenant.clone());
        match self.uses.get_mut(&pair) {
            Some(known) => known.add(seconds, minute),
            None if has_room => {
                let mut new = Use { minutes: [0; MINUTES], last: minute };
                new.add(seconds, minute);
                self.uses.insert(pair, new);
            }
            None => {}
        }
    }

    /// Returns all seconds, the oldest first.
    pub fn seconds(&self) -> impl Iterator<Item = &Sample> {
        self.seconds.iter()
    }

    /// Returns the second of this time, or the last one before it.
    pub fn at(&self, at: i64) -> Option<&Sample> {
        let after = self.seconds.partition_point(|sample| sample.at <= at);
        self.seconds.get(after.checked_sub(1)?)
    }

    /// Returns the refusals of the last minute.
    pub fn refused(&self) -> (u64, u64) {
        let last = self.seconds.iter().rev().take(60);
        let refused = last.map(|sample| sample.all.refused);
        refused
            .fold((0, 0), |(own, other), it| (own + u64::from(it.own), other + u64::from(it.other)))
    }

    /// Returns the use of slots by every tenant at every server.
    pub fn shares(&self, now: i64) -> Vec<Shares> {
        let mut recent: HashMap<(&ServerId, &TenantName), (u64, u64)> = HashMap::new();
        for sample in self.seconds.iter().rev().take_while(|it| now - it.at < 300) {
            for pair in sample.pairs.iter().filter(|pair| pair.counts.running > 0) {
                let (minute, five) = recent.entry((&pair.server, &pair.tenant)).or_default();
                *five += u64::from(pair.counts.running);
                if now - sample.at < 60 {
                    *minute += u64::from(pair.counts.running);
                }
            }
        }
        let minute = now / 60;
        let shares = self.uses.iter().filter_map(|((server, tenant), used)| {
            let hour = used.hour(minute);
            let recent = recent.get(&(server, tenant)).copied();
            let (minute, five_minutes) = recent.unwrap_or_default();
            let (server, tenant) = (server.to_string(), tenant.to_string());
            (hour > 0).then_some(Shares { server, tenant, minute, five_minutes, hour })
        });
        let mut shares: Vec<_> = shares.collect();
        shares.sort_unstable_by(|a, b| (&a.server, &a.tenant).cmp(&(&b.server, &b.tenant)));
        shares
    }
}

impl Use {
    fn add(&mut self, seconds: u32, minute: i64) {
        self.clear_until(minute);
        self.minutes[place(minute)] += seconds;
    }

    /// Clears the minutes that have passed without use.
    fn clear_until(&mut self, minute: i64) {
        for passed in (self.last + 1..=minute).rev().take(MINUTES) {
            self.minutes[place(passed)] = 0;
        }
        self.last = self.last.max(minute);
    }

    fn hour(&self, minute: i64) -> u64 {
        let mut copy = *self;
        copy.clear_until(minute);
        copy.minutes.iter().copied().map(u64::from).sum()
    }
}

fn place(minute: i64) -> usize {
    usize::try_from(minute.rem_euclid(MINUTES as i64)).unwrap_or_default()
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).unwrap()
    }

    fn sample(at: i64, pairs: &[(&str, &str, u32)]) -> Sample {
        let counts = |running| Counts { running, ..Counts::default() };
        let pair = |(server, name, running): &(&str, &str, u32)| {
            ((ServerId::parse(server).unwrap(), tenant(name)), counts(*running))
        };
        Sample::of(at, pairs.iter().map(pair).collect(), Counts::default())
    }

    #[test]
    fn the_busiest_pairs_are_kept_and_the_rest_is_summed() {
        let names: Vec<_> = (0..PAIRS_MAX as u32 + 10).map(|n| (format!("t{n}"), n + 1)).collect();
        let pairs: Vec<_> = names.iter().map(|(name, n)| ("std", name.as_str(), *n)).collect();
        let sample = sample(7, &pairs);
        assert_eq!((sample.pairs.len(), sample.rest_pairs), (PAIRS_MAX, 10));
        assert_eq!(sample.rest.running, (1..=10).sum::<u32>());
        assert_eq!(sample.all.running, (1..=PAIRS_MAX as u32 + 10).sum::<u32>());
        assert_eq!(sample.pairs[0].counts.running, PAIRS_MAX as u32 + 10);
    }

    #[test]
    fn fifteen_minutes_are_kept_and_take_less_than_16_mib() {
        let mut history = History::default();
        (0..2000).for_each(|at| history.push(sample(at, &[("std", "a", 1)])));
        assert_eq!(history.seconds.len(), SECONDS_MAX);
        assert_eq!(history.at(1500).unwrap().at, 1500);
        assert_eq!(history.at(9999).unwrap().at, 1999);
        assert!(history.at(1).is_none());
        // Names are shared. A hash map has up to twice the room that it needs.
        let seconds = SECONDS_MAX * (PAIRS_MAX * size_of::<Pair>() + size_of::<Sample>());
        let uses = 2 * USES_MAX * size_of::<((ServerId, TenantName), Use)>();
        assert!(seconds + uses <= 16 << 20, "{seconds} {uses}");
    }

    #[test]
    fn shares_are_of_a_minute_of_five_and_of_an_hour() {
        let mut history = History::default();
        for at in 0..7200 {
            history.push(sample(
                at,
                &[("std", "a", 2), ("std", if at < 7100 { "b" } else { "c" }, 1)],
            ));
        }
        let shares = history.shares(7199);
        let of = |name: &str| shares.iter().find(|it| it.tenant == name).cloned().unwrap();
        assert_eq!((of("a").minute, of("a").five_minutes, of("a").hour), (120, 600, 7200));
        assert_eq!((of("b").minute, of("b").five_minutes), (0, 200));
        assert_eq!((of("c").minute, of("c").five_minutes, of("c").hour), (60, 100, 100));
    }
}
