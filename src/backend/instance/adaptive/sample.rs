//! Samples of the times of calls, and their comparison. Plain data.

use std::collections::HashMap;
use std::time::Duration;

/// The times of calls vary at least by this part, whatever a sample says: neighbours are not
/// independent.
const VARIATION_MIN: f64 = 0.1;

/// The first calls that began under one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Identifies the sample: calls of earlier ones may still end.
    pub(super) number: u64,
    wanted: u32,
    /// Calls that are ignored first.
    skip: u32,
    /// A call that begins beside more than this many does not count: earlier ones are not gone yet.
    beside_max: u32,
    begun: u32,
    ended: u32,
    /// Calls that ended since the last one of the sample began, its own included.
    later: u32,
    in_flight: u64,
    pub(super) longest: Duration,
    tools: HashMap<u16, Times>,
}

/// The times of one tool's calls, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    answered: f64,
    /// Including calls that were given up: their times are lower bounds.
    all: f64,
    of_answered: f64,
    squares: f64,
}

impl Times {
    fn mean(&self) -> f64 {
        self.all / self.answered
    }
}

impl Sample {
    pub(super) fn new(number: u64, wanted: u32, skip: u32, beside_max: u32) -> Self {
        Self { number, wanted, skip, beside_max, ..Self::default() }
    }

    /// Begins a call, with so many in flight. Returns whether it belongs to the sample.
    pub(super) fn begin(&mut self, in_flight: u32) -> bool {
        let belongs = self.begun < self.wanted && in_flight <= self.beside_max;
        if belongs && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if belongs {
            self.begun += 1;
            self.in_flight += u64::from(in_flight);
        }
        belongs
    }

    /// Ends a call; `tool` if it belongs to the sample.
    pub(super) fn end(&mut self, tool: Option<u16>, took: Duration, answered: bool) {
        self.later += u32::from(self.begun == self.wanted);
        let Some(tool) = tool else { return };
        self.ended += 1;
        self.longest = self.longest.max(took);
        let (times, took) = (self.tools.entry(tool).or_default(), took.as_secs_f64());
        times.all += took;
        if answered {
            times.answered += 1.0;
            times.of_answered += took;
            times.squares += took * took;
        }
    }

    /// Returns whether all its calls have ended.
    pub(super) fn is_complete(&self) -> bool {
        self.ended == self.wanted
    }

    /// Returns whether the calls that have not ended are so late that nobody should wait for them.
    pub(super) fn is_late(&self) -> bool {
        self.later > 4 * (self.wanted + self.beside_max.min(4 * self.wanted))
    }

    /// Returns how many have ended.
    pub(super) fn len(&self) -> u32 {
        self.ended
    }

    /// Raises the number of calls.
    pub(super) fn extend(&mut self, wanted: u32) {
        (self.wanted, self.later) = (wanted, 0);
    }

    /// Returns the mean number of calls in flight at the start of one of these, itself included.
    pub(super) fn mean_in_flight(&self) -> f64 {
        self.in_flight as f64 / f64::from(self.begun.max(1))
    }

    /// Returns how much the times of one tool's calls differ, relative to their mean.
    fn variation(&self) -> f64 {
        let answered = || self.tools.values().filter(|times| times.answered > 0.0);
        let (mut squares, mut rest, mut free) = (0.0, 0.0, 0.0);
        for times in answered() {
            let of_mean = times.of_answered * times.of_answered / times.answered;
            squares += of_mean;
            rest += (times.squares - of_mean).max(0.0);
            free += times.answered - 1.0;
        }
        let count: f64 = answered().map(|times| times.answered).sum();
        if free < 1.0 || squares == 0.0 {
            return 1.0;
        }
        (rest / squares * count / free).sqrt().max(VARIATION_MIN)
    }
}

/// The ratio of times in two samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    /// The logarithm of the ratio.
    pub(super) slowdown: f64,
    /// Its standard error.
    pub(super) error: f64,
}

impl Comparison {
    /// Compares each tool with itself only. `None` if the samples have no tools in common.
    pub(super) fn of(sample: &Sample, base: &Sample) -> Option<Self> {
        let variation = sample.variation().max(base.variation());
        let (mut in_sample, mut in_base) = (Weighted::default(), Weighted::default());
        for (tool, times) in &sample.tools {
            let Some(before) = base.tools.get(tool) else { continue };
            // The smaller count weighs: a tool that is frequent in one sample only must not decide.
            let weight = times.answered.min(before.answered);
            if weight > 0.0 {
                in_sample.add(weight, times);
                in_base.add(weight, before);
            }
        }
        if in_base.sum == 0.0 || in_sample.sum == 0.0 {
            return None;
        }
        let error = variation * (in_sample.part() + in_base.part()).sqrt();
        Some(Self { slowdown: (in_sample.sum / in_base.sum).ln(), error })
    }
}

/// A weighted sum of means, and of their errors.
#[derive(Default)]
struct Weighted {
    sum: f64,
    errors: f64,
}

impl Weighted {
    fn add(&mut self, weight: f64, times: &Times) {
        let mean = weight * times.mean();
        self.sum += mean;
        self.errors += mean * mean / times.answered;
    }

    /// Returns the squared relative error, for times that vary by as much as their mean.
    fn part(&self) -> f64 {
        self.errors / (self.sum * self.sum)
    }
}
