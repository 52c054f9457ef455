//! Which fields a collection has: as declared in the settings, or as its validator says.

use super::guard;
use super::types::Kind;
use crate::settings::DocumentSettings;

/// What is known of a collection's documents.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fields {
    /// The type of `_id`, where it is said.
    pub(super) id: Option<Kind>,
    /// Paths (names with dots in between lead into nested documents) with type and whether they must be there.
    pub(super) fields: Vec<Field>,
}

/// One field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) required: bool,
}

/// The fields as the settings declare them.
///
/// # Errors
/// What is wrong with the declaration.
pub(super) fn declared(settings: &DocumentSettings) -> Result<Fields, String> {
    let kind = |name: &str, ty: &str| {
        Kind::named(ty).ok_or_else(|| {
            format!("unknown type '{ty}' for '{name}'; use one of {}", Kind::names())
        })
    };
    let id = settings.id.as_deref().map(|id| kind("_id", id)).transpose()?;
    let mut fields = Vec::with_capacity(settings.fields.len());
    for (path, ty) in &settings.fields {
        let required = settings.required.contains(path);
        fields.push(Field { path: path.clone(), kind: kind(path, ty)?, required });
    }
    let unknown = settings.required.iter().find(|path| !settings.fields.contains_key(*path));
    match unknown {
        Some(path) => Err(format!("'{path}' is required but not among the fields")),
        None => Ok(Fields { id, fields }),
    }
}

impl Fields {
    /// Whether commands can name all of them.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self) -> Result<Kind, String> {
        let id = self.id.ok_or("the type of its _id is not said: string, int, long or objectId")?;
        if !id.is_key() {
            return Err(format!(
                "its _id is of type {}: keys are string, int, long or objectId",
                id.name()
            ));
        }
        for Field { path, .. } in &self.fields {
            let mut parts = path.split('.');
            if parts.clone().any(|part| part.is_empty() || part.starts_with('$')) {
                return Err(format!("the field '{path}' has a name that commands cannot write"));
            }
            if matches!(parts.next(), Some("_id" | guard::FIELD)) {
                return Err(format!("the field '{path}' is not a field of your own"));
            }
            let inner = format!("{path}.");
            if self.fields.iter().any(|other| other.path.starts_with(&inner)) {
                return Err(format!("the field '{path}' is declared, and so are fields inside it"));
            }
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(id: &str, fields: &[(&str, &str)], required: &[&str]) -> DocumentSettings {
        DocumentSettings {
            id: Some(id.to_owned()),
            fields: fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            required: required.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn declarations_are_read_and_their_mistakes_named() {
        let good = settings("objectId", &[("name", "string"), ("at.x", "double")], &["name"]);
        let fields = declared(&good).unwrap();
        assert_eq!(fields.check(), Ok(Kind::ObjectId));
        let name = &fields.fields[1];
        assert_eq!((name.path.as_str(), name.kind, name.required), ("name", Kind::String, true));
        for (wrong, names) in [
            (settings("uuid", &[], &[]), "uuid"),
            (settings("double", &[], &[]), "double"),
            (settings("int", &[("a", "text")], &[]), "text"),
            (settings("int", &[("a", "int")], &["b"]), "'b'"),
            (settings("int", &[("a", "int"), ("a.b", "int")], &[]), "'a'"),
            (settings("int", &[("a..b", "int")], &[]), "'a..b'"),
            (settings("int", &[("$a", "int")], &[]), "'$a'"),
            (settings("int", &[("_destage", "json")], &[]), "'_destage'"),
            (settings("int", &[("_id", "int")], &[]), "'_id'"),
        ] {
            let error = declared(&wrong).and_then(|fields| fields.check()).unwrap_err();
            assert!(error.contains(names), "{error}");
        }
    }
}
