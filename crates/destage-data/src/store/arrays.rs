//! Changes of JSON arrays: `push`, `pull` and `add_to_set`.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, table 2.

use serde_json::Value;

/// A change of an array.
pub(super) enum Edit {
    Push(Value),
    Pull(Value),
    AddToSet(Value),
}

impl Edit {
    /// The array's new text; `None` if nothing changes.
    ///
    /// # Errors
    /// What is wrong with the old one.
    pub(super) fn apply(self, old: Option<&str>) -> Result<Option<String>, String> {
        let mut array: Vec<Value> = match old {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| format!("holds '{text}', which is no JSON array: {error}"))?,
        };
        let before = array.len();
        match self {
            Self::Push(element) => array.push(element),
            Self::Pull(element) => array.retain(|other| *other != element),
            Self::AddToSet(element) if array.contains(&element) => {}
            Self::AddToSet(element) => array.push(element),
        }
        Ok((array.len() != before).then(|| Value::Array(array).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_array_rows_of_table_2() {
        let element = || Value::from("b");
        let push = Edit::Push(element()).apply(Some(r#"["b"]"#));
        assert_eq!(push, Ok(Some(r#"["b","b"]"#.into())));
        assert_eq!(
            Edit::AddToSet(element()).apply(Some(r#"["a"]"#)),
            Ok(Some(r#"["a","b"]"#.into()))
        );
        assert_eq!(Edit::AddToSet(element()).apply(Some(r#"["b"]"#)), Ok(None));
        assert_eq!(
            Edit::Pull(element()).apply(Some(r#"["b","a","b"]"#)),
            Ok(Some(r#"["a"]"#.into()))
        );
        assert_eq!(Edit::Pull(element()).apply(None), Ok(None));
        assert_eq!(Edit::Push(element()).apply(None), Ok(Some(r#"["b"]"#.into())));
        let error = Edit::Push(element()).apply(Some("7")).unwrap_err();
        assert!(error.contains("no JSON array"), "{error}");
    }
}
