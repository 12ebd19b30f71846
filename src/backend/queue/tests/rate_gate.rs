//! A rate for all tenants together, and pauses.

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::stress::{Watch, caller};
use super::*;
use crate::common::policy::Rate;

fn queue_with(slots: usize, rate: &str) -> Arc<Queue> {
    let gate = RateGate::new(rate.parse().unwrap());
    gated(slots, Arc::new(gate))
}

/// A tenant that always has more calls than it gets.
#[derive(Clone, Copy)]
struct Backlogged {
    name: &'static str,
    weight: u32,
    callers: usize,
    takes: Duration,
}

/// Returns when the calls of each tenant began, over this time.
async fn begun(queue: &Arc<Queue>, tenants: &[Backlogged], time: Duration) -> Vec<Vec<Instant>> {
    let end = Instant::now() + time;
    let mut all = vec![];
    for &Backlogged { name, weight, callers, takes } in tenants {
        let begun = Arc::new(Mutex::new(vec![]));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (queue, begun) = (queue.clone(), begun.clone());
            tasks.spawn(async move {
                let tenant = tenant(name);
                while Instant::now() < end {
                    let entry = queue.enqueue(&tenant, weight, 0);
                    let Ok(permit) = entry.acquire(MS, end).await else { return };
                    begun.lock().push(Instant::now());
                    sleep(takes).await;
                    drop(permit);
                }
            });
        }
        all.push((begun, tasks));
    }
    let mut result = vec![];
    for (begun, tasks) in all {
        tasks.join_all().await;
        result.push(std::mem::take(&mut *begun.lock()));
    }
    result
}

const ALONE: Backlogged =
    Backlogged { name: "a", weight: 1, callers: 50, takes: Duration::from_millis(3) };

