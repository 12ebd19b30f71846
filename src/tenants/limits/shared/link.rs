//! One connection to Valkey, and what is sent over it.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use governor::nanos::Nanos;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script, cmd};
use tokio::time::timeout;
use uuid::Uuid;

use super::super::bucket::Bucket;
use super::super::{LimitRefusal, RateStatus};
use super::lease::LimitLease;
use super::leased_permits::PermitCounts;

/// Carries the ids of leases whose headroom other replicas need.
pub(super) const RECALL_CHANNEL: &str = "trunkline:wanted";
const REPLICAS_KEY: &str = "trunkline:replicas";
/// A replica without a heartbeat for so many seconds is gone.
const GONE_SECS: u32 = 5;
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Commands that may wait to be written; further calls wait a little longer.
const WRITE_QUEUE: usize = 1024;
/// All replicas together may hold an eighth of a limit as headroom,
const HEADROOM_PART: u32 = 8;
/// if a quarter stays free nevertheless.
const SPARE_PART: u32 = 4;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));
static LEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lease.lua")));
static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("heartbeat.lua")));

/// A multiplexed connection that all calls share.
#[derive(Debug)]
pub(super) struct Link {
    /// Different for each link, from 1.
    pub number: u32,
    connection: MultiplexedConnection,
    answer_timeout: Duration,
}

/// A request for a lease; `lease.lua` is the other side. Contains totals, never differences, so
/// that the last request is the whole truth.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct LeaseRequest {
    /// Increases with each request.
    pub number: u64,
    /// Permits that may be in use before the answer.
    pub held: u32,
    /// Permits for all calls, waiting ones included.
    pub needed: u32,
    /// Permits that would save further requests.
    pub wanted: u32,
    /// Permits over all replicas.
    pub limit: u32,
    /// Permits that must stay free for `wanted` to be granted.
    pub spare: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseGrant {
    /// Permits that may be in use from now on.
    pub permits: u32,
    /// Whether these may be more than needed.
    pub has_headroom: bool,
}

impl Link {
    /// Connects and loads the scripts.
    pub async fn open(
        client: &Client,
        answer_timeout: Duration,
        number: u32,
    ) -> Result<Self, RedisError> {
        // Timeouts are set here, around several commands.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        let connect = async {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            TAKE.load_async(&mut connection).await?;
            LEASE.load_async(&mut connection).await?;
            HEARTBEAT.load_async(&mut connection).await?;
            Ok(Self { number, connection, answer_timeout })
        };
        within(CONNECT_TIMEOUT, connect).await
    }

    /// Takes one call from each bucket, or from none, and reports calls that Valkey has missed.
    pub async fn take_all(
        &self,
        buckets: &[&Arc<Bucket>],
        replicas: u32,
    ) -> Result<Result<RateStatus, LimitRefusal>, RedisError> {
        let mut report = Report::of(buckets);
        let mut call = TAKE.prepare_invoke();
        for (bucket, reported) in buckets.iter().zip(&report.calls) {
            let (calls, since) = reported.unwrap_or_else(|| (0, bucket.now()));
            call.key(&bucket.key)
                .arg(nanos(bucket.quota.interval))
                .arg(bucket.quota.burst.get())
                .arg(nanos(bucket.quota.interval * calls))
                .arg(nanos(bucket.now().saturating_sub(since).into()))
                .arg(nanos(bucket.debt_max(replicas)));
        }
        let mut connection = self.connection.clone();
        let answer = within(self.answer_timeout, call.invoke_async(&mut connection)).await;
        let answer: Vec<u64> = answer?;
        report.calls.clear();
        let Some((fits, owed)) =
            answer.split_first().filter(|(_, owed)| owed.len() == buckets.len())
        else {
            let kind = redis::ErrorKind::UnexpectedReturnType;
            return Err((kind, "the script returned an unexpected answer").into());
        };
        Ok(rate_status(buckets, *fits == 1, owed))
    }

    pub async fn lease(
        &self,
        lease: &LimitLease,
        request: &LeaseRequest,
    ) -> Result<LeaseGrant, RedisError> {
        let mut call = LEASE.key(&lease.key);
        call.arg(lease.id.to_string())
            .arg(request.number)
            .arg(request.held)
            .arg(request.needed)
            .arg(request.wanted)
            .arg(request.limit)
            .arg(request.spare)
            .arg(GONE_SECS)
            .arg(RECALL_CHANNEL);
        let answer =
            within(self.answer_timeout, call.invoke_async(&mut self.connection.clone())).await;
        let (permits, has_headroom) = answer?;
        Ok(LeaseGrant { permits, has_headroom })
    }

    /// Writes a heartbeat. Returns the number of live replicas.
    pub async fn heartbeat(&self, replica: Uuid) -> Result<u32, RedisError> {
        let mut call = HEARTBEAT.key(REPLICAS_KEY);
        call.arg(replica.to_string()).arg(GONE_SECS);
        within(self.answer_timeout, call.invoke_async(&mut self.connection.clone())).await
    }

    pub async fn leave(&self, replica: Uuid) -> Result<(), RedisError> {
        let mut leave = cmd("ZREM");
        leave.arg(REPLICAS_KEY).arg(replica.to_string());
        within(self.answer_timeout, leave.query_async(&mut self.connection.clone())).await
    }
}

