//! PostgreSQL's arrays, in the text form in which it writes them: braces, commas, quotes only where they are needed.
//!
//! *Source:* PostgreSQL's manual, "Array Input and Output Syntax".

use super::{ColumnType, ValueError, text};

/// The one text of an array whose elements are of that type.
///
/// # Errors
/// It is no array literal, or has an element that the type does not take.
pub(super) fn canonical(input: &[u8], element: &ColumnType) -> Result<String, ValueError> {
    text::utf8(input)?;
    let mut reader = Reader {
        input,
        at: 0,
        element,
        out: String::with_capacity(input.len()),
        lengths: Vec::new(),
        leaves: None,
        elements: 0,
    };
    reader.blanks();
    let bounds = reader.bounds()?;
    if reader.peek() != Some(b'{') {
        return Err(reader.missing("a brace"));
    }
    reader.level(0)?;
    reader.blanks();
    if reader.at < input.len() {
        return Err(reader.missing("the end"));
    }
    reader.with_bounds(&bounds)
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    element: &'a ColumnType,
    out: String,
    /// How many items each level has, from the outermost on, as far as one of them has ended.
    lengths: Vec<usize>,
    /// The level whose items are elements.
    leaves: Option<usize>,
    /// How many elements were read.
    elements: usize,
}

impl Reader<'_> {
    /// `[0:1][2:3]=` before the braces: the first and last place of each dimension. Without it, all begin at 1.
    fn bounds(&mut self) -> Result<Vec<(i32, i32)>, ValueError> {
        let mut bounds = Vec::new();
        while self.skip(b'[') {
            let first = self.place(b':')?;
            let last = self.place(b']')?;
            if last < first || last == i32::MAX {
                return Err(refused("has bounds that no array has"));
            }
            bounds.push((first, last));
        }
        if !bounds.is_empty() && !self.skip(b'=') {
            return Err(self.missing("an equals sign behind the bounds"));
        }
        Ok(bounds)
    }

    /// A place in a dimension, and what follows it.
    fn place(&mut self, end: u8) -> Result<i32, ValueError> {
        let len = self.input[self.at..].iter().take_while(|&&byte| byte != end).count();
        let digits = std::str::from_utf8(&self.input[self.at..self.at + len]).ok();
        let place = digits.and_then(|digits| digits.parse().ok());
        let place =
            place.ok_or_else(|| self.missing("a whole number as the bound of a dimension"))?;
        self.at += len;
        if self.skip(end) { Ok(place) } else { Err(self.missing("the end of the bounds")) }
    }

    /// What was written, behind its bounds where they are not the usual ones.
    fn with_bounds(self, bounds: &[(i32, i32)]) -> Result<String, ValueError> {
        let length = |&(first, last): &(i32, i32)| i64::from(last) - i64::from(first) + 1;
        let is_told = bounds.iter().map(length).eq(self.lengths.iter().map(|&len| len as i64));
        if !bounds.is_empty() && !is_told {
            return Err(refused("has bounds that are not those of what is in the braces"));
        }
        if bounds.iter().all(|(first, _)| *first == 1) {
            return Ok(self.out);
        }
        let told: String = bounds.iter().map(|(first, last)| format!("[{first}:{last}]")).collect();
        Ok(format!("{told}={}", self.out))
    }

    /// What is in a pair of braces, with them.
    fn level(&mut self, depth: usize) -> Result<(), ValueError> {
        if depth == DIMENSIONS_MAX {
            return Err(refused("has more than 6 dimensions"));
        }
        self.at += 1;
        self.out.push('{');
        self.blanks();
        if depth == 0 && self.skip(b'}') {
            self.out.push('}');
            return Ok(());
        }
        let mut length = 0;
        loop {
            self.blanks();
            if self.peek() == Some(b'{') {
                if self.leaves.is_some_and(|leaves| leaves <= depth) {
                    return Err(refused(UNEVEN));
                }
                self.level(depth + 1)?;
            } else {
                if *self.leaves.get_or_insert(depth) != depth {
                    return Err(refused(UNEVEN));
                }
                self.item()?;
            }
            length += 1;
            self.blanks();
            match self.peek() {
                Some(b',') => self.out.push(','),
                Some(b'}') => break,
                _ => return Err(self.missing("a comma or a closing brace")),
            }
            self.at += 1;
        }
        self.at += 1;
        self.out.push('}');
        self.ended(depth, length)
    }

    /// Sub-arrays end before what they are in, and all of one level are of one length.
    fn ended(&mut self, depth: usize, length: usize) -> Result<(), ValueError> {
        if self.lengths.len() <= depth {
            self.lengths.resize(depth + 1, 0);
        }
        match &mut self.lengths[depth] {
            known @ 0 => *known = length,
            known if *known != length => return Err(refused(UNEVEN)),
            _ => {}
        }
        Ok(())
    }

    /// An element, or NULL.
    fn item(&mut self) -> Result<(), ValueError> {
        self.elements += 1;
        let Some(written) = self.written()? else {
            self.out.push_str(NULL);
            return Ok(());
        };
        let value = self.element.canonical(&written).map_err(|error| {
            ValueError(format!("{error} (element {} of the array)", self.elements))
        })?;
        let value = std::str::from_utf8(&value).map_err(|_| refused("has bytes for an element"))?;
        write(&mut self.out, value);
        Ok(())
    }

    /// The next element without its quotes; `None` for the word NULL.
    fn written(&mut self) -> Result<Option<Vec<u8>>, ValueError> {
        let is_quoted = self.skip(b'"');
        let mut value = Vec::new();
        // Blanks behind the last other byte do not count, but in quotes or behind a backslash.
        let (mut kept, mut is_escaped) = (0, false);
        loop {
            let byte = self.peek().ok_or_else(|| self.missing("the array's end"))?;
            match byte {
                b'\\' => {
                    self.at += 1;
                    let next =
                        self.peek().ok_or_else(|| self.missing("what a backslash escapes"))?;
                    value.push(next);
                    is_escaped = true;
                    kept = value.len();
                }
                b'"' if is_quoted => {
                    self.at += 1;
                    return Ok(Some(value));
                }
                _ if is_quoted => value.push(byte),
                b',' | b'}' => break,
                b'{' | b'"' => return Err(self.missing("a comma or a closing brace")),
                _ => {
                    value.push(byte);
                    kept = if is_blank(byte) { kept } else { value.len() };
                }
            }
            self.at += 1;
        }
        value.truncate(kept);
        if value.is_empty() {
            return Err(self.missing("an element (the empty one is \"\")"));
        }
        let is_null = !is_escaped && value.eq_ignore_ascii_case(NULL.as_bytes());
        Ok((!is_null).then_some(value))
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn missing(&self, expected: &str) -> ValueError {
        refused(&format!("is none: {expected} is missing at byte {}", self.at))
    }
}

