//! Shutting a host out by evicting its client of CephFS: from then on the servers take nothing of it any more, not even what
//! is on its way. The `ceph` command does it.
//!
//! Each mount says at etcd which client its origin has. Whoever evicts believes no command: it looks whether the session is
//! gone and the client's address block-listed.

use hashbrown::HashMap;
use serde_json::Value as Json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A client of a CephFS: a mounted file system, as the servers know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// Which CephFS: its cluster's identity.
    pub(super) cluster: String,
    pub(super) id: u64,
}

impl Client {
    /// The one through which a folder is seen; `None` if that is no CephFS, or one that does not tell (before Ceph 16).
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let id = attribute(folder, "ceph.client_id")?.trim_start_matches("client").parse().ok()?;
        Some(Self { cluster: attribute(folder, "ceph.cluster_fsid")?, id })
    }
}

fn attribute(folder: &Path, name: &str) -> Option<String> {
    let mut value = Vec::with_capacity(ATTRIBUTE_LEN_MAX);
    rustix::fs::getxattr(folder, name, rustix::buffer::spare_capacity(&mut value)).ok()?;
    Some(String::from_utf8(value).ok()?.trim_end_matches('\0').to_owned())
}

/// How the `ceph` command is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephCommand {
    program: OsString,
    conf: Option<PathBuf>,
    name: Option<String>,
}

impl CephCommand {
    /// With these `--conf` and `--name`; without one, with the command's own default.
    #[must_use]
    pub fn new(conf: Option<PathBuf>, name: Option<String>) -> Self {
        Self { program: "ceph".into(), conf, name }
    }

    /// What it prints. It ends within a minute or so, and is tried again where it failed at once: a monitor that has just come
    /// may turn it away.
    fn run(&self, words: &[&str]) -> Result<String, String> {
        let began = Instant::now();
        let mut failed = self.run_once(words);
        for _ in 1..TRIES {
            if failed.is_ok() || began.elapsed() > AT_ONCE {
                break;
            }
            failed = self.run_once(words);
        }
        failed
    }

    fn run_once(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", COMMAND_SECONDS_MAX]).arg(&self.program);
        command.args(["--connect-timeout", CONNECT_SECONDS_MAX]);
        if let Some(conf) = &self.conf {
            command.arg("--conf").arg(conf);
        }
        if let Some(name) = &self.name {
            command.arg("--name").arg(name);
        }
        let line = format!("'ceph {}'", words.join(" "));
        let output = command.args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{line} cannot be started: {error}"))?;
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Some(124 | 137) => Err(format!("{line} did not end within {COMMAND_SECONDS_MAX} s")),
            Some(126 | 127) => Err(format!("{line} cannot be started: install ceph-common")),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                // Its library tells of connections that end, too.
                let mut lines = said.lines().filter(|line| !line.contains("ms_handle_reset"));
                let last = lines.rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
                Err(format!("{line} failed: {last}"))
            }
        }
    }

    fn json(&self, words: &[&str]) -> Result<Json, String> {
        let text = self.run(words)?;
        let line = words.join(" ");
        // Some commands print a second value behind it, such as ranges that are block-listed.
        match serde_json::Deserializer::from_str(&text).into_iter().next() {
            Some(first) => first.map_err(|error| format!("'ceph {line}' says no JSON: {error}")),
            None => Err(format!("'ceph {line}' says nothing")),
        }
    }

    /// The command talks to the cluster of this client, and to no other that numbers its clients alike.
    fn check_cluster(&self, client: &Client) -> Result<(), String> {
        let cluster = self.run(&["fsid"])?;
        if cluster.trim() == client.cluster {
            return Ok(());
        }
        Err(format!(
            "the ceph command talks to cluster {}, and the origin is in {}: name its --ceph-conf",
            cluster.trim(),
            client.cluster
        ))
    }

    /// Servers that may have sessions.
    fn servers(&self) -> Result<Vec<String>, String> {
        let dump = self.json(&["fs", "dump", "--format", "json"])?;
        let systems = dump["filesystems"].as_array().into_iter().flatten();
        let all = systems.filter_map(|system| system["mdsmap"]["info"].as_object());
        let ranked = all.flat_map(|info| info.values()).filter(|server| {
            server["rank"].as_i64().is_some_and(|rank| rank >= 0)
                && server["state"].as_str() != Some("up:standby-replay")
        });
        let names: Vec<String> =
            ranked.filter_map(|server| Some(format!("mds.{}", server["name"].as_str()?))).collect();
        if names.is_empty() {
            return Err("no metadata server of the CephFS is up".into());
        }
        Ok(names)
    }

    /// Servers with a session of this client, and its address there.
    fn sessions(&self, id: u64) -> Result<Vec<(String, String)>, String> {
        let mut found = Vec::new();
        let filter = format!("id={id}");
        for server in self.servers()? {
            let list = self.json(&["tell", &server, "client", "ls", &filter])?;
            let sessions = list.as_array().ok_or_else(|| format!("{server} lists no sessions"))?;
            for session in sessions.iter().filter(|session| session["id"].as_u64() == Some(id)) {
                let address = &session["entity"]["addr"];
                let (place, nonce) = (address["addr"].as_str(), address["nonce"].as_u64());
                let (Some(place), Some(nonce)) = (place, nonce) else {
                    return Err(format!("{server} names no address of client {id}"));
                };
                found.push((server.clone(), format!("{place}/{nonce}")));
            }
        }
        Ok(found)
    }

    fn is_blocked(&self, address: &str) -> Result<bool, String> {
        let list = self.json(&["osd", "blocklist", "ls", "--format", "json"])?;
        let entries = list.as_array().ok_or("'ceph osd blocklist ls' lists nothing")?;
        Ok(entries.iter().any(|entry| entry["addr"].as_str() == Some(address)))
    }
}

