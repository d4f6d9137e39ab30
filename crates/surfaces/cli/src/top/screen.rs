//! Draws the screen: a head, a graph of the last minutes, the table of the view, and the keys.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, TableState, Tabs, Wrap};

use super::sheet::{Sheet, View};
use super::state::State;
use crate::table::bytes;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const KEYS: &str = "tab view  s sort  r reverse  / filter  enter more  p pause  q quit";

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(1),
        Constraint::Min(5),
        Constraint::Length(if state.shows_detail { 8 } else { 0 }),
        Constraint::Length(1),
    ]);
    let [head, graphs, tabs, table, detail, foot] = rows.areas(frame.area());
    frame.render_widget(head_line(state), head);
    draw_graphs(frame, graphs, state);
    let place = View::ALL.iter().position(|view| *view == state.view);
    let names = View::ALL.iter().map(|view| view.name());
    let bar = Tabs::new(names).select(place).divider(" ").padding("", "");
    frame.render_widget(bar.highlight_style(BOLD.add_modifier(Modifier::REVERSED)), tabs);
    match state.sheet() {
        Some(sheet) => draw_table(frame, table, detail, state, &sheet),
        None => frame.render_widget(Paragraph::new("waiting for the daemon"), table),
    }
    frame.render_widget(foot_line(state), foot);
}

fn head_line(state: &State) -> Line<'static> {
    let Some(status) = &state.now else { return Line::from("weft top") };
    let ends = status.totals.iter().map(|total| total.streams.tcp);
    let on_tcp = ends.fold(0, u64::saturating_add);
    let mut spans = vec![Span::styled(format!("weft {}", status.node), BOLD)];
    spans.push(Span::raw(format!(
        "  {} programs  {} on fabric  {on_tcp} stayed on tcp  {} endpoints  daemon {}",
        status.processes.len(),
        status.connections.len(),
        status.endpoints.len(),
        bytes(status.daemon.resident_bytes),
    )));
    if state.is_paused {
        spans.push(Span::styled("  paused", BOLD));
    }
    Line::from(spans)
}

fn draw_graphs(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let columns = Layout::horizontal([Constraint::Ratio(1, 4); 4]).spacing(1).areas::<4>(area);
    let history = &state.history;
    for (column, (name, values)) in columns.into_iter().zip([
        ("fabric", &history.fabric),
        ("tcp", &history.tcp),
        ("endpoints", &history.endpoints),
        ("ethernet", &history.ethernet),
    ]) {
        let [title, graph] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(column);
        let now = values.back().copied().unwrap_or(0);
        frame.render_widget(Line::from(format!("{name} {}/s", bytes(now))), title);
        frame.render_widget(Sparkline::default().data(last(values, graph.width)), graph);
    }
}

/// The last values, as many as there are columns.
fn last(values: &VecDeque<u64>, width: u16) -> Vec<u64> {
    let left_out = values.len().saturating_sub(usize::from(width));
    values.iter().skip(left_out).copied().collect()
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, detail: Rect, state: &mut State, sheet: &Sheet) {
    state.chosen = state.chosen.min(sheet.lines.len().saturating_sub(1));
    let sorted = state.column().unwrap_or(sheet.first);
    let mark = if state.reversed { "^" } else { "v" };
    let title = |(place, name): (usize, &&str)| {
        if place == sorted { format!("{name}{mark}") } else { (*name).to_owned() }
    };
    let titles: Vec<_> = sheet.columns.iter().enumerate().map(title).collect();
    // A column is as wide as its longest cell; the last one takes what is left.
    let width = |column: usize| {
        let cells = sheet.lines.iter().map(|line| line.cells[column].text.chars().count());
        let widest = cells.chain([titles[column].chars().count()]).max().unwrap_or(1);
        u16::try_from(widest).unwrap_or(u16::MAX)
    };
    let last = sheet.columns.len() - 1;
    let widths = (0..=last).map(|column| match width(column) {
        width if column == last => Constraint::Min(width.min(8)),
        width => Constraint::Length(width),
    });
    let rows =
        sheet.lines.iter().map(|line| Row::new(line.cells.iter().map(|cell| cell.text.clone())));
    let table = Table::new(rows, widths)
        .header(Row::new(titles.clone()).style(FAINT))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::default().with_selected(Some(state.chosen));
    if sheet.lines.is_empty() {
        frame.render_widget(Paragraph::new(nothing(state.view, &state.filter)), area);
    } else {
        frame.render_stateful_widget(table, area, &mut selected);
    }
    if state.shows_detail
        && let Some(line) = sheet.lines.get(state.chosen)
    {
        let text = line.detail.join("\n");
        let block = Block::bordered().title("more");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }).block(block), detail);
    }
}

