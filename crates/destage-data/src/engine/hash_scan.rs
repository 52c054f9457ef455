//! HSCAN: the fields of a hash. There is one page, since a hash is in memory as a whole.

use super::glob::{glob, pattern_of};
use super::numbers::integer;
use crate::resp::{Code, Reply, ReplyError};

/// What a HSCAN is to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HashScan {
    /// Whether it is the first page; there are no others.
    is_first: bool,
    pattern: Option<Vec<u8>>,
    /// Fields with their values.
    has_values: bool,
}

impl Default for HashScan {
    fn default() -> Self {
        Self { is_first: true, pattern: None, has_values: true }
    }
}

const CURSOR: ReplyError = ReplyError::fixed(Code::Err, "invalid cursor");
const SYNTAX: ReplyError = ReplyError::fixed(
    Code::Err,
    "syntax error: HSCAN key cursor [MATCH pattern] [COUNT n] [NOVALUES]",
);

impl HashScan {
    /// Reads what stands behind the key.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read(args: &[&[u8]]) -> Result<Self, ReplyError> {
        let (cursor, mut rest) = args.split_first().ok_or(SYNTAX)?;
        let mut scan =
            Self { is_first: integer(cursor).map_err(|_| CURSOR)? == 0, ..Self::default() };
        while let Some((option, tail)) = rest.split_first() {
            rest = match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"match", [pattern, tail @ ..]) => {
                    scan.pattern = Some(pattern_of(pattern)?.to_vec());
                    tail
                }
                (b"count", [count, tail @ ..]) if integer(count).is_ok_and(|count| count > 0) => {
                    tail
                }
                (b"novalues", tail) => {
                    scan.has_values = false;
                    tail
                }
                _ => return Err(SYNTAX),
            };
        }
        Ok(scan)
    }

    /// Replies with those of the fields that were asked for.
    pub(super) fn tell<'a>(
        &self,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        reply: &mut Reply<'_>,
    ) {
        let is_asked =
            |name: &[u8]| self.pattern.as_ref().is_none_or(|pattern| glob(pattern, name));
        let shown: Vec<_> = fields.filter(|(name, _)| self.is_first && is_asked(name)).collect();
        reply.array(2);
        reply.bulk(b"0");
        reply.array(shown.len() * if self.has_values { 2 } else { 1 });
        for (name, value) in shown {
            reply.bulk(name);
            if self.has_values {
                reply.bulk(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Protocol;

    fn shown(args: &[&[u8]]) -> String {
        let fields: [(&[u8], &[u8]); 3] = [(b"name", b"Ada"), (b"note", b""), (b"visits", b"3")];
        let mut out = Vec::new();
        let scan = HashScan::read(args).unwrap();
        scan.tell(fields.into_iter(), &mut Reply::new(&mut out, Protocol::V2));
        String::from_utf8_lossy(&out).replace("\r\n", " ")
    }

    #[test]
    fn fields_are_chosen_by_their_names() {
        assert_eq!(shown(&[b"0", b"MATCH", b"n*"]), "*2 $1 0 *4 $4 name $3 Ada $4 note $0  ");
        assert_eq!(
            shown(&[b"0", b"count", b"1", b"NOVALUES"]),
            "*2 $1 0 *3 $4 name $4 note $6 visits "
        );
        assert_eq!(shown(&[b"5"]), "*2 $1 0 *0 ");
    }

    #[test]
    fn what_is_no_scan_is_refused() {
        for args in
            [&[&b"x"[..]][..], &[b"0", b"MATCH"], &[b"0", b"COUNT", b"0"], &[b"0", b"WITHVALUES"]]
        {
            assert!(HashScan::read(args).is_err(), "{args:?}");
        }
    }
}