fn gated(slots: usize, gate: Arc<RateGate>) -> Arc<Queue> {
    Queue::new(slots, QueueOptions { gate: Some(gate), ..QueueOptions::default() })
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_used_up_and_exceeded_in_no_window() {
    for rate in ["1/s", "7/s", "20/s", "300/s", "3000/s", "30/min", "6000/min", "1000/h"] {
        let parsed: Rate = rate.parse().unwrap();
        let (count, period) = (parsed.count() as usize, parsed.period());
        let queue = queue_with(64, rate);
        // Long idle, which must not add up.
        sleep(10 * period).await;
        let begun = begun(&queue, &[ALONE], 4 * period).await.remove(0);
        assert!(begun.len() >= 4 * count * 99 / 100, "{} calls at {rate}", begun.len());
        for (n, &from) in begun.iter().enumerate() {
            let within = begun[n..].partition_point(|&at| at < from + period);
            assert!(within <= count + count / 20, "{within} calls in a time of {rate}");
        }
        assert_at_rest(&queue, 64);
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_take_turns_at_the_gate_whatever_their_calls_take() {
    let queue = queue_with(64, "20/s");
    let quick = Backlogged { name: "quick", weight: 1, callers: 50, takes: MS };
    let tenants = [
        quick,
        Backlogged { name: "slow", takes: 500 * MS, ..quick },
        Backlogged { name: "few", callers: 8, ..quick },
        Backlogged { name: "heavy", weight: 3, ..quick },
    ];
    let begun = begun(&queue, &tenants, 300 * SECOND).await;
    let counts: Vec<_> = begun.iter().map(Vec::len).collect();
    for (count, weight) in counts.iter().zip([1, 1, 1, 3]) {
        assert!(count.abs_diff(weight * 1000) <= weight * 20, "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn queues_that_share_a_gate_keep_its_rate_together_and_take_turns() {
    let gate = Arc::new(RateGate::new("20/s".parse().unwrap()));
    let queues = [(); 3].map(|()| gated(64, gate.clone()));
    let [a, b, c] = &queues;
    let time = 100 * SECOND;
    let begun =
        tokio::join!(begun(a, &[ALONE], time), begun(b, &[ALONE], time), begun(c, &[ALONE], time));
    let counts = [begun.0, begun.1, begun.2].map(|begun| begun[0].len());
    let together: usize = counts.iter().sum();
    assert!((1960..=2001).contains(&together), "{counts:?}");
    assert!(counts.iter().all(|count| count.abs_diff(667) < 20), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_was_idle_lets_a_call_through_at_once() {
    let queue = queue_with(4, "10/s");
    for _ in 0..50 {
        let began = Instant::now();
        drop(acquire(&queue, "a").await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(acquire_within(&queue, "b", 99 * MS).await.err(), Some(QueueError::Expired));
        sleep(MS).await;
    }
    assert_at_rest(&queue, 4);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_all_and_then_releases_all() {
    let queue = Queue::new(8, QueueOptions::default());
    let running = acquire(&queue, "a").await.unwrap();
    let began = Instant::now();
    pause_all(&queue, began + 10 * SECOND);
    let mut calls = vec![];
    for name in ["a", "b", "a", "c"] {
        calls.push(waiting(&queue, name, 0).await);
    }
    drop(running);
    pause_all(&queue, began + 5 * SECOND);
    sleep(6 * SECOND).await;
    assert!(acquire(&queue, "d").await.is_err(), "the pause was shortened");
    pause_all(&queue, began + 20 * SECOND);
    sleep(12 * SECOND).await;
    assert_eq!(waiting_calls(&queue), 4);
    for call in calls {
        assert!(call.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), 20 * SECOND);
    }
    assert_at_rest(&queue, 8);
    let began = Instant::now();
    assert!(acquire(&queue, "a").await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_which_nobody_came_ends_in_time() {
    let queue = Queue::new(1, QueueOptions::default());
    pause_all(&queue, Instant::now() + SECOND);
    sleep(SECOND).await;
    let began = Instant::now();
    assert!(acquire(&queue, "a").await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!queue.slots.has_waiting());
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_gate_end_at_their_deadline_or_when_they_are_dropped() {
    let queue = Queue::new(2, QueueOptions::default());
    pause_all(&queue, Instant::now() + 3600 * SECOND);
    let began = Instant::now();
    assert_eq!(acquire(&queue, "a").await.err(), Some(QueueError::Expired));
    assert_eq!(began.elapsed(), SECOND);
    let given_up = waiting(&queue, "a", 0).await;
    let stays = waiting(&queue, "b", 0).await;
    given_up.abort();
    assert!(given_up.await.is_err());
    assert_eq!(waiting_calls(&queue), 1);
    let too_large = queue.enqueue(&tenant("c"), 1, WAITING_BYTES_MAX + 1);
    assert_eq!(too_large.acquire(MS, began + 60 * SECOND).await.err(), Some(QueueError::Full));
    assert!(stays.await.unwrap().is_ok());
    assert!(acquire(&queue, "a").await.is_ok());
    assert_at_rest(&queue, 2);
}

#[tokio::test(start_paused = true)]
async fn one_timer_serves_all_and_is_gone_with_the_queue() {
    let queue = queue_with(64, "10/s");
    let mut calls = vec![];
    for _ in 0..30 {
        calls.push(waiting(&queue, "a", 0).await);
    }
    sleep(450 * MS).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), waiting_calls(&queue) + 1);
    calls.iter().for_each(JoinHandle::abort);
    for call in calls {
        let _ = call.await;
    }
    sleep(SECOND).await;
    assert_eq!(tasks(), 0, "nobody waits");
    pause_all(&queue, Instant::now() + 3600 * SECOND);
    let call = waiting(&queue, "a", 0).await;
    assert_eq!(tasks(), 2);
    call.abort();
    assert!(call.await.is_err());
    drop(queue);
    until(|| tasks() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_may_be_dropped_outside_of_a_runtime() {
    let queue = queue_with(1, "10/s");
    let permit = acquire(&queue, "a").await.unwrap();
    sleep(SECOND).await;
    let [first, second] = [waiting(&queue, "a", 0).await, waiting(&queue, "b", 0).await];
    std::thread::spawn(|| drop(permit)).join().unwrap();
    let permit = first.await.unwrap().unwrap();
    std::thread::spawn(|| drop(permit)).join().unwrap();
    let began = Instant::now();
    assert!(second.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 100 * MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_at_a_gate_between_many_threads() {
    let queue = queue_with(stress::SLOTS, "100000/s");
    drop(acquire(&queue, "t0").await.unwrap());
    drop(acquire(&queue, "t1").await.unwrap());
    let (watch, limit) = (Arc::new(Watch::default()), queue.slots.limit());
    let mut callers = JoinSet::new();
    for n in 0..60 {
        callers.spawn(caller(queue.clone(), watch.clone(), n, limit));
    }
    let pause = tokio::spawn({
        let queue = queue.clone();
        async move {
            loop {
                sleep(20 * MS).await;
                pause_all(&queue, Instant::now() + 2 * MS);
            }
        }
    });
    let all = tokio::time::timeout(50 * SECOND, callers.join_all()).await;
    pause.abort();
    let _ = pause.await;
    assert!(all.is_ok(), "somebody waits for ever");
    assert!(acquire(&queue, "t0").await.is_ok());
    assert_at_rest(&queue, stress::SLOTS as i64);
}
