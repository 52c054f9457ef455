//! SIGHUP: the settings file is read again. What may change while running does; the rest is named.

use clap::ArgMatches;
use destage_runtime::reload::{Apply, Reread};
use std::collections::BTreeMap;
use std::path::Path;

/// Keys by their place, then by their names: the text in force. A place is a section such as `volume.a`, `volume.` for the
/// volume outside of all sections, or nothing.
pub(crate) type Texts = BTreeMap<String, BTreeMap<String, String>>;

/// The keys that a running server takes, by the command `policy`.
const LIVE: [&str; 16] = [
    "policy",
    "order",
    "when",
    "read-priority",
    "commit",
    "staleness",
    "at-limit",
    "dirty-limit",
    "cache-size",
    "journal-size",
    "batch",
    "linger",
    "on-reject",
    "parked-per-minute",
    "bypass-sequential",
    "auto",
];

/// Reads the file again at each call. `read` gives what is in force by flags, environment and file.
pub(crate) fn rereading(
    config: Option<&Path>,
    matches: &ArgMatches,
    read: fn(&Path, &ArgMatches) -> Result<Texts, String>,
) -> Reread {
    let Some(path) = config.map(Path::to_owned) else {
        return Box::new(|_| {
            tracing::info!(
                "SIGHUP: there is no settings file (--config), so no settings are read again"
            );
        });
    };
    let matches = matches.clone();
    let mut known = read(&path, &matches).unwrap_or_default();
    Box::new(move |apply| match read(&path, &matches) {
        Err(error) => tracing::error!(%error, "SIGHUP: the settings stay as they are"),
        Ok(found) => known = take_over(&known, found, apply),
    })
}

/// Applies what has changed; what counts as known from then on: what was refused is tried again next time.
fn take_over(known: &Texts, found: Texts, apply: Apply<'_>) -> Texts {
    let mut now = known.clone();
    let (mut changed, mut waits) = (0, Vec::new());
    let nothing = BTreeMap::new();
    let places: Vec<&String> =
        known.keys().chain(found.keys().filter(|p| !known.contains_key(*p))).collect();
    for place in places {
        let (before, after) =
            (known.get(place).unwrap_or(&nothing), found.get(place).unwrap_or(&nothing));
        let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
        let volume = place.strip_prefix("volume.");
        let shown = place.trim_end_matches('.');
        let mut args = Vec::new();
        for name in names.filter(|name| before.get(*name) != after.get(*name)) {
            match after.get(name).and_then(|text| live(name, text)) {
                Some(arg) => args.push(arg),
                None if matches!(volume, None | Some("")) => waits.push(name.clone()),
                None => waits.push(format!("[{place}] {name}")),
            }
        }
        if args.is_empty() {
            continue;
        }
        if volume.is_some() {
            join_order(&mut args, after);
        }
        let volume = volume.map(|name| format!("volume={name}"));
        let words: Vec<String> = volume.into_iter().chain(args.iter().cloned()).collect();
        match apply(&words) {
            Ok(()) => {
                changed += args.len();
                let own = now.entry(place.clone()).or_default();
                own.extend(
                    after
                        .iter()
                        .filter(|(name, _)| LIVE.contains(&&***name))
                        .map(|(n, t)| (n.clone(), t.clone())),
                );
                tracing::info!(place = shown, changes = args.join(" "), "SIGHUP: changed");
            }
            Err(error) => {
                tracing::error!(place = shown, changes = args.join(" "), %error, "SIGHUP: refused")
            }
        }
    }
    if !waits.is_empty() {
        tracing::warn!(
            keys = waits.join(", "),
            "SIGHUP: these keys have changed and need a restart"
        );
    }
    tracing::info!(changed, need_restart = waits.len(), "SIGHUP: the settings were read again");
    now
}

/// A volume is asked for its policy and its order together: an order by itself asks for the ordered policy, and that
/// policy by itself for the order `epoch`.
fn join_order(args: &mut Vec<String>, after: &BTreeMap<String, String>) {
    let is_either = |arg: &String| arg.starts_with("policy=") || arg.starts_with("order=");
    let before = args.len();
    args.retain(|arg| !is_either(arg));
    let Some(policy) = after.get("policy").filter(|_| args.len() < before) else { return };
    let order = after.get("order").filter(|_| policy == "ordered");
    let both = [("policy", Some(policy)), ("order", order)];
    args.splice(0..0, both.into_iter().filter_map(|(name, text)| live(name, text?)));
}

