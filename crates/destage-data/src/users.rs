//! Users as a file names them: their passwords' hashes, what they may do, and which keys they reach.
//!
//! A line for each user, in words of Redis's ACL as far as they fit:
//!
//! ```text
//! user shop on write ~orders:* %R~products:* $pbkdf2-sha256$i=600000$...
//! ```
//!
//! A role stands in the place of Redis's lists of commands. What is not understood is refused with its line: a word that was
//! passed over might have been the one that keeps somebody out.

use crate::engine::glob;
use destage_runtime::own;
use destage_runtime::password_hash::{self, PasswordHash, ROUNDS};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The user that clients are who name none.
pub const DEFAULT: &str = "default";
/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most passwords of one user: an old and a new one are enough to change it.
const PASSWORDS_MAX: usize = 4;
/// Most patterns of one user: each command looks through them.
const PATTERNS_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 128;

/// What a user may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Everything, with all keys.
    Admin,
}

impl Role {
    /// Its word in the file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

/// What a command does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Read,
    Write,
}

/// Keys that a user reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// For reading alone.
    is_read_only: bool,
    glob: Box<[u8]>,
}

/// One user. `Debug` shows no hashes.
pub struct User {
    name: Box<str>,
    is_on: bool,
    role: Role,
    patterns: Vec<Pattern>,
    /// With their texts, which tell them apart.
    passwords: Vec<(Arc<str>, PasswordHash)>,
}

/// All users of a file.
#[derive(Debug, Default)]
pub struct Users {
    by_name: BTreeMap<Box<str>, Arc<User>>,
    /// What a wrong password costs, whosever it is.
    wrong_rounds: u32,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("User");
        shown.field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

impl User {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The hashes of its passwords, with their texts.
    pub(crate) fn passwords(&self) -> &[(Arc<str>, PasswordHash)] {
        &self.passwords
    }

    /// Of all its passwords, if it may log in at all.
    fn rounds(&self) -> u32 {
        if !self.is_on {
            return 0;
        }
        self.passwords.iter().map(|(_, hash)| hash.rounds()).sum()
    }

    /// Whether it reaches every key.
    pub(crate) fn reaches_all(&self, reach: Reach) -> bool {
        self.role == Role::Admin
            || self.patterns.iter().any(|pattern| pattern.is_for(reach) && &*pattern.glob == b"*")
    }

    /// Whether it reaches a key.
    pub(crate) fn reaches(&self, reach: Reach, key: &[u8]) -> bool {
        let takes = |pattern: &Pattern| pattern.is_for(reach) && glob(&pattern.glob, key);
        self.reaches_all(reach) || self.patterns.iter().any(takes)
    }

    /// Whether it reaches all keys that begin so.
    pub(crate) fn reaches_below(&self, reach: Reach, prefix: &[u8]) -> bool {
        let takes = |pattern: &Pattern| {
            let Some(begin) = pattern.glob.strip_suffix(b"*") else { return false };
            let is_literal = !begin.iter().any(|byte| b"*?[]\\".contains(byte));
            pattern.is_for(reach) && is_literal && prefix.starts_with(begin)
        };
        self.reaches_all(reach) || self.patterns.iter().any(takes)
    }

