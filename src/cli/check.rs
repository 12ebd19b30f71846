//! `trunkline check`

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::output::print;
use super::serial_check::{Trial, TrialCall};
use super::{ConfigArgs, Loaded, load_silently, sources, with_store};
use crate::app::pin_sync::definition;
use crate::backend::Environment;
use crate::backend::changes::recipients::Recipients;
use crate::backend::connection::CloseReason;
use crate::backend::instance::run::{Launch, Run};
use crate::backend::instance::start_error::StartError;
use crate::backend::stdio::sandbox::{Kernel, Plan, PlanError, plan};
use crate::common::ids::ServerId;
use crate::common::suggest::did_you_mean;
use crate::config::{Config, LeftOut, LeftOutReason, Transport};
use crate::pins::{Definition, printable, within_bounds};
use crate::store::{Missing, Store, StoreError};
use crate::telemetry::logging;
use crate::telemetry::metrics::Metrics;
use crate::tenants::secrets::wanted;

const HEADER: [&str; 7] = ["SERVER", "STATUS", "PROTOCOL", "ERA", "TOOLS", "START", "NAME"];

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Call a tool four times at once, and tell whether its server looks serial; repeatable.
    /// Choose a call that does no harm and takes half a second or more
    #[arg(long = "call", value_name = "SERVER/TOOL [JSON]")]
    calls: Vec<TrialCall>,
}

/// The result for one server. Text of servers passes through [`printable`], so that it cannot pose
/// as this command's own.
struct Report {
    server: ServerId,
    outcome: Result<Found, StartError>,
    /// The confinement of its program, if it has one and this kernel can enforce it.
    confined: Option<Plan>,
    took: Duration,
}

struct Found {
    protocol: String,
    era: String,
    name: String,
    tools: Vec<String>,
    /// Tools that nobody sees or can call, with the reasons; mostly empty.
    left_out: String,
    /// The definitions of the tools, if the server is pinned.
    pinned: Option<Vec<Definition>>,
    trials: Vec<(TrialCall, Trial)>,
}

#[tokio::main]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    logging::init_errors()?;
    let Loaded { config, origin, own_program } = load_silently(&sources(args.config, None)?)?;
    if let Some(call) = args.calls.iter().find(|call| !config.servers.contains_key(&call.server)) {
        bail!("`--call` names the server `{}`, which is not configured", call.server);
    }
    print(&format!("configuration: {origin}\n"))?;
    for warning in &config.warnings {
        print(&format!("warning: {}\n", printable(warning)))?;
    }
    let environment = Environment::new(own_program, config.max_response, Metrics::new());
    let mut checks = JoinSet::new();
    let (mut left_out, mut failed) = (String::new(), 0);
    for (server, mut config) in config.servers.clone() {
        // Shows all tools, approved or not.
        let is_pinned = std::mem::take(&mut config.pin);
        if config.needs_connection() {
            left_out +=
                &format!("\n{server} was not started: tenants connect themselves to it (OAuth)\n");
            continue;
        }
        if config.wants_caller_tokens() {
            left_out += &format!(
                "\n{server} was not started: it is called in the name of callers (OAuth)\n"
            );
            continue;
        }
        let secrets = wanted(&config);
        if !secrets.is_empty() {
            let secrets = secrets.join("`, `");
            left_out +=
                &format!("\n{server} was not started: it needs tenants' secrets (`{secrets}`)\n");
            match confined(&config.transport) {
                Ok(plan) => left_out += &render_plan(plan.as_ref(), "configured"),
                Err(error) => {
                    left_out += &format!("  and it cannot be: {error}\n");
                    failed += 1;
                }
            }
            continue;
        }
        let environment = environment.clone();
        let mut calls = args.calls.clone();
        calls.retain(|call| call.server == server);
        checks.spawn(async move {
            let began = Instant::now();
            let never = CancellationToken::new();
            let launch = Launch::only(Recipients::new(server.clone(), None));
            let secrets = Arc::default();
            let run = Run::start(&server, &config, &secrets, &environment, launch, &never).await;
            let took = began.elapsed();
            let outcome = match run {
                Ok(run) => {
                    let mut found = Found::of(&run, is_pinned);
                    for call in calls {
                        let trial = call.make(&run.ready).await;
                        found.trials.push((call, trial));
                    }
                    run.stop(&CloseReason::Stopped).await;
                    Ok(found)
                }
                Err(error) => Err(error),
            };
            let confined = confined(&config.transport).ok().flatten();
            Report { server, outcome, confined, took }
        });
    }
    let ids = config.servers.keys().chain(config.left_out.iter().map(|server| &server.id));
    let widest = ids.map(|id| id.as_str().len()).max().unwrap_or_default();
    print(&line(widest, HEADER))?;
    for server in &config.left_out {
        print(&line(widest, cells_of_left_out(server).each_ref().map(String::as_str)))?;
        failed += usize::from(server.reason != LeftOutReason::Disabled);
    }
    let mut reports = vec![];
    while let Some(report) = checks.join_next().await {
        let report = report.context("a check has panicked")?;
        print(&line(widest, report.cells().each_ref().map(String::as_str)))?;
        reports.push(report);
    }
    reports.sort_by(|a, b| a.server.cmp(&b.server));
    print(&format!("{}{left_out}{}", details(&reports), unmatched_tools(&config, &reports)))?;
    approve_first_use(&config, &reports).await?;
    failed += reports.iter().filter(|report| report.outcome.is_err()).count();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the cells of a server of an MCP client's file that is not started.
