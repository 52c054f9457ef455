//! The fields of a plain hash, as they were put in: a run of cells, each field followed by its value.

use super::command::Verb;
use crate::cells::{Cell, Reader, push_cell};
use crate::resp::Reply;
use std::collections::HashMap;

/// The fields of one hash while a command works on it.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// In order; without the value where the field was removed.
    pairs: Vec<(&'a [u8], Option<&'a [u8]>)>,
    /// Where each field stands, if a command names many.
    places: Option<HashMap<&'a [u8], usize>>,
    len: usize,
}

/// Up to so many fields, looking through all of them is faster than a map.
const SEARCHED_MAX: usize = 8;

impl<'a> Fields<'a> {
    /// Reads a run, for a command that names so many fields and values.
    pub(super) fn read(run: &'a [u8], words: usize) -> Self {
        let mut reader = Reader::new(run);
        let mut value = || reader.cell().and_then(Cell::value);
        let mut pairs = Vec::new();
        while let (Some(field), Some(value)) = (value(), value()) {
            pairs.push((field, Some(value)));
        }
        let numbered = pairs.iter().enumerate();
        let places =
            (words > SEARCHED_MAX).then(|| numbered.map(|(at, (field, _))| (*field, at)).collect());
        Self { len: pairs.len(), pairs, places }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, field: &[u8]) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(field).copied(),
            None => self.pairs.iter().position(|(other, _)| *other == field),
        }
    }

    /// A field's value.
    pub(super) fn get(&self, field: &[u8]) -> Option<&'a [u8]> {
        self.place(field).and_then(|place| self.pairs[place].1)
    }

    /// Sets a field; whether it is new.
    pub(super) fn put(&mut self, field: &'a [u8], value: &'a [u8]) -> bool {
        let Some(place) = self.place(field) else {
            if let Some(places) = &mut self.places {
                places.insert(field, self.pairs.len());
            }
            self.pairs.push((field, Some(value)));
            self.len += 1;
            return true;
        };
        let is_new = self.pairs[place].1.replace(value).is_none();
        self.len += usize::from(is_new);
        is_new
    }

    /// Removes a field; whether it was there.
    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let was_there = self.place(field).is_some_and(|place| self.pairs[place].1.take().is_some());
        self.len -= usize::from(was_there);
        was_there
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.pairs.iter().filter_map(|&(field, value)| Some((field, value?)))
    }

    /// Replies to HGETALL, HKEYS or HVALS.
    pub(super) fn tell(&self, verb: Verb, reply: &mut Reply<'_>) {
        match verb {
            Verb::HGetAll => reply.map(self.len),
            _ => reply.array(self.len),
        }
        for (field, value) in self.present() {
            if verb != Verb::HVals {
                reply.bulk(field);
            }
            if verb != Verb::HKeys {
                reply.bulk(value);
            }
        }
    }

    /// As a run again.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut run = Vec::new();
        for (field, value) in self.present() {
            push_cell(&mut run, Cell::Value(field));
            push_cell(&mut run, Cell::Value(value));
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With and without a map of the fields.
    const WORDS: [usize; 2] = [0, SEARCHED_MAX + 1];

    #[test]
    fn fields_keep_their_places_and_the_last_value_counts() {
        for words in WORDS {
            let mut fields = Fields::read(&[], words);
            assert!(fields.put(b"a", b"1") && fields.put(b"", b"") && !fields.put(b"a", b"2"));
            let run = fields.encode();
            let mut fields = Fields::read(&run, words);
            assert_eq!((fields.get(b"a"), fields.get(b"")), (Some(&b"2"[..]), Some(&b""[..])));
            assert_eq!((fields.get(b"b"), fields.len()), (None, 2));
            assert!(fields.remove(b"a") && !fields.remove(b"a") && !fields.remove(b"b"));
            assert_eq!((fields.get(b"a"), fields.len()), (None, 1));
            assert!(fields.put(b"a", b"3") && fields.put(b"z", b"4"));
            let run = fields.encode();
            let fields = Fields::read(&run, words);
            let expected: [(&[u8], &[u8]); 3] = [(b"a", b"3"), (b"", b""), (b"z", b"4")];
            assert_eq!(fields.present().collect::<Vec<_>>(), expected);
            assert_eq!(fields.len(), 3);
        }
    }
}
