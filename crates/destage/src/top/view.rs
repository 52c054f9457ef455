//! What `top` draws: a line for each server, and the chosen one in full.

use super::history::{History, Point};
use super::{Server, Servers};
use destage_runtime::human::{bytes, count, percent, seconds};
use destage_runtime::status::{Latencies, Report, VolumeReport};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Sparkline, Table, Wrap};

/// Lines of the parts below the list of servers.
const CONTRACT: u16 = 6;
const FLOW: u16 = 5;
const DETAILS: u16 = 10;

/// How many lines it takes to show everything.
pub(super) fn height(servers: &Servers) -> u16 {
    let volumes = chosen(servers).map_or(0, |(report, _)| report.volumes.len() as u16);
    let volumes = if volumes > 0 { volumes + 3 } else { 0 };
    servers.all.len() as u16 + 3 + CONTRACT + FLOW + DETAILS + volumes + 1
}

fn chosen(servers: &Servers) -> Option<(&Report, Point)> {
    servers.all[servers.chosen].history.last()
}

pub(super) fn draw(frame: &mut Frame<'_>, servers: &Servers) {
    let list = servers.all.len() as u16 + 3;
    let parts = [
        Constraint::Length(list),
        Constraint::Length(CONTRACT),
        Constraint::Length(FLOW),
        Constraint::Length(DETAILS),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [list, contract, flow, details, volumes, keys] =
        Layout::vertical(parts).areas(frame.area());
    frame.render_widget(overview(servers, list.width), list);
    let server = &servers.all[servers.chosen];
    match server.history.last() {
        None => {
            let text = server.error.as_deref().unwrap_or("asking ...");
            let text = Paragraph::new(text).wrap(Wrap { trim: true });
            frame.render_widget(text.block(titled(&server.address)), contract);
        }
        Some((report, now)) => {
            draw_contract(frame, contract, report);
            draw_flow(frame, flow, &server.history, now);
            draw_details(frame, details, report);
            if !report.volumes.is_empty() {
                frame.render_widget(of_volumes(&report.volumes), volumes);
            }
        }
    }
    let gone = servers.all.iter().find_map(|server| Some((server, server.error.as_ref()?)));
    if let Some((server, error)) = gone {
        let text = format!("{}: {error}", server.address);
        frame.render_widget(Paragraph::new(text).style(Style::new().fg(Color::Red)), keys);
        return;
    }
    let faint = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new("q: end   up, down: another server").style(faint), keys);
}

fn titled(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(format!(" {title} "))
}

fn colour(mode: &str) -> Style {
    let colour = if mode == "normal" { Color::Green } else { Color::Red };
    Style::new().fg(colour).add_modifier(Modifier::BOLD)
}

fn overview(servers: &Servers, width: u16) -> Table<'_> {
    let is_narrow = width < 80;
    let mut names = vec!["server", "mode", "behind", "writes/s"];
    let mut widths = vec![
        Constraint::Min(12),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    if !is_narrow {
        names.extend(["requests/s", "hits", "dirty", "parked"]);
        widths.extend([10, 8, 11, 7].map(Constraint::Length));
    }
    let row = |(at, server): (usize, &Server)| {
        let mark = if at == servers.chosen { "▶ " } else { "  " };
        let name = format!("{mark}{}", server.address);
        let cells = match (server.history.last(), &server.error) {
            (Some((report, now)), None) => cells(name, report, now, is_narrow),
            (_, error) => {
                let state = if error.is_some() { "gone" } else { "asking" };
                vec![Cell::from(name), Cell::from(state).style(colour(state))]
            }
        };
        Row::new(cells)
    };
    let rows: Vec<Row<'_>> = servers.all.iter().enumerate().map(row).collect();
    let header = Row::new(names).style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows, widths).header(header).block(titled("destage top"))
}

fn cells(name: String, report: &Report, now: Point, is_narrow: bool) -> Vec<Cell<'static>> {
    let mode = if report.paused { "paused".to_owned() } else { report.mode.clone() };
    let style = colour(&mode);
    let mut cells = vec![
        Cell::from(name),
        Cell::from(mode).style(style),
        Cell::from(seconds(report.rpo.total_loss_seconds)),
        Cell::from(rate(now.writes)),
    ];
    if !is_narrow {
        let parked = report.destage.parked_groups.map_or_else(|| "-".to_owned(), count);
        cells.extend(
            [rate(now.commands), hit_ratio(report), bytes(now.dirty_bytes), parked].map(Cell::from),
        );
    }
    cells
}

fn rate(value: f64) -> String {
    count(value.round() as u64)
}

fn hit_ratio(report: &Report) -> String {
    let ratio = match report.volumes.first() {
        None => report.cache.hit_ratio,
        Some(volume) => volume.hit_ratio,
    };
    ratio.map_or_else(|| "-".to_owned(), percent)
}

