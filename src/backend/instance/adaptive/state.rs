//! The state of the search for an instance's limit.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::ConcurrencyLimit;
use super::sample::{Comparison, Sample};
use crate::backend::queue::reserved_of;

/// Tools that are told from each other. Calls of others are not sampled.
const TOOLS_MAX: usize = 1024;
/// One call runs, and one is ready to.
const LIMIT_MIN: u32 = 2;
/// The size of a sample under the usual limit.
const USUAL_CALLS: u32 = 128;
/// The size of a probe's sample at its first decision, and at its last.
const PROBE_CALLS: u32 = 16;
const PROBE_CALLS_MAX: u32 = 256;
const PROBE_CALLS_MAX_LOWERED: u32 = 64;
/// With fewer in flight there is nothing to find out.
const IN_FLIGHT_MIN: f64 = 3.0;
/// The limit of a probe, as a part of the calls in flight.
const PROBE_PART: f64 = 0.25;
/// Standard errors that make a difference certain.
const CERTAIN: f64 = 2.5;
/// Calls that are slower by less than this ratio do not wait for each other.
const SLOWDOWN_MIN: f64 = 1.15;
/// The times of calls have changed when they differ by this ratio.
const CHANGE_MIN: f64 = 2.0;
/// The number of calls that run at once is known well enough with this error.
const ERROR_MAX: f64 = 0.16;
/// The time between probes: at first, and at most while the limit is the maximum, or lowered.
const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(600);
const REST_MAX_LOWERED: Duration = Duration::from_secs(120);
/// The time between probes is at least so many times the length of the probes before it: less if
/// the last one kept the server busy, and an eighth if the times of calls have changed.
const REST_PER_PROBE: u32 = 40;
const REST_PER_FREE_PROBE: u32 = 5;

pub(super) struct LimitSearch {
    max: u32,
    /// The limit outside probes.
    usual: u32,
    in_flight: u32,
    tools: HashMap<Box<str>, u16>,
    phase: SearchPhase,
    /// The sample that is being taken.
    sample: Sample,
    /// The number of calls that run at once by the last probe, if it found a queue.
    suspected: Option<f64>,
    /// The time in probes since the last rest.
    probed: Duration,
    rest: Rest,
}

enum SearchPhase {
    /// Under the usual limit. The first sample is compared with later ones.
    Usual { at_first: Option<Sample> },
    /// Under a lower limit, to be compared with the sample before.
    Probe { limit: u32, usual: Sample, since: Instant, progress: Progress },
    /// Under a limit that was just doubled, to be compared with the probe.
    Climb { low: Sample, from: u32 },
}

/// The last progress of a probe: a sampled call ended, or fewer were in flight than ever.
struct Progress {
    at: Instant,
    fewest: u32,
}

#[derive(Default)]
struct Rest {
    length: Duration,
    /// The usual limit when it began.
    limit: u32,
    /// `None`: at once.
    until: Option<Instant>,
    /// Not before this, even if something changes.
    at_least: Option<Instant>,
}

enum Verdict {
    /// Calls do not wait for each other.
    Concurrent,
    /// Calls wait for each other, and about so many run at once.
    Queued(f64),
    Unclear,
}

impl LimitSearch {
    pub(super) fn new(max: u32) -> Self {
        let mut state = Self {
            max,
            usual: max,
            in_flight: 0,
            tools: HashMap::new(),
            phase: SearchPhase::Usual { at_first: None },
            sample: Sample::default(),
            suspected: None,
            probed: Duration::ZERO,
            rest: Rest::default(),
        };
        state.look_at(USUAL_CALLS, 0);
        state
    }

    pub(super) fn limit(&self) -> ConcurrencyLimit {
        let now = match self.phase {
            SearchPhase::Probe { limit, .. } => limit,
            SearchPhase::Usual { .. } | SearchPhase::Climb { .. } => self.usual,
        };
        ConcurrencyLimit { usual: self.usual, now }
    }

    /// Begins a call. Returns its tool and sample, if it is sampled.
    pub(super) fn begin(&mut self, tool: &str) -> Option<(u16, u64)> {
        self.in_flight += 1;
        let tool = self.number_of(tool)?;
        self.sample.begin(self.in_flight).then_some((tool, self.sample.number))
    }