/// Appends an element, in quotes where it would not be read back without.
fn write(out: &mut String, value: &str) {
    let needs = |byte: u8| matches!(byte, b'"' | b'\\' | b'{' | b'}' | b',') || is_blank(byte);
    if !value.is_empty() && !value.eq_ignore_ascii_case(NULL) && !value.bytes().any(needs) {
        return out.push_str(value);
    }
    out.push('"');
    for char in value.chars() {
        if matches!(char, '"' | '\\') {
            out.push('\\');
        }
        out.push(char);
    }
    out.push('"');
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn refused(why: &str) -> ValueError {
    ValueError(format!("takes arrays such as {{1,2}} or {{\"a b\",NULL}}; this {why}"))
}

const NULL: &str = "NULL";
const UNEVEN: &str = "has sub-arrays of different lengths, or beside elements";
const DIMENSIONS_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(ty: &ColumnType, input: &str) -> Result<String, String> {
        let once = canonical(input.as_bytes(), ty).map_err(|error| error.0)?;
        assert_eq!(canonical(once.as_bytes(), ty).as_ref(), Ok(&once), "{input}");
        Ok(once)
    }

    const TEXT: ColumnType = ColumnType::Text { chars_max: None };
    const INT: ColumnType = ColumnType::Int { min: -9, max: 99 };

    #[test]
    fn arrays_have_one_form() {
        for (ty, input, output) in [
            (&INT, " { } ", "{}"),
            (&INT, "{1, 02 ,\t+3}", "{1,2,3}"),
            (&INT, "{null,\"7\"}", "{NULL,7}"),
            (&INT, "{ {1,2} , {3,NULL} }", "{{1,2},{3,NULL}}"),
            (&INT, "{{{1}},{{2}}}", "{{{1}},{{2}}}"),
            (&INT, "[1:2]={4,5}", "{4,5}"),
            (&INT, " [-1:+0][2:2]={{4},{5}}", "[-1:0][2:2]={{4},{5}}"),
            (&INT, "[1:1][0:0]={{4}}", "[1:1][0:0]={{4}}"),
            (&TEXT, "{a b , c\\ }", "{\"a b\",\"c \"}"),
            (&TEXT, r#"{"",Null,"null",\null}"#, r#"{"",NULL,"null","null"}"#),
            (&TEXT, r#"{"a\"b","\\","{}",","}"#, r#"{"a\"b","\\","{}",","}"#),
            (&TEXT, "{\u{e4},'x''}", "{\u{e4},'x''}"),
            (&TEXT, "{\"a\nb\"}", "{\"a\nb\"}"),
            (&ColumnType::Bool, "{true,f}", "{t,f}"),
            (&ColumnType::Float8, "{1.50,nan,-inf}", "{1.5,NaN,-Infinity}"),
            (&ColumnType::Jsonb, r#"{"{\"b\":1,\"a\":2}",1}"#, r#"{"{\"a\": 2, \"b\": 1}",1}"#),
        ] {
            assert_eq!(shown(ty, input).as_deref(), Ok(output), "{input}");
        }
    }

    #[test]
    fn what_is_no_array_is_refused() {
        for input in [
            "",
            "1",
            "{",
            "}",
            "{1",
            "{1,}",
            "{,1}",
            "{1,,2}",
            "{1}}",
            "{1} 2",
            "{1 2}",
            "{\"1\"2}",
            "{1\"2\"}",
            "{1{2}}",
            "{{1},2}",
            "{1,{2}}",
            "{{1,2},{3}}",
            "{{}}",
            "{{},{}}",
            "{\\",
            "{\"1",
            "{{{{{{{1}}}}}}}",
            "[1]={1}",
            "[1:2]={1}",
            "[2:1]={}",
            "[1:0]={}",
            "[1:1]{1}",
            "[1:1]={{1}}",
            "[0:2147483647]={1}",
            "[a:1]={1}",
            "[1:1",
            "[1,2]",
            "{100}",
            "{x}",
            "{\"\"}",
            "{1\0}",
        ] {
            assert!(shown(&INT, input).is_err(), "{input}");
        }
        let error = shown(&INT, "{1,NULL,100}").unwrap_err();
        assert_eq!(error, "takes whole numbers from -9 to 99, not '100' (element 3 of the array)");
        let error = shown(&INT, "[1,2]").unwrap_err();
        assert!(
            error.contains("takes arrays such as {1,2}") && error.contains("byte 1"),
            "{error}"
        );
    }
}
