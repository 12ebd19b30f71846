//! Benchmarks the parts of a call that are pure computation.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use trunkline::backend::connection::CallIdentity;
use trunkline::backend::connection::request_ids::{IdSource, RequestIds};
use trunkline::protocol::jsonrpc::{RawObject, decode};
use trunkline::protocol::mcp::ProtocolVersion;
use trunkline::protocol::mcp::requests::{CallMeta, Dialect};
use trunkline::protocol::mcp::results::{AskedTypes, ResultHead};

fn response(text_len: usize) -> String {
    let result = tool_result(text_len);
    format!(r#"{{"jsonrpc":"2.0","id":1234567890123456,"result":{result}}}"#)
}

fn tool_result(text_len: usize) -> String {
    let text = "x".repeat(text_len);
    format!(r#"{{"content":[{{"type":"text","text":"{text}"}}],"isError":false}}"#)
}

fn arguments(text_len: usize) -> Bytes {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(text_len)).into()
}

fn answers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("answer");
    for (name, text_len) in [("64 B", 64), ("1 MiB", 1024 * 1024)] {
        let line = response(text_len);
        group.throughput(Throughput::Bytes(line.len() as u64));
        group.bench_function(format!("decode, {name}"), |bencher| {
            bencher.iter(|| black_box(decode(black_box(line.as_bytes()))).is_ok());
        });
        let result = tool_result(text_len);
        group.bench_function(format!("kind of result, {name}"), |bencher| {
            bencher.iter(|| ResultHead::read(black_box(&result), AskedTypes::default()));
        });
    }
    group.finish();
}

fn bodies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("body");
    for (name, text_len) in [("64 B", 64), ("64 KiB", 64 * 1024)] {
        let body = arguments(text_len);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(format!("check, {name}"), |bencher| {
            bencher.iter(|| RawObject::parse(black_box(body.clone())));
        });
    }
    group.finish();
}

fn requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request");
    let arguments = RawObject::parse(arguments(64)).expect("an object");
    for version in [ProtocolVersion::LATEST_LEGACY, ProtocolVersion::LATEST] {
        let (dialect, meta) = (Dialect::new(version), CallMeta::default());
        group.bench_function(format!("write, {version}"), |bencher| {
            bencher.iter(|| {
                dialect.tools_call(1_234_567_890, "\"echo\"", black_box(&arguments), "", &meta)
            });
        });
    }
    let (ids, owner) = (RequestIds::default(), CallIdentity::gateway(1));
    group.bench_function("issue an id", |bencher| bencher.iter(|| ids.issue(black_box(&owner))));
    let id = ids.issue(&owner);
    group.bench_function("recognise an id", |bencher| {
        bencher.iter(|| ids.was_issued(black_box(id)));
    });
    group.bench_function("name a call", |bencher| {
        bencher.iter(trunkline::common::ids::CallId::generate)
    });
    group.finish();
}

criterion_group!(benches, answers, bodies, requests);
criterion_main!(benches);
