//! Many requests at once in an asynchronous program sell a product, and never more of it than there is.
//!
//! ```sh
//! cargo run -p destage-data --example async_orders
//! ```
//!
//! A session blocks its thread, so each runs by `spawn_blocking`; a semaphore bounds the threads.

use destage_data::store::{Error, Options, Store};
use std::error::Error as StdError;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

const STOCK: i64 = 100;
const REQUESTS: i64 = 300;
/// Sessions under way, each with a thread of the runtime.
const SESSIONS: usize = 8;

fn main() -> Result<(), Box<dyn StdError>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    rusqlite::Connection::open(&file)?.execute_batch(&format!(
        "CREATE TABLE products (id INTEGER PRIMARY KEY, stock INTEGER NOT NULL);
         CREATE TABLE orders (id INTEGER PRIMARY KEY, product INTEGER NOT NULL);
         INSERT INTO products VALUES (1, {STOCK})"
    ))?;
    let origin = format!("sqlite:{}", file.display());
    let store = Arc::new(Options::new(origin, folder.path().join("data")).open()?);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let sold = runtime.block_on(sell(&store))?;
    println!("{REQUESTS} requests for {STOCK} pieces: {sold} sold");
    assert_eq!(sold, STOCK, "all is sold, and nothing twice");
    let left: i64 = store.session(|s| s.row(("products", 1))?.get("stock"))?;
    assert_eq!(left, 0);
    Arc::into_inner(store).expect("no session is under way").close()?;
    Ok(())
}

/// All requests at once; how many got their piece.
async fn sell(store: &Arc<Store>) -> Result<i64, Box<dyn StdError>> {
    let sessions = Arc::new(Semaphore::new(SESSIONS));
    let mut requests = JoinSet::new();
    for id in 1..=REQUESTS {
        let (store, sessions) = (store.clone(), sessions.clone());
        requests.spawn(async move {
            let _permit = sessions.acquire_owned().await.expect("it is never closed");
            spawn_blocking(move || order(&store, id)).await.expect("a session does not panic")
        });
    }
    let mut sold = 0;
    while let Some(request) = requests.join_next().await {
        sold += i64::from(request??);
    }
    Ok(sold)
}

/// Whether there was a piece left.
fn order(store: &Store, id: i64) -> Result<bool, Error> {
    store.session(|s| {
        let stock: i64 = s.row(("products", 1))?.get("stock")?;
        if stock == 0 {
            return Ok(false);
        }
        s.inc(("products", 1), "stock", -1)?;
        s.insert(("orders", id), [("product", 1.into())])?;
        Ok(true)
    })
}
