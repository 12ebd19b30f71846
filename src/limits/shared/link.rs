//! One connection to Valkey, and what is asked over it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script, cmd};
use tokio::time::{error::Elapsed, timeout};
use uuid::Uuid;

use super::super::bucket::Bucket;
use super::super::{Refusal, Standing};
use super::ANSWER_TIMEOUT;

/// The replicas that live.
const REPLICAS_KEY: &str = "trunkline:replicas";
/// Who is silent for so many seconds is gone.
const REPLICA_GONE_SECS: u32 = 5;
/// Calls that may wait to be written. There is one message for each; more only wait a little longer.
const WRITE_QUEUE: usize = 1024;

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));
static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("heartbeat.lua")));

/// A connection that calls share: many questions are under way at once, and answered in order.
#[derive(Debug)]
pub(super) struct Link(MultiplexedConnection);

impl Link {
    /// Connects, within a time, and brings the scripts.
    pub async fn open(client: &Client, within: Duration) -> Result<Self, RedisError> {
        // Timeouts are set here, around what may be several questions.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        let connect = async {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            TAKE.load_async(&mut connection).await?;
            HEARTBEAT.load_async(&mut connection).await?;
            Ok(Self(connection))
        };
        timeout(within, connect).await.unwrap_or_else(|elapsed| Err(too_slow(elapsed)))
    }

    /// Takes one call from each bucket, or from none.
    pub async fn take_all(
        &self,
        buckets: &[&Arc<Bucket>],
    ) -> Result<Result<Standing, Refusal>, RedisError> {
        let mut call = TAKE.prepare_invoke();
        for bucket in buckets {
            let interval = bucket.quota.interval.as_nanos();
            call.key(&bucket.key).arg(interval.to_string()).arg(bucket.quota.burst.get());
        }
        let mut connection = self.0.clone();
        let answer: Vec<u64> = soon(call.invoke_async(&mut connection)).await?;
        let Some((fits, owed)) =
            answer.split_first().filter(|(_, owed)| owed.len() == buckets.len())
        else {
            let kind = redis::ErrorKind::UnexpectedReturnType;
            return Err((kind, "the script has answered something else").into());
        };
        Ok(judge(buckets, *fits == 1, owed))
    }

    /// Says that this replica lives, and finds out how many do.
    pub async fn heartbeat(&self, replica: Uuid) -> Result<u32, RedisError> {
        let mut call = HEARTBEAT.key(REPLICAS_KEY);
        call.arg(replica.to_string()).arg(REPLICA_GONE_SECS);
        soon(call.invoke_async(&mut self.0.clone())).await
    }

    /// Says that this replica is gone.
    pub async fn leave(&self, replica: Uuid) -> Result<(), RedisError> {
        let mut leave = cmd("ZREM");
        leave.arg(REPLICAS_KEY).arg(replica.to_string());
        soon(leave.query_async(&mut self.0.clone())).await
    }
}

/// Reads what is owed of each bucket. The one that makes a call wait longest is the one that refuses it.
fn judge(buckets: &[&Arc<Bucket>], fits: bool, owed: &[u64]) -> Result<Standing, Refusal> {
    let owed = owed.iter().map(|nanos| Duration::from_nanos(*nanos));
    let rates = || buckets.iter().zip(owed.clone());
    let left = |(bucket, owed): (&&Arc<Bucket>, _)| (Arc::clone(bucket), bucket.quota.left(owed));
    let standing = Standing(rates().map(left).collect());
    let waits = rates().map(|(bucket, owed)| (bucket.quota.wait(owed), bucket));
    match waits.max_by_key(|(wait, _)| *wait) {
        Some((retry_after, bucket)) if !fits => {
            Err(Refusal::RateLimited { scope: bucket.scope.clone(), retry_after, standing })
        }
        _ => Ok(standing),
    }
}

/// What does not answer soon has failed.
async fn soon<T>(answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|elapsed| Err(too_slow(elapsed)))
}

fn too_slow(_: Elapsed) -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
