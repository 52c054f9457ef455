//! A password typed, or piped in.

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{self, BufRead, IsTerminal, Write};

/// The first line of standard input, without its end. At a terminal it is asked for on standard error, and not shown.
///
/// # Errors
/// It cannot be read, or is no UTF-8.
pub fn read(prompt: &str) -> io::Result<String> {
    let input = io::stdin();
    let mut line = String::new();
    if !input.is_terminal() {
        input.lock().read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    let mut said = io::stderr();
    write!(said, "{prompt}: ")?;
    said.flush()?;
    tcsetattr(&input, OptionalActions::Flush, &hidden)?;
    let read = input.lock().read_line(&mut line);
    tcsetattr(&input, OptionalActions::Now, &shown)?;
    writeln!(said)?;
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
