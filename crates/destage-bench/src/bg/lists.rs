//! Friends and invitations as lists inside the members' own documents: for an origin that changes one document at a time, as
//! the paper's MongoDB does. Who changes two members does so one after the other; each change can be repeated.

use destage_runtime::sockets::Listen;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};

use super::graph::{Action, Found, Member, Pair};
use super::link::SHOWN;
use crate::Result;
use crate::behind::{driver, runtime};
use crate::control::Value;
use crate::servers::Ferretdb;
use crate::wire::Resp;

/// The database, the collection of the side without Destage, and that behind it.
pub(super) const DATABASE: &str = "bg";
pub(super) const DIRECT: &str = "direct";
pub(super) const OURS: &str = "members";

/// What collections hold, for Destage: a list is a text of numbers.
pub(super) const SETTINGS: &str = r#"[table.members]
id = "string"
[table.members.fields]
name = "string"
city = "string"
about = "string"
friends = "string"
pending = "string"
friend_count = "long"
pending_count = "long"
"#;

/// What becomes of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Keep,
    Add(Member),
    Remove(Member),
}

impl Change {
    /// The list afterwards, whether it was made before or not.
    fn apply(self, list: &str) -> String {
        let mut members: Vec<&str> = list.split_whitespace().collect();
        let text;
        match self {
            Self::Keep => {}
            Self::Remove(member) => {
                text = member.to_string();
                members.retain(|it| *it != text);
            }
            Self::Add(member) => {
                text = member.to_string();
                if !members.contains(&text.as_str()) {
                    members.push(&text);
                }
            }
        }
        members.join(" ")
    }
}

/// A change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    member: Member,
    friends: Change,
    pending: Change,
}

/// What an action changes, in its order.
fn edits(action: Action) -> Vec<Edit> {
    use Change::{Add, Keep, Remove};
    let edit = |member, friends, pending| Edit { member, friends, pending };
    match action {
        Action::View(_) | Action::Friends(_) | Action::Pending(_) => Vec::new(),
        Action::Invite { from, to } => vec![edit(to, Keep, Add(from))],
        Action::Reject { from, to } => vec![edit(to, Keep, Remove(from))],
        Action::Accept { from, to } => {
            vec![edit(to, Add(from), Remove(from)), edit(from, Add(to), Keep)]
        }
        Action::Thaw { one, other } => {
            vec![edit(one, Remove(other), Keep), edit(other, Remove(one), Keep)]
        }
    }
}

/// A client of Destage: lists are read, and written back in a transaction that others' changes make void.
#[derive(Debug)]
pub(super) struct Watching(Resp);

impl Watching {
    pub(super) async fn connect(address: &Listen) -> Result<Self> {
        Ok(Self(Resp::connect(address).await?))
    }

    pub(super) fn trips(&self) -> u64 {
        self.0.trips()
    }

    /// # Errors
    ///
    /// It was refused.
    pub(super) async fn perform(&mut self, action: Action) -> Result<()> {
        match action {
            Action::View(member) => {
                self.0.push(&["HGETALL", &key(member)]);
                match self.0.last().await? {
                    Value::List(fields) if !fields.is_empty() => Ok(()),
                    other => Err(format!("member {member} is missing: {other:?}").into()),
                }
            }
            Action::Friends(member) => self.list(member, "friends").await,
            Action::Pending(member) => self.list(member, "pending").await,
            _ => {
                for edit in edits(action) {
                    while !self.edit(edit).await? {}
                }
                Ok(())
            }
        }
    }

    async fn list(&mut self, member: Member, field: &str) -> Result<()> {
        self.0.push(&["HGET", &key(member), field]);
        let list = text(self.0.last().await?)?;
        for shown in list.split_whitespace().take(SHOWN) {
            self.0.push(&["HMGET", &format!("{OURS}:{shown}"), "name", "city"]);
        }
        if list.is_empty() { Ok(()) } else { self.0.last().await.map(drop) }
    }

    /// False if somebody else changed the member meanwhile.
    async fn edit(&mut self, edit: Edit) -> Result<bool> {
        let key = key(edit.member);
        self.0.push(&["WATCH", &key]);
        self.0.push(&["HMGET", &key, "friends", "pending"]);
        let Value::List(lists) = self.0.last().await? else {
            return Err(format!("no lists at {key}").into());
        };
        let [friends, pending] = &lists[..] else {
            return Err(format!("no lists at {key}").into());
        };
        let friends = edit.friends.apply(&text(friends.clone())?);
        let pending = edit.pending.apply(&text(pending.clone())?);
        let count = |list: &str| list.split_whitespace().count().to_string();
        self.0.push(&["MULTI"]);
        self.0.push(&["HSET", &key, "friends", &friends, "friend_count", &count(&friends)]);
        self.0.push(&["HSET", &key, "pending", &pending, "pending_count", &count(&pending)]);
        self.0.push(&["EXEC"]);
        Ok(self.0.last().await? != Value::Nil)
    }
}

fn key(member: Member) -> String {
    format!("{OURS}:{member}")
}

/// A field that is empty may be absent, too.
fn text(value: Value) -> Result<String> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Nil => Ok(String::new()),
        other => Err(format!("a list is no text: {other:?}").into()),
    }
}

/// A client of MongoDB's protocol itself: lists are arrays, changed where they are.
#[derive(Debug)]
pub(super) struct Documents {
    collection: Collection<Document>,
    trips: u64,
}

impl Documents {
    pub(super) fn of(client: &Client) -> Self {
        Self { collection: client.database(DATABASE).collection(DIRECT), trips: 0 }
    }

    pub(super) fn trips(&self) -> u64 {
        self.trips
    }

