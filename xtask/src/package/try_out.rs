//! Packages are installed and used before anybody else gets them.

use super::oci::{USER, command_line, health_check};
use super::stage::SETTINGS;
use super::{Package, create, name_of, output};
use crate::{Result, root};
use std::path::Path;
use std::process::Command;

/// The most that `systemd-analyze security` may say of the units: from 4.0 on it is not content any more.
const EXPOSURE_MAX: f64 = 3.0;

/// The units are hardened and can be read.
pub(super) fn units(stage: &Path) -> Result<()> {
    for unit in ["destage.service", "destage-block@.service"] {
        let path = stage.join("lib/systemd/system").join(unit);
        let mut analyze = Command::new("systemd-analyze");
        let said = output(analyze.args(["security", "--no-pager", "--offline=true"]).arg(&path))?;
        let exposure = said
            .lines()
            .find_map(|line| line.split_once("Overall exposure level for ")?.1.split_once(": "))
            .and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok())
            .ok_or_else(|| format!("systemd-analyze says nothing of {unit}: {said}"))?;
        println!("{unit}: exposure {exposure}");
        if exposure > EXPOSURE_MAX {
            return Err(format!(
                "{unit} is exposed: {exposure}, at most {EXPOSURE_MAX} is allowed\n{said}"
            ));
        }
    }
    Ok(())
}

/// Lintian has nothing to say, and in a root of its own the package is installed, used as its user, and removed.
pub(super) fn deb(package: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--suppress-tags-from-file", "/dev/null"]);
    let said = output(lintian.arg("--allow-root").arg(package))?;
    println!("lintian: {}", if said.trim().is_empty() { "nothing" } else { &said });
    in_own_root(package, INSTALL)
}

/// What is done inside: `$1` is the package.
const INSTALL: &str = r#"
set -eu
dpkg --install "$1" >/dev/null
test "$(stat -c %U:%G:%a /etc/destage)" = root:destage:750
getent passwd destage >/dev/null
test ! -e /etc/systemd/system/multi-user.target.wants/destage.service
for page in destage destage-serve destage-block-serve; do test -s /usr/share/man/man1/$page.1.gz; done
bash -n /usr/share/bash-completion/completions/destage
systemd-analyze verify /lib/systemd/system/destage.service /lib/systemd/system/destage-block@.service
mkdir -p /var/lib/destage && chown destage: /var/lib/destage && chmod 700 /var/lib/destage
cd /var/lib/destage
as() { setpriv --reuid destage --regid destage --init-groups env HOME=/var/lib/destage "$@"; }
# The file that the unit names, as the user that the unit names.
test "$(stat -c %U:%G:%a /etc/destage/destage.toml)" = root:destage:640
as destage check --config /etc/destage/destage.toml >/dev/null
as destage check --config /usr/share/doc/destage/examples/serve.toml >/dev/null
# The connection is bash's: the shell of `--run` may have none. The server ends as its command does.
cat >/tmp/ask <<'ASK'
#!/bin/bash
set -eu
exec 3<>"/dev/tcp/$DESTAGE_HOST/$DESTAGE_PORT"
printf 'PING\r\n' >&3
read -r -t 60 answer <&3
test "$answer" = $'+PONG\r'
destage --version
ASK
chmod 755 /tmp/ask
as destage serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --run /tmp/ask >said 2>log || { cat log; exit 1; }
grep -q '^destage ' said
# A port where nobody listens is noticed.
if DESTAGE_HOST=127.0.0.1 DESTAGE_PORT=1 /tmp/ask 2>/dev/null; then echo "nobody answers, and it is content"; exit 1; fi
dpkg --remove destage >/dev/null
test -e /etc/destage/destage.toml
dpkg --purge destage >/dev/null
test ! -e /etc/destage/destage.toml
test -d /var/lib/destage
echo "installed, used, removed"
"#;

/// The archive is unpacked and used from where it lies, and installed as the page says, in a root of its own.
pub(super) fn archive(archive: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/INSTALL.md"));
    let page = page.map_err(|error| format!("docs/INSTALL.md: {error}"))?;
    let commands = page.split("```sh\n").filter_map(|block| block.split("```").next());
    let commands: String = commands
        .filter(|block| block.contains(ARCHIVE))
        .map(|b| b.replace(ARCHIVE, "$1"))
        .collect();
    let (first, next) = commands
        .split_once('\n')
        .filter(|(first, next)| first.starts_with("tar ") && next.contains(SETTINGS))
        .ok_or("docs/INSTALL.md does not say how the archive is installed")?;
    let script = [UNPACK, "cd /tmp\n", first, "\n", next, INSTALLED, first, UPGRADED].concat();
    in_own_root(archive, &script)
}

/// What the page calls it.
const ARCHIVE: &str = "destage-VERSION-x86_64-unknown-linux-musl.tar.gz";

/// After the page's commands: settings that only root writes and only the service reads, and a program that runs with them.
const INSTALLED: &str = r#"
test "$(stat -c %U:%G:%a /etc/destage)" = root:destage:750
test "$(stat -c %U:%G:%a /etc/destage/destage.toml)" = root:destage:640
test ! -e /LICENSE-MIT
systemd-analyze verify /lib/systemd/system/destage.service /lib/systemd/system/destage-block@.service
setpriv --reuid destage --regid destage --init-groups /usr/bin/destage check --config /etc/destage/destage.toml >/dev/null
echo '# changed' >>/etc/destage/destage.toml
"#;

