//! Changes of JSON arrays: `push`, `pull` and `add_to_set`.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, table 2.

use crate::value::{ColumnType, ValueError};
use serde_json::Value;

/// A change of an array.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit {
    Push,
    Pull,
    AddToSet,
}

/// An element as the column has it.
pub(super) struct Element {
    text: String,
    value: Value,
}

impl Element {
    /// An element for arrays in a column of that type.
    ///
    /// # Errors
    /// The column takes no such element.
    pub(super) fn new(ty: &ColumnType, value: Value) -> Result<Self, ValueError> {
        let text = value.to_string();
        let ColumnType::Bson { .. } = ty else { return Ok(Self { text, value }) };
        let array = ty.canonical(format!("[{text}]").as_bytes())?.into_owned();
        // It is text, and in brackets.
        let text = String::from_utf8_lossy(&array[1..array.len() - 1]).into_owned();
        Ok(Self { value: serde_json::from_str(&text).unwrap_or(value), text })
    }

    /// By its text, which keeps all digits, or by what it means: the order of an object's names does not count.
    fn equals(&self, text: &str, value: &Value) -> bool {
        text == self.text || *value == self.value
    }
}

impl Edit {
    /// The array's new text, its other elements as they were; `None` if nothing changes.
    ///
    /// # Errors
    /// What is wrong with the old one.
    pub(super) fn apply(
        self,
        element: &Element,
        old: Option<&str>,
    ) -> Result<Option<String>, String> {
        let old = old.unwrap_or("[]");
        let values: Vec<Value> = serde_json::from_str(old)
            .map_err(|error| format!("holds '{old}', which is no JSON array: {error}"))?;
        let mut texts = elements(old);
        debug_assert_eq!(texts.len(), values.len());
        let before = texts.len();
        let mut values = values.iter();
        let mut is_equal =
            |text: &str| values.next().is_some_and(|value| element.equals(text, value));
        match self {
            Self::Push => texts.push(&element.text),
            Self::Pull => texts.retain(|text| !is_equal(text)),
            Self::AddToSet => {
                if !texts.iter().any(|text| is_equal(text)) {
                    texts.push(&element.text);
                }
            }
        }
        Ok((texts.len() != before).then(|| format!("[{}]", texts.join(","))))
    }
}

/// The texts of the elements of an array, which is valid JSON.
fn elements(array: &str) -> Vec<&str> {
    let array = array.trim();
    let inner = &array[1..array.len() - 1];
    let mut found = Vec::new();
    let (mut start, mut depth, mut in_string, mut escaped) = (0, 0_usize, false, false);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = inner[start..].trim();
    if !last.is_empty() {
        found.push(last);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: ColumnType = ColumnType::Text { chars_max: None };
    const ARRAY: ColumnType = ColumnType::Bson { is_array: true };

    fn edited(ty: &ColumnType, edit: Edit, element: &str, old: Option<&str>) -> Option<String> {
        let element = Element::new(ty, serde_json::from_str(element).unwrap()).unwrap();
        edit.apply(&element, old).unwrap()
    }

    #[test]
    fn the_array_rows_of_table_2() {
        for (edit, old, new) in [
            (Edit::Push, Some(r#"["b"]"#), Some(r#"["b","b"]"#)),
            (Edit::AddToSet, Some(r#"["a"]"#), Some(r#"["a","b"]"#)),
            (Edit::AddToSet, Some(r#"["b"]"#), None),
            (Edit::Pull, Some(r#"["b","a","b"]"#), Some(r#"["a"]"#)),
            (Edit::Pull, None, None),
            (Edit::Push, None, Some(r#"["b"]"#)),
        ] {
            for ty in [&TEXT, &ARRAY] {
                assert_eq!(edited(ty, edit, r#""b""#, old).as_deref(), new, "{edit:?} {old:?}");
            }
        }
        let element = Element::new(&TEXT, Value::from("b")).unwrap();
        let error = Edit::Push.apply(&element, Some("7")).unwrap_err();
        assert!(error.contains("no JSON array"), "{error}");
    }

    #[test]
    fn the_other_elements_stay_as_they_are() {
        let old = r#"[ 1.50, {"b":[1, "x],"],"a":"\"," } ,123456789012345678901, "é" ]"#;
        // Within an element not even its blanks change.
        let new = r#"[1.50,{"b":[1, "x],"],"a":"\"," },123456789012345678901,"é",0]"#;
        assert_eq!(edited(&TEXT, Edit::Push, "0", Some(old)).as_deref(), Some(new));
    }

    #[test]
    fn elements_are_equal_in_any_spelling_of_theirs() {
        let id = r#"{"$oid":"65a0c3d2e1f0a1b2c3d4e5f6"}"#;
        let old = format!("[{id},1]");
        let spelt = id.to_uppercase().replace("$OID", "$oid");
        assert_eq!(edited(&ARRAY, Edit::AddToSet, &spelt, Some(&old)), None);
        assert_eq!(edited(&ARRAY, Edit::Pull, &spelt, Some(&old)).as_deref(), Some("[1]"));
        let old = r#"[{"b":1,"a":2},1]"#;
        let sorted = r#"{"a":2,"b":1}"#;
        assert_eq!(edited(&ARRAY, Edit::Pull, sorted, Some(old)).as_deref(), Some("[1]"));
        assert_eq!(edited(&ARRAY, Edit::Pull, "1.0", Some(old)), None);
        let refused = Element::new(&ARRAY, serde_json::json!({ "$minKey": 1 }));
        assert!(refused.is_err());
    }

    proptest! {
        #[test]
        fn what_is_pushed_can_be_pulled(texts in prop::collection::vec("[a\\\\\",\\]\\[}{:é ]{0,5}", 0..5), number in any::<f64>()) {
            prop_assume!(number.is_finite());
            let old = Value::from(texts).to_string();
            let number = Value::from(number).to_string();
            let pushed = edited(&ARRAY, Edit::Push, &number, Some(&old)).unwrap();
            prop_assert_eq!(edited(&ARRAY, Edit::Pull, &number, Some(&pushed)), Some(old));
        }
    }
}
