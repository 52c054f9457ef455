//! A request as bytes with holes: the key and the payload are patched in, nothing is formatted.

/// Digits of a key; as `redis-benchmark` writes them.
pub(crate) const KEY_DIGITS: usize = 12;

/// Stands for the key in a command, 12 digits with leading zeros.
pub(crate) const KEY_MARK: &str = "__rand_int__";

/// Stands for the payload in a command.
pub(crate) const DATA_MARK: &str = "__data__";

/// A request to be repeated with another key and another payload each time.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    keys: Vec<usize>,
    payloads: Vec<(usize, usize)>,
}

/// What one argument holds.
enum Fragment<'a> {
    Text(&'a str),
    Key,
    Data,
}

impl Template {
    /// A RESP command; its arguments may hold [`KEY_MARK`] and [`DATA_MARK`].
    ///
    /// # Errors
    ///
    /// The command has no argument.
    pub(crate) fn resp(arguments: &[&str], data_bytes: usize) -> Result<Self, String> {
        if arguments.is_empty() {
            return Err("the command is empty: give at least its name".into());
        }
        let mut template = Self { bytes: Vec::new(), keys: Vec::new(), payloads: Vec::new() };
        template.bytes.extend(format!("*{}\r\n", arguments.len()).bytes());
        for argument in arguments {
            let fragments = fragments(argument);
            let length: usize = fragments.iter().map(|p| p.length(data_bytes)).sum();
            template.bytes.extend(format!("${length}\r\n").bytes());
            fragments.iter().for_each(|fragment| template.push(fragment, data_bytes));
            template.bytes.extend(b"\r\n");
        }
        Ok(template)
    }

    /// Bind, Execute and Sync of the prepared statement `name` with so many payloads and a key as text.
    pub(crate) fn postgres(name: &str, payloads: usize, data_bytes: usize) -> Self {
        let mut template = Self { bytes: Vec::new(), keys: Vec::new(), payloads: Vec::new() };
        let body = 1 + name.len() + 1 + 2 + 2 + payloads * (4 + data_bytes) + 4 + KEY_DIGITS + 2;
        template.bytes.push(b'B');
        template.bytes.extend(int4(4 + body));
        template.bytes.push(0);
        template.bytes.extend(name.bytes());
        template.bytes.extend([0, 0, 0]);
        let count = u16::try_from(payloads + 1).expect("a statement has few parameters");
        template.bytes.extend(count.to_be_bytes());
        for _ in 0..payloads {
            template.bytes.extend(int4(data_bytes));
            template.push(&Fragment::Data, data_bytes);
        }
        template.bytes.extend(int4(KEY_DIGITS));
        template.push(&Fragment::Key, data_bytes);
        template.bytes.extend([0, 0]);
        template.bytes.extend(*b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04");
        template
    }

    fn push(&mut self, fragment: &Fragment<'_>, data_bytes: usize) {
        let at = self.bytes.len();
        match fragment {
            Fragment::Text(text) => self.bytes.extend(text.bytes()),
            Fragment::Key => {
                self.keys.push(at);
                self.bytes.extend([b'0'; KEY_DIGITS]);
            }
            Fragment::Data => {
                self.payloads.push((at, data_bytes));
                self.bytes.extend(std::iter::repeat_n(b'x', data_bytes));
            }
        }
    }

    /// Fills the payload with `tag`, as far as it fits, and leaves the rest to the serial number.
    pub(crate) fn tag(&mut self, tag: &str) {
        for &(at, length) in &self.payloads {
            let part = tag.len().min(length);
            self.bytes[at..at + part].copy_from_slice(&tag.as_bytes()[..part]);
        }
    }

    /// Appends the request for `key`. The payload ends in `serial`, so that no two are equal.
    pub(crate) fn append(&mut self, key: u64, serial: u64, out: &mut Vec<u8>) {
        for &at in &self.keys {
            digits(&mut self.bytes[at..at + KEY_DIGITS], key);
        }
        for &(at, length) in &self.payloads {
            let width = length.min(10);
            digits(&mut self.bytes[at + length - width..at + length], serial);
        }
        out.extend_from_slice(&self.bytes);
    }
}

impl Fragment<'_> {
    fn length(&self, data_bytes: usize) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Key => KEY_DIGITS,
            Self::Data => data_bytes,
        }
    }
}

fn fragments(argument: &str) -> Vec<Fragment<'_>> {
    let mut found = Vec::new();
    let mut rest = argument;
    while !rest.is_empty() {
        let marks = [(KEY_MARK, rest.find(KEY_MARK)), (DATA_MARK, rest.find(DATA_MARK))];
        let first = marks.iter().filter_map(|(mark, at)| Some((*at.as_ref()?, *mark))).min();
        let Some((at, mark)) = first else {
            found.push(Fragment::Text(rest));
            break;
        };
        if at > 0 {
            found.push(Fragment::Text(&rest[..at]));
        }
        found.push(if mark == KEY_MARK { Fragment::Key } else { Fragment::Data });
        rest = &rest[at + mark.len()..];
    }
    found
}

fn int4(value: usize) -> [u8; 4] {
    i32::try_from(value).expect("a request is far below 2 GiB").to_be_bytes()
}

fn digits(into: &mut [u8], mut value: u64) {
    for place in into.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resp_command_carries_key_and_payload() {
        let arguments = ["HSET", "bench:__rand_int__", "f0", "__data__"];
        let mut template = Template::resp(&arguments, 16).expect("not empty");
        template.tag("run1");
        let mut out = Vec::new();
        template.append(42, 7, &mut out);
        let expected = "*4\r\n$4\r\nHSET\r\n$18\r\nbench:000000000042\r\n$2\r\nf0\r\n$16\r\nrun1xx0000000007\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn postgres_messages_have_their_declared_lengths() {
        for payloads in [0, 1, 10] {
            let mut template = Template::postgres("u", payloads, 100);
            let mut out = Vec::new();
            template.append(123, 9, &mut out);
            let mut kinds = Vec::new();
            let mut at = 0;
            while at < out.len() {
                kinds.push(out[at]);
                let length = &out[at + 1..at + 5];
                at += 1 + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            }
            assert_eq!((kinds.as_slice(), at), (b"BES".as_slice(), out.len()));
            assert!(out.windows(12).any(|w| w == b"000000000123"));
            assert!(out.len() > payloads * 100 && out.len() < payloads * 104 + 60);
        }
    }
}
