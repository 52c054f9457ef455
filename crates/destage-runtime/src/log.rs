//! The log: to stderr, so that stdout stays the result.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The environment variable that sets the level where no flag does.
pub const LEVEL_ENV: &str = "DESTAGE_LOG";

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Plain,
    /// One JSON object per line.
    Json,
}

/// The level or filter cannot be read, or a log is set up already.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LogError(String);

/// Sets up the log of this process. `filter` is a level (`error`, `warn`, `info`, `debug`, `trace`, `off`) or a list such as
/// `info,destage_journal=debug`.
///
/// # Errors
/// The filter cannot be read, or the log is set up already.
pub fn init(filter: &str, format: Format) -> Result<(), LogError> {
    let parsed = EnvFilter::try_new(filter).map_err(|e| {
        LogError(format!(
            "'{filter}' is not a log level ({e}): use error, warn, info, debug, trace or off, or a \
             list such as info,destage_journal=debug"
        ))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_target(false)
        // A log that cannot be written, as on a full disk, must not end the process: that would be told to the same place.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let done = match format {
        Format::Plain => builder.fmt_fields(plain::fields()).try_init(),
        Format::Json => builder.event_format(json::Json).try_init(),
    };
    done.map_err(|e| LogError(format!("failed to set up the log: {e}")))
}

mod plain {
    use crate::foreign::escaped;
    use std::fmt;
    use tracing::field::Field;
    use tracing_subscriber::field::MakeExt;
    use tracing_subscriber::fmt::FormatFields;
    use tracing_subscriber::fmt::format::{Writer, debug_fn};

    /// The message, then each other field as `name=value`: all on one line, whatever clients and origins have put into them.
    pub(super) fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
        debug_fn(field).delimited(" ")
    }

    fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
        let value = format!("{value:?}");
        let value = escaped(&value);
        match field.name() {
            "message" => writer.write_str(&value),
            name => write!(writer, "{}={value}", name.trim_start_matches("r#")),
        }
    }
}

mod json {
    use serde_json::{Map, Value};
    use std::fmt;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Subscriber};
    use tracing_subscriber::fmt::format::Writer;
    use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
    use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
    use tracing_subscriber::registry::LookupSpan;

    /// One object per event: `time`, `level`, `target`, then the event's fields with `message`.
    pub(super) struct Json;

    #[derive(Default)]
    struct Fields(Map<String, Value>);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name().into(), format!("{value:?}").into());
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name().into(), value.into());
        }

        fn record_u64(&mut self, field: &Field, value: u64) {
            self.0.insert(field.name().into(), value.into());
        }

        fn record_i64(&mut self, field: &Field, value: i64) {
            self.0.insert(field.name().into(), value.into());
        }

        fn record_bool(&mut self, field: &Field, value: bool) {
            self.0.insert(field.name().into(), value.into());
        }
    }

    impl<S, N> FormatEvent<S, N> for Json
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        N: for<'a> FormatFields<'a> + 'static,
    {
        fn format_event(
            &self,
            _: &FmtContext<'_, S, N>,
            mut writer: Writer<'_>,
            event: &Event<'_>,
        ) -> fmt::Result {
            let mut time = String::new();
            SystemTime.format_time(&mut Writer::new(&mut time))?;
            let mut fields = Fields::default();
            fields.0.insert("time".into(), time.into());
            fields.0.insert("level".into(), event.metadata().level().as_str().into());
            fields.0.insert("target".into(), event.metadata().target().into());
            event.record(&mut fields);
            writeln!(writer, "{}", Value::Object(fields.0))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::io::Write;
        use std::sync::{Arc, Mutex};

        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);

        impl Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        #[test]
        fn each_event_is_one_object() {
            let sink = Sink::default();
            let writer = sink.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .event_format(Json)
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(lsn = 7u64, up = true, who = "x", "lost \"it\"");
            });
            let bytes = sink.0.lock().unwrap().clone();
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(value["message"], "lost \"it\"");
            assert_eq!((&value["lsn"], &value["up"]), (&7.into(), &true.into()));
            assert_eq!((&value["level"], &value["who"]), (&"WARN".into(), &"x".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_level_lists_the_levels() {
        let error = init("loud=very=much", Format::Plain).unwrap_err().to_string();
        assert!(error.contains("use error, warn, info"), "{error}");
    }
}
