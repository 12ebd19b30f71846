//! Metrics as OTLP has them: the same as on `/metrics`, under the same names.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::attributes::{Attributes, Resource};
use super::message::Message;

const CUMULATIVE: u64 = 2;

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Writes an export request. Returns it with the number of its data points.
pub(super) fn request(resource: &Resource, families: &[MetricFamily]) -> (Vec<u8>, u64) {
    let (start, now) = (resource.since, now());
    let mut points = 0;
    let request = resource.request(|scope| {
        for family in families {
            points += family.get_metric().len() as u64;
            scope.message(2, |metric| write(metric, family, Times { start, now }));
        }
    });
    (request, points)
}

#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

fn write(metric: &mut Message, family: &MetricFamily, times: Times) {
    metric.text(1, family.name());
    metric.text(2, family.help());
    match family.get_field_type() {
        MetricType::COUNTER => metric.message(7, |sum| {
            for point in family.get_metric() {
                sum.message(1, |it| number(it, point, point.get_counter().get_value(), times));
            }
            sum.integer(2, CUMULATIVE);
            sum.integer(3, 1);
        }),
        MetricType::HISTOGRAM => metric.message(9, |histogram| {
            for point in family.get_metric() {
                histogram.message(1, |it| buckets(it, point, times));
            }
            histogram.integer(2, CUMULATIVE);
        }),
        _ => metric.message(5, |gauge| {
            for point in family.get_metric() {
                gauge.message(1, |it| number(it, point, point.get_gauge().get_value(), times));
            }
        }),
    }
}

fn number(point: &mut Message, metric: &Metric, value: f64, times: Times) {
    labels(point, 7, metric.get_label());
    point.fixed64(2, times.start);
    point.fixed64(3, times.now);
    point.double(4, value);
}

fn buckets(point: &mut Message, metric: &Metric, times: Times) {
    let histogram = metric.get_histogram();
    labels(point, 9, metric.get_label());
    point.fixed64(2, times.start);
    point.fixed64(3, times.now);
    point.fixed64(4, histogram.get_sample_count());
    point.double(5, histogram.get_sample_sum());
    // Prometheus counts a value in all buckets above it, OTLP in one.
    let mut below = 0;
    let own = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
    let own = own.chain([histogram.get_sample_count()]);
    point.packed(6, own.map(|count| count - std::mem::replace(&mut below, count)));
    point.packed(7, histogram.get_bucket().iter().map(|it| it.upper_bound().to_bits()));
}

fn labels(point: &mut Message, field: u32, labels: &[LabelPair]) {
    let mut attributes = Attributes { of: point, field };
    labels.iter().for_each(|label| attributes.text(label.name(), label.value()));
}