fn cells_of_left_out(server: &LeftOut) -> [String; 7] {
    let none = || "-".to_owned();
    let (status, reason) = match &server.reason {
        LeftOutReason::Disabled => ("off", "disabled in the client's file".to_owned()),
        LeftOutReason::Invalid(mistake) => ("FAILED", format!("left out: {}", printable(mistake))),
    };
    [server.id.to_string(), status.to_owned(), none(), none(), none(), none(), reason]
}

/// Warns of grants and limits of tools that their servers do not have.
fn unmatched_tools(config: &Config, reports: &[Report]) -> String {
    let mut text = String::new();
    for (tenant, policy) in &config.tenants {
        let patterns = policy.servers.patterns().chain(policy.limits.keys());
        for pattern in patterns.filter(|pattern| pattern.tool().is_some()) {
            let covered = reports.iter().filter(|it| pattern.covers_part_of(it.server.as_str()));
            let found: Vec<_> =
                covered.filter_map(|it| Some((&it.server, it.outcome.as_ref().ok()?))).collect();
            let has_tool = |(server, found): &(&ServerId, &Found)| {
                found.tools.iter().any(|tool| pattern.covers(server.as_str(), Some(tool)))
            };
            if !found.is_empty() && !found.iter().any(has_tool) {
                let tools = found.iter().flat_map(|(_, found)| &found.tools);
                let meant = did_you_mean(pattern.tool().unwrap_or_default(), tools.map(|it| &**it));
                text += &format!(
                    "\nwarning: tenant `{tenant}`: `{pattern}` matches no tool{}\n",
                    printable(&meant)
                );
            }
        }
    }
    text
}

/// Approves the tools of pinned servers that the store does not know yet: the operator sees them
/// here.
async fn approve_first_use(config: &Config, reports: &[Report]) -> anyhow::Result<()> {
    let pinned: Vec<(&ServerId, &Vec<Definition>)> = reports
        .iter()
        .filter_map(|Report { server, outcome, .. }| {
            Some((server, outcome.as_ref().ok()?.pinned.as_ref()?))
        })
        .collect();
    if pinned.is_empty() {
        return Ok(());
    }
    let approve = async |store: &Store| {
        let mut text = String::new();
        for (server, definitions) in &pinned {
            if store.first_use(server, definitions).await? {
                let tools = definitions.len();
                text +=
                    &format!("\n{server} is new to the store: its {tools} tools are approved\n");
            }
        }
        Ok::<_, StoreError>(text)
    };
    match with_store(config, Missing::Refuse, approve).await {
        Ok(text) => print(&text),
        Err(error) => print(&format!("\nno tool of a pinned server was approved: {error:#}\n")),
    }
}

/// Returns the confinement of a server's program, if it has one.
fn confined(transport: &Transport) -> Result<Option<Plan>, PlanError> {
    match transport {
        Transport::Stdio(program) => plan(program, &Kernel::current()).map(Some),
        Transport::Http(_) => Ok(None),
    }
}

impl Found {
    fn of(run: &Run, is_pinned: bool) -> Self {
        let ready = &run.ready;
        let (version, info) = (ready.dialect.version(), &ready.about.info);
        Self {
            protocol: version.to_string(),
            era: version.era().to_string(),
            name: format!("{} {}", info.name, info.version).trim().to_owned(),
            tools: ready.tools.names().map(str::to_owned).collect(),
            left_out: ready.tools.left_out().to_string(),
            pinned: is_pinned.then(|| within_bounds(ready.tools.pinned().map(definition))),
            trials: vec![],
        }
    }
}

/// Formats one line of the table. Lines are shown as servers end, so the widths of their columns
/// are known beforehand, but for the last one.
fn line(widest: usize, [server, status, protocol, era, tools, start, name]: [&str; 7]) -> String {
    let widest = widest.max(HEADER[0].len());
    let text = format!(
        "{server:widest$}  {status:6}  {protocol:10}  {era:6}  {tools:>5}  {start:>7}  {name}"
    );
    format!("{}\n", text.trim_end())
}

impl Report {
    fn cells(&self) -> [String; 7] {
        let (server, start) =
            (self.server.to_string(), format!("{:.1} s", self.took.as_secs_f64()));
        match &self.outcome {
            Ok(found) => [
                server,
                "ok".to_owned(),
                found.protocol.clone(),
                found.era.clone(),
                found.tools.len().to_string(),
                start,
                printable(&found.name),
            ],
            Err(error) => {
                let none = || "-".to_owned();
                let reason = printable(&error.detail);
                [server, "FAILED".to_owned(), none(), none(), none(), start, reason]
            }
        }
    }
}

