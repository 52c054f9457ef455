//! The console: one page on the admin port that shows what `/status` says, and sends the commands that `/command` takes.
//!
//! The page is put together here from three files that can be read as they are. It loads nothing from anywhere: its style and its
//! script are in it, and the browser is told to run nothing else.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

struct Console {
    page: String,
    policy: String,
}

static CONSOLE: LazyLock<Console> = LazyLock::new(|| {
    let page = PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    Console { page, policy }
});

/// The page.
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, &*CONSOLE.policy),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, &*CONSOLE.page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        assert!(CONSOLE.page.len() < 150 << 10, "{}", CONSOLE.page.len());
        for scheme in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!CONSOLE.page.contains(scheme), "{scheme}");
        }
        assert!(!CONSOLE.page.contains("/*STYLE*/") && !CONSOLE.page.contains("/*SCRIPT*/"));
        // Handlers in attributes would not run, and text of others must not become markup.
        assert!(!PAGE.contains(" onclick=") && !SCRIPT.contains("innerHTML"));
    }
}
