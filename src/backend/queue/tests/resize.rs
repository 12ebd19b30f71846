//! Slots that change while they are in use.

use proptest::collection::vec;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;

use super::stress::{Watch, caller};
use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const SIZE_MAX: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    /// Changes the slots, and those left free.
    Resize(usize, usize),
    Call(usize),
    /// Drops one of the permits.
    Release(usize),
    /// Drops one of the waiting calls.
    StopWaiting(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..=SIZE_MAX, 0..=SIZE_MAX)
            .prop_map(|(size, free)| Step::Resize(size, free.min(size))),
        1 => (0..=SIZE_MAX).prop_map(|size| Step::Resize(size, 0)),
        6 => (0..NAMES.len()).prop_map(Step::Call),
        4 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::StopWaiting),
    ]
}

type Call = (usize, JoinHandle<Result<SlotPermit, QueueError>>);

/// Everything that can be known of the queue from outside.
struct Model {
    queue: Arc<Queue>,
    size: usize,
    left_free: usize,
    held: Vec<(usize, SlotPermit)>,
    waiting: Vec<Call>,
}

impl Model {
    async fn new(size: usize) -> Self {
        let queue = Queue::new(SIZE_MAX, QueueOptions::default());
        // From here on it is shared.
        for name in NAMES {
            drop(acquire(&queue, name).await.unwrap());
        }
        queue.set_slots(size, 0);
        Self { queue, size, left_free: 0, held: vec![], waiting: vec![] }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Resize(size, left_free) => {
                (self.size, self.left_free) = (size, left_free);
                self.queue.set_slots(size, left_free);
            }
            Step::Call(tenant) => {
                let call = waiting(&self.queue, NAMES[tenant], 0).await;
                self.waiting.push((tenant, call));
            }
            Step::Release(n) if !self.held.is_empty() => {
                drop(self.held.remove(n % self.held.len()));
            }
            Step::StopWaiting(n) if !self.waiting.is_empty() => {
                let (_, call) = self.waiting.remove(n % self.waiting.len());
                call.abort();
                assert!(call.await.is_err());
            }
            Step::Release(_) | Step::StopWaiting(_) => {}
        }
        // Calls that got a slot run first.
        tokio::task::yield_now().await;
        for n in (0..self.waiting.len()).rev() {
            if self.waiting[n].1.is_finished() {
                let (tenant, call) = self.waiting.remove(n);
                self.held.push((tenant, call.await.unwrap().unwrap()));
            }
        }
    }

    fn held_by(&self, tenant: usize) -> usize {
        self.held.iter().filter(|(of, _)| *of == tenant).count()
    }

    fn check(&self, held_before: &[usize; 3]) {
        let reserve = if self.size < 2 { 0 } else { (self.size / 4).max(1) };
        let limit = self.size - reserve;
        let before = held_before.iter().sum::<usize>();
        assert!(self.held.len() <= before.max(self.size), "{} of {}", self.held.len(), self.size);
        // A tenant that holds none, or has just released its only one, may have slots left free.
        let newcomers = (0..3).filter(|&it| held_before[it] <= 1 && self.held_by(it) > 0).count();
        let given_out = before.max(self.size - self.left_free) + newcomers;
        assert!(self.held.len() <= given_out, "{} of {given_out}", self.held.len());
        for (tenant, &before) in held_before.iter().enumerate() {
            let held = self.held_by(tenant);
            assert!(held <= before.max(limit), "{held} held, and {limit} are allowed");
        }
        let free = self.size.saturating_sub(self.held.len());
        let (_, free_reserved, _) = self.queue.slots.counts();
        for (tenant, _) in &self.waiting {
            let held = self.held_by(*tenant);
            assert!(
                free == 0 || held > 0 || (free <= self.left_free && free_reserved <= 0),
                "it holds none, waits, and {free} are free"
            );
            assert!(
                free <= reserve.max(self.left_free) || held >= limit,
                "it holds {held}, waits, and {free} are free"
            );
        }
    }

    async fn end(mut self) {
        for (_, call) in self.waiting.drain(..) {
            call.abort();
            assert!(call.await.is_err());
        }
        self.held.clear();
        assert_at_rest(&self.queue, self.size as i64);
    }
}

proptest! {
    #[test]
    fn slots_may_change_at_any_time(size in 0..=SIZE_MAX, steps in vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new(size).await;
            for step in steps {
                let held_before = [0, 1, 2].map(|tenant| model.held_by(tenant));
                model.take(step).await;
                model.check(&held_before);
            }
            model.end().await;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn without_slots_calls_wait_for_the_first_one_until_their_deadline() {
    let queue = Queue::new(0, QueueOptions::default());
    let began = Instant::now();
    assert_eq!(acquire(&queue, "a").await.err(), Some(QueueError::Expired));
    assert_eq!(began.elapsed(), SECOND);
    let [first, second] = [waiting(&queue, "a", 0).await, waiting(&queue, "a", 0).await];
    queue.set_slots(1, 0);
    let permit = first.await.unwrap().unwrap();
    assert!(!second.is_finished());
    queue.set_slots(0, 0);
    drop(permit);
    assert!(acquire(&queue, "b").await.is_err());
    assert!(!second.is_finished(), "it was given a slot that was taken away");
    queue.set_slots(1, 0);
    assert!(second.await.unwrap().is_ok());
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn new_slots_go_to_waiting_tenants_by_turns() {
    let queue = Queue::new(1, QueueOptions::default());
    let _permit = acquire(&queue, "a").await.unwrap();
    let mut flood = vec![];
    for _ in 0..8 {
        flood.push(waiting(&queue, "a", 0).await);
    }
    let others = [waiting(&queue, "b", 0).await, waiting(&queue, "c", 0).await];
    queue.set_slots(4, 0);
    // One more of a's, and one for each of the others.
    for other in others {
        assert!(other.await.unwrap().is_ok());
    }
    assert_eq!(flood.iter().filter(|call| call.is_finished()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_tenant_follows_the_number_of_slots() {
    let queue = Queue::new(2, QueueOptions::default());
    drop(acquire(&queue, "quiet").await.unwrap());
    let mut held = vec![];
    for (slots, expected) in [(2, 1), (4, 3), (16, 12), (8, 12), (20, 15)] {
        queue.set_slots(slots, 0);
        while let Ok(permit) = acquire_within(&queue, "hog", MS).await {
            held.push(permit);
        }
        assert_eq!(held.len(), expected, "of {slots}");
    }
    assert!(acquire_within(&queue, "quiet", MS).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_while_slots_come_and_go() {
    let queue = Queue::new(stress::SLOTS, QueueOptions::default());
    drop(acquire(&queue, "t0").await.unwrap());
    drop(acquire(&queue, "t1").await.unwrap());
    let (watch, limit) = (Arc::new(Watch::default()), queue.slots.limit());
    let mut callers = JoinSet::new();
    for n in 0..60 {
        callers.spawn(caller(queue.clone(), watch.clone(), n, limit));
    }
    let resize = tokio::spawn({
        let (queue, mut random) = (queue.clone(), StdRng::seed_from_u64(7));
        async move {
            loop {
                queue.set_slots(random.random_range(0..=stress::SLOTS), 0);
                tokio::task::yield_now().await;
            }
        }
    });
    let all = tokio::time::timeout(50 * SECOND, callers.join_all()).await;
    resize.abort();
    let _ = resize.await;
    assert!(all.is_ok(), "somebody waits for ever");
    queue.set_slots(stress::SLOTS, 0);
    assert_at_rest(&queue, stress::SLOTS as i64);
}
