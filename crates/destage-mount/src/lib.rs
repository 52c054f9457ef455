//! The file front end of Destage: a host-side journal in front of a directory of a shared file system.

pub mod ask;
mod engine;
mod kernel;
mod lanes;
pub mod origin;
pub mod serve;
pub mod settings;
pub mod tokens;

/// What this front end keeps at the origin, in its folder's top; not shown.
pub const OWN_FOLDER: &[u8] = b".destage";

/// The attribute of a mount's top folder that tells where its admin port is.
const ADMIN_XATTR: &str = "user.destage.admin";

/// Where the admin port of a mount is.
///
/// # Errors
/// Nothing of ours is mounted there, or it has no admin port.
pub fn admin_of(mountpoint: &std::path::Path) -> std::io::Result<String> {
    let mut value = Vec::with_capacity(256);
    rustix::fs::getxattr(mountpoint, ADMIN_XATTR, rustix::buffer::spare_capacity(&mut value))?;
    String::from_utf8(value).map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData))
}