    /// Whether it may do all that the other one may.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        let has = |pattern: &Pattern| {
            let reach = if pattern.is_read_only { Reach::Read } else { Reach::Write };
            let is_it = |own: &Pattern| own.is_for(reach) && own.glob == pattern.glob;
            self.reaches_all(reach) || self.patterns.iter().any(is_it)
        };
        self.is_on && self.role >= other.role && other.patterns.iter().all(has)
    }

    /// Its keys in the words of ACL.
    pub(crate) fn keys_text(&self) -> String {
        if self.role == Role::Admin {
            return "~*".into();
        }
        let mut text = String::new();
        for Pattern { is_read_only, glob } in &self.patterns {
            let blank = if text.is_empty() { "" } else { " " };
            let reach = if *is_read_only { "%R~" } else { "~" };
            let _ = write!(text, "{blank}{reach}{}", String::from_utf8_lossy(glob));
        }
        text
    }

    /// Its role in the words of ACL.
    pub(crate) fn commands_text(&self) -> &'static str {
        match self.role {
            Role::Read => "-@all +@connection +@transaction +@read",
            Role::Write => "-@all +@connection +@transaction +@read +@write",
            Role::Admin => "+@all",
        }
    }

    fn read(words: &[&str], has_password: bool) -> Result<Self, String> {
        let ["user", name, words @ ..] = words else {
            return Err(format!("a line is: user NAME on ROLE ~PATTERN HASH; {REMEDY}"));
        };
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("a name has up to {NAME_BYTES_MAX} printable ASCII characters"));
        }
        if *name == DEFAULT && has_password {
            return Err("the user default has the password of --password: leave it out here, or leave that out".into());
        }
        let (mut is_on, mut role) = (None, None);
        let mut user = Self {
            name: (*name).into(),
            is_on: false,
            role: Role::Read,
            patterns: Vec::new(),
            passwords: Vec::new(),
        };
        for (at, word) in words.iter().enumerate() {
            match *word {
                "on" | "off" if is_on.is_none() => is_on = Some(*word == "on"),
                "read" | "write" | "admin" if role.is_none() => {
                    role = [Role::Read, Role::Write, Role::Admin]
                        .into_iter()
                        .find(|role| role.word() == *word);
                }
                "on" | "off" | "read" | "write" | "admin" => {
                    return Err(format!(
                        "'{word}' comes after a word like it: leave one of them out"
                    ));
                }
                // Without the word itself, which may be a password.
                _ => user.take(word).map_err(|what| format!("word {}: {what}", at + 3))?,
            }
        }
        user.is_on = is_on.ok_or_else(|| format!("say whether {name} is on or off"))?;
        user.role = role.ok_or_else(|| format!("say what {name} may do: read, write or admin"))?;
        user.check().map(|()| user)
    }

    /// Takes a pattern or a hash.
    fn take(&mut self, word: &str) -> Result<(), String> {
        let pattern = match word.split_once('~') {
            Some(("", glob)) => Some((false, glob)),
            Some((reach, glob)) if reach.eq_ignore_ascii_case("%r") => Some((true, glob)),
            Some((reach, glob)) if reach.eq_ignore_ascii_case("%rw") => Some((false, glob)),
            _ => (word == "allkeys").then_some((false, "*")),
        };
        if let Some((is_read_only, glob)) = pattern {
            if glob.is_empty() {
                return Err(
                    "a pattern of keys is empty: write ~orders:*, or ~* for all keys".into()
                );
            }
            self.patterns.push(Pattern { is_read_only, glob: glob.as_bytes().into() });
            return Ok(());
        }
        if word.starts_with('$') {
            let hash = PasswordHash::parse(word)?;
            self.passwords.push((word.into(), hash));
            return Ok(());
        }
        Err(match word.as_bytes().first() {
            Some(b'>') => "a password in the clear: write its hash, as 'destage users hash' prints it".into(),
            Some(b'#') => "a hash that is quick to guess: write the one that 'destage users hash' prints".into(),
            Some(b'%') => "a pattern is for reading (%R~orders:*) or for both (~orders:*): who writes may read".into(),
            Some(b'+' | b'-' | b'&' | b'(') => "it chooses commands or channels: here a role says what a user may do: read, write or admin".into(),
            _ if word == "nopass" => "every user has a password: write its hash, as 'destage users hash' prints it".into(),
            _ => format!("it is not understood; {REMEDY}"),
        })
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.is_on && self.passwords.is_empty() {
            return Err(format!(
                "{name} has no password: write its hash, as 'destage users hash' prints it, or say off"
            ));
        }
        if self.passwords.len() > PASSWORDS_MAX || self.patterns.len() > PATTERNS_MAX {
            return Err(format!(
                "{name} has more than {PASSWORDS_MAX} passwords or {PATTERNS_MAX} patterns: give keys a common beginning"
            ));
        }
        match self.role {
            Role::Admin if !self.patterns.is_empty() => Err(format!(
                "{name} is admin, who sees what all others do, and so reaches all keys: leave the patterns out, or say write"
            )),
            Role::Read | Role::Write if self.patterns.is_empty() => Err(format!(
                "{name} reaches no key: name patterns such as ~orders:*, or ~* for all keys"
            )),
            _ => Ok(()),
        }
    }
}

