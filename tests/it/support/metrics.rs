//! `/metrics`, read.

/// The text that Prometheus would get.
pub struct Metrics(pub String);

impl Metrics {
    /// The value of the series written exactly like this; none if it is not there.
    pub fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }
}