    fn number_of(&mut self, tool: &str) -> Option<u16> {
        if let Some(&number) = self.tools.get(tool) {
            return Some(number);
        }
        let number = self.tools.len();
        (number < TOOLS_MAX).then(|| {
            self.tools.insert(tool.into(), number as u16);
            number as u16
        })
    }

    pub(super) fn end(
        &mut self,
        sampled: Option<(u16, u64)>,
        took: Duration,
        answered: bool,
        now: Instant,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let number = self.sample.number;
        let tool = sampled.and_then(|(tool, of)| (of == number).then_some(tool));
        self.sample.end(tool, took, answered);
        if let SearchPhase::Probe { progress, .. } = &mut self.phase
            && (tool.is_some() || self.in_flight < progress.fewest)
        {
            *progress = Progress { at: now, fewest: progress.fewest.min(self.in_flight) };
        }
        self.check(now);
    }

    /// Moves on when the sample is complete, or never will be.
    pub(super) fn check(&mut self, now: Instant) {
        if self.max <= LIMIT_MIN {
            return;
        }
        let (is_complete, is_late) = (self.sample.is_complete(), self.sample.is_late());
        match &self.phase {
            SearchPhase::Usual { .. } if is_complete || is_late => self.usual_is_known(now),
            SearchPhase::Climb { .. } if is_complete || is_late => self.climb_is_known(now),
            SearchPhase::Probe { .. } if is_complete => self.probe_is_known(now),
            // Nobody calls any more, or calls hang, which must not keep others out.
            &SearchPhase::Probe { ref usual, since, ref progress, .. }
                if is_late || now > progress.at + 4 * usual.longest + Duration::from_secs(1) =>
            {
                self.probed += now.saturating_duration_since(since);
                self.rest(now, REST_PER_PROBE);
            }
            _ => {}
        }
    }

    fn usual_is_known(&mut self, now: Instant) {
        let sample = self.look_at(USUAL_CALLS, 0);
        let SearchPhase::Usual { at_first } = &mut self.phase else { return };
        let may_be_soon = self.rest.at_least.is_none_or(|at_least| at_least <= now);
        if at_first.as_ref().is_some_and(|it| may_be_soon && has_changed(&sample, it)) {
            // Some of these calls may be from before the change.
            self.rest.length = REST_MIN;
            return self.look_again();
        }
        let is_due = self.rest.until.is_none_or(|until| until <= now);
        let is_enough = IN_FLIGHT_MIN.min(0.8 * f64::from(self.usual));
        if is_due && sample.mean_in_flight() >= is_enough {
            self.probe(sample, now);
        } else if at_first.is_none() {
            *at_first = Some(sample);
        }
    }

    /// Lowers the limit, to measure calls under it.
    fn probe(&mut self, usual: Sample, now: Instant) {
        let limit = (usual.mean_in_flight() * PROBE_PART).max(1.0) as u32;
        let progress = Progress { at: now, fewest: self.in_flight };
        self.phase = SearchPhase::Probe { limit, usual, since: now, progress };
        self.look_at(PROBE_CALLS, 0);
    }

    fn probe_is_known(&mut self, now: Instant) {
        let SearchPhase::Probe { usual, since, .. } = &self.phase else { return };
        let probed = now.saturating_duration_since(*since);
        let calls_max =
            if self.usual < self.max { PROBE_CALLS_MAX_LOWERED } else { PROBE_CALLS_MAX };
        let is_last = self.sample.len() >= calls_max;
        let verdict = judge(usual, &self.sample, is_last);
        if matches!(verdict, Verdict::Unclear) && !is_last {
            return self.sample.extend(4 * self.sample.len());
        }
        self.probed += probed;
        match verdict {
            // More calls in flight make it clear.
            Verdict::Concurrent | Verdict::Unclear if self.usual < self.max => {
                self.climb(self.sample.clone());
            }
            Verdict::Concurrent | Verdict::Unclear => self.rest(now, REST_PER_PROBE),
            Verdict::Queued(at_once) => {
                let (low, before) = (self.sample.mean_in_flight(), self.suspected.take());
                match before {
                    None if fitting(at_once) < self.usual => {
                        self.suspected = Some(at_once);
                        self.look_again();
                    }
                    // The higher one: too few in flight cost more than too many.
                    _ => self.lower(at_once.max(before.unwrap_or(0.0)), 0, low, now),
                }
            }
        }
    }

