//! Grids: a file of TOML whose keys are parameters; a list gives one run per value, several lists one per combination.

use toml::Value;

/// The parameters of one run by name: texts, whole numbers and truth values, by rising name.
pub type Parameters = toml::Table;

/// Most runs of a grid.
pub const RUNS_MAX: usize = 100_000;

/// Parameters, each with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    axes: Vec<(String, Vec<Value>)>,
}

/// A grid that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// It is no TOML.
    #[error("{0}")]
    Syntax(String),
    /// A list without values.
    #[error("'{0}' is an empty list: give it a value or leave it out")]
    Empty(String),
    /// A value that is no text, number or truth value.
    #[error("'{name}' holds {found}: its values are texts, numbers, true or false")]
    Kind {
        /// The parameter.
        name: String,
        /// What was found.
        found: &'static str,
    },
    /// A value that stands there twice.
    #[error("'{name}' has the value {value} twice")]
    Twice {
        /// The parameter.
        name: String,
        /// The value.
        value: String,
    },
    /// Too many combinations.
    #[error("the grid has more than {RUNS_MAX} runs")]
    TooMany,
}

impl Grid {
    /// Reads a grid.
    ///
    /// # Errors
    /// [`GridError`].
    pub fn parse(text: &str) -> Result<Self, GridError> {
        let table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| GridError::Syntax(e.to_string().trim_end().to_owned()))?;
        let axes = table.into_iter().map(axis).collect::<Result<Vec<_>, _>>()?;
        let runs = axes.iter().fold(1usize, |runs, (_, values)| runs.saturating_mul(values.len()));
        if runs > RUNS_MAX { Err(GridError::TooMany) } else { Ok(Self { axes }) }
    }

    /// Takes a parameter out of the grid; its values.
    pub fn take(&mut self, name: &str) -> Option<Vec<Value>> {
        let place = self.axes.iter().position(|(other, _)| other == name)?;
        Some(self.axes.remove(place).1)
    }

    /// The names of all parameters, rising.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|(name, _)| name.as_str())
    }

    /// The names of those with several values.
    pub fn varied(&self) -> Vec<String> {
        let varied = self.axes.iter().filter(|(_, values)| values.len() > 1);
        varied.map(|(name, _)| name.clone()).collect()
    }

    /// Every combination; the last parameter changes fastest.
    pub fn runs(&self) -> Vec<Parameters> {
        let mut runs = vec![Parameters::new()];
        for (name, values) in &self.axes {
            let with = |run: &Parameters, value: &Value| {
                let mut run = run.clone();
                run.insert(name.clone(), value.clone());
                run
            };
            runs = runs
                .iter()
                .flat_map(|run| values.iter().map(move |value| with(run, value)))
                .collect();
        }
        runs
    }
}

fn axis((name, value): (String, Value)) -> Result<(String, Vec<Value>), GridError> {
    let values = match value {
        Value::Array(values) => values,
        value => vec![value],
    };
    let values: Vec<Value> =
        values.into_iter().map(|value| scalar(&name, value)).collect::<Result<_, _>>()?;
    if values.is_empty() {
        return Err(GridError::Empty(name));
    }
    let twice = (1..values.len()).find(|&place| values[..place].contains(&values[place]));
    match twice {
        Some(place) => Err(GridError::Twice { name, value: shown(&values[place]) }),
        None => Ok((name, values)),
    }
}

fn scalar(name: &str, value: Value) -> Result<Value, GridError> {
    match value {
        Value::Float(number) => Ok(Value::String(number.to_string())),
        Value::String(_) | Value::Integer(_) | Value::Boolean(_) => Ok(value),
        other => Err(GridError::Kind { name: name.into(), found: other.type_str() }),
    }
}

/// A value of a parameter as text.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_combined() {
        let text = "ram = [\"1G\", 0]\nreplacement = \"lru\"\nrate = [0.5, 1, 3]\nslow = true\n";
        let mut grid = Grid::parse(text).unwrap();
        assert_eq!(grid.names().collect::<Vec<_>>(), ["ram", "rate", "replacement", "slow"]);
        let runs = grid.runs();
        for run in &runs {
            assert_eq!(run.get("replacement"), Some(&Value::String("lru".into())));
            assert_eq!(run.get("slow"), Some(&Value::Boolean(true)));
        }
        let shown_run = |run: &Parameters| run.values().map(shown).collect::<Vec<_>>().join(" ");
        let shown_runs: Vec<_> = runs.iter().map(shown_run).collect();
        let expected = ["1G 0.5", "1G 1", "1G 3", "0 0.5", "0 1", "0 3"];
        assert_eq!(shown_runs, expected.map(|run| format!("{run} lru true")));
        assert_eq!(grid.varied(), ["ram", "rate"]);
        assert_eq!(grid.take("ram").map(|values| values.len()), Some(2));
        assert_eq!((grid.take("ram"), grid.runs().len()), (None, 3));
    }

    #[test]
    fn grids_that_make_no_sense_say_why() {
        for (text, part) in [
            ("ram = ", "TOML"),
            ("ram = []", "'ram' is an empty list"),
            ("ram = [[1]]", "'ram' holds array"),
            ("ram = 1979-05-27", "'ram' holds datetime"),
            ("b = [1, 1]", "'b' has the value 1 twice"),
            ("[a]\nb = 1", "'a' holds table"),
        ] {
            let error = Grid::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let list: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        let list = list.join(",");
        let error = Grid::parse(&format!("a = [{list}]\nb = [{list}]")).unwrap_err();
        assert_eq!(error, GridError::TooMany);
    }
}
