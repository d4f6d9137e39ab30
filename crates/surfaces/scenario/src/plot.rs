//! Drawings as SVG, by integers alone. Colours are classes of the page that they stand in.

use std::collections::BTreeMap;
use std::fmt::Write;

use weft_topology::{Graph, Layout};

use crate::report::LinkLoad;

const WIDTH: u64 = 640;
const HEIGHT: u64 = 300;
const LEFT: u64 = 72;
const RIGHT: u64 = 30;
const TOP: u64 = 34;
const BOTTOM: u64 = 44;
/// Series that can be told apart by their colours.
pub(crate) const SERIES_MAX: usize = 6;
/// Rows of a heat map at most; more vertices share rows.
const ROWS_MAX: u32 = 64;
/// Vertices of a grid that is drawn as one, at most.
const DRAWN_MAX: u32 = 1_024;

/// A line of a plot.
pub(crate) struct Series {
    pub name: String,
    /// The places in order of x.
    pub places: Vec<(u64, u64)>,
}

/// The labels at the axes of a plot: texts, and the number of units in one of the text's.
pub(crate) struct Axis<'a> {
    pub label: &'a str,
    pub unit: u64,
}

/// A plot of lines over a common x axis, both from 0.
pub(crate) fn lines(x: &Axis<'_>, y: &Axis<'_>, series: &[Series]) -> String {
    let all = || series.iter().flat_map(|series| series.places.iter().copied());
    let x_end = end(all().map(|(x, _)| x).max().unwrap_or(0), x.unit);
    let y_end = end(all().map(|(_, y)| y).max().unwrap_or(0), y.unit);
    let mut svg = open(HEIGHT);
    axes(&mut svg, (x, x_end), (y, y_end));
    for (number, series) in series.iter().enumerate() {
        let places: Vec<(u64, u64)> =
            series.places.iter().map(|(x, y)| (across(*x, x_end), up(*y, y_end))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let class = number % SERIES_MAX;
        let _ = write!(svg, "<polyline class=\"line c{class}\" points=\"{}\"/>", path.join(" "));
        for (x, y) in places {
            let _ = write!(svg, "<circle class=\"dot c{class}\" cx=\"{x}\" cy=\"{y}\" r=\"3\"/>");
        }
    }
    svg + "</svg>" + &legend(series.iter().map(|series| series.name.as_str()))
}

/// Shares of messages by latency, on a logarithmic x axis: four steps for each doubling.
pub(crate) fn distributions(series: &[Series]) -> String {
    // Four steps for each doubling, as the report has them.
    let step = |latency: u64| {
        let latency = latency.max(4);
        u64::from(latency.ilog2()) * 4 + (latency >> (latency.ilog2() - 2)) - 4
    };
    let all = || series.iter().flat_map(|series| series.places.iter().map(|place| step(place.0)));
    let (first, last) = (all().min().unwrap_or(0) / 4 * 4, all().max().unwrap_or(0) / 4 * 4 + 4);
    let mut svg = open(HEIGHT);
    let y = Axis { label: "messages, %", unit: 1 };
    let share = |series: &Series, count: u64| {
        let sum: u64 = series.places.iter().map(|place| place.1).sum();
        count * 10_000 / sum.max(1)
    };
    let most = series
        .iter()
        .flat_map(|series| series.places.iter().map(move |place| share(series, place.1)));
    let y_end = end(most.max().unwrap_or(0), 100);
    horizontal(&mut svg, (&Axis { unit: 100, ..y }, y_end));
    // A label for each doubling has no room on a phone.
    let apart = (last - first).div_ceil(4 * 6).max(1);
    for doubling in (first / 4..=last / 4).step_by(usize::try_from(apart).unwrap_or(1)) {
        let x = across(doubling * 4 - first, last - first);
        let ns = 1_u64 << doubling;
        let label = if ns >= 8_192 { format!("{} us", ns / 1_000) } else { format!("{ns} ns") };
        let bottom = HEIGHT - BOTTOM;
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{x} {TOP}V{bottom}\"/><text x=\"{x}\" y=\"{}\" \
             class=\"tick middle\">{label}</text>",
            bottom + 16
        );
    }
    for (number, series) in series.iter().enumerate() {
        let mut path = String::new();
        let mut before = None;
        for (latency, count) in &series.places {
            let (step, y) = (step(*latency), up(share(series, *count), y_end));
            let (from, to) = (step.max(first + 1) - 1, step);
            let [from_x, to_x] = [from, to].map(|step| across(step - first, last - first));
            if before != Some(from) {
                let bottom = HEIGHT - BOTTOM;
                let move_to = before.map_or(String::new(), |_| format!("V{bottom}"));
                let _ = write!(path, "{move_to}M{from_x} {bottom}");
            }
            let _ = write!(path, "V{y}H{to_x}");
            before = Some(to);
        }
        let _ = write!(path, "V{}", HEIGHT - BOTTOM);
        let class = number % SERIES_MAX;
        let _ = write!(svg, "<path class=\"line c{class}\" d=\"{path}\"/>");
    }
    let _ = write!(
        svg,
        "<text class=\"label middle\" x=\"{}\" y=\"{}\">latency</text></svg>",
        (WIDTH + LEFT) / 2,
        HEIGHT - 8
    );
    svg + &legend(series.iter().map(|series| series.name.as_str()))
}

