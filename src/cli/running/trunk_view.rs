//! The trunk as `top` shows it: kept up to date by the gateway's events, and drawn.

use std::collections::{BTreeMap, HashMap};

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use serde_json::Value;

/// The columns of the server's name: at least, and at most.
const NAME_WIDTH: [usize; 2] = [8, 40];
/// The columns between the name and the slots.
const STATE_WIDTH: usize = 24;
/// The age of a call: from its begin to its deadline.
const AGES: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// A call whose caller has gone, and that the server still works on.
const ABANDONED: &str = "×";
const HINT: Style = Style::new().fg(Color::DarkGray);
/// Given out in this order: alike ones are far from each other.
const COLORS: [Color; 12] = [
    Color::LightBlue,
    Color::LightYellow,
    Color::LightGreen,
    Color::LightMagenta,
    Color::LightCyan,
    Color::LightRed,
    Color::Blue,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::Cyan,
    Color::Red,
];

/// All servers, as the events have told of them.
#[derive(Default)]
pub(super) struct TrunkView {
    /// By name; with several replicas the name says where.
    servers: BTreeMap<String, ServerRow>,
    numbers: BTreeMap<String, Value>,
    /// The gateway's clock less this machine's, in milliseconds.
    clock: i64,
    colors: Colors,
}

/// The tenants' colours, in the order in which they were first seen.
#[derive(Default)]
struct Colors(HashMap<String, Style>);

#[derive(Default)]
struct ServerRow {
    head: Value,
    /// The calls, by instance and place.
    cells: BTreeMap<(String, u32), Cell>,
    /// The tenants of those who wait, in their order.
    line: Vec<String>,
}

/// A call on a slot.
struct Cell {
    tenant: String,
    is_abandoned: bool,
    begun: i64,
    deadline: i64,
}

impl TrunkView {
    /// Applies one event. Comments, and whatever this version does not know, change nothing.
    pub(super) fn hear(&mut self, event: &[u8]) {
        let text = String::from_utf8_lossy(event);
        let Some((name, data)) = text.split_once("\ndata: ") else { return };
        let Ok(data) = serde_json::from_str::<Value>(data) else { return };
        let replica = data["replica"].as_str().unwrap_or_default();
        let is_of = |name: &String| match replica {
            "" => !name.contains(" @ "),
            replica => name.ends_with(&format!(" @ {replica}")),
        };
        if name == "event: whole" || data["gone"] == true {
            self.servers.retain(|name, _| !is_of(name));
        }
        if data["gone"] == true {
            self.numbers.remove(replica);
            return;
        }
        if let Some(at) = data["at"].as_i64() {
            self.clock = at - jiff::Timestamp::now().as_millisecond();
        }
        if data["numbers"].is_object() {
            self.numbers.insert(replica.to_owned(), data["numbers"].clone());
        }
        for (id, change) in data["servers"].as_object().into_iter().flatten() {
            let name = match replica {
                "" => id.clone(),
                replica => format!("{id} @ {replica}"),
            };
            if change.is_null() {
                self.servers.remove(&name);
            } else {
                let server = self.servers.entry(name).or_default();
                server.apply(change);
                server.tenants().for_each(|tenant| self.colors.note(tenant));
            }
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>, now: i64) {
        let area = frame.area();
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        let longest = self.servers.keys().map(|name| name.chars().count()).max();
        let name_width = longest.unwrap_or_default().clamp(NAME_WIDTH[0], NAME_WIDTH[1]);
        let titles = format!("{:name_width$} {:12} {:>9} slots", "server", "state", "in use");
        let mut lines = vec![self.top_line(), Line::default(), Line::styled(titles, HINT)];
        let room = height.saturating_sub(6);
        for (name, server) in self.servers.iter().take(room) {
            let name = format!("{name:name_width$.name_width$}");
            lines.push(server.line(&name, now + self.clock, width, &self.colors));
        }
        if let Some(more) = self.servers.len().checked_sub(room).filter(|more| *more > 0) {
            lines.push(Line::from(format!("and {more} more servers")));
        }
        lines.push(Line::default());
        lines.push(self.legend());
        let key = "a slot fills towards its call's deadline · × caller gone · + waits · q ends";
        lines.push(Line::styled(key, HINT));
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn top_line(&self) -> Line<'static> {
        let all =
            |name: &'static str| self.numbers.values().filter_map(move |it| it[name].as_i64());
        let sum = |name: &'static str| all(name).sum::<i64>();
        let text = format!(
            "longest wait {} · waiting {} · in flight {} · refused in a minute: {} own limit, {} \
             other",
            span(all("longest_wait_ms").max().unwrap_or_default()),
            sum("waiting"),
            sum("in_flight"),
            sum("refused_own"),
            sum("refused_other"),
        );
        Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
    }

    /// Names the tenants with most calls.
    fn legend(&self) -> Line<'static> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for server in self.servers.values() {
            for tenant in server.tenants() {
                *counts.entry(tenant).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let name = |(tenant, calls): &(&str, usize)| {
            Span::styled(format!("■ {tenant} {calls}   "), self.colors.of(tenant))
        };
        Line::from(counts.iter().take(12).map(name).collect::<Vec<_>>())
    }
}

impl Colors {
    fn note(&mut self, tenant: &str) {
        if !self.0.contains_key(tenant) {
            let color = COLORS[self.0.len() % COLORS.len()];
            self.0.insert(tenant.to_owned(), Style::new().fg(color));
        }
    }

