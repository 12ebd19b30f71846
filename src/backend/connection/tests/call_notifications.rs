use super::*;
use crate::common::byte_budget::ByteBudget;

fn progress(text: &str) -> CallNotification {
    CallNotification::Progress(Bytes::copy_from_slice(text.as_bytes()))
}

fn long_progress(len: usize) -> CallNotification {
    CallNotification::Progress(Bytes::from(vec![b' '; len]))
}

fn log(len: usize) -> CallNotification {
    CallNotification::Log(Bytes::from(vec![b' '; len]))
}

fn drain(notifications: &mut CallNotifications) -> Vec<CallNotification> {
    std::iter::from_fn(|| notifications.try_recv()).collect()
}

#[test]
fn a_burst_waits_whole_and_in_order() {
    let (sender, mut notifications) = NotificationSender::new(None, None);
    for n in 0..1000 {
        assert_eq!(sender.send(progress(&n.to_string())), Passed::On);
    }
    let burst: Vec<_> = (0..1000).map(|n| progress(&n.to_string())).collect();
    assert_eq!(drain(&mut notifications), burst);
}

#[test]
fn the_newest_progress_takes_the_place_of_the_oldest() {
    let (sender, mut notifications) = NotificationSender::new(None, None);
    let most = WAITING_BYTES_MAX / NOTIFICATION_COST;
    let dropped: u64 = (0..2 * most)
        .map(|n| match sender.send(progress(&n.to_string())) {
            Passed::Dropped(count) => count,
            Passed::On | Passed::Unwanted => 0,
        })
        .sum();
    let waiting = drain(&mut notifications);
    assert_eq!(waiting.last(), Some(&progress(&(2 * most - 1).to_string())));
    assert_eq!((waiting.len() as u64) + dropped, 2 * most as u64);
    assert!(waiting.len() > most / 2, "{}", waiting.len());
}

#[test]
fn log_lines_are_bounded_and_never_displace_progress_nor_progress_them() {
    let (sender, mut notifications) = NotificationSender::new(None, None);
    assert_eq!(sender.send(progress("first")), Passed::On);
    while sender.send(log(1)) == Passed::On {}
    assert_eq!(sender.send(log(1)), Passed::Dropped(1));
    assert_eq!(sender.send(progress("second")), Passed::Dropped(1));
    assert_eq!(sender.send(progress("third")), Passed::Dropped(1));
    let waiting = drain(&mut notifications);
    assert_eq!(waiting.last(), Some(&progress("third")));
    assert_eq!(waiting.iter().filter(|it| it.is_progress()).count(), 1);
    assert!(waiting.len() >= WAITING_BYTES_MAX / NOTIFICATION_COST * 9 / 10, "{}", waiting.len());
    assert_eq!(sender.send(log(1)), Passed::On);
}

#[test]
fn a_single_one_may_be_of_any_size() {
    let (sender, mut notifications) = NotificationSender::new(None, None);
    assert_eq!(sender.send(log(2 * WAITING_BYTES_MAX)), Passed::On);
    assert_eq!(sender.send(log(1)), Passed::Dropped(1));
    assert!(notifications.try_recv().is_some());
    assert_eq!(sender.send(log(1)), Passed::On);
}

#[test]
fn waiting_notifications_count_among_the_unsent_bytes_of_their_tenant() {
    const ROOM: usize = 1 << 20;
    let unsent = ByteBudget::new(ROOM, 4 * ROOM).tenant();
    let (sender, mut notifications) = NotificationSender::new(None, Some(unsent.clone()));
    assert_eq!(sender.send(long_progress(ROOM - NOTIFICATION_COST)), Passed::On);
    assert_eq!(unsent.held(), ROOM);
    let (other, mut waiting) = NotificationSender::new(None, Some(unsent.clone()));
    assert_eq!(other.send(long_progress(ROOM / 2)), Passed::Dropped(1), "beyond the budget");
    // What displaces its like takes no more room than that had.
    assert_eq!(sender.send(long_progress(ROOM - NOTIFICATION_COST)), Passed::Dropped(1));
    assert_eq!(unsent.held(), ROOM);
    assert!(notifications.try_recv().is_some());
    assert_eq!(other.send(long_progress(ROOM / 2)), Passed::On);
    assert!(waiting.try_recv().is_some());
    drop(waiting);
    assert_eq!(other.send(log(1)), Passed::Dropped(1));
    assert_eq!(unsent.held(), 0);
}

#[tokio::test]
async fn the_receiver_ends_when_the_last_sender_is_gone() {
    let (sender, mut notifications) = NotificationSender::new(None, None);
    let other = sender.clone();
    sender.send(progress("1"));
    drop(sender);
    assert_eq!(notifications.recv().await, Some(progress("1")));
    let waiting = tokio::spawn(async move { notifications.recv().await });
    drop(other);
    assert_eq!(waiting.await.unwrap(), None);
}
