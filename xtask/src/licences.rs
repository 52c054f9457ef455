//! The licences of what Destage is built from, against the list in `deny.toml`: what `cargo deny check licenses` does, without
//! a tool to build and without a network.

use crate::test::Environment;
use crate::{Result, root};
use std::collections::BTreeSet;

/// Every package has a licence of the list.
///
/// # Errors
/// Names those that have not.
pub(crate) fn check(environment: &Environment) -> Result<()> {
    let file = root().join("deny.toml");
    let text = std::fs::read_to_string(&file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let allowed = allowed(&text);
    let mut cargo = environment.cargo(&["metadata", "--format-version", "1", "--locked"]);
    let output = cargo.output().map_err(|error| format!("failed to start {cargo:?}: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cannot read what cargo says of the packages: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo names no packages")?;
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !is_allowed(package["license"].as_str().unwrap_or_default(), &allowed))
        .map(|package| format!("{} ({})", package["name"], package["license"]))
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(format!("not among the licences of deny.toml: {}", refused.join(", ")))
    }
}

/// The strings of the list `allow`.
fn allowed(text: &str) -> BTreeSet<&str> {
    let list = text.split_once("allow = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether one of an expression's alternatives holds: `A OR B`, each of which may be `C AND D`, in parentheses or not.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    let all = |alternative: &str| {
        let mut parts = alternative.split(" AND ").map(str::trim).peekable();
        parts.peek().is_some() && parts.all(|part| allowed.contains(part))
    };
    plain.split(" OR ").any(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alternative_is_enough_and_all_its_parts_are_needed() {
        let list = allowed("x\nallow = [\n  \"MIT\",\n \"ISC\",\n]\n[bans]\n");
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), ["ISC", "MIT"]);
        for good in ["MIT", "GPL-3.0 OR MIT", "Apache-2.0/MIT", "(MIT AND ISC)"] {
            assert!(is_allowed(good, &list), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0"] {
            assert!(!is_allowed(bad, &list), "{bad}");
        }
    }
}
