//! What CHECK constraints ask, of tables and of the domains of their columns.

use super::Builder;
use super::queries::{Attribute, DomainCheck};
use super::types;
use crate::checks::{Check, FOREIGN, Kind, Sql, read};

impl Builder<'_> {
    /// Enters the constraints of all tables, whose columns are complete.
    pub(super) fn conditions(&mut self) {
        let relations: Vec<u32> = self.places.keys().copied().collect();
        for relation in relations {
            let checks = self.conditions_of(relation);
            let (place, _) = self.places[&relation];
            self.tables[place].checks = checks;
        }
    }

    fn conditions_of(&self, relation: u32) -> Vec<Check> {
        let attributes = self.facts.attributes.get(&relation).map(Vec::as_slice);
        let attributes = attributes.unwrap_or_default();
        let mut checks = Vec::new();
        for attribute in attributes {
            let domains = types::resolve(attribute, &self.facts.types).domains;
            let of_domain = |check: &&DomainCheck| domains.contains(&check.domain);
            for check in self.facts.domain_checks.iter().filter(of_domain) {
                let found = self.found(relation, attribute);
                // A domain over a domain has the collation of that one, which is not read.
                let found =
                    found.filter(|(_, kind)| domains.len() == 1 || !matches!(kind, Kind::Text(_)));
                let find = |name: &str| found.filter(|_| name == "value");
                let text = &check.condition;
                checks.push(condition(&check.name, text, check.has_own_operators, &find));
            }
        }
        for constraint in self.facts.constraints.iter().filter(|c| c.relation == relation) {
            let Some(text) = &constraint.condition else { continue };
            let find = |name: &str| {
                let attribute = attributes.iter().find(|attribute| attribute.name == name)?;
                self.found(relation, attribute)
            };
            checks.push(condition(&constraint.name, text, constraint.has_own_operators, &find));
        }
        checks
    }

    /// Where a column stands, and what it is in conditions.
    fn found(&self, relation: u32, attribute: &Attribute) -> Option<(usize, Kind)> {
        let (_, columns) = self.places.get(&relation)?;
        let resolved = types::resolve(attribute, &self.facts.types);
        let is_as_here = attribute.deterministic && attribute.is_utf8;
        Some((*columns.get(&attribute.number)?, types::kind(&resolved, is_as_here)?))
    }
}

fn condition(
    name: &str,
    text: &str,
    has_own_operators: bool,
    find: &dyn Fn(&str) -> Option<(usize, Kind)>,
) -> Check {
    let read = if has_own_operators { Err(FOREIGN) } else { read(Sql::Postgres, text, find) };
    Check { name: name.to_owned(), text: text.to_owned(), condition: read }
}