    fn of(&self, tenant: &str) -> Style {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

impl Cell {
    fn read(call: &Value) -> Self {
        Self {
            tenant: tenant_of(call),
            is_abandoned: call[1] == "a",
            begun: call[2].as_i64().unwrap_or_default(),
            deadline: call[3].as_i64().unwrap_or_default(),
        }
    }

    fn symbol(&self, now: i64) -> &'static str {
        if self.is_abandoned {
            return ABANDONED;
        }
        let time = self.deadline.saturating_sub(self.begun).max(1);
        let eighth = now.saturating_sub(self.begun).saturating_mul(8) / time;
        AGES[usize::try_from(eighth).unwrap_or_default().min(AGES.len() - 1)]
    }
}

impl ServerRow {
    fn tenants(&self) -> impl Iterator<Item = &String> {
        self.cells.values().map(|cell| &cell.tenant).chain(&self.line)
    }

    fn apply(&mut self, change: &Value) {
        if change["head"].is_object() {
            self.head = change["head"].clone();
        }
        if let Some(line) = change["line"].as_array() {
            self.line = line.iter().map(tenant_of).collect();
        }
        for (key, cell) in change["cells"].as_object().into_iter().flatten() {
            let (instance, place) = key.rsplit_once('/').unwrap_or((key, "0"));
            let key = (instance.to_owned(), place.parse().unwrap_or_default());
            if cell.is_null() {
                self.cells.remove(&key);
            } else {
                self.cells.insert(key, Cell::read(cell));
            }
        }
    }