const REMEDY: &str = "write: user NAME on|off read|write|admin ~PATTERN... $HASH, with the hash that 'destage users hash' prints";

/// What is said of a file that is not all there.
const WHOLE: &str = "write all users, each with a line of its own that ends, into a file beside it, and rename that to it";

impl Pattern {
    fn is_for(&self, reach: Reach) -> bool {
        reach == Reach::Read || !self.is_read_only
    }
}

impl Users {
    /// Reads the text of a file; `has_password` says that the user default is not among them.
    ///
    /// # Errors
    /// The first line that does not fit, and what would.
    pub fn parse(text: &str, has_password: bool) -> Result<Self, String> {
        let mut by_name = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if words.first().is_none_or(|word| word.starts_with('#')) {
                continue;
            }
            let in_line = |what: String| format!("line {}: {what}", at + 1);
            let user = User::read(&words, has_password).map_err(in_line)?;
            let name = user.name.clone();
            if by_name.insert(name.clone(), Arc::new(user)).is_some() {
                return Err(in_line(format!("{name} is there twice: leave one of them out")));
            }
        }
        let all = by_name.values().map(|user: &Arc<User>| user.rounds());
        let wrong_rounds = all.max().unwrap_or_default().max(ROUNDS);
        Ok(Self { by_name, wrong_rounds })
    }

    /// Those of a file.
    ///
    /// # Errors
    /// It cannot be read, is no plain file, others may change it, it is cut off or names nobody, or a line does not
    /// fit.
    fn of_file(path: &Path, has_password: bool) -> Result<Self, String> {
        let named =
            |what: &dyn fmt::Display| format!("the users (--users {}): {what}", path.display());
        let mut text = String::new();
        let file = own::open_trusted(path).map_err(|error| match error.kind() {
            // What else is refused says what to do itself.
            io::ErrorKind::InvalidInput => named(&error),
            _ => named(&format!(
                "{error}: name a file that the user who runs destage may read, or leave --users out; for each user {REMEDY}"
            )),
        })?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| named(&error))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(named(&format!("the file has more than {FILE_BYTES_MAX} bytes")));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(named(&format!(
                "the last line does not end, as if the file were cut off: {WHOLE}"
            )));
        }
        let users = Self::parse(&text, has_password).map_err(|error| named(&error))?;
        if users.by_name.is_empty() {
            return Err(named(&format!("the file names no user: {WHOLE}")));
        }
        Ok(users)
    }

    /// One by its name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(std::str::from_utf8(name).ok()?)
    }

    /// By name.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.by_name.values()
    }

    /// Which of a user's passwords this is. A wrong one takes equally long for each user, for one who is off, and for one who
    /// is none: the time that it takes tells nobody which users there are, and how many passwords they have.
    pub(crate) fn position(&self, user: Option<&User>, password: &[u8]) -> Option<usize> {
        self.look(user, password).0
    }

    /// The same, with the rounds that it took.
    fn look(&self, user: Option<&User>, password: &[u8]) -> (Option<usize>, u32) {
        let user = user.filter(|user| user.is_on);
        let mut rounds = 0;
        for (at, (_, hash)) in user.iter().flat_map(|user| &user.passwords).enumerate() {
            rounds += hash.rounds();
            if hash.is_of(password) {
                return (Some(at), rounds);
            }
        }
        // A user whom SIGHUP has changed meanwhile may have had more.
        let rest = self.wrong_rounds.max(ROUNDS).saturating_sub(rounds);
        password_hash::spend(rest, password);
        (None, rounds + rest)
    }
}