/// The argument of `policy` that sets a key, if a running server takes it.
fn live(name: &str, text: &str) -> Option<String> {
    if !LIVE.contains(&name) || text.ends_with('%') {
        return None;
    }
    let text = match (name, text) {
        ("read-priority", "true") => "on",
        ("read-priority", _) => "off",
        _ => text,
    };
    Some(format!("{name}={text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn texts(pairs: &[(&str, &str, &str)]) -> Texts {
        let mut texts = Texts::new();
        for (place, name, text) in pairs {
            texts.entry((*place).into()).or_default().insert((*name).into(), (*text).into());
        }
        texts
    }

    fn taken(known: &Texts, found: &Texts, is_refused: bool) -> (Texts, Vec<String>) {
        let asked = RefCell::new(Vec::new());
        let apply = |args: &[String]| {
            asked.borrow_mut().push(args.join(" "));
            if is_refused { Err("no".to_owned()) } else { Ok(()) }
        };
        let now = take_over(known, found.clone(), &apply);
        (now, asked.into_inner())
    }

    #[test]
    fn what_may_change_is_asked_for_once_and_what_may_not_is_not() {
        let known = texts(&[
            ("", "when", "async"),
            ("", "listen", "a"),
            ("volume.v", "read-priority", "false"),
        ]);
        let found = texts(&[
            ("", "when", "adaptive"),
            ("", "listen", "b"),
            ("volume.v", "read-priority", "true"),
        ]);
        let (now, asked) = taken(&known, &found, false);
        assert_eq!(asked, ["when=adaptive", "volume=v read-priority=on"]);
        assert_eq!(now[""]["listen"], "a");
        assert_eq!(taken(&now, &found, false).1, [""; 0]);
    }

    /// `order` and `auto` are taken before the parts of the policy are looked at.
    #[test]
    fn what_the_command_policy_changes_a_settings_file_changes_too() {
        let policy = destage_core::Policy::default();
        let change = |part: &str| destage_runtime::policy::change(&policy, &[format!("{part}=?")]);
        let unknown = change("colour").unwrap_err().to_string();
        let (_, list) = unknown.split_once("use ").expect("it says which there are");
        let mut known: Vec<&str> = list.split(", ").flat_map(|part| part.split(" or ")).collect();
        known.extend(["order", "auto"]);
        known.sort_unstable();
        let mut live = LIVE;
        live.sort_unstable();
        assert_eq!(live[..], known[..]);
    }

    #[test]
    fn what_is_outside_of_all_sections_changes_no_other_volume() {
        let known = texts(&[("volume.", "staleness", "30s"), ("volume.a", "staleness", "30s")]);
        let found = texts(&[("volume.", "staleness", "5s"), ("volume.a", "staleness", "30s")]);
        assert_eq!(taken(&known, &found, false).1, ["volume= staleness=5s"]);
    }

    #[test]
    fn a_volume_is_asked_for_its_policy_and_its_order_together() {
        let of = |policy: &str, order: &str| {
            texts(&[("volume.a", "policy", policy), ("volume.a", "order", order)])
        };
        for (known, found, asked) in [
            (("journaled", "epoch"), ("ordered", "strict"), "policy=ordered order=strict"),
            (("journaled", "strict"), ("ordered", "strict"), "policy=ordered order=strict"),
            (("ordered", "epoch"), ("ordered", "strict"), "policy=ordered order=strict"),
            (("journaled", "epoch"), ("journaled", "strict"), "policy=journaled"),
        ] {
            let (_, all) = taken(&of(known.0, known.1), &of(found.0, found.1), false);
            assert_eq!(all, [format!("volume=a {asked}")]);
        }
    }

    #[test]
    fn what_was_refused_is_tried_again() {
        let known = texts(&[("", "staleness", "30s")]);
        let found = texts(&[("", "staleness", "1s")]);
        let (now, asked) = taken(&known, &found, true);
        assert_eq!(asked, ["staleness=1s"]);
        assert_eq!(now, known);
    }

    #[test]
    fn a_share_of_memory_needs_a_restart() {
        assert_eq!(live("dirty-limit", "10%"), None);
        assert_eq!(live("dirty-limit", "1G").as_deref(), Some("dirty-limit=1G"));
        assert_eq!(live("password", "x"), None);
    }
}
