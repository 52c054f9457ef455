//! Key patterns: `top:{region}:{year}`.

use crate::key_text::decode;
use std::borrow::Cow;

/// A part between two colons.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Parameter(String),
}

/// The keys of a query.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    parts: Vec<Part>,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(':').map(part).collect::<Result<Vec<_>, _>>()?;
        match parts.first() {
            Some(Part::Text(first)) if !first.is_empty() => {}
            _ => return Err("a key begins with a word: 'top:{region}'".into()),
        }
        let pattern = Self { parts };
        let names = pattern.parameters();
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(format!("{{{name}}} stands twice in the key"));
            }
        }
        Ok(pattern)
    }

    /// The word that its keys begin with.
    pub(super) fn first(&self) -> &str {
        match &self.parts[0] {
            Part::Text(text) | Part::Parameter(text) => text,
        }
    }

    /// The parameters' names, in order.
    pub(super) fn parameters(&self) -> Vec<String> {
        let name = |part: &Part| match part {
            Part::Text(_) => None,
            Part::Parameter(name) => Some(name.clone()),
        };
        self.parts.iter().filter_map(name).collect()
    }

    /// The parameters' values in a key; `None` if the key is another one.
    pub(super) fn matches<'k>(&self, key: &'k [u8]) -> Option<Vec<Cow<'k, [u8]>>> {
        let mut given = key.split(|&byte| byte == b':');
        let mut values = Vec::new();
        for part in &self.parts {
            let given = given.next()?;
            match part {
                Part::Text(text) if text.as_bytes() == given => {}
                Part::Text(_) => return None,
                Part::Parameter(_) => values.push(decode(given)),
            }
        }
        given.next().is_none().then_some(values)
    }

    /// Whether some key belongs to both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let differ = |(one, two): (&Part, &Part)| match (one, two) {
            (Part::Text(one), Part::Text(two)) => one != two,
            _ => false,
        };
        self.parts.len() == other.parts.len() && !self.parts.iter().zip(&other.parts).any(differ)
    }
}

fn part(text: &str) -> Result<Part, String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(name) if is_name(name) => Ok(Part::Parameter(name.into())),
        Some(name) => Err(format!("'{name}' is not the name of a parameter: letters, digits, '_'")),
        None if text.contains(['{', '}']) => Err(format!(
            "a parameter is a whole part of the key, between colons, unlike in '{text}'"
        )),
        None => Ok(Part::Text(text.into())),
    }
}
