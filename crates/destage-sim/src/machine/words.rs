//! Policies in files, in the words of the command line.

/// When to destage.
pub(super) mod when {
    use destage_core::When;
    use destage_runtime::policy::{parse_when, when_text};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(when: &When, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&when_text(*when))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<When, D::Error> {
        parse_when(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// What happens to writes at a limit.
pub(super) mod at_limit {
    use destage_core::AtLimit;
    use destage_runtime::policy::{at_limit_name, parse_at_limit};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        choice: &AtLimit,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(at_limit_name(*choice))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<AtLimit, D::Error> {
        parse_at_limit(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
