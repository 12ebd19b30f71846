//! The line as operators see it is the order in which calls are served.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::advance;

use super::*;
use crate::common::ids::CallId;

const DISPATCHES: usize = 10_000;
/// More than any test has served at once.
const SERVED_MAX: usize = 1_000;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

struct Named(CallId);

impl DescribeCall for Named {
    fn describe(&self) -> WaitingInfo {
        let deadline = Instant::now() + 3600 * SECOND;
        WaitingInfo { call: self.0, target: "tool".into(), tags: None, deadline }
    }
}

/// A call that got its slot: its id, how long it takes, and its permit.
type Served = (CallId, Duration, SlotPermit);

/// Has a call of a tenant wait; it takes exactly as long as calls of its tool usually do. Returns
/// when the call waits, or has its slot.
async fn wait(queue: &Arc<Queue>, who: usize, took: Duration, served: &Sender<Served>) {
    let (queue, served, call) = (queue.clone(), served.clone(), CallId::generate());
    let (has_come, came) = oneshot::channel();
    tokio::spawn(async move {
        let named = Named(call);
        let entry = queue.enqueue(&tenant(NAMES[who]), who as u32 % 3 + 1, 0).of(&named);
        let deadline = Instant::now() + 3600 * SECOND;
        // Nothing is awaited between this and the backlog.
        let must_wait = |_| drop(has_come);
        if let Ok(permit) = entry.acquire_or_wait(took, deadline, must_wait).await {
            let _ = served.try_send((call, took, permit));
        }
    });
    let _: Result<(), _> = came.await;
}

fn line(queue: &Queue) -> Vec<CallId> {
    queue.view(300).line.iter().map(|it| it.info.as_ref().unwrap().call).collect()
}

/// Returns how often the first in line was served next, and how many calls were served out of
/// turn, by a slot of the reserve.
async fn compare(slots: usize) -> (usize, usize) {
    let queue = Queue::new(slots, QueueOptions::default());
    let mut random = StdRng::seed_from_u64(7);
    let (sender, mut served) = channel(SERVED_MAX);
    let mut running: Vec<(Instant, CallId, SlotPermit)> = vec![];
    let (mut in_turn, mut out_of_turn) = (0, 0);
    for _ in 0..slots {
        wait(&queue, random.random_range(0..NAMES.len()), MS, &sender).await;
    }
    while in_turn + out_of_turn < DISPATCHES {
        while waiting_calls(&queue) < 30 {
            let took = MS * random.random_range(1..9);
            wait(&queue, random.random_range(0..NAMES.len()), took, &sender).await;
        }
        while let Ok((call, took, permit)) = served.try_recv() {
            running.push((Instant::now() + took, call, permit));
        }
        let first = running.iter().enumerate().min_by_key(|(_, (end, ..))| *end);
        let at = first.map(|(at, _)| at).expect("somebody holds a slot");
        let (end, _, permit) = running.remove(at);
        advance(end - Instant::now()).await;
        let (expected, is_open) = (line(&queue), permit.grant.slot == SlotKind::Open);
        drop(permit);
        tokio::task::yield_now().await;
        for nth in 0.. {
            let Ok((call, took, permit)) = served.try_recv() else { break };
            if is_open && nth == 0 {
                assert_eq!(call, expected[0], "after {in_turn} calls");
                in_turn += 1;
            } else {
                assert!(expected.contains(&call));
                out_of_turn += 1;
            }
            running.push((Instant::now() + took, call, permit));
        }
    }
    (in_turn, out_of_turn)
}

#[tokio::test(start_paused = true)]
async fn the_first_in_line_is_served_next() {
    assert_eq!(compare(1).await, (DISPATCHES, 0));
    let (in_turn, out_of_turn) = compare(8).await;
    assert!(in_turn > out_of_turn, "{in_turn} {out_of_turn}");
}

#[tokio::test(start_paused = true)]
async fn the_whole_line_is_served_in_its_order_if_nobody_comes() {
    let queue = Queue::new(1, QueueOptions::default());
    let mut random = StdRng::seed_from_u64(9);
    let (sender, mut served) = channel(SERVED_MAX);
    // Nobody else of this tenant waits: a call that finds a free slot is charged at its end.
    let others = NAMES.len() - 1;
    wait(&queue, others, MS, &sender).await;
    for _ in 0..200 {
        let took = MS * random.random_range(1..9);
        wait(&queue, random.random_range(0..others), took, &sender).await;
    }
    let (_, mut took, mut permit) = served.recv().await.unwrap();
    let mut order = vec![];
    let expected = line(&queue);
    assert_eq!(expected.len(), 200);
    for _ in 0..200 {
        advance(took).await;
        drop(permit);
        let (call, next, next_permit) = served.recv().await.unwrap();
        order.push(call);
        (took, permit) = (next, next_permit);
    }
    let differs = order.iter().zip(&expected).position(|(left, right)| left != right);
    assert_eq!(differs, None, "the first call that differs");
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_serves_nobody_and_a_cancelled_call_is_told() {
    let queue = Queue::new(4, QueueOptions::default());
    queue.hold(true);
    let (sender, mut served) = channel(SERVED_MAX);
    wait(&queue, 0, MS, &sender).await;
    wait(&queue, 1, MS, &sender).await;
    tokio::task::yield_now().await;
    assert!(served.try_recv().is_err() && queue.is_held());
    let waiting = line(&queue);
    assert_eq!(waiting.len(), 2);
    assert_eq!(queue.tenant_of(waiting[0]), Some(tenant("a")));
    let named = Named(CallId::generate());
    let entry = queue.enqueue(&tenant("c"), 1, 0).of(&named);
    let (cancelled, ()) = tokio::join!(entry.acquire(MS, Instant::now() + SECOND), async {
        tokio::task::yield_now().await;
        assert!(queue.cancel(named.0) && !queue.cancel(named.0));
    });
    assert_eq!(cancelled.err(), Some(QueueError::Cancelled));
    assert_eq!(line(&queue), waiting);
    queue.hold(false);
    for call in waiting {
        let (granted, ..) = served.recv().await.unwrap();
        assert_eq!(granted, call);
    }
}