/// The two bounds as bars.
fn draw_contract(frame: &mut Frame<'_>, area: Rect, report: &Report) {
    let block = titled("what a crash would lose now");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let rows = Layout::vertical([Constraint::Length(1); 4]).split(inside);
    let rpo = &report.rpo;
    let d = match report.policy.commit.as_str() {
        "flush" => None,
        _ => Some(report.policy.commit_seconds).filter(|&d| d > 0.0),
    };
    let of_d = match (report.policy.commit.as_str(), d) {
        ("flush", _) => "d = flush".to_owned(),
        (_, None) => "d = 0: nothing acknowledged".to_owned(),
        (_, Some(d)) => format!("d = {}", seconds(d)),
    };
    let of_big_d = report
        .policy
        .staleness_seconds
        .map_or_else(|| "D = none".to_owned(), |d| format!("D = {}", seconds(d)));
    for (at, what, now, bound, words) in [
        (0, "this host crashes", rpo.host_crash_seconds, d, of_d),
        (
            2,
            "this host and its journal are lost",
            rpo.total_loss_seconds,
            report.policy.staleness_seconds,
            of_big_d,
        ),
    ] {
        let text = Line::from(vec![
            Span::raw(format!("{what}: ")),
            Span::styled(seconds(now), Style::new().add_modifier(Modifier::BOLD)),
            Span::styled(format!("   {words}"), Style::new().add_modifier(Modifier::DIM)),
        ]);
        frame.render_widget(Paragraph::new(text), rows[at]);
        let share = bound.map_or(0.0, |bound| (now / bound).clamp(0.0, 1.0));
        let colour = if share > 0.75 { Color::Red } else { Color::Cyan };
        frame.render_widget(
            Gauge::default().gauge_style(colour).ratio(share).label(""),
            rows[at + 1],
        );
    }
}

/// A value over time.
type Get = fn(&Point) -> f64;

fn draw_flow(frame: &mut Frame<'_>, area: Rect, history: &History, now: Point) {
    let halves = Layout::horizontal([Constraint::Ratio(1, 3); 3]).split(area);
    let lines: [(String, Get); 3] = [
        (format!("writes/s {}", rate(now.writes)), |point| point.writes),
        (format!("hits/s {}", rate(now.hits)), |point| point.hits),
        (format!("behind {}", seconds(now.staleness)), |point| point.staleness),
    ];
    for ((title, get), area) in lines.into_iter().zip(halves.iter()) {
        let values = history.line(get);
        let shown = values.len().saturating_sub(usize::from(area.width));
        let line = Sparkline::default().data(&values[shown..]).style(Color::Cyan);
        frame.render_widget(line.block(titled(&title)), *area);
    }
}

fn draw_details(frame: &mut Frame<'_>, area: Rect, report: &Report) {
    let block = titled("details");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let backlog = if report.destage.groups_per_second > 0.0 {
        seconds(report.writes.dirty_groups as f64 / report.destage.groups_per_second)
    } else {
        "unknown".to_owned()
    };
    let last_error = report.origin.last_error.clone().unwrap_or_default();
    let origin =
        if report.origin.down { format!("away: {last_error}") } else { "connected".to_owned() };
    let mut lines = vec![
        format!("origin    {}   {origin}", report.origin.description),
        format!(
            "policy    {}, when {}, at the limit {}",
            report.policy.name, report.policy.when, report.policy.at_limit
        ),
        format!("commit    {}", latency(&report.writes.commit_latency)),
        format!("destage   {}", latency(&report.destage.latency)),
        format!(
            "backlog   {} writes, {} of {}, drained in about {backlog}",
            count(report.writes.dirty_groups),
            bytes(report.writes.limited_bytes),
            bytes(report.policy.dirty_bytes_max)
        ),
        format!(
            "clients   {} of {}, {} waiting, {} errors   memory {}",
            count(report.clients.connected),
            count(report.clients.connected_max),
            count(report.clients.waiting),
            count(report.clients.errors_total),
            bytes(report.memory.resident_bytes)
        ),
        format!(
            "journal   {}, {} segments, {} syncs",
            bytes(report.journal.bytes),
            report.journal.segments,
            count(report.journal.syncs_total)
        ),
    ];
    lines.extend(report.replicas.as_ref().map(|log| {
        format!(
            "log       {} of {} servers take writes, {} must hold each; {}",
            log.servers_ready,
            log.servers.len(),
            log.copies,
            log.loss
        )
    }));
    if let Some(mount) = &report.mount {
        lines.push(format!(
            "mount     {} files and {} names sent, {} gone before they were due, {} conflicts",
            count(mount.files_written_total),
            count(mount.names_changed_total),
            count(mount.absorbed_files_total),
            count(mount.conflicts_total)
        ));
    }
    lines.extend(report.warnings.iter().map(|warning| format!("! {warning}")));
    frame.render_widget(Paragraph::new(lines.join("\n")), inside);
}

fn latency(latencies: &Latencies) -> String {
    let at = |value: f64| seconds(value);
    format!(
        "p50 {}, p99 {}, p99.9 {}, longest {}",
        at(latencies.p50_seconds),
        at(latencies.p99_seconds),
        at(latencies.p999_seconds),
        at(latencies.max_seconds)
    )
}

fn of_volumes(volumes: &[VolumeReport]) -> Table<'_> {
    let rows = volumes.iter().map(|volume| {
        Row::new([
            if volume.name.is_empty() { "(the only one)".to_owned() } else { volume.name.clone() },
            volume.mode.clone(),
            volume.policy_name.clone(),
            volume.hit_ratio.map_or_else(|| "-".to_owned(), percent),
            bytes(volume.dirty_bytes),
            format!("{} of {}", bytes(volume.log_bytes), bytes(volume.log_bytes_max)),
            seconds(volume.staleness_seconds),
            seconds(volume.write_latency.p99_seconds),
        ])
    });
    let widths = [16, 10, 13, 9, 11, 23, 9, 9].map(Constraint::Length);
    let header =
        Row::new(["volume", "mode", "policy", "hits", "dirty", "log", "behind", "write p99"]);
    let header = header.style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows, widths).header(header).block(titled("volumes"))
}
