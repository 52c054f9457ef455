//! Packages are installed and used before anybody else gets them.

use super::oci::USER;
use super::{Package, create, name_of, output};
use crate::Result;
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
systemd-analyze verify /lib/systemd/system/destage.service
mkdir -p /var/lib/destage && chown destage: /var/lib/destage && chmod 700 /var/lib/destage
cd /var/lib/destage
as() { setpriv --reuid destage --regid destage --init-groups env HOME=/var/lib/destage "$@"; }
as destage check --config /usr/share/doc/destage/examples/serve.toml >/dev/null
as destage serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --run \
  'exec 3<>/dev/tcp/$DESTAGE_HOST/$DESTAGE_PORT || true; destage --version' 2>/dev/null | grep -q '^destage '
dpkg --remove destage >/dev/null
test -e /etc/destage/destage.toml
dpkg --purge destage >/dev/null
test ! -e /etc/destage/destage.toml
test -d /var/lib/destage
echo "installed, used, removed"
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
cp "$2" "$1/root/tmp/package.deb"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
exec chroot "$1/root" bash -c "$3" bash /tmp/package.deb
"#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--net", "sh", "-c"]);
    unshare.arg(format!("ip link set lo up; {set_up}")).arg("sh");
    let said = output(unshare.arg(&folder).arg(package).arg(script));
    let _ = std::fs::remove_dir_all(&folder);
    print!("{}: {}", name_of(package), said?);
    Ok(())
}

/// The image's layer runs alone, read-only, as its user.
pub(super) fn image(image: &Path, package: &Package) -> Result<()> {
    let folder = image.with_extension("root");
    create(&folder)?;
    let script = r#"
set -eu
cd "$1" && mkdir layout root && tar -xf "$2" -C layout
grep -q '"imageLayoutVersion":"1.0.0"' layout/oci-layout
for blob in layout/blobs/sha256/*; do echo "$(basename "$blob")  $blob" | sha256sum --check --quiet; done
layer=$(grep -l . layout/blobs/sha256/* | while read -r blob; do gzip -t "$blob" 2>/dev/null && echo "$blob"; done)
tar -xzf "$layer" -C root
mount --make-rprivate /
mount --bind root root && mount -o remount,bind,ro root
mount -t tmpfs -o "uid=$3,gid=$3,mode=0700" tmpfs root/var/lib/destage
ip link set lo up
chroot --userspec="$3:$3" root /usr/bin/destage serve --data /var/lib/destage/data 2>"$1/log" &
server=$!
for i in $(seq 100); do
  if chroot --userspec="$3:$3" root /usr/bin/destage status --ready >/dev/null 2>&1; then break; fi
  sleep 0.1
done
chroot --userspec="$3:$3" root /usr/bin/destage status --ready || { cat "$1/log"; exit 1; }
kill -TERM $server
wait $server
echo "unpacked, served read-only, ended in order"
"#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "sh", "-c", script, "sh"]);
    let said = output(unshare.arg(&folder).arg(image).arg(USER.to_string()));
    let _ = std::fs::remove_dir_all(&folder);
    print!("{} ({}): {}", name_of(image), package.version, said?);
    Ok(())
}
