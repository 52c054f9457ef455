//! A program in a real terminal of a given size, and pictures of what it shows.

use crate::browser::{Browser, artifacts};
use crate::harness::scratch::{adopt, release};
use crate::harness::{PATIENCE, Scratch, eventually};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use vt100::{Cell, Color, Parser};

/// What ends the drawing: the screen that was there before comes back.
const LEFT: &str = "\u{1b}[?1049l";

/// Ends with its test.
pub(crate) struct Terminal {
    script: Child,
    record: PathBuf,
    columns: u16,
    rows: u16,
}

impl Terminal {
    /// Runs a command line of the shell in a terminal of so many columns and rows.
    pub(crate) fn run(scratch: &Scratch, (columns, rows): (u16, u16), line: &str) -> Self {
        let record = scratch.join(format!("typescript-{columns}"));
        let line = format!("stty rows {rows} cols {columns}; {line}");
        let script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &line])
            .arg(&record)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("script starts");
        adopt(script.id());
        Self { script, record, columns, rows }
    }

    /// Everything that was written to it.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.record).unwrap_or_default()).into_owned()
    }

    /// What it shows, or showed last before the program ended.
    fn screen(&self) -> Parser {
        let written = self.written();
        let (rows, columns) = (self.rows.try_into(), self.columns.try_into());
        let mut parser = Parser::new(rows.expect("rows"), columns.expect("columns"), 0);
        parser.process(written.split(LEFT).next().unwrap_or_default().as_bytes());
        parser
    }

    /// Waits until this holds of the lines that it shows.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        eventually(what, PATIENCE, || holds(&self.screen().screen().contents()));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let input = self.script.stdin.as_mut().expect("piped");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("it reads keys");
    }

    /// Waits for the program's end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the program ends", PATIENCE, || {
            ended = self.script.try_wait().expect("it is our child");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    /// A picture of what it shows, among the artifacts of the tests: as it stands in a page, and as the browser draws it where
    /// there is one.
    pub(crate) fn picture(&self, name: &str) {
        let folder = artifacts();
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("{name}.svg"));
        let (drawing, width, height) = drawn(&self.screen(), self.columns, self.rows);
        std::fs::write(&file, drawing).expect("the picture can be written");
        let scratch = Scratch::new();
        let Some(mut browser) = Browser::start(&scratch, width, height) else { return };
        let file = file.canonicalize().expect("it was written");
        browser.open(&format!("file://{}", file.display()));
        browser.picture(name);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
        release(self.script.id());
    }
}

/// Pixels of a character.
const WIDTH: u32 = 8;
const HEIGHT: u32 = 18;
const FRONT: &str = "#d8dee9";
const BACK: &str = "#1b1e24";

/// How a character looks: its colour, the one behind it, bold, dim.
#[derive(Clone, Copy, PartialEq)]
struct Look(Color, Color, bool, bool);

impl Look {
    fn of(cell: &Cell) -> Self {
        let (front, back) = (cell.fgcolor(), cell.bgcolor());
        if cell.inverse() && (front, back) == (Color::Default, Color::Default) {
            return Self(Color::Idx(0), Color::Idx(7), cell.bold(), cell.dim());
        }
        let (front, back) = if cell.inverse() { (back, front) } else { (front, back) };
        Self(front, back, cell.bold(), cell.dim())
    }
}

/// The screen as SVG, with its width and height in pixels.
fn drawn(parser: &Parser, columns: u16, rows: u16) -> (String, u32, u32) {
    let (width, height) = (u32::from(columns) * WIDTH, u32::from(rows) * HEIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"{BACK}\"/>\n"
    );
    for row in 0..rows {
        let cells: Vec<&Cell> =
            (0..columns).filter_map(|column| parser.screen().cell(row, column)).collect();
        let mut column = 0;
        for run in cells.chunk_by(|one, next| Look::of(one) == Look::of(next)) {
            draw_run(&mut out, run, column, u32::from(row));
            column += run.len() as u32;
        }
    }
    (out + "</svg>\n", width, height)
}

fn draw_run(out: &mut String, run: &[&Cell], column: u32, row: u32) {
    let Look(front, back, is_bold, is_dim) = Look::of(run[0]);
    let (x, y, width) = (column * WIDTH, row * HEIGHT, run.len() as u32 * WIDTH);
    if back != Color::Default {
        let fill = colour(back, BACK);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\" fill=\"{fill}\"/>"
        );
    }
    let text: String =
        run.iter().map(|cell| if cell.has_contents() { cell.contents() } else { " " }).collect();
    if text.trim().is_empty() {
        return;
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (fill, base) = (colour(front, FRONT), y + HEIGHT - 5);
    let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
    let faint = if is_dim { " opacity=\"0.6\"" } else { "" };
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{base}\" textLength=\"{width}\" xml:space=\"preserve\" fill=\"{fill}\"{weight}{faint}>{text}</text>"
    );
}

/// The sixteen colours that every terminal has; what is none of them looks like the usual one.
fn colour(colour: Color, usual: &str) -> String {
    const SIXTEEN: [&str; 16] = [
        "#1b1e24", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
        "#5c6370", "#ff7b86", "#b5e890", "#ffd68a", "#7cc4ff", "#e08bf7", "#6fd3e0", "#ffffff",
    ];
    match colour {
        Color::Idx(at) => {
            SIXTEEN.get(usize::from(at)).map_or_else(|| usual.into(), |c| (*c).into())
        }
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
        Color::Default => usual.into(),
    }
}

#[test]
fn a_screen_is_drawn_in_its_colours() {
    let mut parser = Parser::new(2.try_into().unwrap(), 10.try_into().unwrap(), 0);
    parser.process(b"plain \x1b[1;31m<bad\x1b[0m\x1b[7m  \x1b[0m");
    let (drawing, width, height) = drawn(&parser, 10, 2);
    assert_eq!((width, height), (80, 36));
    for part in [">plain <", "fill=\"#e06c75\" font-weight=\"bold\">&lt;bad<", "fill=\"#d8dee9\"/>"]
    {
        assert!(drawing.contains(part), "{part} in\n{drawing}");
    }
}
