//! Text that comes from elsewhere (clients, origins, names of files), on its way to a log or a terminal.

use std::borrow::Cow;

/// The text on one line, with what would begin another one or command a terminal as `\n`, `\u{1b}` and so on.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, is_control)
}

/// The same for a text of several lines of our own making: line feeds stay.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_control(c))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Controls, line separators, and what turns the direction of text, so that it reads otherwise than it is.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_a_line_or_commands_a_terminal_is_shown_and_all_else_stays() {
        assert_eq!(
            escaped("a\nERROR b\r\u{1b}[2J\u{9b}1m\0"),
            r"a\nERROR b\r\u{1b}[2J\u{9b}1m\u{0}"
        );
        assert_eq!(escaped_lines("a\nb\u{1b}[2J"), "a\nb\\u{1b}[2J");
        assert!(matches!(escaped("Größe 'ok' \\n \"x\""), Cow::Borrowed(_)));
        assert_eq!(escaped("\u{202e}txt"), r"\u{202e}txt");
    }
}
