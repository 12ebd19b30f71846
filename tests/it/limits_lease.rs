//! The script that decides who has which places of a limit.

use crate::support::{Redis, eventually};

const SCRIPT: &str = include_str!("../../src/tenants/limits/shared/lease.lua");

/// Runs the script as one replica that states what it holds and needs of one limit.
struct Said {
    who: &'static str,
    number: u32,
    held: u32,
    needed: u32,
    wish: u32,
    limit: u32,
    spare: u32,
}

/// States that nothing is held and one call is needed.
const ONE: Said =
    Said { who: "a", number: 1, held: 0, needed: 1, wish: 1, limit: 10, spare: u32::MAX };

impl Said {
    /// How many places there are for it, and whether they may be more than it needs.
    async fn to(&self, redis: &Redis) -> (u32, u32) {
        let Self { who, number, held, needed, wish, limit, spare } = self;
        let numbers = [number, held, needed, wish, limit, spare].map(u32::to_string);
        let mut words = vec!["EVAL", SCRIPT, "1", "limit", who];
        words.extend(numbers.iter().map(String::as_str));
        words.extend(["5", "wanted"]);
        redis.ask(&words).await
    }
}

#[tokio::test]
async fn nobody_gets_what_others_have() {
    let Some(redis) = Redis::start().await else { return };
    assert_eq!(Said { needed: 7, ..ONE }.to(&redis).await, (7, 0));
    assert_eq!(Said { who: "b", needed: 7, ..ONE }.to(&redis).await, (3, 0));
    assert_eq!(Said { who: "c", ..ONE }.to(&redis).await, (0, 0));
    assert_eq!(redis.ask::<u32>(&["HLEN", "limit"]).await, 2);
    // What is given back is there for the next one.
    assert_eq!(Said { number: 2, held: 5, needed: 5, ..ONE }.to(&redis).await, (5, 0));
    assert_eq!(Said { who: "b", number: 2, held: 3, needed: 7, ..ONE }.to(&redis).await, (5, 0));
}

#[tokio::test]
async fn what_is_held_is_counted_even_if_it_is_too_much() {
    let Some(redis) = Redis::start().await else { return };
    assert_eq!(Said { held: 8, needed: 8, ..ONE }.to(&redis).await, (8, 0));
    assert_eq!(Said { who: "b", held: 6, needed: 9, ..ONE }.to(&redis).await, (6, 0));
    assert_eq!(Said { number: 2, held: 4, needed: 9, ..ONE }.to(&redis).await, (4, 0));
    assert_eq!(Said { number: 3, held: 2, needed: 2, limit: 1, ..ONE }.to(&redis).await, (2, 0));
}

#[tokio::test]
async fn the_last_word_counts_whatever_comes_after_it() {
    let Some(redis) = Redis::start().await else { return };
    assert_eq!(Said { number: 8, held: 7, needed: 7, ..ONE }.to(&redis).await, (7, 0));
    for number in [3, 8] {
        assert_eq!(Said { number, ..ONE }.to(&redis).await, (7, 0));
    }
    assert_eq!(Said { who: "b", needed: 10, ..ONE }.to(&redis).await, (3, 0));
}

#[tokio::test]
async fn more_than_is_needed_is_granted_while_enough_stays_free() {
    let Some(redis) = Redis::start().await else { return };
    let roomy = Said { needed: 10, wish: 16, limit: 64, spare: 16, ..ONE };
    assert_eq!(roomy.to(&redis).await, (16, 1));
    assert_eq!(Said { who: "b", needed: 26, wish: 32, ..roomy }.to(&redis).await, (32, 1));
    // Sixteen are free now.
    assert_eq!(Said { who: "c", needed: 1, wish: 2, ..roomy }.to(&redis).await, (1, 0));
    // Who had more than it needs keeps it, and hears that it should not.
    let again = Said { number: 2, held: 16, needed: 10, wish: 10, ..roomy };
    assert_eq!(again.to(&redis).await, (16, 0));
}

#[tokio::test]
async fn who_is_silent_is_gone_and_nothing_stays_behind() {
    let Some(redis) = Redis::start().await else { return };
    Said { needed: 6, ..ONE }.to(&redis).await;
    let ttl: u32 = redis.ask(&["TTL", "limit"]).await;
    assert!((9..=10).contains(&ttl), "{ttl}");
    let (seconds, _): (u64, u64) = redis.ask(&["TIME"]).await;
    let word = format!("1 {}.000 9 0", seconds - 6);
    redis.ask::<u32>(&["HSET", "limit", "dead", &word]).await;
    assert_eq!(Said { who: "b", needed: 9, ..ONE }.to(&redis).await, (4, 0));
    assert_eq!(redis.ask::<u32>(&["HEXISTS", "limit", "dead"]).await, 0);
    for who in ["a", "b"] {
        assert_eq!(Said { who, number: 2, needed: 0, wish: 0, ..ONE }.to(&redis).await, (0, 0));
    }
    eventually("the key is gone", async || {
        (redis.ask::<u32>(&["EXISTS", "limit"]).await == 0).then_some(())
    })
    .await;
}
