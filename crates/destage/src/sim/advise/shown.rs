//! How an advice is shown.

use super::sentences::told;
use super::{Advice, Interrupted, Ranked};
use crate::error::CliError;
use destage_runtime::exit;
use destage_runtime::human::{count, seconds};
use destage_runtime::units::Interval;
use destage_sim::advise::Sure;
use destage_sim::report::{Axis, Chart, Mark, Page, Scale, Series};

impl Advice<'_> {
    fn asked(&self) -> String {
        let limit = |what: &str, limit: Option<Interval>| {
            limit.map(|limit| format!(", 99 % of the {what} within {limit}")).unwrap_or_default()
        };
        format!(
            "{}: at most the writes of {} lost with host and cache{}{}{}{}{}",
            self.trace,
            self.rpo,
            self.rpo_crash.map(|time| format!(", of {time} at a crash")).unwrap_or_default(),
            limit("reads", self.p99_read),
            limit("writes", self.p99_write),
            self.flash.map(|size| format!(", {size} of flash")).unwrap_or_default(),
            self.ram.map(|size| format!(", {size} of RAM")).unwrap_or_default()
        )
    }

    fn unfinished(&self) -> Option<String> {
        let Interrupted { ranked, candidates } = self.interrupted?;
        Some(format!(
            "interrupted: {ranked} of {candidates} candidates are ranked, and better settings may not have been tried; there is \
             nothing to apply"
        ))
    }

    fn how_sure(&self) -> Vec<String> {
        if self.sure.is_empty() {
            return vec![
                "not known, since only a recording (--record of a server) tells how long its requests took"
                    .into(),
            ];
        }
        let crashes = "out of order: of simulated devices that begin with an empty cache";
        self.sure.iter().map(Sure::to_string).chain([crashes.to_owned()]).collect()
    }

    fn header() -> [&'static str; 9] {
        [
            "policy",
            "when",
            "meets",
            "mean",
            "p99 read",
            "p99 write",
            "origin behind",
            "out of order",
            "origin blocks",
        ]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |ranked: &Ranked<'_>| {
            let losses = ranked.losses;
            vec![
                ranked.policy.to_owned(),
                ranked.when.clone(),
                if ranked.meets { "yes" } else { "no" }.to_owned(),
                seconds(ranked.mean_seconds),
                seconds(ranked.p99_read_seconds),
                seconds(ranked.p99_write_seconds),
                seconds(ranked.behind_seconds),
                format!("{} of {}", losses.order_violations.crashes, losses.crashes),
                count(ranked.origin_write_blocks),
            ]
        };
        self.ranking.iter().map(row).collect()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = self.unfinished().map(|line| line + "\n").unwrap_or_default();
        out.push_str(&format!("{}\n", self.asked()));
        out.push_str(&format!("devices: {}\n", self.devices));
        out.extend(self.in_force.iter().map(|tier| format!("best, {tier}\n")));
        out.push('\n');
        let header = Self::header().map(str::to_owned).to_vec();
        let rows = self.rows();
        let all = || std::iter::once(&header).chain(&rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        for row in all() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        let sentences = self.reason.iter().map(|sentence| format!("{sentence}\n"));
        out.push('\n');
        out.extend(sentences);
        out.push_str("\nhow sure:\n");
        out.extend(self.how_sure().iter().map(|line| format!("  {line}\n")));
        if !self.choices.is_empty() {
            out.push_str("\nfurther choices, log and dirty limit against the candidate, the rest against the best of these:\n");
            out.extend(self.choices.iter().map(|choice| format!("  {}\n", told(choice))));
        }
        if self.interrupted.is_none() {
            out.push_str(&format!("\nto start:  {}\nonline:    {}\n", self.command, self.online));
        }
        out
    }

    /// How long requests took against how old the origin was, a line for each policy.
    fn chart(&self) -> Chart {
        let mut series: Vec<Series> = Vec::new();
        for ranked in &self.ranking {
            let point = (ranked.behind_seconds, ranked.mean_seconds);
            match series.iter_mut().find(|series| series.name == ranked.policy) {
                Some(series) => series.points.push(point),
                None => {
                    let (name, points) = (ranked.policy.into(), vec![point]);
                    series.push(Series { name, points, mark: Mark::Line });
                }
            }
        }
        for series in &mut series {
            series.points.sort_by(|left, right| left.0.total_cmp(&right.0));
        }
        let axis =
            |label: &str| Axis { label: label.into(), scale: Scale::Linear, format: seconds };
        Chart {
            title: "What a lower age of the origin costs".into(),
            x: axis("the origin is behind, at most"),
            y: axis("a request takes, mean"),
            series,
        }
    }

    pub(super) fn html(&self) -> Result<String, CliError> {
        let mut page = Page::new("Which policy for this load");
        page.paragraph(&self.asked());
        page.list(&self.in_force);
        self.reason.iter().for_each(|sentence| page.paragraph(sentence));
        match self.unfinished() {
            Some(line) => page.paragraph(&line),
            None => {
                page.heading("To put it into service");
                page.verbatim(&self.command);
                page.paragraph("A server that runs takes of it, at once:");
                page.verbatim(&self.online);
            }
        }
        page.heading("How sure it is");
        page.list(&self.how_sure());
        page.heading("What further choices would cost or save");
        page.list(&self.choices.iter().map(told).collect::<Vec<_>>());
        page.heading("What they come to");
        let svg = self.chart().svg();
        page.svg(&svg.map_err(|error| CliError::new(exit::BUG, error))?);
        page.heading("All candidates, the best first");
        page.paragraph(
            "Each was simulated on the whole load. 'Origin behind' is how old the origin was at most. 'Out of order' is what crashes \
             at random moments would have left at the origin if host and cache were lost: in how many of them it held a write but \
             not one that was complete before.",
        );
        page.table(&Self::header(), &self.rows(), Some(0));
        let misses = self.ranking.iter().filter(|ranked| !ranked.meets).map(|ranked| {
            format!("{}, {}: {}", ranked.policy, ranked.when, ranked.misses.join("; "))
        });
        let misses: Vec<String> = misses.collect();
        if !misses.is_empty() {
            page.heading("What the others miss");
            page.list(&misses);
        }
        Ok(page.html())
    }
}
