//! Pages of HTML with everything in them: text, tables, charts. No scripts, nothing loaded from elsewhere.

use std::fmt::Write;

/// A page, written from top to bottom.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;\
color:#1c2733;background:#fff}h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}\
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}\
.wide{overflow-x:auto}th,td{border-bottom:1px solid #dde3ea;padding:.25rem .7rem;text-align:right;white-space:nowrap}\
th{position:sticky;top:0;background:#f3f6f9}th:first-child,td:first-child{text-align:left}\
tr.best td{background:#e8f6ea;font-weight:600}svg{max-width:100%;height:auto}\
pre{background:#f3f6f9;padding:.8rem;overflow-x:auto}footer{margin-top:3rem;color:#66717d;font-size:12px}";

impl Page {
    /// An empty page.
    pub fn new(title: &str) -> Self {
        Self { title: title.into(), body: format!("<h1>{}</h1>\n", escaped(title)) }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escaped(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    /// A list.
    pub fn list(&mut self, items: &[String]) {
        let items: String =
            items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
        let _ = writeln!(self.body, "<ul>\n{items}</ul>");
    }

    /// Text as it is, such as a command line.
    pub fn verbatim(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre>{}</pre>", escaped(text));
    }

    /// A chart from [`Chart::svg`](super::Chart::svg).
    pub fn svg(&mut self, svg: &str) {
        let _ = writeln!(self.body, "<figure>{svg}</figure>");
    }

    /// A table; the row of that number is marked.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>], best: Option<usize>) {
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
        };
        let head = cells("th", &mut header.iter().copied());
        let _ =
            writeln!(self.body, "<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>");
        for (index, row) in rows.iter().enumerate() {
            let class = if best == Some(index) { " class=\"best\"" } else { "" };
            let row = cells("td", &mut row.iter().map(String::as_str));
            let _ = writeln!(self.body, "<tr{class}>{row}</tr>");
        }
        self.body.push_str("</tbody></table></div>\n");
    }

    /// The whole page.
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n{}\
             <footer>destage {}</footer>\n</body></html>\n",
            self.body,
            env!("CARGO_PKG_VERSION"),
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone_and_its_text_stays_text() {
        let mut page = Page::new("a < b");
        page.heading("<script>alert(1)</script>");
        page.paragraph("x & y");
        page.list(&["<i>one".into()]);
        page.verbatim("destage \"serve\"");
        let rows = vec![vec!["1".to_owned()], vec!["2".to_owned()]];
        page.table(&["n"], &rows, Some(1));
        page.svg("<svg></svg>");
        let html = page.html();
        assert!(html.starts_with("<!doctype html>") && html.contains("<title>a &lt; b</title>"));
        assert!(!html.contains("<script") && !html.contains("<i>") && !html.contains("http"));
        assert!(html.contains("<tr class=\"best\"><td>2</td></tr>"), "{html}");
        assert!(html.contains("x &amp; y") && html.contains("<figure><svg></svg></figure>"));
    }
}
