//! The growth of memory over time, by least squares.

use std::fmt;
use std::time::Duration;

#[derive(Default)]
pub struct Samples(Vec<(f64, f64)>);

impl Samples {
    pub fn add(&mut self, at: Duration, bytes: u64) {
        self.0.push((at.as_secs_f64() / 3600.0, bytes as f64 / f64::from(1 << 20)));
    }

    /// Returns the slope of the line through all samples; `None` for too few.
    pub fn mib_per_hour(&self) -> Option<f64> {
        if self.0.len() < 60 {
            return None;
        }
        let count = self.0.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| self.0.iter().map(of).sum::<f64>() / count;
        let (time, memory) = (mean(|it| it.0), mean(|it| it.1));
        let covariance: f64 = self.0.iter().map(|it| (it.0 - time) * (it.1 - memory)).sum();
        let variance: f64 = self.0.iter().map(|it| (it.0 - time).powi(2)).sum();
        Some(covariance / variance)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = || self.0.iter().map(|it| it.1);
        let (least, most) = (memory().fold(f64::MAX, f64::min), memory().fold(0.0, f64::max));
        write!(f, "{} samples, {least:.1} to {most:.1} MiB", self.0.len())
    }
}
