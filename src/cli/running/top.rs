//! `trunkline top`: the trunk, live in the terminal.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{MissedTickBehavior, interval};

use super::client::GatewayArgs;
use super::trunk_view::TrunkView;

/// Ages grow also without news.
const REDRAW_EVERY: Duration = Duration::from_millis(250);
/// The most keys that were pressed and not looked at yet.
const KEYS_MAX: usize = 64;
/// The longest event of a gateway.
const EVENT_LEN_MAX: usize = 16 << 20;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    if !stdout().is_terminal() {
        bail!("`top` needs a terminal: `trunkline status` and `trunkline calls` print once");
    }
    let gateway = args.gateway.open()?;
    // Before the screen is taken: a refusal is printed like any other.
    let stream = gateway.stream(&["admin", "v1", "live"]).await?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let outcome = watch(&mut terminal, stream).await;
    ratatui::restore();
    outcome
}

async fn watch(
    terminal: &mut DefaultTerminal,
    mut stream: reqwest::Response,
) -> anyhow::Result<()> {
    let (mut trunk, mut text) = (TrunkView::default(), vec![]);
    let mut keys = read_keys();
    let mut ticks = interval(REDRAW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            piece = stream.chunk() => {
                let piece = piece.context("the gateway is gone")?;
                let Some(piece) = piece else { bail!("the gateway has ended the stream") };
                text.extend_from_slice(&piece);
                while let Some(end) = memchr::memmem::find(&text, b"\n\n") {
                    trunk.hear(&text[..end]);
                    text.drain(..end + 2);
                }
                if text.len() > EVENT_LEN_MAX {
                    bail!("the gateway sends an event that does not end");
                }
            }
            key = keys.recv() => {
                if key.is_none_or(|event| ends(&event)) {
                    return Ok(());
                }
            }
            _ = ticks.tick() => {
                let now = Timestamp::now().as_millisecond();
                terminal.draw(|frame| trunk.draw(frame, now))?;
            }
        }
    }
}

/// Reads keys on a thread of its own, which ends with the process.
fn read_keys() -> Receiver<Event> {
    let (sender, keys) = channel(KEYS_MAX);
    let read = move || {
        while event::read().is_ok_and(|event| sender.blocking_send(event).is_ok()) {}
    };
    thread::spawn(read);
    keys
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let is_control_c =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let is_quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    key.kind == KeyEventKind::Press && (is_quit || is_control_c)
}
