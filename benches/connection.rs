//! The cost of a call on a shared connection, with the server in the same process.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::task::JoinSet;
use tokio::time::Instant;

use trunkline::backend::changes::recipients::Recipients;
use trunkline::backend::connection::request_ids::RequestIds;
use trunkline::backend::connection::{Answer, Connection, ConnectionOptions, NewCall};
use trunkline::common::ids::{ServerId, TenantGeneration, TenantId, TenantName};
use trunkline::common::offload::Offload;
use trunkline::protocol::jsonrpc::{Frame, Line, LineSplitter, Message, RawObject, decode};
use trunkline::protocol::mcp::ProtocolVersion;
use trunkline::protocol::mcp::requests::{CallMeta, Dialect};
use trunkline::telemetry::metrics::Metrics;

/// As large as a pipe.
const PIPE_LEN: usize = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

fn connect() -> Arc<Connection> {
    let (ours, theirs) = duplex(PIPE_LEN);
    tokio::spawn(echo(theirs));
    let (output, input) = split(ours);
    let options = ConnectionOptions {
        generation: 1,
        max_in_flight: 64,
        line_len_max: 1024 * 1024,
        grace: TIMEOUT,
        ids: Arc::new(RequestIds::default()),
        recipients: Recipients::new(ServerId::parse("bench").expect("a name"), None),
        exit: None,
        metrics: Metrics::new().server("bench"),
        offload: Offload::new(),
    };
    Connection::open(input, output, options)
}

/// Plays a server that returns the params. All answers to one read go into one write.
async fn echo(mut stream: DuplexStream) {
    let mut lines = LineSplitter::new(1024 * 1024);
    let mut answers = Vec::new();
    while let Ok(1..) = stream.read_buf(lines.space()).await {
        while let Some(Line::Whole(line)) = lines.next_line() {
            if let Ok(Message::Request { id, params: Some(params), .. }) = decode(&line) {
                answers.extend_from_slice(&Frame::result(id, &params).bytes());
            }
        }
        if stream.write_all(&answers).await.is_err() {
            return;
        }
        answers.clear();
    }
}

struct Caller {
    connection: Arc<Connection>,
    dialect: Arc<Dialect>,
    arguments: RawObject,
    tenant: TenantId,
}

impl Caller {
    fn new() -> Self {
        let arguments = format!(r#"{{"text":"{}"}}"#, "x".repeat(64));
        Self {
            connection: connect(),
            dialect: Arc::new(Dialect::new(ProtocolVersion::LATEST)),
            arguments: RawObject::parse(arguments.into()).expect("an object"),
            tenant: TenantName::parse("bench").expect("a name").of(TenantGeneration::BUILT_IN),
        }
    }

    async fn call(&self) {
        let deadline = Instant::now() + TIMEOUT;
        let call = NewCall { tenant: self.tenant.clone(), ..NewCall::gateway(deadline) };
        let mut call = self.connection.register(call).expect("it is open");
        let frame = self.dialect.tools_call(
            call.id(),
            "\"echo\"",
            &self.arguments,
            "",
            &CallMeta::default(),
        );
        call.send(frame).expect("there is room");
        assert!(matches!(call.answer().await, Ok(Answer::Result(_))));
    }

    /// Divides so many calls among `callers` tasks; returns how long they took.
    async fn call_many(self: Arc<Self>, calls: u64, callers: u64) -> Duration {
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for n in 0..callers {
            let caller = self.clone();
            let share = (n + 1) * calls / callers - n * calls / callers;
            tasks.spawn(async move {
                for _ in 0..share {
                    caller.call().await;
                }
            });
        }
        tasks.join_all().await;
        begin.elapsed()
    }
}

fn calls(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let caller = {
        let _entered = runtime.enter();
        Arc::new(Caller::new())
    };
    let mut group = criterion.benchmark_group("connection");
    group.throughput(Throughput::Elements(1));
    for callers in [1, 64] {
        group.bench_function(format!("a call, {callers} at once"), |bencher| {
            bencher.iter_custom(|calls| runtime.block_on(caller.clone().call_many(calls, callers)));
        });
    }
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