/// The loads of links: on the grid where there is one of two dimensions, else a table of vertices
/// and ports.
pub(crate) fn heat(graph: &Graph, loads: &[LinkLoad]) -> String {
    match graph.layout() {
        Layout::Grid(grid) if grid.vertices() <= DRAWN_MAX => {
            let wide: Vec<usize> =
                (0..grid.sizes().len()).filter(|d| grid.sizes()[*d] > 1).collect();
            match wide[..] {
                [x] => {
                    let place = |vertex| (grid.coordinate(vertex, x), 0);
                    drawn(place, (grid.sizes()[x], 1), loads)
                }
                [x, y] => {
                    let place = |vertex| (grid.coordinate(vertex, x), grid.coordinate(vertex, y));
                    drawn(place, (grid.sizes()[x], grid.sizes()[y]), loads)
                }
                _ => table(graph, loads),
            }
        }
        _ => table(graph, loads),
    }
}

/// Links as lines between the vertices of a grid. The links of a pair run side by side, each on the
/// right as seen from its start; one that goes round is drawn to the edge at both ends.
fn drawn(
    place: impl Fn(u32) -> (u32, u32),
    (width, height): (u32, u32),
    loads: &[LinkLoad],
) -> String {
    let cell = i64::try_from(WIDTH).unwrap_or(0) / i64::from(width.max(height) + 1);
    let mut svg = open(u64::try_from(cell).unwrap_or(0) * u64::from(height + 1));
    let at = |place: u32| cell * (i64::from(place) + 1);
    let aside = (cell / 10).max(1);
    for load in loads {
        let ((x1, y1), (x2, y2)) = (place(load.ends.0), place(load.ends.1));
        let step = |a: u32, b: u32, size: u32| {
            let far = i64::from(b) - i64::from(a);
            if far.abs() > 1 && size > 2 { -far.signum() } else { far }
        };
        let (dx, dy) = (step(x1, x2, width), step(y1, y2, height));
        let goes_round = x1.abs_diff(x2) > 1 || y1.abs_diff(y2) > 1;
        let length = if goes_round { cell * 2 / 5 } else { cell };
        let (ox, oy) = (-dy * aside, dx * aside);
        let (x, y) = (at(x1) + ox, at(y1) + oy);
        let _ = write!(
            svg,
            "<path class=\"link h{}\" d=\"M{x} {y}l{} {}\"><title>{}</title></path>",
            heat_class(load.busy_per_mille),
            dx * length,
            dy * length,
            title(load)
        );
    }
    for y in 0..height {
        for x in 0..width {
            let radius = (cell / 7).max(1);
            let _ = write!(
                svg,
                "<circle class=\"node\" cx=\"{}\" cy=\"{}\" r=\"{radius}\"/>",
                at(x),
                at(y)
            );
        }
    }
    svg + "</svg>" + &scale()
}

/// A cell for each vertex and port. Where vertices share a row, the busiest is shown.
fn table(graph: &Graph, loads: &[LinkLoad]) -> String {
    let each = graph.vertices().div_ceil(ROWS_MAX).max(1);
    let rows = graph.vertices().div_ceil(each);
    let ports = loads.iter().map(|load| u64::from(load.port) + 1).max().unwrap_or(1);
    let columns = ports.min(64);
    let per_column = ports.div_ceil(columns);
    let mut cells: BTreeMap<u64, &LinkLoad> = BTreeMap::new();
    for load in loads {
        let cell = u64::from(load.ends.0 / each) * columns + u64::from(load.port) / per_column;
        let place = cells.entry(cell).or_insert(load);
        if place.busy_per_mille < load.busy_per_mille {
            *place = load;
        }
    }
    let (high, wide) = (10, (WIDTH - LEFT - RIGHT) / columns);
    let mut svg = open(u64::from(rows) * high + TOP + 24);
    for number in 0..u64::from(rows) * columns {
        let (row, column) = (number / columns, number % columns);
        let (x, y) = (LEFT + column * wide, TOP + row * high);
        if column == 0 && row % 8 == 0 {
            let vertex = u32::try_from(row).unwrap_or(0) * each;
            let _ = write!(
                svg,
                "<text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>",
                LEFT - 6,
                y + 9,
                escape(&graph.name(vertex))
            );
        }
        if let Some(load) = cells.get(&number) {
            let _ = write!(
                svg,
                "<rect class=\"f{}\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"><title>{}\
                 </title></rect>",
                heat_class(load.busy_per_mille),
                wide.max(2) - 1,
                high - 1,
                title(load)
            );
        }
    }
    let _ = write!(
        svg,
        "<text class=\"label middle\" x=\"{}\" y=\"{}\">port</text></svg>",
        (WIDTH + LEFT) / 2,
        u64::from(rows) * high + TOP + 18
    );
    svg + &scale()
}

