//! The report as a page: one file that loads nothing, for wide and narrow screens, light and dark.

use std::fmt::Write;

use crate::plot::{self, Axis, SERIES_MAX, Series, escape, number};
use crate::report::{GroupReport, LinkLoad, Point, Report};

const STYLE: &str = include_str!("page.css");
/// Links in the table of the page.
const LINKS_SHOWN: usize = 20;

/// The page of a report.
pub(crate) fn html(report: &Report) -> String {
    let title = format!("{} traffic on {}", report.pattern, report.topology);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
         name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\
         \n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        title = escape(&title)
    );
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} hosts, {} links of {} MB/s, routing {}, seed {}</p>",
        report.hosts,
        report.links,
        report.link_bytes_per_second / 1_000_000,
        report.routing,
        report.seed
    );
    page.push_str("<div class=\"plots\">\n");
    if report.points.len() > 1 {
        figure(&mut page, "Throughput against offered load", &throughput(report));
        figure(&mut page, "Latency against offered load", &latency(report));
    }
    let grouped = report.points.last().filter(|point| !point.groups.is_empty());
    let caption = format!("Distribution of latencies{}", grouped.map_or("".to_owned(), of_load));
    figure(&mut page, &caption, &distribution(report));
    if let Some(point) = report.points.last().filter(|point| !point.loads.is_empty()) {
        let caption = format!("Load of links{}", of_load(point));
        figure(&mut page, &caption, &plot::heat(&report.graph, &point.loads));
    }
    page.push_str("</div>\n");
    runs(&mut page, report);
    if let Some(point) = report.points.last().filter(|point| !point.groups.is_empty()) {
        groups(&mut page, &format!("Groups{}", of_load(point)), &point.groups);
    }
    if let Some(point) = report.points.last().filter(|point| !point.busiest.is_empty()) {
        links(&mut page, &format!("Busiest links{}", of_load(point)), &point.busiest);
    }
    page + "</body>\n</html>\n"
}

fn of_load(point: &Point) -> String {
    point.load_percent.map_or(String::new(), |load| format!(" at a load of {load} %"))
}

fn figure(page: &mut String, caption: &str, drawing: &str) {
    let _ = writeln!(page, "<figure><figcaption>{caption}</figcaption>{drawing}</figure>");
}

const LOAD: Axis<'_> = Axis { label: "offered load, % of a link", unit: 1 };

fn throughput(report: &Report) -> String {
    let over_load = |of: fn(&Point) -> u64| -> Vec<(u64, u64)> {
        let points = report.points.iter();
        points.filter_map(|point| Some((point.load_percent?.into(), of(point)))).collect()
    };
    let series = [
        Series {
            name: "delivered to each host".to_owned(),
            places: over_load(|point| point.delivered_bytes_per_second),
        },
        Series {
            name: "offered by each host".to_owned(),
            places: over_load(|point| point.offered_bytes_per_second.unwrap_or(0)),
        },
    ];
    plot::lines(&LOAD, &Axis { label: "MB/s", unit: 1_000_000 }, &series)
}

fn latency(report: &Report) -> String {
    let over_load = |name: &str, of: fn(&Point) -> u64| {
        let points = report.points.iter().filter(|point| point.latency.messages > 0);
        let places = points.filter_map(|point| Some((point.load_percent?.into(), of(point))));
        Series { name: name.to_owned(), places: places.collect() }
    };
    let series = [
        over_load("median", |point| point.latency.median_ns),
        over_load("mean", |point| point.latency.mean_ns),
        over_load("99 %", |point| point.latency.p99_ns),
    ];
    plot::lines(&LOAD, &Axis { label: "us", unit: 1_000 }, &series)
}

