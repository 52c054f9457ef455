//! What is to be seen of the sets.

use super::super::Engine;
use super::{Absent, Known};
use crate::schema::Schema;
use destage_runtime::status::{AbsentReport, AbsentTable};

impl Engine {
    /// Adds what is to be seen of the knowledge of what is not there; `None` where none is asked for.
    pub(in crate::engine) fn report_absent(&self) -> Option<AbsentReport> {
        (!self.absent.is_off()).then(|| self.absent.report(&self.schema))
    }
}

impl Absent {
    fn report(&self, schema: &Schema) -> AbsentReport {
        let mut report = AbsentReport { answered_total: self.answered, ..AbsentReport::default() };
        report.bytes_max = self.bytes_max as u64;
        report.handed = self.handed.len();
        for (table, known) in schema.reachable().iter().zip(&self.tables) {
            let one = known.report(&table.name);
            match one.state.as_str() {
                "ready" => report.ready += 1,
                "off" => report.off += 1,
                _ => report.filling += 1,
            }
            report.keys += one.keys;
            report.bytes += one.bytes;
            report.false_positive_rate = report.false_positive_rate.max(one.false_positive_rate);
            report.tables.push(one);
        }
        report
    }
}

impl Known {
    fn report(&self, name: &str) -> AbsentTable {
        let filling = self.filling.as_ref().map(|filling| &filling.keys);
        let keys = self.whole.as_ref().or(filling);
        let is_ready = self.whole.is_some() && !self.is_deaf;
        let state = match (&self.off, is_ready) {
            (Some(_), _) => "off",
            (None, true) => "ready",
            (None, false) => "filling",
        };
        let deaf = "the origin does not tell now what others change";
        AbsentTable {
            name: name.to_owned(),
            state: state.to_owned(),
            why: self.off.clone().or_else(|| self.is_deaf.then(|| deaf.to_owned())),
            keys: keys.map_or(0, |keys| keys.len()),
            bytes: self.bytes() as u64,
            false_positive_rate: keys.map_or(0.0, |keys| keys.false_positive_rate()),
        }
    }
}