    /// Doubles the limit, to see whether calls still take as long as in the probe.
    fn climb(&mut self, low: Sample) {
        let from = self.usual;
        self.usual = (2 * self.usual).min(self.max);
        self.phase = SearchPhase::Climb { low, from };
        self.look_at(USUAL_CALLS, self.usual);
    }

    fn climb_is_known(&mut self, now: Instant) {
        let usual = SearchPhase::Usual { at_first: None };
        let SearchPhase::Climb { low, from } = std::mem::replace(&mut self.phase, usual) else {
            return;
        };
        match judge(&self.sample, &low, true) {
            Verdict::Concurrent if self.usual < self.max => self.climb(low),
            Verdict::Concurrent => self.rest(now, REST_PER_PROBE),
            // Nothing was found against the limit before the climb.
            Verdict::Queued(at_once) => self.lower(at_once, from, low.mean_in_flight(), now),
            Verdict::Unclear => {
                self.usual = from;
                self.rest(now, REST_PER_PROBE);
            }
        }
    }

    /// Lowers the limit to one that fits, but not below `least`.
    fn lower(&mut self, at_once: f64, least: u32, low: f64, now: Instant) {
        self.usual = fitting(at_once).clamp(least, self.usual);
        if low > 1.0 && at_once < 2.0 * low {
            // Perhaps fewer run at once: about as many were in flight in the probe.
            self.look_again();
        } else {
            let was_free = at_once < 1.3 * low;
            self.rest(now, if was_free { REST_PER_FREE_PROBE } else { REST_PER_PROBE });
        }
    }

    /// Probes again after one sample under the usual limit.
    fn look_again(&mut self) {
        self.rest.until = None;
        self.phase = SearchPhase::Usual { at_first: None };
        self.look_at(USUAL_CALLS, self.usual);
    }

    /// Probes again after a while: the longer, the more often nothing changed, and the more the
    /// probe cost.
    fn rest(&mut self, now: Instant, per_probe: u32) {
        let is_same = self.rest.limit.abs_diff(self.usual) <= (self.usual / 4).max(1);
        let longest = if self.usual == self.max { REST_MAX } else { REST_MAX_LOWERED };
        let length = if is_same { (2 * self.rest.length).min(longest) } else { REST_MIN };
        let for_probes = per_probe * std::mem::take(&mut self.probed);
        let until = Some(now + length.max(for_probes));
        let at_least = Some(now + for_probes / 8);
        self.rest = Rest { length, limit: self.usual, until, at_least };
        self.suspected = None;
        self.phase = SearchPhase::Usual { at_first: None };
        self.look_at(USUAL_CALLS, self.usual);
    }

    /// Begins another sample, after `skip` calls. Returns the one before.
    fn look_at(&mut self, calls: u32, skip: u32) -> Sample {
        let ConcurrencyLimit { usual, now } = self.limit();
        // Tenants that have but one call each may have this many in a probe.
        let beside_max = now.max(reserved_of(usual));
        let next = Sample::new(self.sample.number + 1, calls, skip, beside_max);
        std::mem::replace(&mut self.sample, next)
    }
}

/// Returns the limit for a server that runs so many at once: one more, which is ready when another
/// ends.
fn fitting(at_once: f64) -> u32 {
    // A little more than a whole number is one.
    ((at_once - 0.3).ceil().max(1.0) as u32 + 1).max(LIMIT_MIN)
}

/// Compares two samples. Unless this is the last look, the result must be exact.
fn judge(usual: &Sample, low: &Sample, is_last: bool) -> Verdict {
    let (many, few) = (usual.mean_in_flight(), low.mean_in_flight());
    // The slowdown if calls ran one after another.
    let slowdown_max = (many / few).ln();
    let Some(found) = Comparison::of(usual, low) else { return Verdict::Unclear };
    let margin = CERTAIN * found.error;
    if found.slowdown - margin > SLOWDOWN_MIN.ln() {
        if is_last || found.error <= ERROR_MAX {
            Verdict::Queued(many / found.slowdown.exp())
        } else {
            Verdict::Unclear
        }
    } else if found.slowdown + margin < slowdown_max / 2.0 {
        Verdict::Concurrent
    } else {
        Verdict::Unclear
    }
}

fn has_changed(now: &Sample, before: &Sample) -> bool {
    let change = Comparison::of(now, before);
    change.is_some_and(|it| it.slowdown.abs() - 2.0 * CERTAIN * it.error > CHANGE_MIN.ln())
}