    /// # Errors
    ///
    /// It was refused, or a member is missing.
    pub(super) async fn perform(&mut self, action: Action) -> Result<()> {
        match action {
            Action::View(member) => self.member(member).await.map(drop),
            Action::Friends(member) => self.list(member, "friends").await,
            Action::Pending(member) => self.list(member, "pending").await,
            _ => {
                for edit in edits(action) {
                    self.edit(edit).await?;
                }
                Ok(())
            }
        }
    }

    async fn member(&mut self, member: Member) -> Result<Document> {
        self.trips += 1;
        let found = self.collection.find_one(doc! { "_id": member.to_string() }).await?;
        Ok(found.ok_or_else(|| format!("member {member} is missing"))?)
    }

    async fn list(&mut self, member: Member, field: &str) -> Result<()> {
        let found = self.member(member).await?;
        let shown: Vec<Bson> = found.get_array(field)?.iter().take(SHOWN).cloned().collect();
        if shown.is_empty() {
            return Ok(());
        }
        self.trips += 1;
        let names = doc! { "name": 1, "city": 1 };
        let find = self.collection.find(doc! { "_id": { "$in": shown } }).projection(names);
        let mut cursor = find.await?;
        while cursor.advance().await? {}
        Ok(())
    }

    async fn edit(&mut self, edit: Edit) -> Result<()> {
        let (mut push, mut pull, mut count) = (doc! {}, doc! {}, doc! {});
        for (list, counter, change) in
            [("friends", "friend_count", edit.friends), ("pending", "pending_count", edit.pending)]
        {
            match change {
                Change::Keep => {}
                Change::Add(member) => {
                    push.insert(list, member.to_string());
                    count.insert(counter, 1_i64);
                }
                Change::Remove(member) => {
                    pull.insert(list, member.to_string());
                    count.insert(counter, -1_i64);
                }
            }
        }
        let mut update = doc! { "$inc": count };
        for (operator, lists) in [("$push", push), ("$pull", pull)] {
            if !lists.is_empty() {
                update.insert(operator, lists);
            }
        }
        self.trips += 1;
        let filter = doc! { "_id": edit.member.to_string() };
        match self.collection.update_one(filter, update).await?.matched_count {
            1 => Ok(()),
            _ => Err(format!("member {} is missing", edit.member).into()),
        }
    }
}

/// Makes both collections hold what the rows say.
///
/// # Errors
/// The server refuses something.
pub(super) fn fill(server: &Ferretdb, rows: &Found) -> Result<()> {
    runtime()?.block_on(async {
        let database = driver(server.address).await?.database(DATABASE);
        let documents = |is_direct: bool| -> Vec<Document> {
            let list = |members: Vec<String>| {
                if is_direct { Bson::from(members) } else { Bson::from(members.join(" ")) }
            };
            let of = |member: Member| {
                let own = rows.friends.iter().filter(|(one, _)| *one == member);
                let friends: Vec<String> = own.map(|(_, friend)| friend.to_string()).collect();
                let own = rows.pending.iter().filter(|(_, invited)| *invited == member);
                let pending: Vec<String> = own.map(|(from, _)| from.to_string()).collect();
                doc! {
                    "_id": member.to_string(),
                    "name": format!("member {member}"),
                    "city": format!("city {member}"),
                    "about": "x".repeat(800),
                    "friend_count": friends.len() as i64,
                    "pending_count": pending.len() as i64,
                    "friends": list(friends),
                    "pending": list(pending),
                }
            };
            rows.counts.keys().map(|member| of(*member)).collect()
        };
        database.collection::<Document>(DIRECT).insert_many(documents(true)).await?;
        database.collection::<Document>(OURS).insert_many(documents(false)).await?;
        Ok(())
    })
}

/// What a collection holds.
///
/// # Errors
/// The server refuses something, or a document is none of ours.
pub(super) fn found(server: &Ferretdb, collection: &str) -> Result<Found> {
    runtime()?.block_on(async {
        let database = driver(server.address).await?.database(DATABASE);
        let mut cursor = database.collection::<Document>(collection).find(doc! {}).await?;
        let mut found = Found::default();
        while cursor.advance().await? {
            let document = cursor.deserialize_current()?;
            let member: Member = document.get_str("_id")?.parse()?;
            let friends = numbers(document.get("friends"))?;
            let pending = numbers(document.get("pending"))?;
            found.friends.extend(friends.into_iter().map(|friend| -> Pair { (member, friend) }));
            found.pending.extend(pending.into_iter().map(|from| -> Pair { (from, member) }));
            let counts = (document.get_i64("friend_count")?, document.get_i64("pending_count")?);
            found.counts.insert(member, counts);
        }
        Ok(found)
    })
}

fn numbers(list: Option<&Bson>) -> Result<Vec<Member>> {
    let texts: Vec<&str> = match list {
        None => Vec::new(),
        Some(Bson::String(text)) => text.split_whitespace().collect(),
        Some(Bson::Array(items)) => items.iter().filter_map(Bson::as_str).collect(),
        Some(other) => return Err(format!("no list: {other}").into()),
    };
    Ok(texts.into_iter().map(str::parse).collect::<std::result::Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_done_twice_are_done_once() {
        for (change, before, after) in [
            (Change::Add(7), "1 2", "1 2 7"),
            (Change::Remove(1), "1 11", "11"),
            (Change::Keep, "3", "3"),
            (Change::Add(7), "", "7"),
        ] {
            assert_eq!(change.apply(before), after);
            assert_eq!(change.apply(after), after);
        }
    }

    #[test]
    fn both_members_of_a_friendship_are_changed() {
        let accept = edits(Action::Accept { from: 1, to: 2 });
        assert_eq!(accept.iter().map(|edit| edit.member).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(accept[0].pending, Change::Remove(1));
        assert!(edits(Action::View(3)).is_empty());
    }
}