/// Formats the tools or the error of each server, and its confinement.
fn details(reports: &[Report]) -> String {
    let mut text = String::new();
    for Report { server, outcome, confined, .. } in reports {
        let state = match outcome {
            Ok(found) => {
                text += &format!("\n{server}: {}\n", printable(&found.tools.join(", ")));
                if !found.left_out.is_empty() {
                    text += &format!("  left out: {}\n", printable(&found.left_out));
                }
                "in force"
            }
            Err(error) => {
                text += &format!("\n{server} did not start: {}\n", printable(&error.detail));
                for line in &error.stderr {
                    text += &format!("  stderr: {}\n", printable(line));
                }
                for line in &error.stdout {
                    text += &format!("  stdout: {}\n", printable(line));
                }
                "configured"
            }
        };
        text += &render_plan(confined.as_ref(), state);
        let trials = outcome.iter().flat_map(|found| &found.trials);
        text.extend(trials.map(|(call, trial)| trial.render(call)));
    }
    text
}

/// Describes a confinement. Only a server that has started proves that all of it is in force.
fn render_plan(plan: Option<&Plan>, state: &str) -> String {
    let Some(plan) = plan else { return String::new() };
    let mut text = format!("  {state}: {}\n", plan.in_force.join(", "));
    for missing in &plan.missing {
        text += &format!("  not in force: {missing}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Program, Sandbox};

    #[test]
    fn the_table_shows_what_started_and_why_the_rest_did_not() {
        let found = Found {
            protocol: "2026-07-28".into(),
            era: "modern".into(),
            name: "demo 1.0".into(),
            tools: vec!["echo".into(), "time".into()],
            left_out: "`slow` (why)".into(),
            pinned: None,
            trials: vec![],
        };
        let detail = "it ended with exit code 3".to_owned();
        let stderr = vec!["boom".into()];
        let error = StartError { stderr, ..StartError::new("", &detail) };
        let took = Duration::from_millis(250);
        let old = Kernel { guard: true, release: "5.10".to_owned(), landlock: None, seccomp: true };
        let sandbox = Sandbox { syscalls: true, optional: true, ..Sandbox::default() };
        let program = Program { sandbox: Some(sandbox), ..Program::default() };
        let confined = plan(&program, &old).ok();
        let reports = [
            Report { server: ServerId::parse("good").unwrap(), outcome: Ok(found), confined, took },
            Report {
                server: ServerId::parse("bad").unwrap(),
                outcome: Err(error),
                confined: plan(&Program::default(), &old).ok(),
                took,
            },
        ];
        let cells = reports.each_ref().map(Report::cells);
        let lines = cells.each_ref().map(|cells| line(4, cells.each_ref().map(String::as_str)));
        assert_eq!(
            line(4, HEADER) + &lines.concat(),
            "SERVER  STATUS  PROTOCOL    ERA     TOOLS    START  NAME\n\
             good    ok      2026-07-28  modern      2    0.2 s  demo 1.0\n\
             bad     FAILED  -           -           -    0.2 s  it ended with exit code 3\n"
        );
        assert_eq!(
            details(&reports),
            "\n\
             good: echo, time\n\
             \x20 left out: `slow` (why)\n\
             \x20 in force: no_new_privs, no core dumps, private directory, seccomp\n\
             \x20 not in force: landlock: Linux 5.10 has none, or it is turned off at \
             boot; it needs 6.2, or 6.7 for `connect`, and `landlock` among the kernel's `lsm=`\n\
             \n\
             bad did not start: it ended with exit code 3\n\
             \x20 stderr: boom\n\
             \x20 configured: no_new_privs, no core dumps, private directory\n"
        );
    }

    #[test]
    fn no_server_can_write_lines_of_its_own_or_move_the_cursor() {
        let forged = "x\n  in force: all\u{1b}[2K\r";
        let found = Found {
            protocol: "2026-07-28".into(),
            era: "modern".into(),
            name: forged.into(),
            tools: vec![forged.into()],
            left_out: forged.into(),
            pinned: None,
            trials: vec![],
        };
        let (reason, detail, stderr) = (String::new(), forged.to_owned(), vec![forged.to_owned()]);
        let error = StartError { stderr, ..StartError::new(&reason, &detail) };
        let server = ServerId::parse("liar").unwrap();
        let reports = [Ok(found), Err(error)].map(|outcome| {
            let (server, took) = (server.clone(), Duration::ZERO);
            Report { server, outcome, confined: None, took }
        });
        let text = details(&reports) + &reports.each_ref().map(|it| it.cells().concat()).concat();
        assert!(!text.contains("\n  in force") && !text.contains(['\u{1b}', '\r']), "{text}");
        assert_eq!(text.matches(r"x\n  in force: all\u{1b}[2K\r").count(), 6, "{text}");
    }
}
