//! The book of all pages. It is built from `docs/SUMMARY.md` by Sphinx, whose warnings are errors: dead links and pages that
//! no chapter names are refused.

use crate::{Result, clients, root, target};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the book in `target/book`; the page to begin with.
///
/// # Errors
/// What could not be installed, and what Sphinx has found.
pub(crate) fn build() -> Result<PathBuf> {
    let book = target().join("book");
    let said = sphinx(&root(), &book)?;
    if said.is_empty() {
        Ok(book.join("docs/SUMMARY.html"))
    } else {
        Err(format!("the book has faults:\n{said}"))
    }
}

/// Builds the book, and one with a dead link of each kind: the check must be one that can fail.
///
/// # Errors
/// What [`build`] finds, and a dead link that is not refused.
pub(crate) fn check() -> Result<()> {
    build()?;
    let place = target().join("xtask/book-with-dead-links");
    let docs = place.join("docs");
    std::fs::create_dir_all(&docs)
        .and_then(|()| std::fs::write(docs.join("SUMMARY.md"), "# Part\n\n- [Page](PAGE.md)\n"))
        .and_then(|()| {
            std::fs::write(docs.join("PAGE.md"), format!("# Page\n\n{}\n", DEAD.join(" ")))
        })
        .map_err(|error| format!("failed to write {}: {error}", docs.display()))?;
    let said = sphinx(&place, &place.join("book"))?;
    let refused = said.matches("myst.xref_missing").count();
    if refused == DEAD.len() {
        Ok(())
    } else {
        Err(format!("{refused} of {} dead links were refused:\n{said}", DEAD.len()))
    }
}

/// Runs Sphinx over the pages of a folder; its warnings, nothing if all is well.
fn sphinx(pages: &Path, book: &Path) -> Result<String> {
    let settings = root().join("docs/book");
    let home = target().join("xtask");
    std::fs::create_dir_all(&home)
        .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
    let python = clients::python(&settings, &home.join("book-venv"))?;
    let mut command = Command::new(python);
    // Each time anew: a page that has not changed may link to one that is gone.
    command.args(["-m", "sphinx", "--quiet", "--fresh-env", "--builder", "html"]);
    command.arg("--doctree-dir").arg(home.join("book-trees")).arg("--conf-dir").arg(&settings);
    let output = command
        .arg(pages)
        .arg(book)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("failed to start Sphinx: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(said) } else { Err(format!("Sphinx failed:\n{said}")) }
}

const DEAD: [&str; 3] = ["[a](NOWHERE.md)", "[b](#nowhere)", "[c](SUMMARY.md#nowhere)"];