/// The text of an empty table.
fn nothing(view: View, filter: &str) -> String {
    if !filter.is_empty() {
        return format!("nothing has {filter:?} in it; escape shows all");
    }
    match view {
        View::Connections => {
            "no connection is on the fabric; `weft run -- PROGRAM` starts a \
                              program whose connections are"
        }
        View::OnTcp => "no connection stayed on TCP",
        View::Programs => "no program ran under weft since the daemon started",
        View::Endpoints => "no endpoint is open",
        View::Devices => "no Ethernet device; `weft lab up` makes some",
        View::Nodes => "this daemon serves its host alone; see `weft fabric --help`",
        View::Links => "there is no lab; `weft lab up --topology torus:2x2x2` makes one",
        View::Services => "no service",
        View::Jobs => "no job of weft oshrun",
    }
    .to_owned()
}

fn foot_line(state: &State) -> Line<'static> {
    if let Some(failure) = &state.failure {
        return Line::styled(failure.clone(), BOLD);
    }
    if state.is_typing {
        return Line::from(format!("filter: {}_", state.filter));
    }
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("  [filter {filter}]"),
    };
    Line::styled(format!("{KEYS}{filter}"), FAINT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use weftd::{ConnectionStatus, OnTcpStatus, ProcessStatus, Status, Users};

    fn status(at_ms: u64, bytes_from_client: u64) -> Status {
        let connection = |number: u32, bytes_from_client| ConnectionStatus {
            server: "127.0.0.1:6379".into(),
            client: format!("127.0.0.1:{}", 40_000 + number),
            server_pid: 7,
            client_pid: number,
            bytes_from_server: 0,
            bytes_from_client,
        };
        let one = OnTcpStatus {
            reason: "peer_not_weft".into(),
            why: "the other end does not run under weft".into(),
            at_ms,
            addresses: Some(("10.0.0.1:5000".into(), "10.0.0.2:80".into())),
        };
        let server = ProcessStatus {
            pid: 7,
            name: "redis-server".into(),
            on_tcp: vec![one],
            ..ProcessStatus::default()
        };
        Status {
            node: "default".into(),
            at_ms,
            connections: vec![connection(1, 10), connection(2, bytes_from_client)],
            processes: vec![server],
            ..Status::default()
        }
    }

    fn shown(state: &mut State) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("it draws");
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<_> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(80).map(|line| line.concat().trim_end().to_owned() + "\n").collect()
    }

    fn press(state: &mut State, code: KeyCode) {
        let _ = state.key(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn a_screen_of_80_columns_shows_rates_reasons_and_filters() {
        let mut state = State::new(Users::default());
        assert!(shown(&mut state).contains("waiting for the daemon"));
        state.take(Ok(status(1_000, 5_000)));
        state.take(Ok(status(2_000, 45_000)));
        let text = shown(&mut state);
        let line = text.lines().find(|line| line.contains(":40002")).expect("the connection");
        assert!(line.contains("redis-server 7") && line.contains("40 kB/s"), "{text}");
        assert!(text.find(":40002") < text.find(":40001"), "the fastest is the first: {text}");
        press(&mut state, KeyCode::Char('r'));
        let text = shown(&mut state);
        assert!(text.find(":40002") > text.find(":40001"), "{text}");
        press(&mut state, KeyCode::Char('/'));
        "40001".chars().for_each(|one| press(&mut state, KeyCode::Char(one)));
        press(&mut state, KeyCode::Enter);
        let text = shown(&mut state);
        assert!(text.contains(":40001") && !text.contains(":40002"), "{text}");
        press(&mut state, KeyCode::Esc);
        press(&mut state, KeyCode::Char('2'));
        press(&mut state, KeyCode::Enter);
        let text = shown(&mut state);
        assert!(text.contains("because the other end does not run under weft."), "{text}");
        press(&mut state, KeyCode::Char('7'));
        assert!(shown(&mut state).contains("there is no lab"));
        state.take(Err("the daemon went away".into()));
        assert!(shown(&mut state).contains("the daemon went away"));
    }
}