/// After the next version was unpacked.
const UPGRADED: &str = r#"
grep -q '^# changed$' /etc/destage/destage.toml
echo "unpacked, used, installed, settings kept"
"#;

/// What is done inside: `$1` is the archive.
const UNPACK: &str = r#"
set -eu
mkdir /opt/unpacked && tar -xzf "$1" -C /opt/unpacked --strip-components 1
cd /opt/unpacked
# What is shipped is for all to read, and settings are not shipped.
test -z "$(find . -type f ! -perm -a=r)" && test ! -e etc
test -s LICENSE-MIT && test -s LICENSE-APACHE && test -s usr/share/doc/destage/examples/serve.toml
PATH=$PWD/usr/bin:$PATH
test "$(command -v destage)" = "$PWD/usr/bin/destage"
mkdir work && cd work
destage check --config ../usr/share/doc/destage/examples/serve.toml >/dev/null
cat >ask <<'ASK'
set -eu
exec 3<>"/dev/tcp/$DESTAGE_HOST/$DESTAGE_PORT"
printf 'HINCRBY products:1 stock 1\r\n' >&3
read -r -t 60 answer <&3
case "$answer" in :[0-9]*) echo "answered";; *) echo "answered '$answer'"; exit 1;; esac
ASK
destage serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --run 'bash ./ask' >said 2>log || { cat said log; exit 1; }
grep -q '^answered$' said
"#;

/// Runs a script over a copy of this system that is thrown away: nothing outside changes.
fn in_own_root(package: &Path, script: &str) -> Result<()> {
    let folder = package.with_extension("root");
    create(&folder)?;
    let set_up = r#"
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp "$2" "$1/root/tmp/package"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
exec chroot "$1/root" bash -c "$3" bash /tmp/package
"#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--net", "sh", "-c"]);
    unshare.arg(format!("ip link set lo up; {set_up}")).arg("sh");
    let said = output(unshare.arg(&folder).arg(package).arg(script));
    let _ = std::fs::remove_dir_all(&folder);
    print!("{}: {}", name_of(package), said?);
    Ok(())
}

/// The image's layer runs alone, as a container runtime would run it: with a read-only root, as the image's user, by its own
/// command line and health check. It answers, keeps through a kill what it has acknowledged, and ends in order.
pub(super) fn image(image: &Path, package: &Package) -> Result<()> {
    let folder = image.with_extension("root");
    create(&folder)?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--net", "bash", "-c", SERVE, "bash"]);
    unshare.arg(&folder).arg(image).arg(USER.to_string());
    let said = output(unshare.args([command_line().join(" "), health_check().join(" ")]));
    let _ = std::fs::remove_dir_all(&folder);
    print!("{} ({}): {}", name_of(image), package.version, said?);
    Ok(())
}

/// What is done with the image: `$1` is a folder, `$2` the image, `$3` its user, `$4` what it runs, `$5` its health check.
const SERVE: &str = r#"
set -eu
cd "$1" && mkdir layout root volume && tar -xf "$2" -C layout
grep -q '"imageLayoutVersion":"1.0.0"' layout/oci-layout
for blob in layout/blobs/sha256/*; do echo "$(basename "$blob")  $blob" | sha256sum --check --quiet; done
for blob in layout/blobs/sha256/*; do if gzip -t "$blob" 2>/dev/null; then tar -xzf "$blob" -C root; fi; done
# What a runtime brings: names, processes, a read-only root, a volume, a network.
mkdir root/proc
echo '127.0.0.1 localhost database.example' >root/etc/hosts
mount --make-rprivate /
mount --bind root root && mount -o remount,bind,ro root
if touch root/var/lib/file 2>/dev/null; then echo "the root is not read-only"; exit 1; fi
chown "$3:$3" volume && mount --bind volume root/var/lib/destage
mount -t proc proc root/proc
ip link set lo up
inside() { exec env -i PATH=/usr/bin DESTAGE_PASSWORD=secret /usr/sbin/chroot --userspec="$user:$user" root "$@"; }
user=$3
start() {
  (inside $1) >log 2>&1 &
  server=$!
  for i in $(seq 600); do
    if (inside $2) >/dev/null 2>&1; then return; fi
    kill -0 $server || break
    sleep 0.1
  done
  cat log
  exit 1
}
ask() {
  exec 3<>/dev/tcp/127.0.0.1/6380
  printf '%s\r\n' 'AUTH secret' "$1" QUIT >&3
  tr -d '\r' <&3 | sed -n 2p
  exec 3>&-
}
expect() { if [ "$1" != "$2" ]; then echo "got '$1' instead of '$2'"; cat log; exit 1; fi; }
if (inside $5) >/dev/null 2>&1; then echo "healthy before it runs"; exit 1; fi
start "$4" "$5"
expect "$(ask PING)" +PONG
before=$(ask 'HINCRBY products:1 stock 5')
kill -KILL $server
wait $server || true
start "$4" "$5"
expect "$(ask 'HINCRBY products:1 stock 1')" ":$((${before#:} + 1))"
kill -TERM $server
wait $server
# Names are resolved without the system's libraries.
said=$( (inside /usr/bin/destage schema --origin postgres://shop:secret@database.example:1/shop) 2>&1 || true)
case "$said" in *refused*) ;; *) echo "database.example is not found: $said"; exit 1;; esac
echo "unpacked, served read-only, killed, went on, ended in order"
"#;
