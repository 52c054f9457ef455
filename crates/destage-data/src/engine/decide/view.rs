//! What is told of parked groups: as JSON, and as replies to Redis clients.

use super::asker::ParkedAnswer;
use crate::origins::ParkedGroup;
use crate::resp::{Reply, ReplyError};
use destage_core::Lsn;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Changes that a list shows of each group.
const SHAPES_MAX: usize = 5;

/// What a change does to which columns of which table, without keys and values: `update customers (visits)`.
fn shape(change: &Value) -> String {
    let list = |name: &str| change[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(table) = change["table"].as_str() else {
        let tables: Vec<&str> = list("tables").iter().filter_map(Value::as_str).collect();
        return format!("SQL on {}", tables.join(", "));
    };
    let columns: Vec<&str> =
        list("columns").iter().filter_map(|column| column["name"].as_str()).collect();
    let op = change["op"].as_str().unwrap_or("change");
    if columns.is_empty() {
        format!("{op} {table}")
    } else {
        format!("{op} {table} ({})", columns.join(", "))
    }
}

fn shapes(changes: &[Value]) -> Vec<String> {
    let mut shapes: Vec<String> = changes.iter().take(SHAPES_MAX).map(shape).collect();
    if changes.len() > SHAPES_MAX {
        shapes.push(format!("{} more", changes.len() - SHAPES_MAX));
    }
    shapes
}

/// The group that another one is parked behind, if that still is there.
fn builds_on(groups: &[ParkedGroup], group: &ParkedGroup) -> Option<u64> {
    let lsn = group.depends_on?;
    groups.iter().any(|other| other.lsn == lsn).then_some(lsn.0)
}

pub(super) fn in_short(groups: &[ParkedGroup], group: &ParkedGroup) -> Value {
    let payload: Value = serde_json::from_str(&group.payload).unwrap_or_default();
    let changes = payload["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut tables: BTreeSet<&str> = BTreeSet::new();
    for change in changes {
        // Raw SQL names several.
        let list = |name: &str| change[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let rows = list("rows").iter().map(|row| &row["table"]);
        let named = list("tables").iter().chain(rows).chain([&change["table"]]);
        tables.extend(named.filter_map(Value::as_str));
    }
    json!({
        "id": group.lsn.0,
        "builds_on": builds_on(groups, group),
        "tables": tables,
        "changes": shapes(changes),
        "reason": group.reason,
    })
}

pub(super) fn shown(groups: &[ParkedGroup], lsn: Lsn) -> ParkedAnswer {
    let group = groups.iter().find(|group| group.lsn == lsn).ok_or_else(|| {
        ReplyError::err(format!("write {} is not parked; see PARKED LIST", lsn.0))
    })?;
    let payload = serde_json::from_str(&group.payload);
    Ok(json!({
        "id": group.lsn.0,
        "domain": group.domain.0,
        "builds_on": builds_on(groups, group),
        "reason": group.reason,
        "payload": payload.unwrap_or_else(|_| Value::String(group.payload.clone())),
    }))
}

/// An answer for Redis clients: lists and their maps as such; a map inside a map as the JSON text that EDIT takes.
pub(super) fn push_value(reply: &mut Reply<'_>, value: &Value) {
    match value {
        Value::Array(values) => {
            reply.array(values.len());
            values.iter().for_each(|value| push_value(reply, value));
        }
        Value::Object(fields) => {
            reply.map(fields.len());
            for (name, value) in fields {
                reply.bulk(name.as_bytes());
                match value {
                    Value::Object(_) => reply.bulk(value.to_string().as_bytes()),
                    _ => push_value(reply, value),
                }
            }
        }
        Value::String(text) => reply.bulk(text.as_bytes()),
        Value::Null => reply.null(),
        Value::Bool(_) | Value::Number(_) => match value.as_i64() {
            Some(number) => reply.integer(number),
            None => reply.bulk(value.to_string().as_bytes()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_changes_without_keys_and_values() {
        let change = json!({
            "op": "update", "table": "customers", "key": {"id": "7"},
            "columns": [{"name": "visits", "add": "1"}, {"name": "email", "set": "a@b.c"}],
        });
        let delete = json!({ "op": "delete", "table": "orders", "key": {"id": "8"} });
        let sql =
            json!({ "sql": "UPDATE t SET v = $1", "parameters": ["x"], "tables": ["t", "u"] });
        let all = [change, delete, sql];
        assert_eq!(
            shapes(&all),
            ["update customers (visits, email)", "delete orders", "SQL on t, u"]
        );
        assert_eq!(shapes(&vec![all[1].clone(); 8])[5], "3 more");
    }
}
