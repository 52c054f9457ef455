//! A file's bytes at the simulated origin, and the changes of them that are not durable.

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) since: Vec<Change>,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(u64, Vec<u8>),
    Size(u64),
}

impl Change {
    pub(super) fn in_parts(self) -> Vec<Self> {
        let Self::Write(mut at, mut data) = self else { return vec![self] };
        let mut parts = Vec::new();
        while !data.is_empty() {
            let len = data.len().min((WHOLE_BYTES - at % WHOLE_BYTES) as usize);
            let later = data.split_off(len);
            parts.push(Self::Write(at, std::mem::replace(&mut data, later)));
            at += len as u64;
        }
        parts
    }

    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let end = *at as usize + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at as usize..end].copy_from_slice(data);
            }
            Self::Size(size) => bytes.resize(*size as usize, 0),
        }
    }
}

/// Of a write, so many bytes from each multiple of it on become durable as one.
pub(super) const WHOLE_BYTES: u64 = 16;
