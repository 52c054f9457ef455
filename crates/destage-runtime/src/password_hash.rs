//! Passwords as a file keeps them: hashes that take long to make, so that whoever reads the file has to guess for long.
//!
//! The form is that of many tools: `$pbkdf2-sha256$i=ROUNDS$SALT$DIGEST`, the last two in Base64 without padding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::num::NonZeroU32;

/// Rounds of a new hash: OWASP's advice for this function, some 0.1 s of a processor.
pub const ROUNDS: u32 = 600_000;
/// Rounds that a file may say. Fewer are too quick to guess, more keep the thread busy that looks at passwords.
const ROUNDS_MIN: u32 = 100_000;
const ROUNDS_MAX: u32 = 10_000_000;
const NAME: &str = "pbkdf2-sha256";
const SALT_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// The longest password: no hash of a longer one is made, and none is looked at.
pub const PASSWORD_BYTES_MAX: usize = 1 << 10;

/// The hash of one password. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    rounds: NonZeroU32,
    salt: Box<[u8]>,
    digest: [u8; DIGEST_BYTES],
}

impl PasswordHash {
    /// Makes one, with a salt of its own. Takes some 0.1 s.
    ///
    /// # Errors
    /// The password is empty or too long, or the system gives no random bytes.
    pub fn make(password: &[u8]) -> Result<Self, String> {
        if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
            return Err(format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes"));
        }
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| "the system gives no random bytes")?;
        let rounds = NonZeroU32::new(ROUNDS).expect("a constant");
        let mut digest = [0; DIGEST_BYTES];
        pbkdf2::derive(PBKDF2_HMAC_SHA256, rounds, &salt, password, &mut digest);
        Ok(Self { rounds, salt: salt.into(), digest })
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or too quick to guess, or too slow to look at.
    pub fn parse(text: &str) -> Result<Self, String> {
        let none = || format!("this is no hash as 'destage users hash' prints it (${NAME}$i=...)");
        let parts: Vec<&str> = text.split('$').collect();
        let ["", NAME, rounds, salt, digest] = parts[..] else { return Err(none()) };
        let rounds = rounds.strip_prefix("i=").and_then(|rounds| rounds.parse::<u32>().ok());
        let rounds = rounds.ok_or_else(none)?;
        if !(ROUNDS_MIN..=ROUNDS_MAX).contains(&rounds) {
            return Err(format!("a hash has {ROUNDS_MIN} to {ROUNDS_MAX} rounds, not {rounds}"));
        }
        let salt = STANDARD_NO_PAD.decode(salt).map_err(|_| none())?;
        let digest = STANDARD_NO_PAD.decode(digest).map_err(|_| none())?;
        if salt.len() < 8 {
            return Err("the salt of a hash has 8 bytes at least".into());
        }
        Ok(Self {
            rounds: NonZeroU32::new(rounds).ok_or_else(none)?,
            salt: salt.into(),
            digest: digest.try_into().map_err(|_| none())?,
        })
    }

    /// How long it takes to look at.
    pub fn rounds(&self) -> u32 {
        self.rounds.get()
    }

    /// Whether it is the hash of this password. Takes as long as making it.
    pub fn is_of(&self, password: &[u8]) -> bool {
        let (rounds, salt) = (self.rounds, &self.salt);
        pbkdf2::verify(PBKDF2_HMAC_SHA256, rounds, salt, password, &self.digest).is_ok()
    }
}

/// Takes as long as a look at a hash of so many rounds, and finds nothing.
pub fn spend(rounds: u32, password: &[u8]) {
    if let Some(rounds) = NonZeroU32::new(rounds) {
        let mut digest = [0; DIGEST_BYTES];
        pbkdf2::derive(PBKDF2_HMAC_SHA256, rounds, &[0; SALT_BYTES], password, &mut digest);
        std::hint::black_box(digest);
    }
}

impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = |bytes: &[u8]| STANDARD_NO_PAD.encode(bytes);
        let (salt, digest) = (encoded(&self.salt), encoded(&self.digest));
        write!(f, "${NAME}$i={}${salt}${digest}", self.rounds)
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_its_password_alone() {
        let (one, two) =
            (PasswordHash::make(b"open-sesame").unwrap(), PasswordHash::make(b"x").unwrap());
        let read = PasswordHash::parse(&one.to_string()).unwrap();
        assert_eq!(read, one);
        assert!(read.is_of(b"open-sesame") && !read.is_of(b"open-says-me") && !read.is_of(b""));
        assert!(two.is_of(b"x") && !two.is_of(b"open-sesame"));
        assert_ne!(one.to_string(), PasswordHash::make(b"open-sesame").unwrap().to_string());
        assert!(!format!("{one:?}").contains(&STANDARD_NO_PAD.encode(one.digest)));
        assert!(PasswordHash::make(b"").is_err() && PasswordHash::make(&[b'x'; 1_025]).is_err());
    }

    /// The digest of another implementation: Python's `hashlib.pbkdf2_hmac('sha256', b'password', b'saltsalt', 100000)`.
    #[test]
    fn hashes_are_those_of_the_standard() {
        let digest = [
            0x0e, 0xaf, 0xc5, 0x48, 0x01, 0x3d, 0x68, 0x31, 0x4b, 0x86, 0x77, 0x93, 0x09, 0x85,
            0x7c, 0x24, 0x0d, 0x5e, 0x25, 0x2e, 0xe9, 0x76, 0x0a, 0xf9, 0xd4, 0xed, 0xbc, 0x7a,
            0xe0, 0x5c, 0xc5, 0x47,
        ];
        let text = format!(
            "$pbkdf2-sha256$i=100000${}${}",
            STANDARD_NO_PAD.encode(b"saltsalt"),
            STANDARD_NO_PAD.encode(digest)
        );
        assert!(PasswordHash::parse(&text).unwrap().is_of(b"password"));
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        let good = PasswordHash::make(b"x").unwrap().to_string();
        assert!(PasswordHash::parse(&good).is_ok());
        for bad in [
            "",
            "secret",
            "#5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
            "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$AAAA",
            &good.replace("i=600000", "i=1000"),
            &good.replace("i=600000", "i=4000000000"),
            &good.replace("i=600000", "600000"),
            &good[..good.len() - 2],
            &format!("{good}$x"),
        ] {
            assert!(PasswordHash::parse(bad).is_err(), "{bad}");
        }
    }
}
