//! Reads the standard variables of OpenTelemetry (`OTEL_*`).
//!
//! As the standard asks, a variable with a mistake is ignored, with a warning.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use super::Secret;

/// The collector's usual address.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
const PREFIX: &str = "OTEL_EXPORTER_OTLP";
/// The most records that may wait, whatever a variable says.
const QUEUE_MAX: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Otel {
    /// Names and values that describe this process.
    pub resource: BTreeMap<String, String>,
    pub traces: Option<OtlpTarget>,
    pub metrics: Option<OtlpTarget>,
    pub logs: Option<OtlpTarget>,
    pub sampling: Sampling,
    pub spans: Batching,
    pub records: Batching,
    pub metrics_interval: Duration,
}

/// The place that one signal is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpTarget {
    pub url: Url,
    pub headers: Vec<(String, Secret)>,
    pub timeout: Duration,
    /// A file of certificates that are trusted beside those of the system.
    pub certificate: Option<PathBuf>,
}

/// The requests that are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Whether a caller's own decision counts.
    pub is_parent_based: bool,
    /// The share of all other requests.
    pub per_billion: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// The longest that a record waits for others.
    pub delay: Duration,
    pub queue_max: usize,
    pub batch_max: usize,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { is_parent_based: true, per_billion: Self::ALL }
    }
}

impl Sampling {
    const ALL: u32 = 1_000_000_000;
}

/// Reads the variables. Adds a warning about each that is ignored.
pub(super) fn read(env: &[(String, String)], warnings: &mut Vec<String>) -> Otel {
    let set = env.iter().filter(|(name, value)| name.starts_with("OTEL_") && !value.is_empty());
    let vars = set.map(|(name, value)| (name.as_str(), value.trim())).collect();
    let mut reader = Reader { vars, warnings };
    if reader.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Otel::default();
    }
    let [traces, metrics, logs] = ["TRACES", "METRICS", "LOGS"].map(|it| reader.target(it));
    if traces.is_none() && metrics.is_none() && logs.is_none() {
        return Otel::default();
    }
    Otel {
        resource: reader.resource(),
        traces,
        metrics,
        logs,
        sampling: reader.sampling(),
        spans: reader.batching("OTEL_BSP", 5000),
        records: reader.batching("OTEL_BLRP", 1000),
        metrics_interval: reader.millis("OTEL_METRIC_EXPORT_INTERVAL", 60_000),
    }
}

struct Reader<'a> {
    vars: BTreeMap<&'a str, &'a str>,
    warnings: &'a mut Vec<String>,
}

