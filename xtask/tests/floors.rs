//! The large state machines are written in many files, each with methods of one type. Their files stand on floors: a method
//! calls those of its own file and of lower floors only. Otherwise no file could be understood without all the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

type Name = String;

/// What a file's methods of the type are called, and which methods they call.
#[derive(Default)]
struct File {
    own: BTreeSet<Name>,
    calls: BTreeSet<Name>,
}

struct Calls<'f>(&'f mut BTreeSet<Name>);

impl Visit<'_> for Calls<'_> {
    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        if matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self")) {
            self.0.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &syn::ExprPath) {
        let mut segments = path.path.segments.iter();
        if let (Some(first), Some(method), None) =
            (segments.next(), segments.next(), segments.next())
            && first.ident == "Self"
        {
            self.0.insert(method.ident.to_string());
        }
        visit::visit_expr_path(self, path);
    }
}

fn read(path: &Path, name: &str) -> File {
    let text = std::fs::read_to_string(path).expect("sources are readable");
    let parsed = syn::parse_file(&text).expect("sources are Rust");
    let mut file = File::default();
    for item in parsed.items {
        let syn::Item::Impl(block) = item else { continue };
        // What a trait asks for is called from outside, on whatever floor it stands.
        let is_own = matches!(&*block.self_ty, syn::Type::Path(own) if own.path.is_ident(name));
        if !is_own {
            continue;
        }
        for item in &block.items {
            let syn::ImplItem::Fn(method) = item else { continue };
            if block.trait_.is_none() {
                file.own.insert(method.sig.ident.to_string());
            }
            Calls(&mut file.calls).visit_block(&method.block);
        }
    }
    file
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("entries are readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests.rs"
        {
            found.push(path);
        }
    }
}

/// The files that are left when those that call no other file are taken away, and those that then call no other, and so on:
/// each of them calls, over some others, itself. With that the number of methods that were read.
fn circle(files: &BTreeMap<PathBuf, File>) -> (Vec<&PathBuf>, usize) {
    let mut homes: BTreeMap<&str, Vec<&PathBuf>> = BTreeMap::new();
    for (path, file) in files {
        file.own.iter().for_each(|name| homes.entry(name).or_default().push(path));
    }
    let mut calls: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = BTreeMap::new();
    for (path, file) in files {
        let others =
            file.calls.iter().flat_map(|name| homes.get(name.as_str()).into_iter().flatten());
        calls.insert(path, others.copied().filter(|other| *other != path).collect());
    }
    while let Some(low) = calls.iter().find(|(_, others)| others.is_empty()).map(|(low, _)| *low) {
        calls.remove(low);
        calls.values_mut().for_each(|others| {
            others.remove(low);
        });
    }
    (calls.into_keys().collect(), files.values().map(|file| file.own.len()).sum())
}

fn stands_on_floors(folder: &str, name: &str, methods_min: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = Vec::new();
    sources(&root.join(folder), &mut paths);
    let files: BTreeMap<PathBuf, File> =
        paths.into_iter().map(|path| (path.clone(), read(&path, name))).collect();
    let (left, methods) = circle(&files);
    assert!(methods >= methods_min, "only {methods} methods of {name} were found");
    assert!(left.is_empty(), "files of {name} call one another in a circle: {left:#?}");
}

#[test]
fn the_files_of_the_data_engine_call_downwards() {
    stands_on_floors("crates/destage-data/src/engine", "Engine", 300);
}

#[test]
fn the_files_of_the_volume_call_downwards() {
    stands_on_floors("crates/destage-block/src/engine", "Volume", 140);
}

#[test]
fn the_files_of_the_core_call_downwards() {
    stands_on_floors("crates/destage-core/src", "Core", 120);
}

/// How many fields the type has that a file defines.
fn fields(path: &str, name: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let text = std::fs::read_to_string(path).expect("sources are readable");
    let parsed = syn::parse_file(&text).expect("sources are Rust");
    let fields = |item| match item {
        syn::Item::Struct(item) if item.ident == name => Some(item.fields.len()),
        _ => None,
    };
    parsed.items.into_iter().find_map(fields).expect("the type is defined here")
}

/// More of them belong into a part.
#[test]
fn the_engine_and_the_volume_are_made_of_few_parts() {
    let engine = fields("crates/destage-data/src/engine/mod.rs", "Engine");
    let volume = fields("crates/destage-block/src/engine/mod.rs", "Volume");
    assert!(engine.max(volume) <= 20, "Engine has {engine} fields, Volume has {volume}");
}

#[test]
fn a_circle_is_noticed() {
    let file = |own: &str, calls: &str| File {
        own: [own.to_owned()].into(),
        calls: [calls.to_owned()].into(),
    };
    let mut files = BTreeMap::new();
    files.insert(PathBuf::from("top"), file("turn", "request"));
    files.insert(PathBuf::from("middle"), file("request", "fail"));
    files.insert(PathBuf::from("low"), file("fail", "len"));
    assert!(circle(&files).0.is_empty());
    files.insert(PathBuf::from("low"), file("fail", "turn"));
    assert_eq!(circle(&files).0.len(), 3);
}