/// The file of users, and what was in it when it was read last.
#[derive(Clone, Debug)]
pub struct UsersFile {
    path: PathBuf,
    has_password: bool,
    users: Arc<Users>,
}

impl UsersFile {
    /// This file, not read yet; `has_password` says that the user default has the password of the settings.
    pub fn new(path: PathBuf, has_password: bool) -> Self {
        Self { path, has_password, users: Arc::default() }
    }

    /// Reads it.
    ///
    /// # Errors
    /// As a text for people, with the file and the line; what was read before stays.
    pub fn read(&mut self) -> Result<Arc<Users>, String> {
        self.users = Arc::new(Users::of_file(&self.path, self.has_password)?);
        Ok(self.users.clone())
    }

    /// Those that are in it now, or were when it could be read last, which the log is told.
    pub(crate) fn now(&self) -> Arc<Users> {
        match self.clone().read() {
            Ok(users) => users,
            Err(error) => {
                tracing::error!(%error, "the users stay as they were");
                self.users.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HASH: &str = "$pbkdf2-sha256$i=600000$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn user(words: &str) -> Arc<User> {
        let users = Users::parse(&format!("user u on {words} {HASH}"), false).unwrap();
        users.get(b"u").unwrap().clone()
    }

    #[test]
    fn keys_are_reached_by_patterns_and_only_so() {
        let user = user("write ~orders:* %R~products:??");
        for (key, reads, writes) in [
            ("orders:1", true, true),
            ("products:12", true, false),
            ("products:123", false, false),
            ("order", false, false),
        ] {
            assert_eq!(user.reaches(Reach::Read, key.as_bytes()), reads, "{key}");
            assert_eq!(user.reaches(Reach::Write, key.as_bytes()), writes, "{key}");
        }
        assert!(user.reaches_below(Reach::Write, b"orders:"));
        assert!(
            !user.reaches_below(Reach::Write, b"order") && !user.reaches_below(Reach::Read, b"")
        );
        assert!(!user.reaches_below(Reach::Read, b"products:"));
        assert_eq!(user.keys_text(), "~orders:* %R~products:??");
    }

    #[test]
    fn who_loses_something_is_told_from_who_gains() {
        let old = user("write ~a:* %R~b:*");
        for (words, includes) in [
            ("write ~a:* %R~b:*", true),
            ("write ~a:* ~b:* ~c:*", true),
            ("write ~*", true),
            ("admin", true),
            ("read ~a:* %R~b:*", false),
            ("write ~a:*", false),
            ("write %R~a:* ~b:*", false),
            ("write %R~*", false),
        ] {
            assert_eq!(user(words).includes(&old), includes, "{words}");
        }
        assert!(!user("write ~a:* %R~b:*").includes(&user("admin")));
    }

    #[test]
    fn lines_that_do_not_fit_are_refused_with_a_remedy() {
        for (line, part) in [
            ("usr u on read ~*", "user NAME"),
            ("user", "user NAME"),
            ("user u read ~* HASH", "on or off"),
            ("user u on ~* HASH", "read, write or admin"),
            ("user u on read ~*", "has no password"),
            ("user u on read HASH", "reaches no key"),
            ("user u on admin ~a:* HASH", "leave the patterns out"),
            ("user u on read ~* >secret", "destage users hash"),
            ("user u on read ~* nopass", "destage users hash"),
            ("user u on read ~* #5e88", "quick to guess"),
            ("user u on read ~* $pbkdf2-sha256$i=1$AAAAAAAAAAAAAAAA$AA", "100000"),
            ("user u on +@all ~* HASH", "a role says"),
            ("user u on read %W~* HASH", "who writes may read"),
            ("user u on read ~ HASH", "is empty"),
            ("user u on off read ~* HASH", "leave one of them out"),
            ("user u on read write ~* HASH", "leave one of them out"),
            ("user u on read ~* HASH resetpass", "not understood"),
            ("user default on read ~* HASH", "--password"),
            ("user a on read ~* HASH\nuser a on read ~* HASH", "twice"),
        ] {
            let text = format!("# users\n\n{}\n", line.replace("HASH", HASH));
            let error = Users::parse(&text, true).unwrap_err();
            let at = text.lines().count();
            assert!(
                error.starts_with(&format!("line {at}: ")) && error.contains(part),
                "{line}: {error}"
            );
        }
        let text = format!("user default off read ~* {HASH}");
        assert!(Users::parse(&text, false).is_ok());
    }

    #[test]
    fn no_error_shows_what_may_be_a_password() {
        for begin in ["", "+", "-", "&", "(", "%", ">", "#", "$", "^", "nopass"] {
            let text = format!("user u on read ~* {begin}hush");
            let error = Users::parse(&text, false).unwrap_err();
            assert!(error.starts_with("line 1: word 6: ") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, format!("user u on read ~a:* {HASH}\n")).unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let mut file = UsersFile::new(path.clone(), false);
        for mode in [0o666, 0o660] {
            set_mode(mode);
            let error = file.read().unwrap_err();
            assert!(error.contains("--users") && error.contains("chmod go-w"), "{error}");
        }
        set_mode(0o640);
        assert_eq!(file.read().unwrap().iter().len(), 1);
        std::fs::write(&path, "user u on\n").unwrap();
        assert!(file.read().is_err());
        assert_eq!(file.now().iter().len(), 1, "those that could be read stay");
        std::fs::remove_file(&path).unwrap();
        assert!(file.read().unwrap_err().contains("--users"));
    }

    #[test]
    fn a_file_that_is_not_all_there_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let line = format!("user u on read ~a:* {HASH}");
        std::fs::write(&path, format!("{line}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut file = UsersFile::new(path.clone(), false);
        file.read().unwrap();
        for (text, part) in [
            ("".to_owned(), "names no user"),
            ("# users\n\n".to_owned(), "names no user"),
            (format!("{line}\n{}", line.replace("user u", "user v")), "cut off"),
            (format!("{line}\nuser v on re"), "cut off"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = file.read().unwrap_err();
            assert!(error.contains(part) && error.contains("rename"), "{text:?}: {error}");
            assert!(UsersFile::new(path.clone(), false).read().is_err(), "at the start, too");
            assert_eq!(file.now().iter().len(), 1, "those that could be read stay");
        }
    }

    #[test]
    fn a_wrong_password_costs_the_same_whosever_it_is() {
        let rounds = |rounds: u32| HASH.replace("600000", &rounds.to_string());
        let text = format!(
            "user one on read ~* {}\nuser two on read ~* {} {}\nuser gone off read ~*\n",
            rounds(100_000),
            rounds(400_000),
            rounds(300_000)
        );
        let users = Users::parse(&text, false).unwrap();
        for name in ["one", "two", "gone", "nobody", "ONE", ""] {
            let user = users.get(name.as_bytes()).map(|user| &**user);
            assert_eq!(users.look(user, b"wrong"), (None, 700_000), "{name}");
        }
        assert_eq!(Users::default().look(None, b"wrong"), (None, ROUNDS));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_refused_with_what_to_do() {
        let refused = UsersFile::new("/nope/users".into(), false).read().unwrap_err();
        for part in
            ["--users /nope/users", "No such file", "leave --users out", "destage users hash"]
        {
            assert!(refused.contains(part), "{part} in {refused}");
        }
    }
}