/// Evicts: see the module.
pub(super) struct Evictions {
    command: CephCommand,
    own: Client,
    /// Addresses of clients that were told to go, and were not seen gone yet.
    begun: Mutex<HashMap<u64, String>>,
}

impl Evictions {
    /// Tries out what an eviction needs, on this host's own session.
    ///
    /// # Errors
    /// What does not work.
    pub(super) fn new(command: CephCommand, own: Client) -> Result<Self, String> {
        command.check_cluster(&own)?;
        let sessions = command.sessions(own.id)?;
        let Some((_, address)) = sessions.first() else {
            return Err(format!("no metadata server knows client {}, the origin's", own.id));
        };
        if command.is_blocked(address)? {
            return Err(format!("the origin's client {address} is evicted: mount it again"));
        }
        Ok(Self { command, own, begun: Mutex::default() })
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        // A panic ends the process: see the program's `main`.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was told to go, and nobody has seen yet that nothing of it is taken any more.
    pub(super) fn has_begun(&self, client: &Client) -> bool {
        self.begun().contains_key(&client.id)
    }

    /// Evicts a client. Once this has succeeded the servers take nothing of it.
    ///
    /// # Errors
    /// What does not work. It may be tried again.
    pub(super) fn evict(&self, client: &Client) -> Result<(), String> {
        let Client { cluster, id } = client;
        if *cluster != self.own.cluster {
            return Err(format!("its origin is in another cluster, {cluster}"));
        }
        if *id == self.own.id {
            return Err(format!(
                "its origin is the same mount as this one's, client {id}: end its process, and give each mount an origin of its own"
            ));
        }
        self.command.check_cluster(&self.own)?;
        let sessions = self.command.sessions(*id)?;
        if let Some((_, address)) = sessions.first() {
            self.begun().insert(*id, address.clone());
        }
        let Some(address) = self.begun().get(id).cloned() else {
            return Err(format!("no metadata server knows its client {id}"));
        };
        for (server, _) in &sessions {
            self.command.run(&["tell", server, "client", "evict", &format!("id={id}")])?;
        }
        if let Some((server, _)) = self.command.sessions(*id)?.first() {
            return Err(format!("{server} still has a session of its client {id}"));
        }
        if !self.command.is_blocked(&address)? {
            return Err(format!(
                "its client {id} at {address} has no session any more, and is not block-listed: see \
                 'ceph config get mds mds_session_blocklist_on_evict'; 'ceph osd blocklist add {address}' does it by hand"
            ));
        }
        self.begun().remove(id);
        Ok(())
    }
}

const ATTRIBUTE_LEN_MAX: usize = 128;
const COMMAND_SECONDS_MAX: &str = "60";
const CONNECT_SECONDS_MAX: &str = "20";
/// How often a command is tried that fails at once, and how soon that is.
const TRIES: u32 = 4;
const AT_ONCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    /// A `ceph` that answers from files, and removes a session when it is told to evict it.
    fn command(folder: &TempDir) -> CephCommand {
        let place = folder.path().display();
        let script = format!(
            "#!/bin/sh
cd {place} || exit 1
shift 2
case \"$*\" in
fsid) cat fsid ;;
'fs dump --format json') cat servers ;;
'tell mds.a client ls id='*) cat sessions ;;
'tell mds.a client evict id='*) [ -e stays ] || echo '[]' >sessions; [ -e lists ] && cat lists >blocked; cat refused >&2; [ ! -s refused ] ;;
'osd blocklist ls --format json') cat blocked; printf '[]\\n' ;;
*) echo \"unexpected: $*\" >&2; exit 22 ;;
esac
"
        );
        let program = folder.path().join("ceph");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("ceph", &script);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        write("fsid", "c1\n");
        let info = r#"{"gid_1":{"name":"a","rank":0,"state":"up:active"},"gid_2":{"name":"b","rank":-1,"state":"up:standby"},
            "gid_3":{"name":"c","rank":0,"state":"up:standby-replay"}}"#;
        write("servers", &format!(r#"{{"filesystems":[{{"mdsmap":{{"info":{info}}}}}]}}"#));
        write("sessions", &session(7));
        write("blocked", "[]");
        write("refused", "");
        CephCommand { program: program.into(), conf: None, name: None }
    }

    fn session(id: u64) -> String {
        format!(r#"[{{"id":{id},"entity":{{"addr":{{"addr":"10.0.0.{id}:0","nonce":{id}00}}}}}}]"#)
    }

    fn client(id: u64) -> Client {
        Client { cluster: "c1".into(), id }
    }

    const BLOCKED: &str = r#"[{"addr":"10.0.0.9:0/900","until":"2030-01-01T00:00:00Z"}]"#;

    #[test]
    fn a_client_is_shut_out_once_its_session_is_gone_and_its_address_blocked() {
        let folder = tempfile::tempdir().unwrap();
        let evictions = Evictions::new(command(&folder), client(7)).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let silent = client(9);
        write("sessions", &session(9));

        write("refused", "Error EACCES: access denied");
        write("stays", "");
        let error = evictions.evict(&silent).unwrap_err();
        assert!(
            error.contains("client evict id=9' failed: Error EACCES: access denied"),
            "{error}"
        );
        write("refused", "");
        let error = evictions.evict(&silent).unwrap_err();
        assert!(error.contains("still has a session"), "{error}");
        fs::remove_file(folder.path().join("stays")).unwrap();
        let error = evictions.evict(&silent).unwrap_err();
        assert!(error.contains("10.0.0.9:0/900") && error.contains("not block-listed"), "{error}");
        assert!(evictions.has_begun(&silent), "a free lock is not enough now");
        write("blocked", BLOCKED);
        evictions.evict(&silent).unwrap();
        assert!(!evictions.has_begun(&silent));

        write("sessions", &session(9));
        write("blocked", "[]");
        write("lists", BLOCKED);
        evictions.evict(&silent).unwrap();
    }

    #[test]
    fn nobody_is_evicted_by_guess() {
        let folder = tempfile::tempdir().unwrap();
        let evictions = Evictions::new(command(&folder), client(7)).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let refused = |client: &Client| evictions.evict(client).unwrap_err();
        let error = refused(&client(7));
        assert!(error.contains("the same mount"), "{error}");
        let error = refused(&Client { cluster: "c2".into(), id: 9 });
        assert!(error.contains("another cluster, c2"), "{error}");
        let error = refused(&client(9));
        assert!(error.contains("knows its client 9"), "{error}");
        write("fsid", "c2\n");
        let error = refused(&client(9));
        assert!(error.contains("talks to cluster c2"), "{error}");
        assert!(!evictions.has_begun(&client(9)));
    }

    #[test]
    fn what_an_eviction_lacks_is_told_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let ceph = command(&folder);
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let refused = |ceph: &CephCommand| match Evictions::new(ceph.clone(), client(7)) {
            Ok(_) => panic!("it is not refused"),
            Err(error) => error,
        };
        let absent = CephCommand { program: folder.path().join("absent").into(), ..ceph.clone() };
        let error = refused(&absent);
        assert!(error.contains("install ceph-common"), "{error}");
        write("blocked", &BLOCKED.replace("0.9:0/900", "0.7:0/700"));
        let error = refused(&ceph);
        assert!(error.contains("mount it again"), "{error}");
        write("blocked", "no JSON");
        let error = refused(&ceph);
        assert!(error.contains("says no JSON"), "{error}");
        write("sessions", "[]");
        let error = refused(&ceph);
        assert!(error.contains("knows client 7"), "{error}");
        write("servers", r#"{"filesystems":[]}"#);
        let error = refused(&ceph);
        assert!(error.contains("no metadata server"), "{error}");
        write("fsid", "c2\n");
        let error = refused(&ceph);
        assert!(error.contains("--ceph-conf"), "{error}");
        fs::remove_file(folder.path().join("fsid")).unwrap();
        let error = refused(&ceph);
        assert!(error.contains("'ceph fsid' failed: cat: fsid"), "{error}");
    }

    #[test]
    fn a_folder_elsewhere_has_no_client() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Client::of(folder.path()), None);
    }
}