    fn line(&self, name: &str, now: i64, width: usize, colors: &Colors) -> Line<'static> {
        let head = &self.head;
        let number = |name: &str| head[name].as_u64().unwrap_or_default();
        let (taken, slots, waiting) = (number("taken"), number("slots"), number("waiting"));
        let state =
            if head["paused"] == true { "paused" } else { head["state"].as_str().unwrap_or("?") };
        let wait = head["oldest"].as_i64().map(|since| format!(" {}", span(now - since)));
        let used = format!("{taken}/{slots}");
        let text = format!("{name} {state:12.12} {used:>9} ");
        let mut spans = vec![Span::styled(text, Style::new().fg(color_of_state(state)))];
        let free = usize::try_from(slots).unwrap_or(usize::MAX).saturating_sub(self.cells.len());
        let room = width.saturating_sub(name.chars().count() + STATE_WIDTH + 1);
        if let (0, 0, Some(reason)) = (slots, waiting, head["reason"].as_str()) {
            spans.push(Span::raw(reason.chars().take(room).collect::<String>()));
            return Line::from(spans);
        }
        // The line has a third of the room, if there is one.
        let of_line = self.line.len().min(room / 3);
        let of_slots = room.saturating_sub(of_line + 14);
        for cell in self.cells.values().take(of_slots) {
            spans.push(Span::styled(cell.symbol(now), colors.of(&cell.tenant)));
        }
        let dots = "·".repeat(free.min(of_slots.saturating_sub(self.cells.len())));
        spans.push(Span::styled(dots, Style::new().fg(Color::DarkGray)));
        if waiting > 0 {
            spans.push(Span::raw(" "));
            let line = self.line.iter().take(of_line);
            spans.extend(line.map(|tenant| Span::styled("+", colors.of(tenant))));
            spans.push(Span::raw(format!(" {waiting}{}", wait.unwrap_or_default())));
        }
        Line::from(spans)
    }
}

fn tenant_of(call: &Value) -> String {
    call[0].as_str().unwrap_or_default().to_owned()
}

fn color_of_state(state: &str) -> Color {
    match state {
        "ready" | "per_tenant" | "per_session" | "idle" => Color::Reset,
        "starting" | "draining" | "paused" => Color::Yellow,
        _ => Color::Red,
    }
}

/// Writes milliseconds shortly.
fn span(ms: i64) -> String {
    match ms {
        ..=0 => "0".to_owned(),
        1..=999 => format!("{ms} ms"),
        1000..=9_999 => format!("{:.1} s", ms as f64 / 1000.0),
        10_000..=119_999 => format!("{} s", ms / 1000),
        _ => format!("{} min", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn shown(view: &TrunkView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 10)).unwrap();
        terminal.draw(|frame| view.draw(frame, jiff::Timestamp::now().as_millisecond())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_call_is_a_block_that_fills_and_is_gone_when_it_ends() {
        let mut view = TrunkView::default();
        view.hear(
            br#"event: whole
data: {"at":100000,"numbers":{"waiting":1,"in_flight":2,"longest_wait_ms":1500},"servers":{
"down":{"head":{"state":"backoff","slots":0,"reason":"it ended"}},"std":{
"head":{"state":"ready","slots":4,"taken":2,"waiting":1},"instances":[],
"cells":{"0/10":["acme","a",0,9],"0/2":["globex","r",70000,150000]},"line":[["acme",0]]}}}"#,
        );
        let screen = shown(&view);
        assert!(screen.contains("longest wait 1.5 s"), "{screen}");
        for text in ["0/0 it ended", "2/4 ▄×··", "+ 1", "■ acme 2", "■ globex 1"] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        let change = br#"event: change
data: {"at":70001,"servers":{"std":{"cells":{"0/10":null},"line":[],
"head":{"state":"ready","slots":4,"taken":1,"waiting":0}}}}"#;
        view.hear(change);
        view.hear(b":");
        let screen = shown(&view);
        assert!(screen.contains("1/4 ▁···"), "{screen}");
        assert!(!screen.contains("acme"), "{screen}");
    }

    #[test]
    fn replicas_are_told_apart_and_one_that_leaves_is_gone() {
        let mut view = TrunkView::default();
        for (replica, tenant) in [("10.0.0.1:1", "acme"), ("10.0.0.2:1", "globex")] {
            let event = format!(
                "event: whole\ndata: {{\"replica\":\"{replica}\",\"at\":1,\"servers\":{{\"s\":\
                 {{\"head\":{{\"state\":\"ready\",\"slots\":1,\"taken\":1}},\
                 \"cells\":{{\"0/0\":[\"{tenant}\",\"r\",0,9]}}}}}}}}"
            );
            view.hear(event.as_bytes());
        }
        let screen = shown(&view);
        assert!(screen.contains("s @ 10.0.0.1:1") && screen.contains("s @ 10.0.0.2:1"), "{screen}");
        view.hear(b"event: change\ndata: {\"replica\":\"10.0.0.1:1\",\"gone\":true}");
        let screen = shown(&view);
        assert!(!screen.contains("10.0.0.1") && screen.contains("globex"), "{screen}");
    }
}
