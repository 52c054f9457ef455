//! A real browser without a screen, driven by its DevTools protocol.

use crate::harness::scratch::{adopt, release};
use crate::harness::{PATIENCE, Scratch, eventually, has};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// One page in a browser of its own. Ends with its test.
pub(crate) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    next: u64,
    /// What the browser told without being asked: requests, messages of the console, errors.
    events: Vec<Value>,
}

impl Browser {
    /// Starts it; `None`, after saying so, where there is none.
    pub(crate) fn start(scratch: &Scratch, width: u32, height: u32) -> Option<Self> {
        if !has("chromium") {
            return None;
        }
        let profile = scratch.join(format!("browser-{width}"));
        let child = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-port=0", "--no-first-run", "--disable-extensions"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--window-size={width},{height}"))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        adopt(child.id());
        let file = profile.join("DevToolsActivePort");
        let mut port = String::new();
        eventually("the browser listens", PATIENCE, || {
            port = std::fs::read_to_string(&file).unwrap_or_default();
            port.lines().count() >= 2
        });
        let port = port.lines().next().expect("a port").to_owned();
        let mut pages =
            ureq::get(format!("http://127.0.0.1:{port}/json/list")).call().expect("its pages");
        let pages: Value = pages.body_mut().read_json().expect("JSON");
        let page = pages.as_array().and_then(|all| all.iter().find(|page| page["type"] == "page"));
        let url =
            page.expect("a page")["webSocketDebuggerUrl"].as_str().expect("its address").to_owned();
        let stream =
            TcpStream::connect(format!("127.0.0.1:{port}")).expect("the browser takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        let (socket, _) = tungstenite::client(url, stream).expect("the browser speaks WebSocket");
        let mut browser = Self { child, socket, next: 0, events: Vec::new() };
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        browser.ask("Emulation.setDeviceMetricsOverride", screen);
        Some(browser)
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let message = json!({ "id": id, "method": method, "params": params });
        self.socket.send(Message::text(message.to_string())).expect("the browser listens");
        loop {
            let Message::Text(text) = self.socket.read().expect("the browser answers") else {
                continue;
            };
            let found: Value = serde_json::from_str(&text).expect("JSON");
            if found["id"] == id {
                assert!(found["error"].is_null(), "{method}: {found}");
                return found["result"].clone();
            }
            self.events.push(found);
        }
    }

    /// Goes to a page.
    pub(crate) fn open(&mut self, url: &str) {
        self.ask("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Light or dark.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// The value of an expression on the page; promises are waited for.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.value(&format!("Boolean({expression})")) != true {
            if began.elapsed() > PATIENCE {
                let page = self.value("document.body.innerText");
                panic!(
                    "not within {PATIENCE:?}: {expression}\n{}",
                    page.as_str().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a button, as a user does.
    #[track_caller]
    pub(crate) fn press(&mut self, selector: &str) {
        self.until(&format!("document.querySelector({selector:?})"));
        self.value(&format!("document.querySelector({selector:?}).click()"));
    }

    /// Writes into a field.
    pub(crate) fn write(&mut self, selector: &str, text: &str) {
        self.value(&format!("document.querySelector({selector:?}).value = {text:?}"));
    }

    /// A picture of the whole page, among the artifacts of the tests.
    pub(crate) fn picture(&mut self, name: &str) {
        let params = json!({ "format": "png", "captureBeyondViewport": true });
        let answer = self.ask("Page.captureScreenshot", params);
        let data = answer["data"].as_str().expect("a picture");
        save(name, &decoded(data));
    }

    /// What is wrong so far: script errors, refusals by the policy, and requests to anybody else.
    pub(crate) fn complaints(&mut self, own: &str) -> Vec<String> {
        // Whatever was told before this answer has come by then.
        self.value("1");
        let wrong = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Log.entryAdded" if params["entry"]["level"] == "error" => {
                    Some(params["entry"].to_string())
                }
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str()?;
                    (!url.starts_with(own) && !url.starts_with("data:")).then(|| url.to_owned())
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(wrong).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}

/// Where pictures are kept: `target/people`.
pub(crate) fn artifacts() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../people")
}

fn save(name: &str, bytes: &[u8]) {
    let folder = artifacts();
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 5_000, "{name} is no picture");
    std::fs::write(folder.join(format!("{name}.png")), bytes).expect("the picture can be written");
}

/// Base64, as the browser sends pictures.
fn decoded(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(value).collect();
    let group = |four: &[u32]| {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}

#[test]
fn base64_is_read() {
    assert_eq!(decoded("aGVsbG8="), b"hello");
    assert_eq!(decoded("aGVsbA=="), b"hell");
    assert_eq!(decoded("aGVs"), b"hel");
}
