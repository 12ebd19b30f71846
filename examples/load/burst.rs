//! Many calls at one moment: how long until the last one has its answer?

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Client;
use crate::exchange::Exchange;
use crate::options::Options;
use crate::target::Target;

const REPEATS: usize = 10;

pub async fn run(options: &Options, calls: usize) -> Result<ExitCode> {
    for front in options.fronts() {
        let target = Target::open(*front, options).await?;
        let mut times = measure(&target, options, calls).await?;
        target.stop().await;
        // From the first request to the last answer.
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        println!(
            "{}: {calls} calls of sleep {} ms at once, {REPEATS} times: until \
             the last answer {:.1} ms (median), {:.1} ms (max)",
            front.name(),
            options.sleep_ms,
            ms((times[REPEATS / 2 - 1] + times[REPEATS / 2]) / 2),
            ms(times[REPEATS - 1]),
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(target: &Target, options: &Options, calls: usize) -> Result<Vec<Duration>> {
    let start = Arc::new(Barrier::new(calls));
    let mut callers = JoinSet::new();
    for number in 0..calls {
        let mut client = Client::connect(target.address()).await?;
        let mut echo = Exchange::echo(target, options.body, number);
        let mut sleep = Exchange::sleep(target, options.sleep_ms);
        let start = start.clone();
        callers.spawn(async move {
            call(&mut client, &mut echo).await?;
            let mut times = Vec::with_capacity(REPEATS);
            for _ in 0..REPEATS {
                start.wait().await;
                let begin = Instant::now();
                call(&mut client, &mut sleep).await?;
                times.push(begin..Instant::now());
            }
            anyhow::Ok(times)
        });
    }
    let mut times: Vec<Range<Instant>> = vec![];
    while let Some(caller) = callers.join_next().await {
        let callers_times = caller??;
        if times.is_empty() {
            times = callers_times;
            continue;
        }
        for (all, own) in times.iter_mut().zip(callers_times) {
            *all = all.start.min(own.start)..all.end.max(own.end);
        }
    }
    Ok(times.into_iter().map(|time| time.end - time.start).collect())
}

async fn call(client: &mut Client, exchange: &mut Exchange) -> Result<()> {
    let answer = client.call(exchange.next()).await?;
    if answer.status != 200 || !exchange.is_own(answer.body) {
        bail!("status {}: {}", answer.status, String::from_utf8_lossy(answer.body));
    }
    Ok(())
}
