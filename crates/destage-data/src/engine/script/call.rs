//! A script as a client sends it.

use super::syntax::Program;
use sha1::{Digest, Sha1};

/// A script with its keys and its other arguments.
#[derive(Debug)]
pub(in crate::engine) struct Call {
    pub(super) program: Program,
    /// What its errors name it by.
    pub(super) digest: String,
    /// As the client gave them.
    pub(super) keys: Vec<Box<[u8]>>,
    pub(super) arguments: Vec<Box<[u8]>>,
}

/// What a script is known by: the SHA-1 of its text, in hexadecimal digits.
pub(super) fn digest(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_redis() {
        assert_eq!(digest(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