impl<'a> Reader<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.vars.get(name).copied()
    }

    fn ignore(&mut self, name: &str, why: &str) {
        self.warnings.push(format!("ignoring `{name}`: {why}"));
    }

    /// Returns the name of a variable that is set for this signal, or for all.
    fn name_of(&self, signal: &str, what: &str) -> String {
        let own = format!("{PREFIX}_{signal}_{what}");
        if self.get(&own).is_some() { own } else { format!("{PREFIX}_{what}") }
    }

    /// Returns the place of a signal, if it is to be exported: where one is named, or the exporter
    /// is `otlp`.
    fn target(&mut self, signal: &str) -> Option<OtlpTarget> {
        let name = format!("OTEL_{signal}_EXPORTER");
        let exporters: Vec<_> =
            self.get(&name).unwrap_or_default().split(',').map(str::trim).collect();
        let is_named = exporters.contains(&"otlp");
        for other in exporters.iter().filter(|it| !["otlp", "none", ""].contains(it)) {
            self.ignore(&name, &format!("there is no exporter `{other}` here, only `otlp`"));
        }
        if exporters.contains(&"none") && !is_named {
            return None;
        }
        let endpoint = self.name_of(signal, "ENDPOINT");
        let base = match self.get(&endpoint) {
            Some(base) => base,
            None if is_named => DEFAULT_ENDPOINT,
            None => return None,
        };
        // The address of one signal is whole, the common one has a path for each.
        let text = match endpoint.contains(signal) {
            true => base.to_owned(),
            false => format!("{}/v1/{}", base.trim_end_matches('/'), signal.to_lowercase()),
        };
        let url = text.parse::<Url>().ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let Some(url) = url else {
            self.ignore(&endpoint, "not an `http` or `https` URL");
            return None;
        };
        for (what, supported) in [("PROTOCOL", "http/protobuf"), ("COMPRESSION", "none")] {
            let name = self.name_of(signal, what);
            if self.get(&name).is_some_and(|value| value != supported) {
                self.ignore(&name, &format!("only `{supported}` is supported"));
            }
        }
        let headers = self.headers(&self.name_of(signal, "HEADERS"));
        let timeout = self.millis(&self.name_of(signal, "TIMEOUT"), 10_000);
        let certificate = self.get(&self.name_of(signal, "CERTIFICATE")).map(PathBuf::from);
        Some(OtlpTarget { url, headers, timeout, certificate })
    }

    /// Reads `name=value` pairs, separated by commas; values are percent-encoded.
    fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let mut pairs = vec![];
        let entries = self.get(name).unwrap_or_default().split(',');
        for entry in entries.filter(|entry| !entry.trim().is_empty()) {
            let pair = entry.split_once('=').filter(|(key, _)| !key.trim().is_empty());
            match pair.and_then(|(key, value)| Some((key, percent_decoded(value.trim())?))) {
                Some((key, value)) => pairs.push((key.trim().to_owned(), value)),
                None => self.ignore(name, "an entry is not `name=value`, percent-encoded"),
            }
        }
        pairs
    }

    fn headers(&mut self, name: &str) -> Vec<(String, Secret)> {
        let (valid, invalid): (Vec<_>, Vec<_>) = self.pairs(name).into_iter().partition(|it| {
            it.0.parse::<HeaderName>().is_ok() && HeaderValue::from_str(&it.1).is_ok()
        });
        for (header, _) in invalid {
            self.ignore(name, &format!("`{header}` cannot be sent as a header"));
        }
        valid.into_iter().map(|(header, value)| (header, Secret::new(value))).collect()
    }

    fn resource(&mut self) -> BTreeMap<String, String> {
        let mut resource = BTreeMap::from([
            ("service.name".to_owned(), "trunkline".to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string()),
            ("telemetry.sdk.name".to_owned(), "trunkline".to_owned()),
            ("telemetry.sdk.language".to_owned(), "rust".to_owned()),
            ("telemetry.sdk.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ]);
        resource.extend(self.pairs("OTEL_RESOURCE_ATTRIBUTES"));
        let name = self.get("OTEL_SERVICE_NAME");
        resource.extend(name.map(|name| ("service.name".to_owned(), name.to_owned())));
        resource
    }

    fn sampling(&mut self) -> Sampling {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        let sampler = self.get(NAME).unwrap_or("parentbased_always_on");
        let (is_parent_based, kind) = match sampler.strip_prefix("parentbased_") {
            Some(kind) => (true, kind),
            None => (false, sampler),
        };
        let per_billion = match kind {
            "always_on" => Sampling::ALL,
            "always_off" => 0,
            "traceidratio" => self.ratio(),
            _ => {
                self.ignore(NAME, &format!("there is no sampler `{sampler}` here"));
                return Sampling::default();
            }
        };
        Sampling { is_parent_based, per_billion }
    }

    fn ratio(&mut self) -> u32 {
        const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
        let Some(text) = self.get(NAME) else { return Sampling::ALL };
        match text.parse::<f64>() {
            Ok(ratio @ 0.0..=1.0) => (ratio * f64::from(Sampling::ALL)).round() as u32,
            _ => {
                self.ignore(NAME, "must be a number from 0 to 1");
                Sampling::ALL
            }
        }
    }

    fn batching(&mut self, prefix: &str, delay_ms: u64) -> Batching {
        let delay = self.millis(&format!("{prefix}_SCHEDULE_DELAY"), delay_ms);
        let queue_max = self.count(&format!("{prefix}_MAX_QUEUE_SIZE"), 2048);
        let batch_max = self.count(&format!("{prefix}_MAX_EXPORT_BATCH_SIZE"), 512);
        Batching { delay, queue_max, batch_max: batch_max.min(queue_max) }
    }

    fn millis(&mut self, name: &str, default: u64) -> Duration {
        let millis = self.get(name).map(str::parse::<u64>);
        match millis {
            Some(Ok(millis @ 1..)) => Duration::from_millis(millis),
            None => Duration::from_millis(default),
            Some(_) => {
                self.ignore(name, "must be a whole number of milliseconds from 1");
                Duration::from_millis(default)
            }
        }
    }

    fn count(&mut self, name: &str, default: usize) -> usize {
        match self.get(name).map(str::parse::<usize>) {
            Some(Ok(count @ 1..=QUEUE_MAX)) => count,
            None => default,
            Some(_) => {
                self.ignore(name, &format!("must be a whole number from 1 to {QUEUE_MAX}"));
                default
            }
        }
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                after
            }
            (b'%', _) => return None,
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[path = "tests/otel.rs"]
mod tests;
