//! One replica is cut off from the database, then from Valkey, then from a server over HTTP, and
//! joined again each time.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::calls::{Call, Outcome, Server, Told};
use crate::docker::eventually;
use crate::limit::{metered, offer, offer_undisturbed};
use crate::load::kinds;
use crate::report::{Case, seconds};
use crate::stack::Stack;
use crate::work::{self, at_once, count};

/// Callers of `std` who must not notice anything, all the time.
const CALLERS: usize = 6;
/// Calls at once, where what becomes of each is looked at.
const CALLS: usize = 30;
/// Questions about a key that a replica cannot look up.
const STRANGERS: usize = 5;
/// The part of the rate that may be admitted while one replica does not see Valkey; no tenant may
/// be starved.
const PART_MAX: f64 = 1.5;
const PART_MIN: f64 = 0.9;
/// How exactly that is measured.
const PART_NOISE: f64 = 0.02;
/// The deadline of calls to the server that is cut off, and how much later they may end.
const DEADLINE: Duration = Duration::from_secs(2);
const DEADLINE_NOISE: Duration = Duration::from_secs(1);
/// The codes of a server that cannot be reached, or does not answer.
pub const LOST: [Told; 3] =
    [("server_unavailable", "no"), ("deadline_exceeded", "no"), ("deadline_exceeded", "unknown")];
/// The time for everything to be as before.
const HEALED_WITHIN: Duration = Duration::from_secs(40);

pub async fn run(stack: &Stack, case: &mut Case, time: Duration) -> Result<()> {
    let load = work::start(stack, CALLERS, work::of_std).await?;
    database(stack, case).await?;
    valkey(stack, case, time).await?;
    backend(stack, case).await?;
    let seen = load.end().await?;
    let what = format!("of {} calls of `std` beside all that, failed", seen.calls);
    case.none(&what, seen.failures.len());
    if !seen.failures.is_empty() {
        case.note("they were told", seen.kinds());
    }
    Ok(())
}

/// Known keys go on; one that is not known cannot be looked up, which does not mean that it is
/// wrong.
async fn database(stack: &Stack, case: &mut Case) -> Result<()> {
    let [cut, whole] = &stack.gateways;
    stack.cut(cut, "db").await?;
    let late = stack.make_tenant("late", &["--servers", "std"]).await?;
    let known = at_once(&stack.caller(&stack.amber, &cut.url), CALLS, work::quick).await;
    case.all("without PostgreSQL: known keys, right", count(&known, is_right), CALLS);
    let stranger = stack.caller(&late, &cut.url);
    let (mut unknown, mut longest) = (vec![], Duration::ZERO);
    for _ in 0..STRANGERS {
        let began = Instant::now();
        unknown.push(stranger.call(&Call::echo(Server::Std)).await);
        longest = longest.max(began.elapsed());
    }
    let refused = count(&unknown, |it| it.has_code("auth_unavailable"));
    case.all("a new key, 503 `auth_unavailable`", refused, STRANGERS);
    case.note("the longest of them took", seconds(longest));
    case.note("the other replica knows it after", seconds(stack.is_known(&late, whole).await?));
    stack.join(cut, "db").await?;
    let began = Instant::now();
    let healed = async || is_right(&stranger.call(&Call::echo(Server::Std)).await).then_some(());
    eventually("the new key is known", HEALED_WITHIN, healed).await?;
    case.note("joined again, it knows it after", seconds(began.elapsed()));
    Ok(())
}

/// The one that does not see Valkey goes by its part of the rate, the other by all of it.
async fn valkey(stack: &Stack, case: &mut Case, time: Duration) -> Result<()> {
    let cut = &stack.gateways[0];
    let tenant = metered(stack, "metered-too").await?;
    let up = async |wanted: f64| {
        let look = async || {
            (cut.metric("trunkline_shared_limits_up", "").await.ok()? == wanted).then_some(())
        };
        eventually("Valkey is seen, or not", HEALED_WITHIN, look).await
    };
    stack.cut(cut, "cache").await?;
    up(0.0).await?;
    let apart = offer(stack, &tenant, time).await?;
    let most = PART_MAX + 2.0 * PART_NOISE;
    let aim = format!("{:.0} to {:.0} %", 100.0 * PART_MIN, 100.0 * most);
    let is_good = (PART_MIN..=most).contains(&apart.part);
    case.check("without Valkey: let through, of the rate", apart.part(), aim, is_good);
    case.note("by each replica", apart.by_each());
    case.none("failed otherwise", apart.failures.len());
    stack.join(cut, "cache").await?;
    let began = Instant::now();
    up(1.0).await?;
    case.note("joined again, it sees Valkey after", seconds(began.elapsed()));
    let together = offer_undisturbed(stack, &tenant, time).await?;
    let is_good = (together.part - 1.0).abs() <= PART_NOISE;
    case.check("then let through", together.part(), "98 to 102 %", is_good);
    Ok(())
}

/// Only calls to that server fail, only there, in time and with a code.
async fn backend(stack: &Stack, case: &mut Case) -> Result<()> {
    let [cut, whole] = &stack.gateways;
    stack.cut(cut, "tools").await?;
    let (here, there) =
        (stack.caller(&stack.amber, &cut.url), stack.caller(&stack.amber, &whole.url));
    let began = Instant::now();
    let lost = at_once(&here, CALLS, |_| Call::echo(Server::Everything).within(DEADLINE)).await;
    let took = began.elapsed();
    let told = count(&lost, |it| it.is_told(&LOST));
    case.all("without `everything`: its calls failed, and were told so", told, CALLS);
    case.within("the longest took", took, DEADLINE + DEADLINE_NOISE);
    case.note("with", kinds(lost.iter()));
    let others = at_once(&here, CALLS, work::quick).await;
    case.all("`std` beside it, right", count(&others, is_right), CALLS);
    let others = at_once(&there, CALLS, |_| Call::echo(Server::Everything)).await;
    case.all("`everything` by the other replica, right", count(&others, is_right), CALLS);
    stack.join(cut, "tools").await?;
    let began = Instant::now();
    let echo = || Call::echo(Server::Everything).within(DEADLINE);
    let healed = async || is_right(&here.call(&echo()).await).then_some(());
    eventually("`everything` is reached", HEALED_WITHIN, healed).await?;
    case.note("joined again, it answers after", seconds(began.elapsed()));
    Ok(())
}

pub fn is_right(outcome: &Outcome) -> bool {
    *outcome == Outcome::Right
}