/// The distributions of runs that are spread over all loads; those of groups in the last run.
fn distribution(report: &Report) -> String {
    if let Some(point) = report.points.last().filter(|point| !point.groups.is_empty()) {
        let groups = point.groups.iter().filter(|group| group.latency.messages > 0);
        let series = groups
            .map(|group| Series { name: group.name.clone(), places: group.distribution.clone() });
        return plot::distributions(&series.take(SERIES_MAX).collect::<Vec<_>>());
    }
    let points: Vec<&Point> =
        report.points.iter().filter(|point| point.latency.messages > 0).collect();
    let apart = points.len().div_ceil(SERIES_MAX).max(1);
    let series = points.iter().rev().step_by(apart).map(|point| Series {
        name: point.load_percent.map_or("all messages".to_owned(), |load| format!("{load} %")),
        places: point.distribution.clone(),
    });
    let mut series: Vec<Series> = series.collect();
    series.reverse();
    plot::distributions(&series)
}

fn runs(page: &mut String, report: &Report) {
    page.push_str("<h2>Runs</h2>\n<div class=\"table\"><table>\n<tr>");
    for heading in [
        "load %",
        "MB/s",
        "of a link",
        "median us",
        "mean us",
        "99 % us",
        "most us",
        "sent",
        "delivered",
        "sent again",
        "given up",
        "unfinished",
        "ended us",
    ] {
        let _ = write!(page, "<th>{heading}</th>");
    }
    page.push_str("</tr>\n");
    for point in &report.points {
        let (latency, messages) = (&point.latency, &point.messages);
        let rate = point.delivered_bytes_per_second;
        let cells = [
            point.load_percent.map_or("-".to_owned(), |load| load.to_string()),
            (rate / 1_000_000).to_string(),
            format!("{} %", number(rate * 1_000 / report.link_bytes_per_second.max(1), 10)),
            number(latency.median_ns, 1_000),
            number(latency.mean_ns, 1_000),
            number(latency.p99_ns, 1_000),
            number(latency.max_ns, 1_000),
            messages.sent.to_string(),
            messages.delivered.to_string(),
            messages.resent.to_string(),
            messages.given_up.to_string(),
            messages.unfinished.to_string(),
            number(point.ended_ns, 1_000),
        ];
        row(page, &cells);
    }
    page.push_str("</table></div>\n");
}

fn groups(page: &mut String, heading: &str, groups: &[GroupReport]) {
    let _ = write!(page, "<h2>{heading}</h2>\n<div class=\"table\"><table>\n<tr>");
    for heading in [
        "group",
        "hosts",
        "pattern",
        "load %",
        "MB/s",
        "median us",
        "mean us",
        "99 % us",
        "sent",
        "delivered",
        "given up",
        "unfinished",
    ] {
        let _ = write!(page, "<th>{heading}</th>");
    }
    page.push_str("</tr>\n");
    for group in groups {
        let (latency, messages) = (&group.latency, &group.messages);
        let cells = [
            escape(&group.name),
            group.hosts.to_string(),
            escape(&group.pattern),
            group.load_percent.map_or("-".to_owned(), |load| load.to_string()),
            (group.delivered_bytes_per_second / 1_000_000).to_string(),
            number(latency.median_ns, 1_000),
            number(latency.mean_ns, 1_000),
            number(latency.p99_ns, 1_000),
            messages.sent.to_string(),
            messages.delivered.to_string(),
            messages.given_up.to_string(),
            messages.unfinished.to_string(),
        ];
        row(page, &cells);
    }
    page.push_str("</table></div>\n");
}

fn links(page: &mut String, heading: &str, busiest: &[LinkLoad]) {
    let _ = write!(
        page,
        "<h2>{heading}</h2>\n<div class=\"table\"><table>\n<tr><th>link</th><th>busy</th>\
         <th>bytes</th><th>sent again</th><th>lost</th></tr>\n"
    );
    for load in busiest.iter().take(LINKS_SHOWN) {
        let cells = [
            format!("{} to {}", escape(&load.from), escape(&load.to)),
            format!("{} %", number(load.busy_per_mille, 10)),
            load.bytes.to_string(),
            load.resent.to_string(),
            load.lost.to_string(),
        ];
        row(page, &cells);
    }
    page.push_str("</table></div>\n");
}

fn row(page: &mut String, cells: &[String]) {
    page.push_str("<tr>");
    for cell in cells {
        let _ = write!(page, "<td>{cell}</td>");
    }
    page.push_str("</tr>\n");
}
