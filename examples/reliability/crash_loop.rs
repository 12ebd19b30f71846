//! How often a server that always fails is started. Takes a while, and little else: runs beside the
//! other rows.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::figure::Figure;
use crate::target::{Bad, Setup, Target};

/// For so long it is watched.
const TIME: Duration = Duration::from_secs(45);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// So many starts may come soon, and those after them only seldom.
const EARLY: usize = 5;
const EARLY_WITHIN: Duration = Duration::from_secs(10);
const LATER_WITHIN: Duration = Duration::from_secs(30);

pub async fn watch() -> Result<Vec<Figure>> {
    let bad = Bad { option: Some("start=fail"), ..Bad::default() };
    let target = Target::start(Setup { bad, ..Setup::default() }).await?;
    let began = Instant::now();
    target.call("raw", "{}".to_owned(), TIME).await?;
    let mut starts = vec![];
    while began.elapsed() < TIME {
        starts.resize(target.starts(), began.elapsed());
        sleep(LOOK_EVERY).await;
    }
    target.stop().await;
    let later = starts.get(EARLY - 1..).unwrap_or_default();
    Ok(vec![
        Figure::new("starts in 10 s", most(&starts, EARLY_WITHIN), "", EARLY as f64),
        Figure::new("starts in 30 s, from the fifth on", most(later, LATER_WITHIN), "", 1.0),
        Figure::new("starts in 45 s", starts.len() as f64, "", None),
    ])
}

/// The most of these times that lie within one such span.
fn most(times: &[Duration], span: Duration) -> f64 {
    let count =
        |first: &Duration| times.iter().filter(|it| (*first..*first + span).contains(it)).count();
    times.iter().map(count).max().unwrap_or_default() as f64
}