/// The calls of each bucket that Valkey is being told of. Unless Valkey answers, they count as
/// unreported again, also when the caller that reports them goes away. Valkey may be told twice
/// then, but no call is ever forgotten.
struct Report<'a> {
    buckets: &'a [&'a Arc<Bucket>],
    /// Their number and when the first came, for each bucket. Empty when Valkey has answered.
    calls: Vec<Option<(u32, Nanos)>>,
}

impl<'a> Report<'a> {
    fn of(buckets: &'a [&'a Arc<Bucket>]) -> Self {
        Self { buckets, calls: buckets.iter().map(|bucket| bucket.unreported.take()).collect() }
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        for (bucket, calls) in self.buckets.iter().zip(&self.calls) {
            calls.iter().for_each(|(calls, since)| bucket.unreported.add(*calls, *since));
        }
    }
}

impl LeaseRequest {
    pub fn new(counts: PermitCounts, number: u64, waiting: u32, limit: u32, headroom: u32) -> Self {
        let needed = counts.in_use.saturating_add(waiting);
        // Only while callers wait: an idle replica must come to hold nothing.
        let wanted = if waiting > 0 { needed.saturating_add(headroom) } else { needed };
        let spare = if headroom > 0 { limit / SPARE_PART } else { u32::MAX };
        Self { number, held: counts.leased, needed, wanted, limit, spare }
    }
}

/// Returns the permits that one replica may hold beyond its need. None of a small limit: asking is
/// better than being inexact.
pub(super) fn headroom(limit: u32, replicas: u32) -> u32 {
    limit / HEADROOM_PART / replicas.max(2)
}

/// Converts the debt of each bucket. The bucket with the longest wait is the one that refuses.
fn rate_status(
    buckets: &[&Arc<Bucket>],
    fits: bool,
    owed: &[u64],
) -> Result<RateStatus, LimitRefusal> {
    let owed = owed.iter().map(|nanos| Duration::from_nanos(*nanos));
    let rates = || buckets.iter().zip(owed.clone());
    let remaining =
        |(bucket, owed): (&&Arc<Bucket>, _)| (Arc::clone(bucket), bucket.quota.remaining(owed));
    let rate_status = RateStatus(rates().map(remaining).collect());
    let waits = rates().map(|(bucket, owed)| (bucket.quota.wait(owed), bucket));
    match waits.max_by_key(|(wait, _)| *wait) {
        Some((retry_after, bucket)) if !fits => {
            Err(LimitRefusal::RateLimited { scope: bucket.scope.clone(), retry_after, rate_status })
        }
        _ => Ok(rate_status),
    }
}

fn nanos(time: Duration) -> String {
    time.as_nanos().to_string()
}

/// Fails if there is no answer in time.
pub(super) async fn within<T>(
    time: Duration,
    answer: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
    timeout(time, answer).await.unwrap_or_else(|_| Err(timed_out().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_limits_have_headroom_and_small_ones_have_none() {
        assert_eq!([1, 10, 15, 16, 64, 256].map(|limit| headroom(limit, 2)), [0, 0, 0, 1, 4, 16]);
        assert_eq!(headroom(256, 1), headroom(256, 2));
        for replicas in 2..100 {
            // All replicas together.
            assert!(headroom(256, replicas) * replicas <= 256 / HEADROOM_PART);
        }
    }

    #[test]
    fn more_is_wanted_only_while_callers_wait() {
        let counts = PermitCounts { in_use: 5, leased: 9 };
        let asks = LeaseRequest::new(counts, 7, 2, 64, 4);
        let expected =
            LeaseRequest { number: 7, held: 9, needed: 7, wanted: 11, limit: 64, spare: 16 };
        assert_eq!(asks, expected);
        assert_eq!(
            LeaseRequest::new(counts, 7, 0, 64, 4),
            LeaseRequest { needed: 5, wanted: 5, ..expected }
        );
    }

    #[test]
    fn without_headroom_nothing_more_is_wanted_and_no_spare_is_enough() {
        let counts = PermitCounts { in_use: 5, leased: 5 };
        let asks = LeaseRequest::new(counts, 7, 1, 10, 0);
        assert_eq!((asks.needed, asks.wanted, asks.spare), (6, 6, u32::MAX));
    }
}