fn title(load: &LinkLoad) -> String {
    let busy = load.busy_per_mille;
    format!(
        "{} to {}: busy {}.{} %, {} bytes",
        escape(&load.from),
        escape(&load.to),
        busy / 10,
        busy % 10,
        load.bytes
    )
}

/// The class of a colour: tenths of the time.
fn heat_class(busy_per_mille: u64) -> u64 {
    (busy_per_mille / 100).min(9)
}

fn scale() -> String {
    let steps: String = (0..10).map(|step| format!("<i class=\"b{step}\"></i>")).collect();
    format!("<p class=\"legend\">idle {steps} busy all the time</p>")
}

fn open(height: u64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">")
}

/// The end of an axis from 0 to `most` at least: a step of 1, 2 or 5 times a power of ten.
fn end(most: u64, unit: u64) -> u64 {
    let step = step(most.max(unit));
    most.max(1).next_multiple_of(step)
}

/// The distance of ticks, so that there are 3 to 8 up to `most`.
fn step(most: u64) -> u64 {
    let power = 10_u64.pow(most.max(1).ilog10()) / 10;
    let steps = [1, 2, 5, 10, 20].map(|times| times * power.max(1));
    steps.into_iter().find(|step| most / step <= 6).unwrap_or(most).max(1)
}

fn across(x: u64, x_end: u64) -> u64 {
    LEFT + x * (WIDTH - LEFT - RIGHT) / x_end.max(1)
}

fn up(y: u64, y_end: u64) -> u64 {
    HEIGHT - BOTTOM - y.min(y_end) * (HEIGHT - BOTTOM - TOP) / y_end.max(1)
}

fn axes(svg: &mut String, (x, x_end): (&Axis<'_>, u64), y: (&Axis<'_>, u64)) {
    horizontal(svg, y);
    let bottom = HEIGHT - BOTTOM;
    for tick in ticks(x_end) {
        let _ = write!(
            svg,
            "<text class=\"tick middle\" x=\"{}\" y=\"{}\">{}</text>",
            across(tick, x_end),
            bottom + 16,
            number(tick, x.unit)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"label middle\" x=\"{}\" y=\"{}\">{}</text>",
        (WIDTH + LEFT) / 2,
        HEIGHT - 8,
        x.label
    );
}

/// The y axis, with lines across.
fn horizontal(svg: &mut String, (y, y_end): (&Axis<'_>, u64)) {
    for tick in ticks(y_end) {
        let place = up(tick, y_end);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {place}H{}\"/><text class=\"tick end\" x=\"{}\" \
             y=\"{}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6,
            place + 4,
            number(tick, y.unit)
        );
    }
    let _ = write!(svg, "<text class=\"label\" x=\"4\" y=\"14\">{}</text>", y.label);
}

fn ticks(end: u64) -> impl Iterator<Item = u64> {
    let step = step(end);
    (0..=end / step).map(move |tick| tick * step)
}

/// A number in units, with up to three digits behind the point.
pub(crate) fn number(value: u64, unit: u64) -> String {
    let thousandths = u128::from(value) * 1_000 / u128::from(unit.max(1));
    let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
    let text = format!("{whole}.{rest:03}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn legend<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let entries: String = names
        .enumerate()
        .map(|(number, name)| {
            format!("<span><i class=\"b k{}\"></i>{}</span> ", number % SERIES_MAX, escape(name))
        })
        .collect();
    format!("<p class=\"legend\">{entries}</p>")
}

/// A text for a page.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, steps) in [(7, 2), (95, 20), (100, 20), (1_234, 200), (60, 10), (1, 1)] {
            assert_eq!(step(most), steps, "{most}");
            assert!(end(most, 1) >= most && (1..=7).contains(&ticks(end(most, 1)).skip(1).count()));
        }
        assert_eq!(number(12_500, 1_000), "12.5");
        assert_eq!(number(0, 10), "0");
        assert_eq!(number(1, 3), "0.333");
    }

    #[test]
    fn texts_of_others_cannot_leave_their_place() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
